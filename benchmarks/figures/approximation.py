"""Table 2 of Checkmate: what each strategy's schedules cost over the optimum, in the geometric mean over budgets.

Layer graphs with modelled V100 costs at the batches of the artifact's budget sweeps, from whose profiled V100 costs the
published table was made; the artifact's FLOP costs (`--costs artifact`) have a column beside. Half of the budgets are
evenly spaced from the least that has a schedule to the peak without recomputation (left out: all cost the same there),
half are within 50% of the least.

At each budget a strategy's cost is that of its cheapest schedule that fits, whatever budget that was made for; budgets
in which it has none are left out of its mean, so a strategy that fails where memory is scarce looks better. The optimum
is the best schedule of the default strategy, with the bound that it proves.

    python benchmarks/figures/approximation.py               # 12 budgets, 10 s a solve (relaxations 40 s): half an hour
    python benchmarks/figures/approximation.py --full        # 64 budgets, 60 s; resumes what is in the folder
    python benchmarks/figures/approximation.py --networks VGG16 --budgets 2 --time-limit 3
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.layer_graphs import answer_any, best_within, most_seconds, network_range, solve_request
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.published import published
from benchmarks.lib.tables import geometric_mean, markdown, new_figure, write_csv, write_table

BATCHES = {"MobileNet": 512, "VGG16": 256, "VGG19": 256, "U-Net": 32, "ResNet50": 256}
OPTIMAL = "checkmate"
TABLE = {"AP sqrt(n)": "ap-sqrt", "AP greedy": "ap-greedy", "Griewank": "griewank", "LP rounding": "lp-rounding"}
OTHERS = ("linearized-sqrt", "linearized-greedy")
COSTS = ("v100", "artifact")
COLUMNS = (
    "network", "batch", "nodes", "strategy", "budget_bytes", "budget_of_peak", "outcome", "cost", "base_cost",
    "overhead", "lower_bound", "peak_bytes", "seconds", "limit", "ratio", "reason",
)  # fmt: skip
NOTE = """\
A ratio is the geometric mean of cost over that of the best schedule known, over the budgets in which the strategy has a
schedule (last column: how many of those in which there is any). *At most over proven*: over the proven lower bound
instead, which the optimum cannot be below. Published: Checkmate, table 2. A difference by construction: its
checkpoint-all holds every forward value to the last stage, where our evaluator frees each after its last reader, so
ours begin at another peak.
"""


def main() -> None:
    parser = common_options(__doc__, "approximation", "12 budgets, 10 s a solve", "64 budgets, 60 s a solve")
    parser.add_argument("--networks", nargs="*", choices=list(BATCHES), default=list(BATCHES), help="only these")
    parser.add_argument("--strategies", nargs="*", help=f"only these, and {OPTIMAL}")
    parser.add_argument("--costs", choices=COSTS, default=COSTS[0], help="of layers (default v100)")
    parser.add_argument("--budgets", type=int, help="how many")
    parser.add_argument("--time-limit", type=float, help="seconds a solve; relaxations get four times that")
    options = parser.parse_args()
    if serve_child(options, answer_any):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        names = list(dict.fromkeys([OPTIMAL, *(options.strategies or [*TABLE.values(), *OTHERS])]))
        limit = options.time_limit or (60.0 if options.full else 10.0)
        count = options.budgets or (64 if options.full else 12)
        for network in options.networks:
            known = network_range(__file__, options.output, network, BATCHES[network], options.costs)
            if known is not None:
                solve_network(options.output, known, names, count, limit, options.again)
    cells = [c for c in read_cells(options.output) if c.get("outcome") != FAILED]
    if not cells:
        raise SystemExit(f"there is no result in {options.output}")
    write(options.output, cells)


def solve_network(output: Path, known: dict, names: Sequence[str], count: int, limit: float, again: bool) -> None:
    """All cells of a network."""
    least, peak = known["least_bytes"], known["peak_bytes"]
    budgets = budgets_of(least, peak, count)
    requests = [solve_request(known, name, budget, limit) for budget in budgets for name in names]
    run_cells(__file__, output, requests, most_seconds, again, jobs=at_once(2))


def budgets_of(least: int, peak: int, count: int) -> list[int]:
    """Half of them evenly spaced from `least` to below `peak`, half within 50% of the least, as in the artifact."""
    even, low, near = count - count // 2, count // 2, min(peak, 3 * least // 2)
    whole = {least + (peak - least) * k // even for k in range(even)}
    return sorted(whole | {least + (near - least) * k // (low + 1) for k in range(1, low + 1)})


# Results --------------------------------------------------------------------------------------------------------------


def ratios(cells: Sequence[dict], network: str, strategy: str) -> tuple[list[float], list[float], int]:
    """Costs over the best known, costs over the proven bound, and in how many budgets there is a schedule at all."""
    best: dict[int, float] = {}
    bound: dict[int, float] = {}
    mine = [c for c in cells if c["network"] == network]
    optimal = [c for c in mine if c["strategy"] == OPTIMAL]
    for budget in sorted({c["budget_bytes"] for c in optimal}):
        found = best_within(mine, budget)
        here = [c for c in optimal if c["budget_bytes"] == budget and "lower_bound" in c]
        if found is not None and here:
            best[budget], bound[budget] = found["cost"], here[0]["lower_bound"]
    over_best, over_bound = [], []
    some = [c for c in mine if c["strategy"] == strategy]
    for budget, cost in best.items():
        found = best_within(some, budget)
        if found is not None:
            over_best.append(found["cost"] / cost)
            over_bound.append(found["cost"] / bound[budget])
    return over_best, over_bound, len(best)


def write(output: Path, cells: list[dict]) -> None:
    """CSV, table beside the published one, and picture."""
    order = list(BATCHES)
    cells.sort(key=lambda c: (order.index(c["network"]), c["strategy"], c["budget_bytes"]))
    for cell in cells:
        cell["budget_of_peak"] = (cell["budget_bytes"] - cell["constant_bytes"]) / (
            cell["peak_bytes_plain"] - cell["constant_bytes"]
        )
        same = [c for c in _of(cells, cell["costs"]) if (c["network"], c["strategy"]) == (cell["network"], OPTIMAL)]
        optimum = best_within(same, cell["budget_bytes"])
        if optimum and cell["outcome"] == "solved":
            cell["ratio"] = cell["cost"] / optimum["cost"]
    write_csv(output / "cells.csv", COLUMNS, cells)
    text = as_table(cells)
    write_table(output, text)
    draw(output / "approximation.png", _of(cells, COSTS[0]))
    print(text)


def _of(cells: Sequence[dict], costs: str) -> list[dict]:
    return [c for c in cells if c["costs"] == costs]


def as_table(cells: Sequence[dict]) -> str:
    """The published ratio, ours, and their difference, a row a network and strategy."""
    known = {(row["network"], row["metric"].rsplit(": ", 1)[-1]): float(row["value"]) for row in published("table2")}
    flops, cells = _of(cells, COSTS[1]), _of(cells, COSTS[0])
    strategies = {c["strategy"] for c in cells}
    rows = []
    for network in (n for n in BATCHES if any(c["network"] == n for c in cells)):
        shown = {**TABLE, **{name: name for name in (*OTHERS, OPTIMAL)}}
        for title, name in shown.items():
            if name not in strategies:
                continue
            over_best, over_bound, budgets = ratios(cells, network, name)
            theirs = known.get((network, title))
            counted, _, of = ratios(flops, network, name)
            ours, other = geometric_mean(over_best), geometric_mean(counted)
            rows.append(
                (
                    network, title if name != OPTIMAL else "optimal (best known)",
                    "" if theirs is None else f"{theirs:.2f}", "-" if math.isnan(ours) else f"**{ours:.3f}**",
                    "" if theirs is None or math.isnan(ours) else f"{ours - theirs:+.2f}",
                    "-" if math.isnan(other) else f"{other:.3f} ({len(counted)} of {of})",
                    f"{geometric_mean(over_bound):.3f}" if over_bound else "-",
                    f"{max(over_best):.2f}" if over_best else "-", f"{len(over_best)} of {budgets}",
                )
            )  # fmt: skip
    head = (
        "network",
        "strategy",
        "published",
        "ours",
        "difference",
        "with FLOPs",
        "at most over proven",
        "worst budget",
        "budgets",
    )
    why = {(c["network"], c["strategy"]): c["reason"] for c in cells if c["outcome"] == "does not apply"}
    notes = "".join(f"- {network}, {name}: {reason}\n" for (network, name), reason in why.items())
    return markdown(head, rows) + "\n" + NOTE + ("\n" + notes if notes else "")


def draw(path: Path, cells: Sequence[dict]) -> None:
    """Bars a network, our ratio and the published one as a mark."""
    import numpy as np

    known = {(row["network"], row["metric"].rsplit(": ", 1)[-1]): float(row["value"]) for row in published("table2")}
    networks = [n for n in BATCHES if any(c["network"] == n for c in cells)]
    colors = ("#e69f00", "#009e73", "#cc79a7", "#0072b2")
    figure = new_figure(11, 4.8)
    axes = figure.add_subplot()
    width = 0.19
    for k, ((title, name), color) in enumerate(zip(TABLE.items(), colors, strict=True)):
        x = np.arange(len(networks)) + (k - 1.5) * width
        ours = [geometric_mean(ratios(cells, network, name)[0]) for network in networks]
        axes.bar(x, np.array(ours) - 1, width * 0.9, bottom=1, color=color, label=title)
        for place, value in zip(x, ours, strict=True):
            text = "none" if math.isnan(value) else f"{value:.2f}"
            axes.annotate(text, (place, 1), (0, -11), textcoords="offset points", ha="center", fontsize=7)
        theirs = [known.get((network, title), math.nan) for network in networks]
        axes.plot(x, theirs, linestyle="", marker="_", markersize=15, markeredgewidth=2, color="black",
                  label="published" if k == 3 else None)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.95)
    ticks = [t for t in (1, 1.1, 1.2, 1.5, 2, 3, 5, 7, 10) if t <= axes.get_ylim()[1]]
    axes.set_yticks(ticks, [f"{t:g}x" for t in ticks])
    axes.minorticks_off()
    axes.set_xticks(range(len(networks)), [f"{n}, batch {BATCHES[n]}" for n in networks])
    axes.set_ylabel("cost over the best known (V100, modelled)")
    axes.set_title("Geometric mean over budgets of what each strategy costs over the optimum", loc="left", fontsize=11)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.08), fontsize=9)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
