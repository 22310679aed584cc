"""One walk of the search: it simulates evictions by weights, and improves the weights by annealing.

A walk starts from weights w = (C / M)^p, with several p and several exponents of the distance, or from the keep-sets of
a relaxation if there is one. The best starts are annealed in short rounds, then the best of all in longer and longer
rounds. Weights may then differ between the forward pass and parts of the backward pass.

With a free order, some rounds change the order of first computations, too (`reorder`): every other one, and fewer
where they gain nothing. So does the walk to a first schedule that fits. A walk begins in the graph's order, which is a
good one for a training step (most moves away from it cost more), or in another that it is given.

What weights do badly: nodes are recomputed at most once a stage, in the order of the graph. Very small budgets (below
about a quarter of the plain peak) want recursive schedules, which weights express only indirectly. In graphs without a
backward pass many values have to be kept for the sake of a recomputation. So most of the time is for sequences
themselves (`sequences.refine`), from the first schedule on.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from copy import copy as shallow
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import BACKWARD, Graph
from ..ordering.links import links
from .arrays import Hosted, Problem, copy, flatten, place
from .sequences.press import Press
from .sequences.refine import FEWEST, NEAR, Refiner
from .sequences.settle import SLICE, ruined
from .simulate import anneal, buffers, repair, simulate

__all__ = ["KeepSet", "Walk"]

log = logging.getLogger(__name__)

_POWERS = (1.0, 0.5, 0.25, 0.0)
_ALPHAS = (1.0, 0.0, 0.5, 2.0, 4.0)
_BIASES = (-1e3, 0.0)
_PHASES = 6
_REORDER = 0.3  # of the steps of a round that changes the order, too
_OFTEN, _SELDOM = 2, 16  # rounds from one that changes the order to the next: after a success, and after many failures
_RATHER = 0.9  # of the time sequences themselves are changed, where weights are not near the best
_SETTLING, _UNTRAINED = 1, 4  # slices for each of weights, until something fits; without a backward pass
_LAST = 3  # slices for a walk to weights that fit with the last recipe: very small budgets need it; others have one
_HOPELESS = 4.0  # times the best: simulations of weights end there
_HEATS = (0.05, 0.02, 0.005, 0.001)  # of the cost


@dataclass(frozen=True, eq=False)
class KeepSet:
    """What a relaxation keeps: `kept[m, i]` in [0, 1] at the first computation of `stages[m]`."""

    stages: NDArray[np.int64]
    kept: NDArray[np.float64]


@dataclass(eq=False)
class _State:
    """One walk: where its weights and its order are, and what they cost."""

    weights: NDArray[np.float64]
    order: NDArray[np.int64]
    phase: NDArray[np.int64]
    alpha: float
    bias: float
    extra: float

    def copy(self) -> _State:
        return _State(self.weights.copy(), self.order.copy(), self.phase, self.alpha, self.bias, self.extra)


class Walk:
    """A walk, with all that it has found.

    Parameters
    ----------
    graph, seed, free, orders, host
        Those of `search.search`.
    room : int
        Bytes that schedules may take, constants left out.
    """

    def __init__(
        self,
        graph: Graph,
        room: int,
        seed: int,
        free: bool = False,
        orders: Sequence[NDArray[np.int64]] = (),
        host: Hosted | None = None,
    ) -> None:
        self.graph, self.room, self.free = graph, room, free
        starts = [np.arange(len(graph)), *(np.asarray(order, dtype=np.int64) for order in orders)]
        self.orders = list({order.tobytes(): order for order in starts}.values())
        self.links = links(graph)
        self.settling = _SETTLING if graph.trains else _UNTRAINED
        source = room / 1000
        self.recipes: list[dict[str, Any]] = [  # what may be recomputed, the likeliest first
            {"keep_sources": source, "host": host},
            {"host": host},
            {"keep_sources": -1, "host": host},
            {"recompute_backward": True, "keep_sources": source, "host": host},
        ]
        self._set_out(flatten(graph, **self.recipes[0]), seed, 0)

    def another(self, seed: int, number: int) -> Walk:
        """A walk that takes another course; this one has not begun. It first settles in the order of that number."""
        walk = shallow(self)
        walk._set_out(copy(self.problem), seed, number)
        return walk

    def _set_out(self, problem: Problem, seed: int, number: int) -> None:
        n, random = len(self.graph), np.random.default_rng(seed)
        self.random = random
        self.rate = min(2000.0, 1e6 / max(n, 1))  # simulations a second, measured as it goes
        self.scratch = buffers(n)
        self.evictions = np.zeros(n, dtype=np.int64)
        self.refiner = Refiner(self.graph, problem, self.links, self.room, random, self.free, self.orders, number)
        self.use(problem)

    def use(self, problem: Problem) -> None:
        self.problem = self.refiner.problem = problem
        self.spare = copy(problem)
        n = len(self.graph)
        self.movable = np.flatnonzero(problem.evictable).astype(np.int64)
        self.sequence = np.zeros(max(64 * n, 4096), dtype=np.int64)
        self.found = np.zeros_like(self.sequence)

    # -- pieces ----------------------------------------------------------------------------------------------------
    def _starts(self, keep_sets: list[KeepSet], order: NDArray[np.int64]) -> Iterator[_State]:
        n = len(self.graph)
        single = np.zeros(n, dtype=np.int64)
        ratio = np.log(
            (self.problem.again + 1e-9 + 1e-4 * self.problem.again.mean()) / np.maximum(self.problem.sizes, 1)
        )
        if not keep_sets:
            for bias in _BIASES:
                for power in _POWERS:
                    for alpha in _ALPHAS:
                        yield _State((power * ratio)[None, :].copy(), order, single, alpha, bias, np.inf)
        for keep in keep_sets:
            phase = np.searchsorted(keep.stages, np.arange(n), side="left").clip(max=len(keep.stages) - 1)
            for strength in (4.0, 12.0):
                for power, alpha in ((0.5, 1.0), (0.5, 0.0), (1.0, 1.0), (0.25, 2.0)):
                    for bias in _BIASES:
                        weights = power * ratio[None, :] + strength * keep.kept
                        yield _State(weights, order, phase, alpha, bias, np.inf)

    def _timed(self, rate: float) -> None:
        """Believe a lower rate at once, so that no slice is much too long, and a higher one by half."""
        self.rate = min(rate, 0.5 * (self.rate + rate))

    def _play(self, state: _State) -> int:
        """Simulate; returns the length of `self.sequence`, or minus the stage reached."""
        self._in_order(state)
        hopeless = min(_HOPELESS * self.refiner.best, 1e299) if self.refiner.best else 1e299
        state.extra, length, stage = simulate(
            self.problem, self.room, state.weights, state.phase, state.alpha, state.bias, hopeless,
            self.scratch, self.sequence, self.evictions,
        )  # fmt: skip
        if stage < len(self.graph):
            state.extra = np.inf
            return -stage
        return length

    def _in_order(self, state: _State) -> None:
        if not np.array_equal(self.problem.order, state.order):
            self.problem.order[:] = state.order
            place(self.problem)

    def _settled_in_turn(self) -> Iterator[NDArray[np.int64] | None]:
        """What settles in the slices that it has for one of weights, with a look at the clock after each."""
        for _ in range(self.settling):
            yield from self.refiner.settled(SLICE)
            yield None

    def _phased(self, state: _State) -> _State:
        """The same walk with a row of weights for the forward pass and for each part of the backward pass."""
        if len(state.weights) > 1:
            return state.copy()
        n = len(self.graph)
        backward = np.flatnonzero(self.graph.kinds == BACKWARD)
        start = int(backward[0]) if backward.size else n
        phase = np.zeros(n, dtype=np.int64)
        phase[start:] = 1 + np.arange(n - start) * (_PHASES - 1) // max(n - start, 1)
        return _State(
            np.repeat(state.weights, _PHASES, axis=0), state.order.copy(), phase, state.alpha, state.bias, state.extra
        )

    def _anneal(
        self, state: _State, steps: int, hot: float, cold: float, share: float = 0.0
    ) -> Iterator[NDArray[np.int64] | None]:
        """Anneal `state` and leave its best in it."""
        self._in_order(state)
        best_weights, best_order, best = state.weights.copy(), state.order.copy(), state.extra
        done = 0
        while done < steps:
            count = int(min(steps - done, max(self.rate * SLICE, FEWEST)))
            begin = hot * (cold / hot) ** (done / steps)
            end = hot * (cold / hot) ** ((done + count) / steps)
            clock = time.perf_counter()
            state.extra, best, length, _ = anneal(
                self.problem, self.spare, self.links, share, self.room, state.weights, state.phase, state.alpha,
                state.bias, self.movable, state.extra, best, begin, end, count, int(self.random.integers(2**31)),
                self.scratch, self.sequence, self.found, best_weights, best_order,
            )  # fmt: skip
            spent = max(time.perf_counter() - clock, 1e-6)
            self._timed(count / spent)
            done += count
            yield self.refiner.offer(self.found[:length]) if length > 0 and best < NEAR * self.refiner.best else None
            yield self.refiner.exchanged(min(spent, SLICE))
            yield from self.refiner.settled(min(spent, SLICE))
        state.weights, state.order, state.extra = best_weights, best_order, best

    # -- the course of a search ------------------------------------------------------------------------------------
    def run(self, keep_sets: Callable[[], list[KeepSet]]) -> Iterator[NDArray[np.int64] | None]:
        pool: list[_State] = []
        attempt, reached_any = 0, False  # whether any recipe leaves something to recompute
        while not pool and self.refiner.kept is None:
            if attempt:
                self.use(flatten(self.graph, **self.recipes[attempt % len(self.recipes)]))
            if self.movable.size:
                yield from self._settled_in_turn()
                pool = yield from self._begin(attempt)
            elif attempt == len(self.recipes) - 1 and not reached_any:
                return
            reached_any |= bool(self.movable.size)
            attempt += 1
        for state in pool[:4]:
            yield from self._anneal(state, 1000, *self._heat(state, 0.1))
        rounds, due, wait = 0, 0, _OFTEN
        while True:
            fresh = (
                [state for state in self._starts(given, self.orders[0]) if self._play(state) > 0]
                if (given := keep_sets())
                else []
            )
            if fresh:
                fresh.sort(key=lambda s: s.extra)
                log.debug("keep-sets start at %g, best %g", fresh[0].extra, self.refiner.best)
                for state in fresh[:2]:
                    yield from self._anneal(state, 500, *self._heat(state, 0.05))
                pool += fresh[:2]
            pool.sort(key=lambda s: s.extra)
            del pool[4:]
            if not pool or (
                pool[0].extra > NEAR * self.refiner.best and self.random.random() < _RATHER
            ):  # weights serve badly
                yield from self.refiner.settled(SLICE)
                yield self.refiner.exchanged(SLICE)
                continue
            chosen = pool[0] if self.random.random() < 0.7 else pool[int(self.random.integers(len(pool)))]
            state = self._phased(chosen)
            if rounds % 4 == 3:
                other = state.copy()
                other.alpha = max(0.0, state.alpha + self.random.choice([-0.5, 0.5]))
                if self._play(other) > 0:
                    state = other
            heat, share, before = float(self.random.choice(_HEATS)), 0.0, self.refiner.best
            if self.free and rounds >= due:
                share = _REORDER
            yield from self._anneal(state, 2000 * (1 + rounds), *self._heat(state, heat), share)
            if share:
                wait = _OFTEN if self.refiner.best < before else min(2 * wait, _SELDOM)
                due = rounds + wait
            pool.append(state)
            rounds += 1

    def _heat(self, state: _State, share: float) -> tuple[float, float]:
        unit = max(state.extra, 1e-9 * self.graph.base_cost, 1e-12)
        return share * unit, share * unit * 1e-3

    def _begin(self, attempt: int) -> Generator[NDArray[np.int64] | None, None, list[_State]]:
        """Starts that fit, the cheapest first; a random walk to one if none does."""
        pool: list[_State] = []
        furthest, reached, owed = None, -1, 0.0
        for state in (state for order in self.orders for state in self._starts([], order)):
            clock = time.perf_counter()
            length = self._play(state)
            spent = time.perf_counter() - clock
            self._timed(1 / max(spent, 1e-6))
            if length > 0:
                pool.append(state)
            elif -length > reached:
                furthest, reached = state, -length
            yield self.refiner.offer(self.sequence[:length]) if length > 0 else None
            owed = spent if self.refiner.here is not None else owed + self.settling * spent
            while owed >= SLICE or (self.refiner.here is not None and owed > 0):
                yield from self.refiner.settled(min(owed, SLICE))
                owed -= SLICE
                yield None
        pool.sort(key=lambda s: s.extra)
        if pool or furthest is None or not self.movable.size:
            return pool
        state = furthest.copy()
        self._in_order(state)
        rounds, recipe = divmod(attempt, len(self.recipes))
        for number in range((1 + rounds) * (_LAST if recipe == len(self.recipes) - 1 else 1)):
            if number:
                yield from self._settled_in_turn()
            if self.refiner.kept is not None:
                return pool
            count = int(max(self.rate * SLICE, FEWEST))
            clock = time.perf_counter()
            extra, length, reached = self._repaired(state, reached, count)
            state.order = self.problem.order.copy()
            if length > 0:
                state.extra = extra
                yield self.refiner.offer(self.sequence[:length])
                return [state]
            self._timed(count / max(time.perf_counter() - clock, 1e-6))
            yield None
        return pool

    def _repaired(self, state: _State, reached: int, count: int) -> tuple[float, int, int]:
        """So many steps of a random walk to weights that fit: what they cost, a length, and how far they go."""
        return repair(
            self.problem, self.spare, self.links, _REORDER if self.free else 0.0, self.room, state.weights,
            state.phase, state.alpha, state.bias, self.movable, reached, count, int(self.random.integers(2**31)),
            self.scratch, self.sequence,
        )  # fmt: skip

    def call_weights(self) -> None:
        """Call each compiled function that weights need once, for what it is compiled for then."""
        state = next(self._starts([], self.orders[0]))
        self._play(state)
        state.extra = self.refiner.best = 1.0
        next(self._anneal(state, 1, 1.0, 0.1))
        self._repaired(state, 0, 1)

    def call_sequences(self) -> None:
        """The same of those that change sequences."""
        self.refiner.best = 1.0
        self.refiner.kept = np.arange(len(self.graph))
        self.refiner.exchanged(1e-4)
        list(self.refiner.settled(1e-4))
        Press(self.graph, self.links, 1, self.refiner.kept, 0.1, self.random).go_on(self.problem, 1e-4)
        ruined(self.problem, self.refiner.kept, 0.5, 0, 1, 0)
