"""Schedules for a target: what was solved before for the same question comes from the cache (`schedule_cache`)."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from ..errors import InfeasibleBudgetError
from ..graph import Graph
from ..schedule import Schedule
from ..strategies import SolveOptions, solve
from .cache import lookup, store
from .interrupts import noted_interrupts
from .job import PlanOptions

__all__ = ["solve_least", "solve_once", "solving_seconds"]

_CHEAPER = 8.0  # seconds at least to make the schedule with the least known peak cheaper
_REUSED = "solved before"  # a stage: the seconds that schedules from the cache took when they were made


def solving_seconds(seconds: dict[str, float]) -> float:
    """Seconds of the time limit that are used up: a schedule from the cache counts as if it had been solved for now."""
    return seconds.get("solve", 0.0) + seconds.get(_REUSED, 0.0)


def solve_once(graph: Graph, target: int, options: PlanOptions, seconds: dict[str, float]) -> Schedule:
    """The schedule that was solved before for the same question, or a new one.

    Parameters
    ----------
    graph : Graph
    target : int
        Bytes that its peak may take, constants included.
    options : PlanOptions
        What `seconds` leaves of the time limit is for solving, at least a second.
    seconds : dict of str to float
        By stage. What is solved now is for the caller to add; what a schedule from the cache took is added here.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits the target, or none was found.
    """
    begun, left = time.perf_counter(), max(1.0, options.time_limit - solving_seconds(seconds))

    def progress(elapsed: float, cost: float, bound: float, gap: float) -> None:
        text = f"overhead {cost / graph.base_cost - 1:.2%}, gap {gap:.2%}" if np.isfinite(cost) else "searching"
        options.tell("solve", min(elapsed, left), left, text)

    chosen = SolveOptions(time_limit=left, gap=options.gap, seed=options.seed, settle=True, progress=progress)
    if not options.cache:
        return solve(graph, target, options.strategy, chosen)
    known = lookup(graph, target, options.strategy, chosen)
    if known is not None:
        seconds[_REUSED] = seconds.get(_REUSED, 0.0) + known.seconds
        options.tell("solve", left, left, f"overhead {known.overhead:.2%}, gap {known.gap:.2%}, from the cache")
        return known
    with noted_interrupts() as interrupted:
        schedule = solve(graph, target, options.strategy, chosen)
    if not interrupted():  # else it is not the best that the time limit allows
        store(replace(schedule, seconds=time.perf_counter() - begun), target, options.strategy, chosen)
    return schedule


def solve_least(
    graph: Graph, error: InfeasibleBudgetError, options: PlanOptions, seconds: dict[str, float]
) -> Schedule:
    """A schedule for the least budget that an error names: the cheapest found in a while, or else the error's own.

    Parameters and errors as for `solve_once`; there is none where the error has a sequence.
    """
    cheaper = replace(options, time_limit=max(options.time_limit, solving_seconds(seconds) + _CHEAPER))
    if error.sequence is None:
        return solve_once(graph, error.minimum_bytes, cheaper, seconds)
    sequence = np.array(error.sequence, dtype=np.int64)
    known = Schedule(graph, sequence, strategy=options.strategy, budget_bytes=error.minimum_bytes)
    try:
        return min(known, solve_once(graph, error.minimum_bytes, cheaper, seconds), key=lambda schedule: schedule.cost)
    except InfeasibleBudgetError:  # found sooner or later, and now later
        return known
