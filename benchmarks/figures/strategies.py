"""Figure 4 of Checkmate with every strategy: how much more a step costs, against the budget.

Layer graphs of four networks with the artifact's FLOP costs. Budgets go from the least with a known schedule to the
peak without recomputation. What a strategy says of each is kept: its schedule, that its schedules do not fit, or why it
does not serve the network. Then it is checked that no schedule is cheaper than the default strategy proves possible;
schedules with more freedom than that proof allows (another order, a node twice in a stage) are left out of the check.
The script fails if one is, or if a schedule is over its budget.

    python benchmarks/figures/strategies.py         # five budgets, 10 s a solve; resumes what is in the folder
    python benchmarks/figures/strategies.py --full  # fourteen budgets, 60 s
    python benchmarks/figures/strategies.py --strategies chen-greedy ap-greedy --networks MobileNet --again
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, ChildError, in_child, kept, progress_bar
from benchmarks.lib.layer_graphs import NOT_FOR, SOLVED, TOO_SMALL, solve
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.provenance import MADE
from benchmarks.lib.styles import SPARE, STYLES, Style
from benchmarks.lib.tables import new_figure, write_csv, write_table

NETWORKS = ("VGG16", "MobileNet", "U-Net", "ResNet50")
QUICK_SHARES = (0, 10, 25, 55, 100)
FULL_SHARES = (0, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 90, 100)

TOLERANCE = 1e-6  # relative: what the solvers' tolerances leave open in a bound
GRACE = 120.0  # seconds beyond six times its limit after which a solve is ended

COLUMNS = (
    "network", "nodes", "strategy", "share_percent", "budget_bytes", "budget_of_peak", "outcome", "overhead",
    "bound_overhead", "cost", "base_cost", "lower_bound", "peak_bytes", "staged", "proven", "seconds", "time_limit",
    "reason",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "strategies", "five budgets, 10 s a solve", "fourteen budgets, 60 s a solve")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=NETWORKS, help="only these")
    parser.add_argument("--strategies", nargs="*", help="only these (default: all)")
    parser.add_argument("--shares", nargs="*", type=int, help="percent of the way from the least budget to the peak")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        solve_all(options)
    cells = read_cells(options.output)
    if not cells:
        sys.exit(f"there is no result in {options.output}")
    write_csv(options.output / "cells.csv", COLUMNS, cells)
    table = as_table(cells)
    write_table(options.output, table)
    print(table)
    draw(options.output / "strategies.png", cells)
    broken = violations(cells)
    for line in broken:
        print(f"VIOLATION: {line}", file=sys.stderr)
    if broken:
        sys.exit(1)
    print(f"{sum(c['outcome'] == SOLVED for c in cells)} schedules, none below a proven bound or above its budget")


# Solving ------------------------------------------------------------------------------------------------------------


def solve_all(options: argparse.Namespace) -> None:
    """Solve every cell that has no result yet."""
    from checkmate_tf.strategies import STRATEGIES

    unknown = set(options.strategies or ()) - set(STRATEGIES)
    if unknown:
        sys.exit(f"no such strategy: {', '.join(sorted(unknown))}; there are {', '.join(sorted(STRATEGIES))}")
    names = options.strategies or list(STRATEGIES)
    shares = options.shares or (FULL_SHARES if options.full else QUICK_SHARES)
    limit = options.time_limit or (60.0 if options.full else 10.0)
    with progress_bar() as progress:
        task = progress.add_task("", total=len(options.networks) * len(shares) * len(names))
        for network in options.networks:
            progress.update(task, description=f"{network}: graph and budgets")
            known = network_range(options.output, network)
            for share in shares:
                for name in names:
                    progress.update(task, description=f"{network} {share}% {name}")
                    cell = solve_cell(options.output, network, known, name, share, limit, options.again)
                    if cell["outcome"] == FAILED:
                        progress.console.print(f"{network} {share}% {name}: {cell['reason']}")
                    progress.advance(task)


def network_range(output: Path, network: str) -> dict:
    """The network's graph as a file, and its budgets: the least known, and the peak without recomputation."""
    graph, path = output / f"graph-{network}.json", output / f"range-{network}.json"
    if not graph.exists():
        in_child(__file__, {"make": network, "graph": str(graph)}, 600)
    if not path.exists():
        path.write_text(json.dumps(in_child(__file__, {"range": network, "graph": str(graph)}, 600), indent=1) + "\n")
    return {"graph": str(graph), **json.loads(path.read_text())}


