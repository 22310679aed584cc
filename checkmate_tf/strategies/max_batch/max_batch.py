"""The largest batch that trains in a given memory at a bounded cost (Checkmate, section 6.3).

The paper maximises the batch size B with memory rows in B x M_i, which is a quadratic program. But memory is fixed +
B z, where z is the peak of a schedule for one sample, and costs grow with B on both sides of the limit. So the largest
B belongs to the schedule of least peak z within the cost limit. To find that is a linear program:

    B = floor((memory - fixed) / z)

The relaxation (`bound.peak_bounds`) bounds z from below, and so B from above. The eviction search looks for schedules
at budgets between what is known and what is not ruled out. In graphs of up to 62 nodes a best-first search asks for the
cheapest schedule at such a budget, too (`best_first`). Where it ends, it has a schedule or rules the budget out.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...plan import Evaluation, evaluate, plan_from_sequence
from ...schedule import Schedule, keep_all
from ..compiled import compile_search
from ..options import SolveOptions
from ..ordering.best_first import BestFirst
from ..ordering.states import LARGEST
from ..programs.bound_process import BoundProcess
from ..search.minimum_budget import proven_minimum
from ..search.search import KeepSet, search
from .scaling import cost_limit, most_batch, one_sample, samples, scaled, too_small
from .values import MaxBatch

__all__ = ["max_batch"]

log = logging.getLogger(__name__)

_SLICE = 1.5  # seconds of search at one budget, at first
_EXACT = 0.03  # of these seconds: for best-first search at the same budget, before
_FEASIBLE = 1e-9  # of a bound: what floating point may add to it


def max_batch(
    graph: Graph,
    memory_bytes: int,
    max_overhead: float | str = "one-forward",
    fixed_bytes: int | None = None,
    options: SolveOptions | None = None,
) -> MaxBatch:
    """The largest batch whose training step fits a memory at a bounded cost, in the graph's order.

    Parameters
    ----------
    graph : Graph
        Of one sample.
    memory_bytes : int
    max_overhead : float or "one-forward"
        See `scaling.cost_limit`.
    fixed_bytes : int, optional
        The part of `graph.constant_bytes` that does not grow with the batch (parameters and their gradients). Default:
        all of it.
    options : SolveOptions, optional

    Raises
    ------
    InfeasibleBudgetError
        If not even one sample fits.
    BudgetError
        If `fixed_bytes` is not part of the graph's constants.
    CostError
        As `cost_limit`.
    """
    options = options or SolveOptions()
    one, fixed = one_sample(graph, fixed_bytes)
    compile_search()
    begun = time.perf_counter()
    room = memory_bytes - fixed
    limit = cost_limit(graph, max_overhead)
    chase = _Chase(one, room, limit * (1 + 1e-12), options, begun)
    chase.run()
    if chase.batch < 1:
        raise too_small(memory_bytes, fixed, chase.peak, proven=chase.upper < 1)
    b, seconds = chase.batch, time.perf_counter() - begun
    schedule = Schedule(
        scaled(graph, b, fixed), chase.sequence, strategy="checkmate", solver="eviction search; GLOP, HiGHS",
        budget_bytes=memory_bytes, lower_bound=graph.base_cost * b, seconds=seconds,
        status="optimal" if len(chase.sequence) == len(graph) else "feasible",
    )  # fmt: skip
    log.info("batch %d, at most %d, %.1f s", b, chase.upper, seconds)
    return MaxBatch(b, chase.upper, schedule, memory_bytes, fixed, limit * b, seconds)


class _Chase:
    """Upper and lower bounds on the batch approach each other."""

    def __init__(self, graph: Graph, room: int, limit: float, options: SolveOptions, begun: float) -> None:
        self.graph, self.room, self.limit, self.options, self.begun = graph, room, limit, options, begun
        self.sequence: NDArray[np.int64] = np.arange(len(graph))
        self.peak = keep_all(graph).peak_bytes
        self.least = proven_minimum(graph)[0]
        self.most = most_batch(graph)
        self.sets: list[KeepSet] = []
        self.told = -np.inf

    @property
    def batch(self) -> int:
        return samples(self.room, self.peak, self.most)

    @property
    def upper(self) -> int:
        return max(self.batch, samples(self.room, self.least, self.most))

    def run(self) -> None:
        options = self.options
        if self.batch >= self.upper:
            return
        with BoundProcess(self.graph, 0, options.time_limit, options.memory_limit, self.limit) as process:
            patience, failed = _SLICE, 0  # failed: the highest peak that the search did not reach
            try:
                while self._elapsed() < options.time_limit and self.batch < self.upper:
                    low = max(self.least, failed)
                    target = int(np.sqrt(low * self.peak)) if self.peak > 1.002 * low else low
                    # What lets one sample more in is the least that is worth looking for.
                    target = min(target, self.room // (self.batch + 1)) if self.batch < self.most else target
                    if self._decided(target, _EXACT * patience) or self._search(target, patience, process):
                        continue
                    if target <= self.least * 1.0005 or target >= self.room // (self.batch + 1):
                        failed, patience = 0, 2 * patience
                    else:
                        failed = target
            except KeyboardInterrupt:
                log.warning("interrupted: going on with the best schedule so far")

    def _elapsed(self) -> float:
        return time.perf_counter() - self.begun

    def _decided(self, target: int, seconds: float) -> bool:
        """Whether best-first search finds a schedule of at most `target` bytes within the cost limit, or proves none.

        Then the peak is lower, or the least peak is higher.
        """
        if len(self.graph) > LARGEST:
            return False
        exact = BestFirst(self.graph, target, "fixed")
        exact.explore(min(seconds, self.options.time_limit - self._elapsed()), self.limit + 2 * exact.slack)
        if exact.sequence is not None and self._take(exact.sequence):
            return True
        if exact.bound > self.limit:
            self.least = max(self.least, target + 1)
        return exact.bound > self.limit

    def _take(self, sequence: NDArray[np.int64]) -> bool:
        """Take a schedule within the cost limit if its peak is lower; whether it is."""
        found: Evaluation = evaluate(self.graph, plan_from_sequence(self.graph, sequence))
        if found.cost > self.limit or found.peak_bytes >= self.peak:
            return False
        self.sequence, self.peak = sequence, found.peak_bytes
        return True

    def _search(self, target: int, seconds: float, process: BoundProcess) -> bool:
        """Look for a schedule of at most `target` bytes within the cost limit; whether one was found."""
        begun = time.perf_counter()
        sets = list(self.sets[-2:])

        def take() -> list[KeepSet]:
            taken = list(sets)
            sets.clear()
            return taken

        for sequence in search(self.graph, target, self.options.seed, take):
            self._listen(process)
            if sequence is not None and self._take(sequence):
                return True
            if self.batch >= self.upper or target < self.least or self._elapsed() > self.options.time_limit:
                return False
            if time.perf_counter() - begun > seconds:
                return False
        return False

    def _listen(self, process: BoundProcess) -> None:
        for news in process.news():
            self.least = max(self.least, math.ceil(float(news["cost"]) * (1 - _FEASIBLE)))  # peaks are whole bytes
            if news["kept"]:
                self.sets.append(KeepSet(np.array(news["boundaries"]), np.array(news["kept"])))
        progress: Callable[[float, float, float, float], None] | None = self.options.progress
        if progress is not None and self._elapsed() - self.told >= 1:
            self.told = self._elapsed()
            progress(self.told, float(self.batch), float(self.upper), self.upper / max(self.batch, 1) - 1)
