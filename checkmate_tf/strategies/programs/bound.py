"""A proven lower bound, from a program that looks at the schedule only at some moments (the ES relaxation).

Boundaries are nodes b_0 < b_1 < ... In the memory while b_m is first computed, X[m, i] = 1 if the value of i < b_m is
there; A[m, i] = 1 if i is computed after that and before b_{m+1} (or the end). For every permitted schedule,

    A[m, i] = 1                       for b_m <= i < b_{m+1}: first computations
    A[m, j] <= A[m, i] + X[m, i]      for edges (i, j): an input was there at the start, or is computed in between
    X[m+1, i] <= X[m, i] + A[m, i]
    X[m, i] = 1                       for the inputs of b_m
    M_b + workspace_b + sum_i M_i X[m, i] <= budget - constants          for b = b_m
    A[m, i] = 0                       for i < b_m that may not be recomputed after stage b_m
    X + A >= 1                        at the end, for sinks
    cost >= sum_{i < b_0} C_i + sum_{m, i} C_i A[m, i]

So the least cost of the linear or the integer program is a lower bound for any set of boundaries, with recomputation of
any node. To raise the bound, boundaries are added where the relaxed schedule holds too much in between. Values that
nobody could use any more are left out: a schedule that holds them is no cheaper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...graph import BACKWARD, Graph
from ...plan import evaluate, plan_from_sequence
from ...solvers import Milp
from ...solvers.tolerances import BOUND_ERROR
from ..search.arrays import last_needs, pinned_bytes

__all__ = ["Bound", "Relaxation", "bounds", "peak_bounds", "relax", "relax_peak"]

log = logging.getLogger(__name__)

_SMALL = 1e-6
_SPREAD = 8  # boundaries to begin with where memory is what is bounded
_GAP = 1e-5  # of the integer solver


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The program for one set of boundaries.

    Attributes
    ----------
    milp : Milp
        Objective in units of the base cost, which is in its constant.
    boundaries : (m,) int
    present, computed : (m, n) int
        Variable of X[m, i] and A[m, i]; -1 where it is 0, -2 where it is 1.
    integer : (variables,) bool
        Those that are 0 or 1 in a schedule.
    """

    milp: Milp
    boundaries: NDArray[np.int64]
    present: NDArray[np.int64]
    computed: NDArray[np.int64]
    integer: NDArray[np.bool_]

    def unpack(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """X and A as (m, n) arrays."""
        table = np.concatenate((x, [1.0, 0.0]))  # -2, -1
        return table[self.present], table[self.computed]


@dataclass(frozen=True, eq=False)
class Bound:
    """A proven lower bound and the relaxed schedule behind it.

    Attributes
    ----------
    cost : float
        In the graph's unit; infinite if no schedule fits the budget.
    boundaries : (m,) int
    kept : (m, n) float
        X, empty if there is no solution.
    """

    cost: float
    boundaries: NDArray[np.int64]
    kept: NDArray[np.float64]


def relax(graph: Graph, budget_bytes: int, boundaries: NDArray[np.int64]) -> Relaxation | None:
    """Build the program; None if the inputs and pinned values of a boundary alone exceed the budget."""
    n, m = len(graph), len(boundaries)
    room = budget_bytes - graph.constant_bytes
    unit = graph.base_cost or 1.0
    last, until = last_needs(graph), graph.recompute_until
    nodes = np.arange(n)
    before = nodes[None, :] < boundaries[:, None]
    useful = before & (last[None, :] > boundaries[:, None])
    again = useful & (until[None, :] > boundaries[:, None] + 1)
    following = np.append(boundaries[1:], n)
    read = np.zeros((m, n), dtype=bool)
    fixed = (graph.sizes + graph.workspace)[boundaries].astype(float)
    for at, b in enumerate(boundaries):
        row = list(graph.inputs[b])
        read[at, row] = True
        fixed[at] += sum(graph.sizes[i] for i in row)
    if (fixed > room).any():
        return None
    free = useful & ~read
    present = np.where(read, -2, -1)
    present[free] = np.arange(free.sum())
    computed = np.where(~before & (nodes[None, :] < following[:, None]), -2, -1)
    computed[again] = free.sum() + np.arange(again.sum())
    variables = int(free.sum() + again.sum())

    rows, columns, values, lower = [], [], [], []
    count = 0

    def at_least(terms: list[tuple[NDArray[np.int64], float]]) -> None:
        """Rows sum of coefficient * variable >= 0, variables given as by `present`: -2 is 1, -1 is 0."""
        nonlocal count
        right = np.zeros(len(terms[0][0]))
        for variable, coefficient in terms:
            right -= coefficient * (variable == -2)
        most = sum((np.where(v >= 0, min(c, 0.0), 0.0) for v, c in terms), np.zeros(len(right)))
        need = most < right - 1e-12  # the others hold for any value of the variables
        index = count + np.cumsum(need) - 1
        for variable, coefficient in terms:
            use = need & (variable >= 0)
            rows.append(index[use])
            columns.append(variable[use])
            values.append(np.full(use.sum(), coefficient))
        lower.append(right[need])
        count += int(need.sum())

    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    source, target = edges[:, 0], edges[:, 1]
    sinks = np.flatnonzero([not users for users in graph.users])
    ones = np.full(len(sinks), -2)
    for at in range(m):
        # Edges whose source is before the boundary: the target is computed, so the source is there or is computed.
        old = (source < boundaries[at]) & (target != boundaries[at])
        i, j = source[old], target[old]
        at_least([(computed[at, i], 1.0), (present[at, i], 1.0), (computed[at, j], -1.0)])
        if at + 1 < m:
            i = np.flatnonzero(before[at])
            at_least([(computed[at, i], 1.0), (present[at, i], 1.0), (present[at + 1, i], -1.0)])
        else:
            keep = sinks < boundaries[at]
            i = sinks[keep]
            at_least([(computed[at, i], 1.0), (present[at, i], 1.0), (ones[keep], -1.0)])
    at_row, node = np.nonzero(free)
    rows.append(count + at_row)
    columns.append(present[free])
    values.append(graph.sizes[node] / max(room, 1))
    row_lower = np.concatenate([*lower, np.full(m, -np.inf)])
    row_upper = np.concatenate([np.full(count, np.inf), (room - fixed) / max(room, 1)])
    matrix = sp.csr_matrix(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))), shape=(count + m, variables)
    )
    objective = np.zeros(variables)
    objective[computed[again]] = graph.costs[np.nonzero(again)[1]] / unit
    milp = Milp(
        objective,
        matrix,
        row_lower,
        row_upper,
        np.zeros(variables),
        np.ones(variables),
        constant=graph.base_cost / unit,
    )
    return Relaxation(milp, boundaries, present, computed, np.ones(variables, dtype=bool))