def solve_cell(output: Path, network: str, known: dict, name: str, share: int, limit: float, again: bool) -> dict:
    """Solve a cell in a process of its own, or read what an earlier run left; failures are tried again."""
    path = output / f"cell-{network}-{name}-{share}.json"
    cell = None if again else kept(path, {"time_limit": limit})
    if cell is not None:
        return cell
    budget = known["least_bytes"] + (known["peak_bytes"] - known["least_bytes"]) * share // 100
    room = known["peak_bytes"] - known["constant_bytes"]
    cell = {
        "network": network, "nodes": known["nodes"], "strategy": name, "share_percent": share, "budget_bytes": budget,
        "budget_of_peak": (budget - known["constant_bytes"]) / room, "time_limit": limit,
    }  # fmt: skip
    begun = time.perf_counter()
    try:
        cell |= in_child(
            __file__, {"solve": name, "graph": known["graph"], "budget": budget, "limit": limit}, 6 * limit + GRACE
        )
    except ChildError as error:
        cell |= {"outcome": FAILED, "reason": str(error), "seconds": time.perf_counter() - begun, MADE: error.made}
    path.write_text(json.dumps(cell, indent=1) + "\n")
    return cell


def answer(request: dict) -> dict:
    """What a child process does: make a graph, find its range of budgets, or solve."""
    if "make" in request:
        from benchmarks.lib.models import graph_of
        from checkmate_tf.files.graphs import write_graph

        graph = graph_of(request["make"])
        write_graph(graph, Path(request["graph"]))
        return {"nodes": len(graph)}
    from checkmate_tf.files.graphs import read_graph

    graph = read_graph(request["graph"])
    return solve(graph, request) if "solve" in request else budget_range(graph)


def budget_range(graph: Any) -> dict:
    """The least budget with a known schedule, after some looking, and the peak without recomputation."""
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import minimum_budget

    proven, least, _ = minimum_budget(graph, 20.0)
    return {
        "nodes": len(graph),
        "constant_bytes": graph.constant_bytes,
        "proven_least_bytes": proven,
        "least_bytes": least,
        "peak_bytes": keep_all(graph).peak_bytes,
    }


# Checking -----------------------------------------------------------------------------------------------------------


def violations(cells: Sequence[dict]) -> list[str]:
    """Schedules over their budget, or cheaper than what the default strategy proves for that budget or a larger one.

    Its proof is for schedules in the order of the graph; those in frontier-advancing stages (`staged`) are.
    """
    found = []
    for cell in (c for c in cells if c["outcome"] == SOLVED):
        what = f"{cell['network']}, {cell['budget_bytes']} bytes, {cell['strategy']}"
        if cell["peak_bytes"] > cell["budget_bytes"]:
            found.append(f"{what}: needs {cell['peak_bytes']} bytes")
        if not cell["staged"]:
            continue
        for proof in cells:
            if (proof["network"], proof["strategy"]) != (cell["network"], "checkmate"):
                continue
            if proof["budget_bytes"] < cell["budget_bytes"]:
                continue
            if proof["outcome"] == SOLVED and cell["cost"] < proof["lower_bound"] * (1 - TOLERANCE):
                found.append(f"{what}: costs {cell['cost']}, at least {proof['lower_bound']} is proved necessary")
            if proof["outcome"] == TOO_SMALL and proof["proven"]:
                found.append(f"{what}: has a schedule, though {proof['budget_bytes']} bytes are proved too small")
    return found


# Results ------------------------------------------------------------------------------------------------------------


def read_cells(output: Path) -> list[dict]:
    """All cells in the folder, by network, strategy and budget.

    A strategy that does not serve a network still gives the plain schedule where that fits; it is not counted here.
    """
    cells = [json.loads(path.read_text()) for path in output.glob("cell-*.json")]
    reasons = {(c["network"], c["strategy"]): c["reason"] for c in cells if c["outcome"] == NOT_FOR}
    for cell in cells:
        reason = reasons.get((cell["network"], cell["strategy"]))
        if reason and cell["outcome"] == SOLVED and not cell["overhead"]:
            cell |= {"outcome": NOT_FOR, "reason": reason}
    order = list(STYLES)
    rank = {name: k for k, name in enumerate([*order, *sorted({c["strategy"] for c in cells} - set(order))])}
    cells.sort(key=lambda c: (NETWORKS.index(c["network"]), rank[c["strategy"]], c["budget_bytes"]))
    return cells


