"""Figure 4 of Checkmate: overhead against the memory budget, V100 costs, with every strategy of the registry.

VGG16 at batch 256, MobileNet at 512 and U-Net at 32, layer graphs, modelled V100 kernel costs (`layers/v100.py`)
since the paper's profiles are no longer published. The budget is all memory: parameters, their gradients, inputs and
values. Budgets are evenly spaced from the least that has a schedule to the peak without recomputation, with
the V100's 16 GB among them. Cells at 16 GB are solved with the artifact's FLOP costs as well, so that it shows how much
the costs move a figure.

    python benchmarks/figures/budget_sweep.py         # the figure's strategies, six budgets, 5 s a solve
    python benchmarks/figures/budget_sweep.py --full  # every strategy, 24 budgets, 60 s; resumes what is in the folder
    python benchmarks/figures/budget_sweep.py --networks U-Net --strategies checkmate linearized-greedy --budgets 1
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.layer_graphs import answer_any, best_within, most_seconds, network_range, solve_request
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.published import published
from benchmarks.lib.tables import markdown, new_figure, write_csv, write_table

BATCHES = {"VGG16": 256, "MobileNet": 512, "U-Net": 32}
AXES = {"VGG16": (13, 22), "MobileNet": (4, 48), "U-Net": (4, 32)}  # GB, of the published figure
OURS = "checkmate"
FIGURE = (
    OURS, "checkpoint-all", "griewank", "chen-sqrt", "chen-greedy", "ap-sqrt", "ap-greedy", "linearized-sqrt",
    "linearized-greedy", "lp-rounding",
)  # fmt: skip
V100 = 16_000_000_000
COSTS, OTHER_COSTS = "v100", "artifact"
COLUMNS = (
    "network", "batch", "nodes", "costs", "strategy", "budget_bytes", "outcome", "overhead", "bound_overhead", "cost",
    "base_cost", "lower_bound", "peak_bytes", "peak_bytes_plain", "staged", "proven", "seconds", "limit", "reason",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "budget_sweep", "six budgets, 5 s a solve", "24 budgets, 60 s, every strategy")
    parser.add_argument("--networks", nargs="*", choices=list(BATCHES), default=list(BATCHES), help="only these")
    parser.add_argument("--strategies", nargs="*", help="only these")
    parser.add_argument("--budgets", type=int, help="how many, 16 GB not counted")
    parser.add_argument("--time-limit", type=float, help="seconds a solve; relaxations get four times that")
    options = parser.parse_args()
    if serve_child(options, answer_any):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        solve_all(options)
    cells = [c for c in read_cells(options.output) if c.get("outcome") != FAILED]
    if not cells:
        raise SystemExit(f"there is no result in {options.output}")
    ranges = {(r["network"], r["costs"]): r for r in read_cells(options.output, "range-")}
    write(options.output, cells, ranges)


def solve_all(options: Any) -> None:
    """Graphs and ranges, the sweep, and 16 GB with the other costs."""
    from checkmate_tf.strategies import STRATEGIES

    names = options.strategies or (list(STRATEGIES) if options.full else FIGURE)
    unknown = set(names) - set(STRATEGIES)
    if unknown:
        raise SystemExit(f"no such strategy: {', '.join(sorted(unknown))}; there are {', '.join(sorted(STRATEGIES))}")
    limit = options.time_limit or (60.0 if options.full else 5.0)
    count = options.budgets or (24 if options.full else 6)
    for network in options.networks:
        for costs in (COSTS, OTHER_COSTS):
            known = network_range(__file__, options.output, network, BATCHES[network], costs)
            if known is None:
                continue
            budgets = sweep(known, count) if costs == COSTS else [V100]
            requests = [solve_request(known, name, budget, limit) for budget in budgets for name in names]
            run_cells(__file__, options.output, requests, most_seconds, options.again, jobs=at_once(2))


def sweep(known: dict, count: int) -> list[int]:
    """Budgets from the least to the peak, and 16 GB if it lies between."""
    least, peak = known["least_bytes"], known["peak_bytes"]
    budgets = {least + (peak - least) * k // max(count - 1, 1) for k in range(count)}
    return sorted(budgets | ({V100} if least <= V100 <= peak else set()))


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path, cells: list[dict], ranges: dict[tuple[str, str], dict]) -> None:
    """CSV, tables and picture."""
    order = list(BATCHES)
    cells.sort(key=lambda c: (order.index(c["network"]), c["costs"] != COSTS, c["strategy"], c["budget_bytes"]))
    write_csv(output / "cells.csv", COLUMNS, cells)
    swept = [c for c in cells if c["costs"] == COSTS]
    text = compared(cells, ranges) + "\n" + "\n".join(tables(swept))
    write_table(output, text)
    draw(output / "budget_sweep.png", swept, ranges)
    print(text)
    above = beaten(swept)
    for line in above:
        print(f"CHEAPER THAN OURS: {line}")
    if not above:
        print("the default strategy's schedule is the cheapest at every budget, of all that were run")


def compared(cells: Sequence[dict], ranges: dict[tuple[str, str], dict]) -> str:
    """The published numbers of figure 4 beside ours, with V100 costs and with FLOPs."""
    rows = []
    for row in published("fig4"):
        if not row["value"]:
            continue
        both = [_ours(row, [c for c in cells if c["costs"] == costs], ranges, costs) for costs in (COSTS, OTHER_COSTS)]
        unit = row["unit"]
        rows.append((row["network"], row["batch"], row["budget"], row["metric"], f"{row['value']} {unit}", *both))
    head = ("network", "batch", "budget", "figure 4", "published", "ours, V100 costs (modelled)", "ours, FLOPs")
    return markdown(head, rows)


def _ours(row: dict[str, str], cells: Sequence[dict], ranges: dict[tuple[str, str], dict], costs: str) -> str:
    """Our number for a published one, in words; empty if the cells for it were not run."""
    network = row["network"]
    known = ranges.get((network, costs))
    if row["budget"] == "no remat":
        if known is None:
            return "not run"
        ours, theirs = known["peak_bytes"] / 1e9, known["retained_peak_bytes"] / 1e9
        return f"{ours:.1f} GB; {theirs:.1f} GB if forward values are held to the last stage, as published"
    cost = {}
    for name in (OURS, "linearized-greedy", "linearized-sqrt"):
        found = best_within([c for c in cells if (c["network"], c["strategy"]) == (network, name)], V100)
        if found is not None:
            cost[name] = found
    if OURS not in cost:
        return "not run"
    if row["metric"].startswith("overhead"):
        best = cost[OURS]
        return f"{best['overhead']:.2%} (at least {best['bound_overhead']:.2%})"
    other = "linearized-greedy" if row["metric"].endswith("greedy") else "linearized-sqrt"
    if other not in cost:
        return "no schedule in 16 GB" if any(c["strategy"] == other for c in cells) else "not run"
    return f"{cost[other]['cost'] / cost[OURS]['cost']:.2f} x"


def tables(cells: Sequence[dict]) -> list[str]:
    """Overheads, a table a network."""
    found = []
    for network in (n for n in BATCHES if any(c["network"] == n for c in cells)):
        mine = [c for c in cells if c["network"] == network]
        budgets = sorted({c["budget_bytes"] for c in mine})
        rows = []
        for name in _ordered(mine):
            row = {c["budget_bytes"]: c for c in mine if c["strategy"] == name}
            rows.append((name, *(_entry(row.get(b)) for b in budgets)))
        proofs = {c["budget_bytes"]: c for c in mine if c["strategy"] == OURS and "bound_overhead" in c}
        rows.append(
            ("*proved: at least*", *(_percent(proofs[b], "bound_overhead") if b in proofs else "" for b in budgets))
        )
        head = ("overhead in", *(f"{b / 1e9:.2f} GB" for b in budgets))
        notes = dict.fromkeys(c["reason"] for c in mine if c["outcome"] == "does not apply")
        text = f"## {network}, batch {mine[0]['batch']}\n\n" + markdown(head, rows)
        found.append(text + ("\n" + "".join(f"- {note}\n" for note in notes) if notes else ""))
    return found


def _entry(cell: dict | None) -> str:
    if cell is None:
        return ""
    if cell["outcome"] == "solved":
        return _percent(cell, "overhead")
    return {"too small": "-", "does not apply": "n/a"}.get(cell["outcome"], cell["outcome"])


def _percent(cell: dict, key: str) -> str:
    return f"{cell[key]:.2%}"


def _ordered(cells: Sequence[dict]) -> list[str]:
    from benchmarks.lib.styles import STYLES

    names = list(STYLES)
    return sorted({c["strategy"] for c in cells}, key=lambda n: (names.index(n) if n in names else len(names), n))


def beaten(cells: Sequence[dict]) -> list[str]:
    """Budgets at which another strategy's schedule is cheaper than the default one's, by more than rounding."""
    found = []
    for mine in (c for c in cells if c["strategy"] == OURS and c["outcome"] == "solved"):
        for c in cells:
            same = (c["network"], c["budget_bytes"]) == (mine["network"], mine["budget_bytes"])
            if same and c["outcome"] == "solved" and c["cost"] < mine["cost"] * (1 - 1e-6):
                found.append(
                    f"{c['network']}, {c['budget_bytes'] / 1e9:.2f} GB: {c['strategy']} {c['overhead']:.3%}, ours "
                    f"{mine['overhead']:.3%}{'' if c['staged'] else ' (with more freedom: no stages)'}"
                )
    return found


def draw(path: Path, cells: Sequence[dict], ranges: dict[tuple[str, str], dict]) -> None:
    """A panel a network on the published axes' overheads, steps as a schedule serves every larger budget."""
    from benchmarks.lib.styles import SPARE, STYLES, Style

    networks = [n for n in BATCHES if any(c["network"] == n for c in cells)]
    names = _ordered(cells)
    spare = iter(SPARE * len(names))
    styles = {name: STYLES.get(name) or Style(next(spare), "-.", "h") for name in names}
    figure = new_figure(max(5.2 * len(networks), 7.5), 5.8)
    panels = figure.subplots(1, len(networks), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, network in zip(panels, networks, strict=True):
        mine = [c for c in cells if c["network"] == network]
        known = ranges[network, COSTS]
        left, right = AXES[network]
        left, right = (
            min(left, 0.95 * known["least_bytes"] / 1e9),
            max(right, 1.03 * known["retained_peak_bytes"] / 1e9),
        )
        proofs = sorted(
            (c for c in mine if c["strategy"] == OURS and "bound_overhead" in c), key=lambda c: c["budget_bytes"]
        )
        for name in names:
            some = [c for c in mine if c["strategy"] == name]
            points = [(b / 1e9, best_within(some, b)) for b in sorted({c["budget_bytes"] for c in some})]
            drawn = [(x, 1 + c["overhead"]) for x, c in points if c is not None]
            if not drawn:
                continue
            style = styles[name]
            x, y = [p[0] for p in drawn] + [right], [p[1] for p in drawn] + [drawn[-1][1]]
            (handles[name],) = axes.plot(
                x, y, drawstyle="steps-post", color=style.color, linestyle=style.line, linewidth=style.width,
                marker=style.marker, markersize=3 + style.width, markevery=range(len(drawn)), markeredgewidth=0.9,
            )  # fmt: skip
        if proofs:
            x = [c["budget_bytes"] / 1e9 for c in proofs]
            y = [1 + c["bound_overhead"] for c in proofs]
            handles["proved impossible"] = axes.fill_between(
                x, 0.9, y, step="pre", color="#dddddd", linewidth=0, zorder=0
            )
        if left < V100 / 1e9 < right:
            handles["V100 (16 GB)"] = axes.axvline(V100 / 1e9, color="#0000cc", linestyle=":", linewidth=1.6)
        for size, label, line in (
            ("peak_bytes", "plain peak", "-"),
            ("retained_peak_bytes", "plain peak as published", "--"),
        ):
            handles[label] = axes.axvline(known[size] / 1e9, color="#999999", linestyle=line, linewidth=1)
        axes.set_xlim(left, right)
        axes.set_ylim(0.95, 1.5)
        axes.set_xlabel("memory budget (GB)")
        axes.set_ylabel("cost of a step over the plain one (x)")
        axes.set_title(f"{network}, batch {BATCHES[network]}", loc="left", fontsize=11)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    columns = 2 * len(networks)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=9,
        handlelength=3,
    )  # fmt: skip
    figure.suptitle("Overhead against memory, modelled V100 costs (above 1.5 x not shown)", fontsize=12)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
