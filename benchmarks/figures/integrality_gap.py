"""Appendix A of Checkmate: how far the relaxation is from the optimum, with frontier-advancing stages and without.

The paper's instance is a linear network of 8 layers: n = 17 nodes of unit cost and size, budget 4. Problem (9) is
relaxed with stages (8a-8c) and in the general form (1d, 1e); the gap is the optimum over the relaxation. The optimum of
any order at all is found by search over sets of values in memory, so it does not rest on a solver; that of the stages
is the optimum that the program itself has.

    python benchmarks/figures/integrality_gap.py             # 8 layers, budgets 4 to 10: a minute
    python benchmarks/figures/integrality_gap.py --full      # and 4, 6, 10 and 12 layers; resumes what is in the folder
"""

from __future__ import annotations

import heapq
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.lib.cells import FAILED, at_once, read_cells, run_cells
from benchmarks.lib.options import common_options, serve_child
from benchmarks.lib.published import published
from benchmarks.lib.tables import markdown, new_figure, write_csv, write_table

if TYPE_CHECKING:
    from checkmate_tf.graph import Graph

PAPER_LAYERS, PAPER_BUDGET = 8, 4
QUICK_LAYERS, FULL_LAYERS = (8,), (4, 6, 8, 10, 12)
LEAST_BUDGET = 4  # a gradient, with the layer, the gradient that it reads, and a layer from which to go on
FORMS = ("partitioned", "unpartitioned")
COLUMNS = (
    "layers", "nodes", "budget", "optimum_any_order", "optimum_partitioned", "relaxed_partitioned",
    "relaxed_unpartitioned", "gap_partitioned", "gap_unpartitioned", "status", "seconds",
)  # fmt: skip


def main() -> None:
    parser = common_options(__doc__, "integrality_gap", "8 layers, every budget", "4 to 12 layers, every budget")
    parser.add_argument("--layers", nargs="*", type=int, help="only these")
    parser.add_argument("--budgets", nargs="*", type=int, help="only these")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds for the optimum with stages")
    options = parser.parse_args()
    if serve_child(options, answer):
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.draw:
        layers = options.layers or (FULL_LAYERS if options.full else QUICK_LAYERS)
        requests = [
            {"cell": f"cell-{n:02}-{budget:02}", "layers": n, "budget": budget, "limit": options.time_limit}
            for n in layers
            for budget in options.budgets or range(LEAST_BUDGET, n + 3)
        ]
        run_cells(__file__, options.output, requests, lambda r: 3 * r["limit"], options.again, jobs=at_once(2))
    cells = [cell for cell in read_cells(options.output) if cell.get("outcome") != FAILED]
    if not cells:
        raise SystemExit(f"there is no result in {options.output}")
    write(options.output, cells)


def answer(request: dict) -> dict:
    """The two relaxations and the two optima of one instance."""
    from checkmate_tf.solvers import solve_milp
    from checkmate_tf.strategies import SolveOptions, solve
    from checkmate_tf.strategies.programs.formulation import problem9

    begun = time.perf_counter()
    graph, budget = chain(request["layers"]), request["budget"]
    found: dict = {"nodes": len(graph), "optimum_any_order": least_cost(graph, budget)}
    schedule = solve(graph, budget, "milp", SolveOptions(time_limit=request["limit"], gap=0.0))
    found |= {"optimum_partitioned": schedule.cost, "status": schedule.status, "solver": schedule.solver}
    for form in FORMS:
        program = problem9(graph, budget, partitioned=form == "partitioned").milp
        relaxed = solve_milp(replace(program, integer=None), "glop", request["limit"])
        if relaxed.status != "optimal":
            raise SystemExit(f"the {form} relaxation was not solved: {relaxed.detail or relaxed.status}")
        value = relaxed.objective * graph.base_cost
        optimum = found["optimum_any_order" if form == "unpartitioned" else "optimum_partitioned"]
        found |= {f"relaxed_{form}": value, f"gap_{form}": optimum / value}
    return found | {"seconds": time.perf_counter() - begun}


def chain(layers: int) -> Graph:
    """The paper's linear network: each node reads the one before it, and each gradient its own layer as well."""
    import numpy as np

    from checkmate_tf.graph import BACKWARD, FORWARD, LOSS, Graph

    n = 2 * layers + 1
    inputs = [[i - 1] * (i > 0) + ([2 * layers - i] if i > layers else []) for i in range(n)]
    kinds = np.array([FORWARD] * layers + [LOSS] + [BACKWARD] * layers)
    return Graph(f"chain of {layers}", [f"v{i}" for i in range(n)], kinds, np.ones(n), np.ones(n), inputs)