def as_table(cells: Sequence[dict]) -> str:
    """Overheads in Markdown, a table a network."""
    parts = []
    for network in NETWORKS:
        mine = [c for c in cells if c["network"] == network]
        if not mine:
            continue
        budgets = sorted({c["budget_bytes"] for c in mine})
        head = [next(f"{c['budget_of_peak']:.1%}" for c in mine if c["budget_bytes"] == b) for b in budgets]
        lines = [
            f"## {network}, {mine[0]['nodes']} nodes",
            "",
            f"| budget, of the peak | {' | '.join(head)} |",
            "| --- |" + " --- |" * len(budgets),
        ]
        for name in dict.fromkeys(c["strategy"] for c in mine):
            row = {c["budget_bytes"]: c for c in mine if c["strategy"] == name}
            lines.append(f"| {name} | {' | '.join(_entry(row.get(b)) for b in budgets)} |")
        proofs = {c["budget_bytes"]: c for c in mine if c["strategy"] == "checkmate" and c["outcome"] == SOLVED}
        bounds = [f"{proofs[b]['bound_overhead']:.2%}" if b in proofs else "" for b in budgets]
        lines.append(f"| *proved: at least* | {' | '.join(bounds)} |")
        reasons = dict.fromkeys(c["reason"] for c in mine if c["outcome"] == NOT_FOR)
        lines += ["", *(f"- {reason}" for reason in reasons)]
        parts.append("\n".join(lines).rstrip() + "\n")
    return "\n".join(parts)


def _entry(cell: dict | None) -> str:
    if cell is None:
        return ""
    if cell["outcome"] == SOLVED:
        return f"{cell['overhead']:.2%}"
    return {TOO_SMALL: "-", NOT_FOR: "n/a", FAILED: "failed"}[cell["outcome"]]


def draw(path: Path, cells: Sequence[dict]) -> None:
    """Small multiples: cost against budget, one panel a network; grey is what is proved impossible.

    Steps, as a schedule serves every larger budget, and a bound every smaller one.
    """
    from matplotlib.ticker import FuncFormatter

    networks = [n for n in NETWORKS if any(c["network"] == n for c in cells)]
    strategies = list(dict.fromkeys(c["strategy"] for c in cells))
    strategies.sort(key=lambda name: list(STYLES).index(name) if name in STYLES else len(STYLES) - 1.5)
    spare = iter(SPARE * len(strategies))
    styles = {name: STYLES.get(name) or Style(next(spare), "-.", "h") for name in strategies}
    rows = (len(networks) + 1) // 2
    figure = new_figure(12, 4.2 * rows + 0.9)
    panels = figure.subplots(rows, min(2, len(networks)), squeeze=False).ravel()
    handles: dict[str, Any] = {}
    grey = None
    for axes, network in zip(panels, networks, strict=False):
        for name in strategies:
            mine = [c for c in cells if (c["network"], c["strategy"], c["outcome"]) == (network, name, SOLVED)]
            if not mine:
                continue
            x, y = [100 * c["budget_of_peak"] for c in mine], [100 * c["overhead"] for c in mine]
            style = styles[name]
            if name == "checkmate":
                bound = [100 * c["bound_overhead"] for c in mine]
                grey = axes.fill_between(x, 0, bound, step="pre", color="#dddddd", linewidth=0, zorder=0)
            (handles[name],) = axes.plot(
                x, y, drawstyle="steps-post", color=style.color, linestyle=style.line, linewidth=style.width,
                marker=style.marker, markersize=4 + style.width, markeredgewidth=0.9, clip_on=False,
            )  # fmt: skip
        axes.set_yscale("symlog", linthresh=1.0, linscale=0.6)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
        axes.grid(alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        nodes = next(c["nodes"] for c in cells if c["network"] == network)
        axes.set_title(f"{network}, {nodes} nodes", loc="left", fontsize=11)
        axes.set_xlabel("budget, of the peak without recomputation (constants left out)")
        axes.set_ylabel("more cost a step (FLOPs)")
    for axes in panels[len(networks) :]:
        axes.set_axis_off()
    handles = {name: handles[name] for name in strategies if name in handles}
    if grey is not None:
        handles["proved impossible"] = grey
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=6, frameon=False, fontsize=9, handlelength=3
    )
    figure.suptitle("Every strategy within the budget: how much is computed again", fontsize=12)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
