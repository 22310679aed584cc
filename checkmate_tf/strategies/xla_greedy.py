"""XLA's greedy rematerialization, as a strategy: walks (`greedy_walk`) with several limits."""

from __future__ import annotations

import time

import numpy as np

from ..graph import Graph
from ..schedule import Schedule, keep_all
from .greedy_walk import greedy_sequence
from .options import SolveOptions
from .search.minimum_budget import infeasible

__all__ = ["xla_greedy"]

_LIMITS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # of the peak without recomputation, less the constants
_NEAR = 0.8  # lower limits than this share of the budget are not tried


def xla_greedy(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Walk through the training order with the budget for a limit.

    If the walk ends above the budget, other limits are tried, ascending from just below it, until a walk keeps to its
    limit. One of these walks may be within the budget all the same. Their least peak is what can be reached.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions
        After `time_limit` no other limit is tried.

    Raises
    ------
    InfeasibleBudgetError
        If no walk ends within the budget. `minimum_bytes` is the least peak of them.
    """
    begun = time.perf_counter()
    best = keep_all(graph)
    if best.peak_bytes > budget_bytes:
        room, constant = best.peak_bytes - graph.constant_bytes, graph.constant_bytes
        others = [constant + int(share * room) for share in _LIMITS]
        lowest = constant + _NEAR * (budget_bytes - constant)
        for limit in [budget_bytes, *(other for other in others if other >= lowest)]:
            if limit != budget_bytes and time.perf_counter() - begun > options.time_limit:
                break
            found = Schedule(graph, np.array(greedy_sequence(graph, limit)))
            if found.peak_bytes < best.peak_bytes:
                best = found
            if found.peak_bytes <= max(limit, budget_bytes):
                break
    if best.peak_bytes > budget_bytes:
        raise infeasible(graph, budget_bytes, best.peak_bytes)
    status = "optimal" if best.cost <= graph.base_cost else "feasible"
    return Schedule(
        graph, best.sequence, strategy="xla-greedy", solver="greedy", status=status, budget_bytes=budget_bytes,
        lower_bound=graph.base_cost, seconds=time.perf_counter() - begun,
    )  # fmt: skip
