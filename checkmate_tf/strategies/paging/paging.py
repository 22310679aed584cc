"""Paging and recomputation in one search: the cheapest schedule in which values may wait in the host's memory.

Copies run beside the computations. They cost nothing while the engine has time, and all that they take when it has not.
So the search decides first which values may be copied, and then looks for cheap schedules in which these are brought
back and all others are computed again (`search`), in a little less than the budget. The rest is room to wait for copies
late and to bring values back early (`windows`). What such a schedule costs is what its timeline says, by the one
evaluator.

It begins with the schedule without copies: what that computes again is copied instead, value by value, where that costs
less. So the result is never worse than that schedule. Then come the values that are dearest to compute for their bytes,
as many as the engine can carry in several shares of the step. It goes on from the cheapest choices: a value that is
waited for long is left out, and one that costs much to be computed again is copied.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasibleBudgetError
from ...evaluator import CLOSED_GAP, evaluate
from ...graph import Graph
from ...paging import timeline, without_host
from ...plan import plan_from_sequence
from ...schedule import Schedule
from ..checkmate import checkmate
from ..compiled import compile_if_over
from ..options import SolveOptions
from ..search.arrays import Hosted, flatten
from ..search.search import search
from ..search.sequences.keep_where_room import keep_where_room
from .bound import paging_bound
from .windows import with_windows

__all__ = ["paging"]

log = logging.getLogger(__name__)

_SOLVER = "eviction search with copies to the host"
_WITHOUT = 0.4  # of the time: for the schedule without copies
_BOUND = 0.15  # of the time: for the lower bound
_SHARES = (0.15, 0.3, 0.5, 0.8, 1.6, np.inf)  # of what the engine carries in a plain step, at first; and all
_ROOM = (0.1, 0.02, 0.0, 0.25)  # of the budget without constants, left for windows
_FIRST = 0.4  # of the time: for these
_LOOK, _SMALL = 0.06, 300  # seconds of search for a choice of values in a graph of so many nodes; more in larger ones
_EXCHANGE = 0.3  # of the time: for changing the schedule without copies
_KEEPING = 0.2  # seconds, at most, to look for what a new best schedule has again without need
_PRICE = 0.01  # of the time that a copy takes out and back: what it costs in the search
_STALL, _QUIET = 5e-4, 0.4  # to settle: a saving that counts, and the share of the time without one
_PATIENCE = 3.0  # seconds that it goes on in any case
_POOL = 6  # choices from which it goes on, the cheaper ones more often
_KINDS = (0.35, 0.35, 0.3)  # how often a change is about waits, about what is computed again, or at random
_OTHER_ROOM = 0.3  # how often the room changes, too
_MOST_CHANGES = 4  # values that are chosen otherwise at once


def paging(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The cheapest schedule found within the budget, with copies to the host and recomputations.

    Parameters
    ----------
    graph : Graph
        With nodes that copy to the host (`paging.with_host`).
    budget_bytes : int
        Of the device, constants included.
    options : SolveOptions

    Raises
    ------
    InfeasibleBudgetError
        If no schedule was found, with copies or without. It names the least budget that is known to do without copies.

    Notes
    -----
    The problem is that of POET (Patil et al., ICML 2022, section 4), but that copies run beside the computations.
    Schedules with copies are in the graph's order. With a free order the one without copies need not be.
    """
    base, least = without_host(graph), None
    compile_if_over(base, budget_bytes)
    begun = time.perf_counter()
    found = _Found(graph, budget_bytes)
    try:
        alone = checkmate(base, budget_bytes, replace(options, time_limit=_WITHOUT * options.time_limit, progress=None))
        found.take(alone.sequence.tolist(), alone.solver)
        if alone.cost <= base.base_cost * (1 + CLOSED_GAP):
            return replace(alone, graph=graph)
    except InfeasibleBudgetError as error:
        if budget_bytes < base.constant_bytes + int(base.working_set.max(initial=0)):
            raise  # one operation alone needs more: copies do not help
        least = error
    until = begun + (1 - _BOUND) * options.time_limit
    try:
        chooser = _Chooser(graph, base, found, options, until)
        chooser.exchange()
        chooser.run()
    except KeyboardInterrupt:
        if found.best is None:
            raise
        log.warning("interrupted: going on with the best schedule so far")
    if found.best is None:
        assert least is not None
        raise InfeasibleBudgetError(
            f"{least}; no schedule was found that copies values to the host, either",
            budget_bytes,
            least.minimum_bytes,
            proven=False,
        )
    left = max(1.0, begun + options.time_limit - time.perf_counter())
    lower = min(found.cost, paging_bound(graph, budget_bytes, left, options.memory_limit, options.order))
    status = "optimal" if found.cost - lower <= CLOSED_GAP * found.cost else "feasible"
    return Schedule(
        graph, np.array(found.best), strategy="checkmate", solver=found.solver, status=status,
        budget_bytes=budget_bytes, lower_bound=lower, bound_order=options.order, seconds=time.perf_counter() - begun,
    )  # fmt: skip


