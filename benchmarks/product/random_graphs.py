"""Random layered graphs, which have no backward pass: a schedule or a proof in each budget, and is the time kept?

Twenty graphs of 100 to 1,000 nodes, as Moccasin's are drawn (`strategies/random_graphs.py`), of seeds that nothing was
tuned on. Budgets are shares of the peak of the graph's order, which is a random one. Each cell is a child process that
solves in that order, under a time limit. Seconds are from the start of the script: imports and the drawing of the graph
are included. No TensorFlow.

    python benchmarks/product/random_graphs.py               # five graphs, 10 s a cell: some minutes
    python benchmarks/product/random_graphs.py --full        # twenty, 60 s a cell: an hour and a half; resumes
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

NODES = (100, 150, 200, 250, 300, 400, 500, 600, 800, 1000)
SEEDS = (11, 12)
PERCENTS = (90, 80, 70, 60)
COLUMNS = ("nodes", "edges", "seed", "percent", "limit", "outcome", "overhead", "bound", "least", "seconds", "reason")


def main() -> None:
    began = time.time()
    parser = common_options(__doc__, "random_graphs", "five graphs, 10 s a cell", "twenty graphs, 60 s a cell")
    parser.add_argument("--nodes", nargs="*", type=int, choices=NODES, help="only these")
    parser.add_argument("--time-limit", type=float, help="seconds a cell")
    options = parser.parse_args()
    if serve_child(options, lambda request: answer(request, began)):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    limit = options.time_limit or (60.0 if options.full else 10.0)
    sizes = options.nodes or (NODES if options.full else NODES[::2])
    requests = [
        {"cell": f"cell-{n:04}-{seed}-{percent}", "nodes": n, "seed": seed, "percent": percent, "limit": limit}
        for n in sizes
        for seed in (SEEDS if options.full else SEEDS[:1])
        for percent in PERCENTS
    ]
    if not options.draw:
        run_cells(__file__, options.output, requests, lambda r: 3 * r["limit"], options.again)
    write(options.output)


def answer(request: dict, began: float) -> dict:
    """A schedule and its bound, or a proof that there is none, or the least budget known."""
    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.strategies.random_graphs import layered, usual_edges

    graph = layered(request["nodes"], usual_edges(request["nodes"]), request["seed"])
    peak = keep_all(graph).peak_bytes
    budget = peak * request["percent"] // 100
    found = {"edges": len(graph.edges), "peak_bytes": peak, "budget_bytes": budget}
    try:
        schedule = solve(graph, budget, options=SolveOptions(time_limit=request["limit"], gap=0.0))
    except InfeasibleBudgetError as error:
        outcome = "impossible" if error.proven else "open"
        return {**found, "outcome": outcome, "least": error.minimum_bytes / peak, "seconds": time.time() - began}
    assert schedule.peak_bytes <= budget
    return {
        **found, "outcome": schedule.status, "overhead": schedule.overhead,
        "bound": schedule.lower_bound / graph.base_cost - 1, "seconds": time.time() - began,
    }  # fmt: skip


def write(output: Path) -> None:
    """CSV and table of what is in the folder."""
    cells = sorted(read_cells(output), key=lambda c: (c["nodes"], c["seed"], -c["percent"]))
    write_rows(output, COLUMNS, cells)
    graphs = list(dict.fromkeys((c["nodes"], c["seed"]) for c in cells))
    rows = []
    for nodes, seed in graphs:
        mine = {c["percent"]: c for c in cells if (c["nodes"], c["seed"]) == (nodes, seed)}
        edges = next((c["edges"] for c in mine.values() if "edges" in c), "")
        rows.append((nodes, edges, seed, *(_cell(mine.get(percent)) for percent in PERCENTS)))
    text = markdown(("nodes", "edges", "seed", *(f"{percent}% of the peak" for percent in PERCENTS)), rows)
    text += "\nOverhead, and what any schedule in that order takes at least; or the least budget known.\n\n"
    for name, some in (
        ("up to 250 nodes", [c for c in cells if c["nodes"] <= 250]),
        ("more nodes", [c for c in cells if c["nodes"] > 250]),
    ):
        known = [c for c in some if c["outcome"] in ("optimal", "feasible", "impossible")]
        text += f"- {name}: a schedule or a proof in {len(known)} of {len(some)} cells.\n"
    over = [c["seconds"] - c["limit"] for c in cells if c["outcome"] != FAILED]
    text += f"- Seconds over the limit, at most: {max(over, default=0.0):.1f}.\n"
    write_table(output, text)
    print(text)


def _cell(cell: dict | None) -> str:
    if cell is None or cell["outcome"] == FAILED:
        return "" if cell is None else "failed"
    if cell["outcome"] in ("optimal", "feasible"):
        return f"{cell['overhead']:.2%} (≥ {cell['bound']:.2%})"
    least = f"least {cell['least']:.0%}"
    return f"impossible, proven; {least}" if cell["outcome"] == "impossible" else f"open; {least}"


if __name__ == "__main__":
    main()
