"""A lower bound that holds for every order of first computations.

The bound of `bound.py` is about schedules that follow the graph's order. This one looks at one moment, the first
computation of a node v, and needs no order. By then every ancestor of v has been computed, and no descendant; what is
neither may have been. So of each value i that is not made of v: it is in memory at that moment (k_i), it was computed
before that (e_i, 1 for ancestors), it is computed then or later (r_i), and

    min   sum of C_i (e_i + r_i), and C_i of v and its descendants
    e_i + r_i >= 1,  k_i <= e_i
    e_i <= e_p            p is an input of i
    r_i <= k_p + r_p      p is an input of i
    k_i + r_i >= 1        a descendant of v reads i, or nobody reads it
    sum of M_i k_i <= budget - constants - what v takes besides its inputs        k_i = 1 for the inputs of v

The linear relaxation is solved for some nodes v, those across which most bytes are read, and the largest value counts.
In a training graph the loss is one of them. Which v is best is not known before: in a transformer the 21st gave 9.0%
of the base cost, and the first eight 8.0. Nodes that are no ancestors count as well: without them, 6.9.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...solvers import Milp, safe_bound
from ...solvers.rows import Rows
from ...solvers.tolerances import BOUND_ERROR
from ..ordering.crossing import MOST, ancestors, crossing

__all__ = ["any_order_bound", "any_order_bounds"]

_NODES = 8  # nodes v that are tried where the answer is waited for
_SOON = 32  # the first of all others: the best was among them in ten networks
_WHOLE = 4  # of the best of them, the programs that are solved in whole numbers
_WHOLE_SECONDS = 5.0  # for each, at most: those of five networks took 0.2 s


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
    if (moments := _moments(graph, budget_bytes)) is None:
        return np.inf
    found = (_solved(graph, program) for program in islice(moments, _NODES))
    return max(found, default=graph.base_cost)


def any_order_bounds(graph: Graph, budget_bytes: int, time_limit: float) -> Iterator[float]:
    """Better and better bounds of that kind: more nodes v, and programs in whole numbers. OR-Tools solves them.

    Parameters
    ----------
    graph, budget_bytes
        As for `any_order_bound`.
    time_limit : float
        Seconds.

    Yields
    ------
    float
        The bound so far, after each program.
    """
    from ...solvers import mathopt, ortools

    until, unit = time.perf_counter() + time_limit, _unit(graph)
    best = graph.base_cost
    if (moments := _moments(graph, budget_bytes)) is None:
        yield np.inf
        return
    for first in (_SOON, None):
        seen = list[tuple[float, Milp]]()
        for program in islice(moments, first):
            if (left := until - time.perf_counter()) <= 0:
                return
            found = ortools.solve(program, "glop", left).bound
            seen = sorted([*seen, (found, program)], key=lambda one: -one[0])[:_WHOLE]
            best = max(best, unit * found)
            yield best
        for _, program in seen:
            if (left := until - time.perf_counter()) <= 0:
                return
            whole = replace(program, integer=np.ones(len(program.objective), bool))
            found = mathopt.solve(whole, "highs", min(left, _WHOLE_SECONDS)).bound - BOUND_ERROR
            best = max(best, unit * found)
            yield best


def _moments(graph: Graph, budget_bytes: int) -> Iterator[Milp] | None:
    """The program of each node across which too much is read, the most first; None if no schedule fits."""
    n, room = len(graph), budget_bytes - graph.constant_bytes
    if int(graph.working_set.max(initial=0)) > room:
        return None
    if not 1 < n <= MOST:
        return iter(())
    before = ancestors(graph)
    read = crossing(graph, before).T @ graph.sizes + graph.working_set
    nodes = [v for v in np.argsort(-read, kind="stable").tolist() if read[v] > room]
    edges = np.array(graph.edges, np.int64).reshape(-1, 2)
    return (_moment(graph, edges, room, before, v) for v in nodes)


def _moment(graph: Graph, edges: NDArray[np.int64], room: int, before: NDArray[np.bool_], v: int) -> Milp:
    """The program of node v, in units of the base cost; (nodes, nodes) `before` tells what comes before what."""
    n = len(graph)
    after = before[:, v].copy()
    after[v] = True
    made = before[v]  # computed before v, in any order
    here, either = np.flatnonzero(~after), np.flatnonzero(~after & ~made)
    there, early, later = (np.full(n, -1) for _ in range(3))
    there[here] = np.arange(len(here))
    later[here] = len(here) + np.arange(len(here))
    early[either] = 2 * len(here) + np.arange(len(either))
    variables = 2 * len(here) + len(either)
    once = graph.recompute_until <= 0
    rows = Rows()

    source, target = edges[:, 0], edges[:, 1]
    read = np.zeros(n, bool)
    read[source[after[target] & (target != v)]] = True
    read |= [not users for users in graph.users]
    needed = np.flatnonzero(read & ~after)
    at = rows.add(len(needed), 1.0, np.inf)
    rows.put(at, there[needed], 1.0)
    rows.put(at, later[needed], 1.0)

    inner = ~after[target]  # and so is its source
    p, i = source[inner], target[inner]
    at = rows.add(len(i), 0.0, np.inf)
    rows.put(at, there[p], 1.0)
    rows.put(at, later[p], 1.0)
    rows.put(at, later[i], -1.0)
    both = ~made[p]  # and so is its target
    at = rows.add(int(both.sum()), 0.0, np.inf)
    rows.put(at, early[p[both]], 1.0)
    rows.put(at, early[i[both]], -1.0)
    at = rows.add(len(either), 0.0, np.inf)
    rows.put(at, early[either], 1.0)
    rows.put(at, there[either], -1.0)
    at = rows.add(len(either), 1.0, np.where(once[either], 1.0, np.inf))
    rows.put(at, early[either], 1.0)
    rows.put(at, later[either], 1.0)

    left = room - int(graph.sizes[v] + graph.workspace[v])
    unit = float(max(1, graph.sizes[here].max(initial=1)))
    at = rows.add(1, -np.inf, left / unit)
    rows.put(np.repeat(at, len(here)), there[here], graph.sizes[here] / unit)

    low, high = np.zeros(variables), np.ones(variables)
    low[there[list(graph.inputs[v])]] = 1.0
    high[later[made & once]] = 0.0
    costs = np.zeros(variables)
    costs[later[here]] = graph.costs[here] / _unit(graph)
    costs[early[either]] = graph.costs[either] / _unit(graph)
    constant = float(graph.costs[after | made].sum()) / _unit(graph)
    return Milp(
        costs, rows.matrix(variables), np.concatenate(rows.lower), np.concatenate(rows.upper), low, high, constant
    )


def _solved(graph: Graph, program: Milp) -> float:
    """The value of the linear program, by SciPy: OR-Tools is for processes without TensorFlow."""
    from scipy.optimize import linprog
    from scipy.sparse import vstack

    above, below = np.isfinite(program.row_lower), np.isfinite(program.row_upper)
    matrix = vstack([-program.matrix[above], program.matrix[below]], format="csr")
    most = np.concatenate([-program.row_lower[above], program.row_upper[below]])
    bounds = np.column_stack([program.lower, program.upper])
    solved = linprog(program.objective, A_ub=matrix, b_ub=most, bounds=bounds, method="highs")
    if solved.status == 2:
        return np.inf
    if not solved.success:
        return graph.base_cost
    duals = np.zeros(len(program.row_lower))
    price = solved.ineqlin.marginals
    duals[above] -= price[: above.sum()]
    duals[below] += price[above.sum() :]
    return max(graph.base_cost, _unit(graph) * safe_bound(program, duals))


def _unit(graph: Graph) -> float:
    """Of costs in the programs: the base cost, where there is one."""
    return float(max(graph.base_cost, 1e-30))
