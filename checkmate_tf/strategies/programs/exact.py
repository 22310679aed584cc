"""Schedules of small graphs from an integer solver: the program by lifetimes, in which every stage may recompute.

They are the cheapest in stages that compute each node at most once, in the graph's order. Others that begin nodes in
that order may cost less, so this gives schedules and proves nothing. `best_first` proves.
"""

from __future__ import annotations

import numpy as np

from ...graph import Graph
from .lifetimes import lifetimes

__all__ = ["MOST_NODES", "exact"]

#: Above this many nodes the program is too large to be worth trying.
MOST_NODES = 120
_GAP = 1e-6


def exact(graph: Graph, budget_bytes: int, time_limit: float) -> list[int] | None:
    """Solve problem (9) by lifetimes.

    Parameters
    ----------
    budget_bytes : int
        Constants included.
    time_limit : float
        Seconds.

    Returns
    -------
    list of int or None
        The sequence of the best schedule, by the solver. None if there is none, or none was found.

    Notes
    -----
    Needs OR-Tools; not in a process that has loaded TensorFlow.
    """
    from ...solvers.mathopt import solve

    n = len(graph)
    if n > MOST_NODES:
        return None
    program = lifetimes(graph, budget_bytes, np.arange(n), np.ones(n, dtype=bool))
    if program is None or not len(program.milp.objective):
        return None
    solution = solve(program.milp, "highs", time_limit, _GAP)
    return None if solution.x is None else program.sequence(solution.x).tolist()