def relax_peak(graph: Graph, max_cost: float, boundaries: NDArray[np.int64]) -> Relaxation:
    """The same program turned round: the least memory (in units of the plain peak without constants) at a cost.

    The memory z that every boundary shares is the last variable, and the objective; cost <= `max_cost` is the last row.
    """
    plain = evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes
    unit = max(plain - graph.constant_bytes, 1)
    relaxation = relax(graph, plain, boundaries)
    assert relaxation is not None, "the plain schedule fits its own peak"
    old, m = relaxation.milp, len(boundaries)
    memory = np.zeros(old.matrix.shape[0])
    memory[-m:] = -1.0
    price = sp.csr_matrix(np.append(old.objective, 0.0))
    matrix = sp.vstack([sp.hstack([old.matrix, sp.csr_matrix(memory).T]), price], format="csr")
    milp = Milp(
        np.append(np.zeros(len(old.objective)), 1.0),
        matrix,
        np.append(old.row_lower, -np.inf),
        np.append(
            np.append(old.row_upper[:-m], old.row_upper[-m:] - (plain - graph.constant_bytes) / unit),
            max_cost / (graph.base_cost or 1.0) - old.constant,
        ),
        np.append(old.lower, pinned_bytes(graph).max() / unit),
        np.append(old.upper, 1.0),
    )
    return replace(relaxation, milp=milp, integer=np.append(relaxation.integer, False))


def first_boundary(graph: Graph, memory: NDArray[np.int64]) -> int:
    """Where nothing recomputed hurts most: the backward node with the highest memory."""
    backward = graph.kinds == BACKWARD
    return int(np.argmax(np.where(backward, memory, -1))) if backward.any() else int(np.argmax(memory))


def overfull(graph: Graph, relaxation: Relaxation, x: NDArray[np.float64], room: float) -> list[tuple[float, int]]:
    """For each gap between boundaries the stage at which the relaxed schedule holds most, and by how much too much.

    An estimate: what is not recomputed is held from the start of the gap to its last need in it, what is recomputed
    from its first need to its last, where recomputing a value needs its inputs when that value is first needed.
    """
    present, computed = relaxation.unpack(x)
    n, m = len(graph), len(relaxation.boundaries)
    edges = [-1, *relaxation.boundaries.tolist(), n]
    worst: list[tuple[float, int]] = []
    needs = graph.sizes + graph.workspace
    for at in range(m + 1):
        begin, end = edges[at], edges[at + 1]
        if end - begin < 2:
            continue
        again = (computed[at - 1] * (np.arange(n) < begin)).tolist() if at else [0.0] * n
        later = present[at].tolist() if at < m else [float(not users) for users in graph.users]
        first, last = [n] * n, [-1] * n  # needs in the gap, as input of a first computation or of a recomputation
        held = np.zeros(n + 1)  # differences over stages
        for i in range(end - 1, -1, -1):
            low, high = n, -1
            for j in graph.users[i]:
                when = j if j > begin else (first[j] if j < begin and again[j] > _SMALL else n)
                if when < end:
                    low, high = min(low, when), max(high, when)
            first[i], last[i] = low, high
            size, start = float(graph.sizes[i]), max(begin, i) + 1
            through = max(0.0, later[i] - again[i])
            held[start] += size * through
            held[end] -= size * through
            if high >= start:
                kept = max(0.0, 1.0 - again[i] - through)
                held[start] += size * kept
                held[low] += size * again[i]
                held[high + 1] -= size * (kept + again[i])
        total = np.cumsum(held)[begin + 1 : end] + needs[begin + 1 : end]
        stage = int(np.argmax(total))
        if total[stage] > 0.8 * room:
            worst.append((float(total[stage] - room), begin + 1 + stage))
    return sorted(worst, reverse=True)


