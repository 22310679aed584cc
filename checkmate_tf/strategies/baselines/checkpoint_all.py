"""Checkpoint-all: nothing is recomputed (Checkmate, Table 1)."""

from __future__ import annotations

import time
from dataclasses import replace

from ...graph import Graph
from ...schedule import Schedule, keep_all
from ..options import SolveOptions
from ..search.minimum_budget import infeasible_plain

__all__ = ["checkpoint_all"]


def checkpoint_all(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Keep every value until its last use.

    Raises
    ------
    InfeasibleBudgetError
        If that does not fit.
    """
    begun = time.perf_counter()
    schedule = keep_all(graph)
    if schedule.peak_bytes > budget_bytes:
        raise infeasible_plain(graph, budget_bytes, schedule.peak_bytes)
    return replace(schedule, budget_bytes=budget_bytes, seconds=time.perf_counter() - begun)
