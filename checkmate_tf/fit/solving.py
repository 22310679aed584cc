"""Gives schedules for a target, from the cache (`fit.cache`) if the same question was solved before."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import InfeasibleBudgetError
from ..graph import Graph
from ..schedule import Schedule
from ..strategies import SolveOptions, solve
from ..strategies.compiled import compile_search
from ..strategies.search.minimum_budget import proven_minimum, tightest
from .cache import lookup, store
from .job import Ledger
from .options import PlanOptions
from .policy import POLICY

__all__ = ["SEARCHED", "least_schedule", "noted_interrupts", "solve_least", "solve_once"]

SEARCHED = "checkmate"
"""The strategy whose schedules and orders may be varied: of another one, the user wants its own."""


def solve_once(graph: Graph, target: int, options: PlanOptions, ledger: Ledger) -> Schedule:
    """The schedule that was solved before for the same question, or a new one.

    Parameters
    ----------
    graph : Graph
    target : int
        Bytes that its peak may take, constants included.
    options : PlanOptions
        What the ledger leaves of the time limit is for solving, at least a second.
    ledger : Ledger
        The seconds of stage "solve" are added to.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits the target, or none was found.
    """
    most = max(0, target)  # corrections may leave nothing, or less
    if options.strategy == SEARCHED:
        compile_search()
    begun, left = time.perf_counter(), max(1.0, options.time_limit - ledger.solving_seconds)

    def progress(elapsed: float, cost: float, bound: float, gap: float) -> None:
        text = f"overhead {cost / graph.base_cost - 1:.2%}, gap {gap:.2%}" if np.isfinite(cost) else "searching"
        options.tell("solve", min(elapsed, left), left, text)

    chosen = SolveOptions(
        time_limit=left, gap=options.gap, seed=options.seed, settle=True, progress=progress, order=options.order
    )
    with ledger.timed("solve"):
        if not options.cache:
            return solve(graph, most, options.strategy, chosen)
        known = lookup(graph, most, options.strategy, chosen)
        if known is not None:
            ledger.reused(known.seconds)
            options.tell("solve", 1, 1, f"overhead {known.overhead:.2%}, gap {known.gap:.2%}, from the cache")
            return known
        with noted_interrupts() as interrupted:
            schedule = solve(graph, most, options.strategy, chosen)
        if not interrupted():  # else it is not the best that the time limit allows
            store(replace(schedule, seconds=time.perf_counter() - begun), most, options.strategy, chosen)
        return schedule


def solve_least(graph: Graph, error: InfeasibleBudgetError, options: PlanOptions, ledger: Ledger) -> Schedule:
    """Find a schedule for the least budget that an error names: the cheapest found in a while, or else the error's own.

    Parameters and errors are those of `solve_once`. If the error has a sequence, nothing is raised.
    """
    cheaper = replace(options, time_limit=max(options.time_limit, ledger.solving_seconds + POLICY.least_seconds))
    if error.sequence is None:
        return solve_once(graph, error.minimum_bytes, cheaper, ledger)
    sequence = np.array(error.sequence, dtype=np.int64)
    known = Schedule(graph, sequence, strategy=options.strategy, budget_bytes=error.minimum_bytes)
    try:
        return min(known, solve_once(graph, error.minimum_bytes, cheaper, ledger), key=lambda schedule: schedule.cost)
    except InfeasibleBudgetError:  # found sooner or later, and now later
        return known


def least_schedule(graph: Graph, options: PlanOptions, ledger: Ledger) -> Schedule:
    """The schedule of least peak that is found in a while, which a refusal can name.

    Parameters are those of `solve_once`. The time limit of the options is not kept.
    """
    compile_search()
    with ledger.timed("solve"):
        low = proven_minimum(graph, options.order)[0]
        peak, sequence = tightest(graph, low, POLICY.named_seconds, options.seed, options.order)
    return Schedule(graph, sequence, strategy=options.strategy, budget_bytes=peak)


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """Give a function that tells whether the process was interrupted since. Interrupts are handled as before.

    Strategies answer Ctrl-C with the best schedule so far, which is not what was asked for. Only the main thread is
    interrupted, so nothing is watched in others.
    """
    noted = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield noted.is_set
        return

    def handle(number: int, frame: Any) -> None:
        noted.set()
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, before)