class _Found:
    """The cheapest schedule so far."""

    def __init__(self, graph: Graph, budget_bytes: int) -> None:
        self.graph, self.budget = graph, budget_bytes
        self.best: list[int] | None = None
        self.cost, self.solver = np.inf, ""

    def take(self, sequence: Sequence[int], solver: str) -> float:
        """Take a schedule if it fits and is cheaper; returns its cost, or infinity if it does not fit."""
        found = evaluate(self.graph, plan_from_sequence(self.graph, sequence))
        if found.peak_bytes > self.budget:
            return np.inf
        if found.cost < self.cost:
            self.best, self.cost, self.solver = list(sequence), found.cost, solver
            self._keep_where_room()
        return found.cost

    def _keep_where_room(self) -> None:
        """Leave out what the best schedule has again, the dearest first, where there is room to keep it."""
        again, end = True, time.perf_counter() + _KEEPING
        while again:
            again = False
            for place in self._repeated(self.best or []):
                if time.perf_counter() > end:
                    return
                shorter = self._without(self.best or [], place)
                found = evaluate(self.graph, plan_from_sequence(self.graph, shorter))
                if found.peak_bytes <= self.budget and found.cost < self.cost:
                    self.best, self.cost, again = shorter, found.cost, True
                    break

    def _repeated(self, sequence: Sequence[int]) -> list[int]:
        """Places where a value is had again, those first that cost most to be computed."""
        first: dict[int, int] = {}
        places = [q for q, node in enumerate(sequence) if first.setdefault(node, q) != q]
        return sorted(places, key=lambda q: -self.graph.costs[sequence[q]])

    def _without(self, sequence: Sequence[int], place: int) -> list[int]:
        """The sequence without one place, and without a copy that nobody brings back then."""
        node = sequence[place]
        rest = [*sequence[:place], *sequence[place + 1 :]]
        copy = self.graph.copies.get(node)
        return rest if rest.count(node) > 1 else [k for k in rest if k != copy]


@dataclass(frozen=True, eq=False)
class _Choice:
    """Which values may be copied, and the room that is left for windows: (n,) bool, and a share of the budget."""

    values: NDArray[np.bool_]
    room: float