def bounds(graph: Graph, budget_bytes: int, time_limit: float, most: int = 64) -> Iterator[Bound]:
    """Better and better lower bounds on the cost of a schedule within a budget.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    time_limit : float
        Seconds.
    most : int
        Boundaries at the end.

    Yields
    ------
    Bound
        Each with a higher cost than the last; ends with one of infinite cost if no schedule fits.
    """
    unit, room = graph.base_cost or 1.0, float(budget_bytes - graph.constant_bytes)
    memory = evaluate(graph, plan_from_sequence(graph, range(len(graph)))).memory
    start = np.array([first_boundary(graph, memory)], dtype=np.int64)
    for bound in _refine(graph, lambda b: relax(graph, budget_bytes, b), lambda x: room, start, time_limit, most):
        yield replace(bound, cost=max(graph.base_cost, bound.cost * unit))


def peak_bounds(graph: Graph, max_cost: float, time_limit: float, most: int = 64) -> Iterator[Bound]:
    """Better and better lower bounds on the peak of a schedule that costs no more than `max_cost`.

    Parameters
    ----------
    max_cost : float
        In the graph's unit, at least its base cost.
    time_limit, most
        As for `bounds`.

    Yields
    ------
    Bound
        Its `cost` is bytes here, constants included.
    """
    plain = evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes
    unit = max(plain - graph.constant_bytes, 1)
    late = np.flatnonzero(graph.kinds == BACKWARD) if graph.trains else np.arange(len(graph))
    start = np.unique(late[np.linspace(0, len(late) - 1, _SPREAD).astype(int)])

    def room(x: NDArray[np.float64]) -> float:
        return float(x[-1] * unit)

    for bound in _refine(graph, lambda b: relax_peak(graph, max_cost, b), room, start, time_limit, most):
        yield replace(bound, cost=graph.constant_bytes + bound.cost * unit)


def _refine(
    graph: Graph,
    build: Callable[[NDArray[np.int64]], Relaxation | None],
    room_of: Callable[[NDArray[np.float64]], float],
    boundaries: NDArray[np.int64],
    time_limit: float,
    most: int,
) -> Iterator[Bound]:
    """Solve, add boundaries where the relaxed schedule holds more than `room_of` its solution, and again."""
    from ...solvers import mathopt, ortools

    begun = time.perf_counter()
    best, stalled = -np.inf, 0
    while True:
        relaxation = build(boundaries)
        if relaxation is None:
            yield Bound(np.inf, boundaries, np.zeros((0, len(graph))))
            return
        improved = False
        x = None
        for method in ("glop", "highs"):
            left = time_limit - (time.perf_counter() - begun)
            if left <= 0:
                return
            if method == "glop":
                solution = ortools.solve(relaxation.milp, method, left)
            else:
                milp = replace(relaxation.milp, integer=relaxation.integer)
                solution = mathopt.solve(milp, method, min(left, max(2.0, 0.25 * time_limit)), _GAP)
            value = solution.bound - (BOUND_ERROR if method == "highs" else 0.0)
            log.debug(
                "%s, %d boundaries: %s, bound %.6f, %.1f s", method, len(boundaries), solution.status, value,
                time.perf_counter() - begun,
            )  # fmt: skip
            if solution.status == "infeasible":
                yield Bound(np.inf, boundaries, np.zeros((0, len(graph))))
                return
            if solution.x is None:
                break
            x = solution.x if x is None else x
            improved |= value > best + 1e-5
            if value > best:
                best = value
                yield Bound(best, boundaries, relaxation.unpack(solution.x)[0])
        if x is None:
            return
        stalled = 0 if improved else stalled + 1
        worst = overfull(graph, relaxation, x, room_of(x))
        added = [stage for _, stage in worst[: max(1, len(boundaries))]]
        if not added or len(boundaries) >= most or stalled >= 3:
            return
        boundaries = np.unique(np.append(boundaries, added))
