"""How good are the schedules, how tight the bounds, and how soon? The default strategy on layer graphs, FLOP costs.

For each network and budget (a share of the no-remat peak, constants left out): overhead, proven bound, gap (cost over
bound, minus 1), seconds to the first schedule, to within 1% of the bound, and in all, and the most memory that the
solving processes took. One child process a cell, so that memory is the cell's own.

    python benchmarks/product/solve_quality.py         # 20 s a cell at most, four budgets
    python benchmarks/product/solve_quality.py --full  # 60 s, seven budgets; resumes what is in the output folder

The full run ends with transformers of 500 and of 2,500 layers (ten and fifty thousand nodes), at two budgets. The
larger one has 120 s a cell, and its graph takes five minutes to build.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import ChildError, in_child, kept
from benchmarks.lib.graph_files import graph_file
from benchmarks.lib.options import options_for, serve_child
from benchmarks.lib.paths import ROOT, in_root
from benchmarks.lib.tables import write_table

NETWORKS = (
    "VGG16", "VGG19", "U-Net", "FCN8", "SegNet", "MobileNet", "ResNet50", "DenseNet121", "DenseNet201", "transformer",
    "transformer-op",
)  # fmt: skip
LARGE = ("transformer-500", "transformer-2500")
LONGER = {"transformer-2500": 120.0}  # seconds a cell, where no limit is given
BUDGETS = (90, 70, 50, 40, 30, 20, 15)
QUICK_BUDGETS = (50, 30, 20, 15)
LARGE_BUDGETS = (50, 30)
WITHIN = 0.01


def main() -> None:
    parser = options_for(__doc__, "solve_quality")
    parser.add_argument("--full", action="store_true", help="seven budgets, 60 s a cell")
    parser.add_argument("--networks", nargs="*", choices=NETWORKS + LARGE, help="only these")
    parser.add_argument("--budgets", nargs="*", type=int, help="percent")
    parser.add_argument("--time-limit", type=float, help="seconds a cell")
    parser.add_argument("--gap", type=float, default=0.0, help="stop at this gap (default: when proven optimal)")
    options = parser.parse_args()
    if serve_child(options, solve_cell):
        return
    usual_limit = 60.0 if options.full else 20.0
    options.output.mkdir(parents=True, exist_ok=True)
    usual = BUDGETS if options.full else QUICK_BUDGETS
    for name in options.networks or (NETWORKS + LARGE if options.full else NETWORKS):
        graph = graph_file(options.output, name)
        limit = options.time_limit or LONGER.get(name, usual_limit)
        for percent in options.budgets or (LARGE_BUDGETS if name in LARGE else usual):
            cell = run(options.output, graph, name, percent, limit, options.gap)
            print(f"{name} {percent}%: {json.dumps(cell)}", flush=True)
    write_results(options.output)


def run(output: Path, graph: Path, name: str, percent: int, limit: float, gap: float) -> dict:
    """Solve a cell in a child process, or read what an earlier run left."""
    path = output / f"cell-{name}-{percent}.json"
    request = {"graph": in_root(graph), "network": name, "percent": percent, "time_limit": limit, "stop_gap": gap}
    if (cell := kept(path, request)) is not None:
        return cell
    try:
        result = {**request, "graph": graph.name, **in_child(__file__, request, None)}
    except ChildError as error:
        return {**request, "failed": error.stderr.strip().splitlines()[-3:]}
    path.write_text(json.dumps(result, indent=1))
    return result


def solve_cell(request: dict) -> dict:
    """What the child does that solves a cell."""
    import resource

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve

    graph = read_graph(ROOT / request["graph"])
    peak = keep_all(graph).peak_bytes - graph.constant_bytes
    budget = graph.constant_bytes + peak * request["percent"] // 100
    first = within = None

    def progress(seconds: float, cost: float, bound: float, _: float) -> None:
        nonlocal first, within
        if first is None and math.isfinite(cost):
            first = seconds
        if within is None and cost <= (1 + WITHIN) * bound:
            within = seconds

    options = SolveOptions(time_limit=request["time_limit"], gap=request["stop_gap"], progress=progress)
    begun = time.perf_counter()
    try:
        schedule = solve(graph, budget, "checkmate", options)
    except InfeasibleBudgetError as error:
        seconds = time.perf_counter() - begun
        return {
            "nodes": len(graph), "infeasible": error.proven, "least_bytes": error.minimum_bytes, "seconds": seconds
        }  # fmt: skip
    seconds = time.perf_counter() - begun
    bound = max(schedule.lower_bound, graph.base_cost)
    closed = schedule.cost <= (1 + WITHIN) * bound
    memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "nodes": len(graph),
        "edges": len(graph.edges),
        "overhead": schedule.overhead,
        "bound": bound / graph.base_cost - 1,
        "gap": schedule.cost / bound - 1,
        "status": schedule.status,
        "first_seconds": seconds if first is None else first,
        "within_seconds": (seconds if within is None else within) if closed else None,
        "seconds": seconds,
        "solver_bytes": memory * 1024,
    }


def write_results(output: Path) -> None:
    """A CSV and a Markdown table of all cells in the folder."""
    import pandas as pd

    cells = [json.loads(p.read_text()) for p in output.glob("cell-*.json")]
    cells.sort(key=lambda c: ((NETWORKS + LARGE).index(c["network"]), -c["percent"]))
    lines = [
        "| network, nodes | budget | overhead | proven bound | gap | first / within 1% / in all | memory |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for c in cells:
        head = f"| {c['network']}, {c['nodes']} | {c['percent']}% "
        if "overhead" not in c:
            why = "infeasible, proven" if c["infeasible"] else "none found"
            lines.append(f"{head}| {why} | | | {c['seconds']:.1f} s | |")
            continue
        memory = f"{c['solver_bytes'] / 1e6:.0f} MB" if c.get("solver_bytes") else "-"
        within = "-" if c["within_seconds"] is None else f"{c['within_seconds']:.1f}"
        lines.append(
            f"{head}| {c['overhead']:.4%} | {c['bound']:.4%} | {c['gap']:.3%} | "
            f"{c['first_seconds']:.1f} / {within} / {c['seconds']:.1f} s | {memory} |"
        )
    write_table(output, "\n".join(lines))
    pd.DataFrame(cells).drop(columns=["graph"]).to_csv(output / "cells.csv", index=False)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
