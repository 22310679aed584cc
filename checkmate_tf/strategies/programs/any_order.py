"""A lower bound that holds for every order of first computations.

The bound of `bound.py` is about schedules that follow the graph's order. This one looks at one moment, the first
computation of a node v, and needs no order. By then every ancestor of v has been computed, and no descendant. So each
value i that an ancestor makes and a descendant reads is in memory at that moment (k_i), or is computed again later
(r_i), from values of which the same holds:

    min   base cost + sum of C_i r_i
    k_i + r_i >= 1        i is an ancestor of v, and a descendant of v reads it, or nobody reads it
    k_p + r_p >= r_i      p is an input of i
    sum of M_i k_i <= budget - constants - what v takes besides its inputs        k_i = 1 for the inputs of v

The linear relaxation is solved for a few nodes v, those across which most bytes are read, and the largest value counts.
In a training graph the loss is one of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...solvers import Milp, safe_bound
from ..ordering.crossing import MOST, ancestors, crossing

__all__ = ["any_order_bound"]

_NODES = 8  # nodes v that are tried: more gained nothing in twelve networks, fewer lost up to 3% of a step


def any_order_bound(graph: Graph, budget_bytes: int) -> float:
    """Cost below which there is no schedule within a budget, in any order of computation.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.

    Returns
    -------
    float
        In the graph's cost unit; at least its base cost, and infinite if no schedule fits. In graphs of more than 6,000
        nodes it is the base cost.
    """
    n, room = len(graph), budget_bytes - graph.constant_bytes
    if int(graph.working_set.max(initial=0)) > room:
        return np.inf
    if not 1 < n <= MOST:
        return graph.base_cost
    before = ancestors(graph)
    across = crossing(graph, before)
    read = across.T @ graph.sizes + graph.working_set
    candidates = [v for v in np.argsort(-read, kind="stable")[:_NODES].tolist() if read[v] > room]
    return max((_bound_at(graph, room, before[v], across[:, v], v) for v in candidates), default=graph.base_cost)


def _bound_at(graph: Graph, room: int, before: NDArray[np.bool_], across: NDArray[np.bool_], v: int) -> float:
    """The value of the linear program for node v; of each node whether it comes before v, and whether it crosses v."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    mine = np.flatnonzero(before)
    column = {i: k for k, i in enumerate(mine.tolist())}
    count = len(mine)
    rows: list[tuple[list[int], list[float], float]] = []  # columns, coefficients and the most of their sum
    for i in np.flatnonzero(across).tolist():
        k = column[i]
        rows.append(([k, count + k], [-1.0, -1.0], -1.0))
    for i, k in column.items():
        for p in graph.inputs[i]:
            q = column[p]
            rows.append(([count + k, q, count + q], [1.0, -1.0, -1.0], 0.0))
    unit = float(max(1, graph.sizes[mine].max(initial=1)))
    left = room - int(graph.sizes[v] + graph.workspace[v])
    rows.append((list(range(count)), (graph.sizes[mine] / unit).tolist(), left / unit))
    inputs = set(graph.inputs[v])
    once = graph.recompute_until <= 0
    bounds = [(1.0 if i in inputs else 0.0, 1.0) for i in mine.tolist()]
    bounds += [(0.0, 0.0 if once[i] else 1.0) for i in mine]
    at = np.repeat(np.arange(len(rows)), [len(columns) for columns, _, _ in rows])
    matrix = coo_array(
        (np.concatenate([values for _, values, _ in rows]), (at, np.concatenate([columns for columns, _, _ in rows]))),
        shape=(len(rows), 2 * count),
    ).tocsr()
    scale = max(graph.base_cost, 1e-30)
    costs = np.concatenate([np.zeros(count), graph.costs[mine] / scale])
    most = np.array([most for _, _, most in rows])
    solved = linprog(costs, A_ub=matrix, b_ub=most, bounds=bounds, method="highs")
    if solved.status == 2:
        return np.inf
    if not solved.success:
        return graph.base_cost
    low, high = np.array(bounds).T
    proven = safe_bound(Milp(costs, matrix, np.full(len(rows), -np.inf), most, low, high), solved.ineqlin.marginals)
    return graph.base_cost + scale * max(0.0, proven)