class _Chooser:
    """Looks for the values that are best copied."""

    def __init__(self, graph: Graph, base: Graph, found: _Found, options: SolveOptions, until: float) -> None:
        self.graph, self.base, self.found, self.options, self.until = graph, base, found, options, until
        self.random = np.random.default_rng(options.seed)
        host = graph.host
        assert host is not None
        self.copied = np.array(list(graph.copies), dtype=np.int64)
        self.trips = np.zeros(len(base))
        self.trips[self.copied] = host.to_host + host.from_host
        self.look = _LOOK * max(1.0, len(base) / _SMALL)
        self.begun = self.told = self.gained = time.perf_counter()
        self.noted = np.inf

    def exchange(self) -> None:
        """Copy what the schedule without copies computes again, value by value, where that costs less."""
        base, budget = self.base, self.found.budget
        sequence = np.array(self.found.best or (), dtype=np.int64)
        counts = np.bincount(sequence, minlength=len(base)) - 1
        spent = np.where(np.isin(np.arange(len(base)), self.copied), np.maximum(counts, 0) * _again(base), 0.0)
        values, cost, end = np.zeros(len(base), np.bool_), self.found.cost, time.perf_counter() + self._share(_EXCHANGE)
        for i in np.argsort(-spent / np.maximum(self.trips, 1e-9), kind="stable"):
            if not spent[i] or time.perf_counter() > end:
                break
            values[i] = True
            problem = flatten(base, host=Hosted(values, _PRICE * self.trips))
            shorter = keep_where_room(problem, budget - base.constant_bytes, sequence)
            found = self.found.take(with_windows(self.graph, shorter.tolist(), values, budget), _SOLVER)
            values[i] = found < cost
            cost = min(cost, found)

    def _share(self, share: float) -> float:
        return share * (self.until - self.begun)

    def run(self) -> None:
        """Try the first choices, then change the best one, until the time is over or nothing is left to gain."""
        first = [_Choice(values, room) for values in self._first() for room in _ROOM]
        each = self._share(_FIRST) / len(first)
        pool = [(self._try(choice, min(each, self.look)), choice) for choice in first]
        while not self._over():
            pool = sorted((p for p in pool if np.isfinite(p[0])), key=lambda p: p[0])[:_POOL]
            if not pool:
                return
            _, choice = pool[min(int(self.random.exponential()), len(pool) - 1)]
            changed = self._changed(choice)
            if not any(np.array_equal(changed.values, c.values) and changed.room == c.room for _, c in pool):
                pool.append((self._try(changed, self.look), changed))

    def _first(self) -> Iterator[NDArray[np.bool_]]:
        """The values that cost most to be computed again for their bytes, as many as go in shares of the step."""
        base = self.base
        too_late = [base.recompute_until[i] <= max(base.users[i]) for i in self.copied.tolist()]
        again = np.where(too_late, np.inf, _again(base)[self.copied])
        ranked = self.copied[np.argsort(-again / self.trips[self.copied], kind="stable")]
        taken = np.cumsum(self.trips[ranked])
        for share in _SHARES:
            values = np.zeros(len(base), np.bool_)
            values[ranked[: 1 + np.searchsorted(taken, share * base.base_cost)]] = True
            yield values

    def _try(self, choice: _Choice, seconds: float) -> float:
        """The least cost that a short search finds with a choice; infinite if nothing fits."""
        base, room = self.base, self.found.budget - self.base.constant_bytes
        hosted = Hosted(choice.values, _PRICE * self.trips)
        seed = int(self.random.integers(2**31))
        cost, end = np.inf, time.perf_counter() + seconds
        for sequence in search(base, base.constant_bytes + int((1 - choice.room) * room), seed, host=hosted):
            if sequence is not None:
                paged = with_windows(self.graph, sequence.tolist(), choice.values, self.found.budget)
                cost = min(cost, self.found.take(paged, _SOLVER))
            if time.perf_counter() >= end or self._over():
                break
        return cost

    def _changed(self, choice: _Choice) -> _Choice:
        """A choice near the best: without what is waited for, or with what is computed again, or at random."""
        values, room = choice.values.copy(), choice.room
        for _ in range(int(self.random.integers(1, _MOST_CHANGES + 1))):
            kind = int(self.random.choice(3, p=_KINDS))
            weights = [self._waits, lambda: np.where(values, 0.0, self._recomputed()), lambda: np.ones(len(values))][
                kind
            ]()
            weights = weights[self.copied]
            if weights.sum() > 0:
                i = int(self.random.choice(self.copied, p=weights / weights.sum()))
                values[i] = not values[i]
        if self.random.random() < _OTHER_ROOM:
            room = float(self.random.choice(_ROOM))
        return _Choice(values, room)

    def _waits(self) -> NDArray[np.float64]:
        """(n,) how long computations wait for the copies of each value in the best schedule."""
        waits = np.zeros(len(self.base))
        for value, time_waited in timeline(
            self.graph, plan_from_sequence(self.graph, self.found.best or ())
        ).waits.items():
            waits[value] = time_waited
        return waits

    def _recomputed(self) -> NDArray[np.float64]:
        """(n,) what the best schedule spends on computing each value again."""
        sequence = np.array(self.found.best or (), dtype=np.int64)
        counts = np.bincount(sequence[sequence < len(self.base)], minlength=len(self.base))
        paged = np.zeros(len(self.base), np.bool_)
        paged[[self.graph.inputs[k][0] for k in sequence[sequence >= len(self.base)]]] = True
        return np.where(paged, 0.0, np.maximum(counts - 1, 0) * self.base.costs)

    def _over(self) -> bool:
        now, found, options = time.perf_counter(), self.found, self.options
        if found.cost < (1 - _STALL) * self.noted:
            self.noted, self.gained = found.cost, now
        if options.settle and now - self.begun > _PATIENCE and now - self.gained > _QUIET * (now - self.begun):
            return True
        gap = 1 - self.base.base_cost / found.cost if np.isfinite(found.cost) else 1.0
        if options.progress and now - self.told >= 1:
            self.told = now
            options.progress(now - self.begun, found.cost, self.base.base_cost, gap)
        return now >= self.until or gap <= options.gap


def _again(graph: Graph) -> NDArray[np.float64]:
    """(n,) what a value costs to be computed again, as if half of its inputs had to be, too."""
    costs = graph.costs
    return costs + 0.5 * np.array([sum(costs[i] for i in row) for row in graph.inputs])