def least_cost(graph: Graph, budget: int) -> float:
    """Fewest computations that make the last node with at most `budget` values in memory, in any order.

    A pebble game on unit costs and sizes: a shortest path over the sets of values in memory (Dijkstra), where one is
    computed or one is dropped. O(sets (n + log sets)), sets at most C(n, budget).
    """
    n = len(graph)
    needs = [sum(1 << i for i in row) for row in graph.inputs]
    best, queue = {0: 0}, [(0, 0)]
    while queue:
        cost, held = heapq.heappop(queue)
        if cost > best[held]:
            continue
        if held >> (n - 1):
            return float(cost)
        full = held.bit_count() == budget
        for v in range(n):
            bit = 1 << v
            if held & bit:
                if not full:
                    continue  # to drop a value early serves nothing
                following, price = held ^ bit, cost
            elif full or held & needs[v] != needs[v]:
                continue
            else:
                following, price = held | bit, cost + 1
            if price < best.get(following, math.inf):
                best[following] = price
                heapq.heappush(queue, (price, following))
    return math.inf


# Results --------------------------------------------------------------------------------------------------------------


def write(output: Path, cells: list[dict]) -> None:
    """CSV, table with the published figures, and picture."""
    cells.sort(key=lambda c: (c["layers"], c["budget"]))
    write_csv(output / "cells.csv", COLUMNS, cells)
    rows = [
        (
            c["layers"], c["nodes"], c["budget"], f"{c['optimum_any_order']:g}",
            f"{c['optimum_partitioned']:g}{'' if c['status'] == 'optimal' else ' (not proved)'}",
            f"{c['relaxed_partitioned']:.3f}", f"{c['relaxed_unpartitioned']:.3f}",
            f"{c['gap_partitioned']:.2f}", f"{c['gap_unpartitioned']:.2f}",
        )
        for c in cells
    ]  # fmt: skip
    head = ("layers", "nodes", "budget", "optimum, any order", "optimum, stages", "relaxed, stages",
            "relaxed, general", "gap, stages", "gap, general")  # fmt: skip
    text = markdown(head, rows) + "\n" + compared(cells)
    write_table(output, text)
    draw(output / "integrality_gap.png", cells)
    print(text)


def compared(cells: list[dict]) -> str:
    """The published gaps beside ours."""
    mine = [c for c in cells if (c["layers"], c["budget"]) == (PAPER_LAYERS, PAPER_BUDGET)]
    rows = []
    for row in published("appendix A"):
        form = row["metric"].removeprefix("integrality gap ")
        ours = f"{mine[0][f'gap_{form}']:.2f}" if mine else "not run"
        rows.append((f"8 layers, budget 4, {form}", row["value"], ours))
    return markdown(("instance", "published", "ours"), rows)


def draw(path: Path, cells: list[dict]) -> None:
    """Gaps against the budget, both forms, a shade a depth; the published points ringed."""
    figure = new_figure(8.5, 4.8)
    axes = figure.add_subplot()
    depths = sorted({c["layers"] for c in cells})
    colors = {"partitioned": "#0072b2", "unpartitioned": "#d55e00"}
    names = {"partitioned": "frontier-advancing stages", "unpartitioned": "general form"}
    for form in reversed(FORMS):
        for depth in depths:
            mine = [c for c in cells if c["layers"] == depth]
            shade = 1.0 if depth == PAPER_LAYERS else 0.35
            axes.plot(
                [c["budget"] for c in mine], [c[f"gap_{form}"] for c in mine], marker="o", markersize=4,
                color=colors[form], alpha=shade, linewidth=2 if shade == 1 else 1,
                label=names[form] if depth == PAPER_LAYERS or depths == [depth] else None,
            )  # fmt: skip
            if len(depths) > 1:
                last = mine[0]
                axes.annotate(
                    f"{depth}", (last["budget"], last[f"gap_{form}"]), (-12, -3), textcoords="offset points", fontsize=8
                )
    for k, row in enumerate(published("appendix A")):
        label = "published: 21.56 and 1.18" if k == 0 else None
        axes.plot(PAPER_BUDGET, float(row["value"]), "o", markersize=12, fillstyle="none", color="black", label=label)
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.9)
    ticks = [1, 1.2, 2, 5, 10, 20, 50]
    axes.set_yticks([t for t in ticks if t <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    axes.set_xticks(sorted({c["budget"] for c in cells}))
    axes.set_xlabel("budget (values of unit size)")
    axes.set_ylabel("integrality gap (optimum over relaxation)")
    which = f"{depths[0]} layers" if len(depths) == 1 else f"{', '.join(map(str, depths))} layers"
    axes.set_title(f"Linear networks of unit layers: {which}", loc="left", fontsize=11)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
