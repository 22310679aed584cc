"""Small graphs to the optimum: how often the best of all orders and recomputations is proven, and what order is worth.

Random training steps: each forward node reads the one before it and sometimes an earlier one. Costs and sizes are drawn
from 1 to 8. Each gradient reads the value, what it was made of, and the gradients of its readers. Budgets are shares of
the way from what any order needs to the plain step's peak. Each is solved in any order (60 s), and in the order given
(10 s). No TensorFlow.

    python benchmarks/product/small_orders.py                # 11 and 21 nodes, minutes
    python benchmarks/product/small_orders.py --full         # up to 61 nodes, an hour and a half at most
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.tables import markdown, write_rows, write_table

NODES = (11, 21, 31, 41, 51, 61)
SEEDS = range(5)
SHARES = (0.6, 0.3, 0.1)
FREE, FIXED = 60.0, 10.0  # seconds
COLUMNS = ("nodes", "seed", "share", "outcome", "reason", "seconds", "overhead", "bound", "fixed_overhead")


def main() -> None:
    parser = common_options(__doc__, "small_orders", "11 and 21 nodes", "up to 61 nodes")
    parser.add_argument("--nodes", nargs="*", type=int, choices=NODES, help="only these")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    sizes = () if options.draw else options.nodes or (NODES if options.full else NODES[:2])
    requests = [{"cell": f"cell-{nodes}-{seed}", "nodes": nodes, "seed": seed} for nodes in sizes for seed in SEEDS]
    run_cells(__file__, options.output, requests, lambda _: 600.0, options.again)
    write(options.output)


def a_step(nodes: int, seed: int) -> Any:
    """A random training step of an odd number of nodes."""
    import numpy as np

    from checkmate_tf.graph import BACKWARD, FORWARD, LOSS, Graph

    rng, n = np.random.default_rng(seed), nodes // 2
    inputs: list[list[int]] = [[] for _ in range(n)]
    for i in range(1, n):
        inputs[i] = sorted({i - 1, *rng.choice(i, int(rng.random() < 0.3)).tolist()})
    readers: list[list[int]] = [[j for j in range(n) if i in inputs[j]] for i in range(n)]
    gradient = {i: 2 * n - i for i in range(n)}
    rows = [*inputs, [n - 1]]
    rows += [[i, *inputs[i], *([gradient[j] for j in readers[i]] or [n])] for i in reversed(range(n))]
    costs, sizes = rng.integers(1, 9, n), rng.integers(1, 9, n)
    return Graph(
        f"step of {nodes}, seed {seed}", [f"v{i}" for i in range(nodes)],
        np.array([FORWARD] * n + [LOSS] + [BACKWARD] * n), np.array([*costs, 1, *(2 * costs[::-1])]),
        np.array([*sizes, 1, *sizes[::-1]]), rows,
    )  # fmt: skip


def answer(request: dict) -> dict:
    """Of each budget: the schedule in any order, whether it is proven, and the one in the order given."""
    import time

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.strategies.search.minimum_budget import proven_minimum

    graph = a_step(request["nodes"], request["seed"])
    least, plain = proven_minimum(graph, "free")[0], keep_all(graph).peak_bytes
    found: dict[str, list[Any]] = {key: [] for key in ("outcomes", "seconds", "overhead", "bound", "fixed_overhead")}
    for share in SHARES:
        budget = least + int(share * (plain - least))
        begun, schedule, outcome = time.perf_counter(), None, "open"
        try:
            schedule = solve(graph, budget, options=SolveOptions(time_limit=FREE, gap=0.0, order="free"))
            outcome = "optimal" if schedule.status == "optimal" else "open"
        except InfeasibleBudgetError as error:
            outcome = "impossible" if error.proven else "open"
        found["outcomes"].append(outcome)
        found["seconds"].append(time.perf_counter() - begun)
        found["overhead"].append(None if schedule is None else schedule.overhead)
        found["bound"].append(None if schedule is None else schedule.lower_bound / graph.base_cost - 1)
        fixed = None
        if schedule is not None:
            with contextlib.suppress(InfeasibleBudgetError):
                fixed = solve(graph, budget, options=SolveOptions(time_limit=FIXED, gap=0.0)).overhead
        found["fixed_overhead"].append(fixed)
    return {"outcome": "solved", **found}


def write(output: Path) -> None:
    """CSV and table of what is in the folder."""
    cells = sorted(read_cells(output), key=lambda c: (c["nodes"], c["seed"]))
    rows = []
    for c in cells:
        if c["outcome"] == FAILED:
            rows += [{**{key: c.get(key) for key in COLUMNS}, "share": share} for share in SHARES]
            continue
        for k, share in enumerate(SHARES):
            values = {key: c[key][k] for key in ("seconds", "overhead", "bound", "fixed_overhead")}
            rows.append({"nodes": c["nodes"], "seed": c["seed"], "share": share, "outcome": c["outcomes"][k], **values})
    write_rows(output, COLUMNS, rows)
    lines = [
        (f"{nodes}", *(_cell([r for r in rows if r["nodes"] == nodes and r.get("share") == share]) for share in SHARES))
        for nodes in sorted({row["nodes"] for row in rows})
    ]
    text = markdown(("nodes", *(f"{share:.0%}" for share in SHARES)), lines)
    write_table(output, text)
    print(text)


def _cell(rows: list[dict]) -> str:
    """Counts of outcomes; then the median time of what is proven, and overheads in the order given and in any."""
    counts = " + ".join(str(sum(row["outcome"] == outcome for row in rows)) for outcome in ("optimal", "impossible"))
    text = f"{counts} of {len(rows)} proven"
    if failed := sum(row["outcome"] == FAILED for row in rows):
        text += f", {failed} failed"
    solved = [row for row in rows if row["outcome"] == "optimal"]
    if solved:
        text += f", {statistics.median(row['seconds'] for row in solved):.1f} s"
    both = [row for row in solved if row["fixed_overhead"] is not None]
    if both:
        fixed, free = (statistics.mean(row[key] for row in both) for key in ("fixed_overhead", "overhead"))
        text += f"; {fixed:.1%} → {free:.1%}"
    return text


if __name__ == "__main__":
    main()
