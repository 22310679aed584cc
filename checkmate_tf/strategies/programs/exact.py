"""Solves small graphs to the end, with proof: the program by lifetimes, in which every stage may recompute."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...graph import Graph
from ...solvers.tolerances import BOUND_ERROR
from .lifetimes import lifetimes

__all__ = ["MOST_NODES", "exact"]

#: Above this many nodes the program is too large to be worth trying.
MOST_NODES = 120
_GAP = 1e-6


def exact(graph: Graph, budget_bytes: int, time_limit: float, tell: Callable[[float, list[int] | None], None]) -> None:
    """Solve problem (9) by lifetimes.

    Parameters
    ----------
    budget_bytes : int
        Constants included.
    time_limit : float
        Seconds.
    tell : callable (lower bound, sequence or None)
        Hears of proven bounds on the cost, in the graph's unit (infinite if nothing fits), and of schedules.

    Notes
    -----
    The bound is over schedules that compute a node at most once a stage, in the order of the graph, as problem (9) has
    them. Needs OR-Tools; not in a process that has loaded TensorFlow.
    """
    from ...solvers.mathopt import solve

    n = len(graph)
    if n > MOST_NODES:
        return
    program = lifetimes(graph, budget_bytes, np.arange(n), np.ones(n, dtype=bool))
    if program is None:
        tell(np.inf, None)
        return
    if not len(program.milp.objective):
        return
    unit = graph.base_cost or 1.0

    def report(_: object, bound: float) -> None:
        if np.isfinite(bound):
            tell((bound - BOUND_ERROR) * unit, None)

    solution = solve(program.milp, "highs", time_limit, _GAP, report=report)
    if solution.status == "infeasible":
        tell(np.inf, None)
        return
    sequence = None if solution.x is None else program.sequence(solution.x).tolist()
    bound = solution.bound - BOUND_ERROR
    if np.isfinite(bound):
        tell(max(graph.base_cost, bound * unit), sequence)
    elif sequence is not None:
        tell(graph.base_cost, sequence)
