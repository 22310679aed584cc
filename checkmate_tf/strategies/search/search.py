"""The eviction search: it simulates evictions by weights, and improves the weights by annealing.

A walk starts from weights w = (C / M)^p, with several p and several exponents of the distance, or from the keep-sets of
a relaxation if there is one. The best starts are annealed in short rounds, then the best of all in longer and longer
rounds. Weights may then differ between the forward pass and parts of the backward pass.

With a free order, some rounds change the order of first computations, too (`reorder`): every other one, and fewer
where they gain nothing. So does the walk to a first schedule that fits. A walk begins in the graph's order, which is a
good one for a training step (most moves away from it cost more), or in another that it is given.

What weights do badly: nodes are recomputed at most once a stage, in the order of the graph. Very small budgets (below
about a quarter of the plain peak) want recursive schedules, which weights express only indirectly. In graphs without a
backward pass many values have to be kept for the sake of a recomputation. So most of the time is for sequences
themselves. Values are dropped, cheap ones first, until a sequence fits (`settle`); that gives the first schedule, too.
And some recomputations of the best are exchanged for others (`exchange`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...graph import BACKWARD, Graph
from ..ordering.links import links
from .arrays import Hosted, Problem, copy, flatten, place
from .exchange import exchange
from .keep_where_room import keep_where_room, profile
from .settle import HIGHEST, first_price, moves_at_once, ruined, settle
from .shares import Shares
from .simulate import anneal, buffers, repair, simulate

__all__ = ["KeepSet", "Walk", "search"]

log = logging.getLogger(__name__)

_SLICE = 0.2  # seconds of compiled code between two looks at the clock
_FEWEST = 5  # simulations in a slice, however long they take
_POWERS = (1.0, 0.5, 0.25, 0.0)
_ALPHAS = (1.0, 0.0, 0.5, 2.0, 4.0)
_BIASES = (-1e3, 0.0)
_PHASES = 6
_REORDER = 0.3  # of the steps of a round that changes the order, too
_OFTEN, _SELDOM = 2, 16  # rounds from one that changes the order to the next: after a success, and after many failures
_WARMTH, _COOLING = (0.02, 0.005, 0.001), 0.01  # of exchanges: first temperatures, of the base cost; the last one of it
_TURNS = (0.0, 0.1, 0.5)  # of exchanges, and of settling: shares that move the order (`shares`)
_GROWTHS, _PATIENCES = (1.5, 2.0), (200, 100)  # of the price: for a first sequence that fits, and for others
_DROPS = (0.2, 0.5)  # of settling: shares that drop a recomputation, in turn by chance
_MOVES = 6000  # that another sequence that fits is given
_RUINED, _WIDTHS = (0.1, 0.3, 0.6, 1.0), (0.02, 0.05, 0.15, 0.4, 2.0)  # recomputations left out; of what part
_CHEAP = 0.02  # of the price that it took: where it begins anew, at most
_WANDER = (0.0, 5e-4, 2e-3)  # of the base cost: temperatures at which a dearer sequence is gone on from
_RETURN = 0.1  # of the time it goes on from the best again
_RATHER = 0.9  # of the time sequences themselves are changed, where weights are not near the best
_SETTLING, _UNTRAINED = 1, 4  # slices for each of weights, until something fits; without a backward pass
_LAST = 3  # slices for a walk to weights that fit with the last recipe: very small budgets need it; others have one
_HOPELESS = 4.0  # times the best: simulations of weights end there
_NEAR = 1.4  # times the best: what is worth a look at what there is room for
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


def search(
    graph: Graph,
    budget_bytes: int,
    seed: int = 0,
    keep_sets: Callable[[], list[KeepSet]] = list,
    free: bool = False,
    orders: Sequence[NDArray[np.int64]] = (),
    host: Hosted | None = None,
) -> Iterator[NDArray[np.int64] | None]:
    """Look for cheap sequences, for as long as it is asked.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    seed : int
    keep_sets : callable
        Asked now and then for new keep-sets of a relaxation to start from; each is used once.
    free : bool
        Whether first computations may come in any order, effects aside (`orders.before_effects`). Else they come in
        the order of the graph.
    orders : sequence of (n,) int arrays
        Orders to start from, besides that of the graph.
    host : Hosted, optional
        Values that are brought back from the host instead of being computed again, and what that costs here.

    Yields
    ------
    (length,) int array or None
        A better sequence than all before, or None after a fraction of a second without one. Never ends, unless nothing
        can be recomputed.
    """
    walk = Walk(graph, budget_bytes - graph.constant_bytes, seed, free, orders, host)
    yield from walk.run(keep_sets)


@dataclass(eq=False)
class _Draft:
    """A sequence that settles.

    Attributes
    ----------
    sequence : (length,) int array
    price : float
        Of memory, as it is by now.
    left : int
        Moves that are left to it.
    highest : float
        The price at which it is given up.
    turns : float
        Of its moves, those that change the order.
    since : float
        What the one that it was made of costs.
    cost : float
        Of what it computes again, once it fits.
    seconds : float
        That it has taken.
    """

    sequence: NDArray[np.int64]
    price: float
    left: int
    highest: float
    turns: float = 0.0
    since: float = np.inf
    cost: float = np.inf
    seconds: float = 0.0


class Walk:
    """A search, with all that it has found. Parameters are those of `search`, but `room`: bytes, constants left out."""

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
        self.random = np.random.default_rng(seed)
        self.best = np.inf
        self.rate = min(2000.0, 1e6 / max(len(graph), 1))  # simulations a second, measured as it goes
        self.kept: NDArray[np.int64] | None = None  # the best sequence
        self.moves = 2000.0  # exchanges a second, measured as it goes
        self.draft: _Draft | None = None  # what settles
        self.here: _Draft | None = None  # what has settled last, and is gone on from
        self.drafts = 0
        turns = _TURNS if free else (0.0,)
        self.settling_turns, self.exchange_turns = (Shares(turns, self.random) for _ in range(2))
        self.settling = _SETTLING if graph.trains else _UNTRAINED
        self.scratch = buffers(len(graph))
        self.evictions = np.zeros(len(graph), dtype=np.int64)
        source = room / 1000
        self.recipes: list[dict[str, Any]] = [  # what may be recomputed, the likeliest first
            {"keep_sources": source, "host": host},
            {"host": host},
            {"keep_sources": -1, "host": host},
            {"recompute_backward": True, "keep_sources": source, "host": host},
        ]
        self.pace = moves_at_once(graph) / _SLICE  # moves of settling a second, measured as it goes
        self.use(flatten(graph, **self.recipes[0]))

    def use(self, problem: Problem) -> None:
        self.problem, self.spare = problem, copy(problem)
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
        hopeless = min(_HOPELESS * self.best, 1e299) if self.best else 1e299
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

    def _offer(self, sequence: NDArray[np.int64]) -> NDArray[np.int64] | None:
        better = keep_where_room(self.problem, self.room, sequence)
        extra = float((np.bincount(better, minlength=len(self.graph)) - 1) @ self.problem.again)
        if extra < self.best * (1 - 1e-12) and self._fits(better):
            self.best, self.kept = extra, better
            return better
        return None

    def _fits(self, sequence: NDArray[np.int64]) -> bool:
        """Whether it fits with the memory that is not taken over (`Graph.held`), which simulations do not count."""
        memory, last_use, previous = np.zeros((3, len(sequence)), np.int64)
        profile(self.problem, sequence, memory, last_use, previous)
        return bool(memory.max() <= self.room)

    def _settled(self, seconds: float) -> Iterator[NDArray[np.int64]]:
        """Better sequences, for so long: a first one that fits, then others made of it.

        Nothing is tried where values are brought back from the host, which this does not know.
        """
        if self.problem.hosted.any() or self.best <= 0:
            return
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            draft = self.draft = self.draft or self._new_draft()
            count, clock = int(min(draft.left, max(self.pace * left, _FEWEST))), time.perf_counter()
            first = self.here is None
            found = settle(
                self.problem, self.links, draft.turns, float(self.random.choice(_DROPS)), self.room, draft.sequence,
                draft.price, _GROWTHS[not first], _PATIENCES[not first], count, int(self.random.integers(2**31)),
            )  # fmt: skip
            seconds = max(time.perf_counter() - clock, 1e-6)
            draft.seconds += seconds
            self.pace = (count - found.left + 1) / seconds
            draft.sequence, draft.price, draft.left = found.sequence, found.price, draft.left - count
            if not found.excess:
                draft.cost = found.cost
                self._go_on_from(draft)
                better = self._offer(found.sequence) if found.cost < _NEAR * self.best else None
                if better is not None:
                    yield better
            if not found.excess or not draft.left or draft.price > draft.highest:
                if draft.since < np.inf:
                    self.settling_turns.learn(draft.turns, max(0.0, draft.since - draft.cost), draft.seconds)
                self.draft = None

    def _settled_in_turn(self) -> Iterator[NDArray[np.int64] | None]:
        """What settles in the slices that it has for one of weights, with a look at the clock after each."""
        for _ in range(self.settling):
            yield from self._settled(_SLICE)
            yield None

    def _new_draft(self) -> _Draft:
        """A sequence to settle: a plain one until one has settled, then what that is without some recomputations."""
        self.drafts += 1
        if self.here is None:
            sequence = self.orders[(self.drafts - 1) % len(self.orders)].copy()
            price = first_price(self.graph, self.problem, sequence, self.room)
            turns = self.settling_turns.shares[(self.drafts - 1) // len(self.orders) % len(self.settling_turns.shares)]
            return _Draft(sequence, price, 2**62, HIGHEST * price, turns)
        here, random = self.here, self.random
        length = len(here.sequence)
        share, width = float(random.choice(_RUINED)), max(1, int(random.choice(_WIDTHS) * length))
        rest = here.sequence
        while len(rest) == length and width < 2 * length:  # there was nothing to leave out
            begin = int(random.integers(-width, length))
            rest = ruined(self.problem, here.sequence, share, begin, begin + width, int(random.integers(2**31)))
            share, width = min(1.0, 2 * share), 2 * width
        if len(rest) == length:
            rest = ruined(self.problem, here.sequence, 1.0, 0, length, 0)
        price = here.price * _CHEAP * (1 - random.random())
        return _Draft(rest, price, _MOVES, here.price * HIGHEST, self.settling_turns.choose(), here.cost)

    def _go_on_from(self, draft: _Draft) -> None:
        """Choose where to go on: from the new sequence if it costs less, sometimes also if not, or from the best."""
        heat = self.random.choice(_WANDER) * self.graph.base_cost
        here = self.here
        if (
            here is None
            or draft.cost <= here.cost
            or (heat and self.random.random() < np.exp((here.cost - draft.cost) / heat))
        ):
            self.here = draft
        elif self.kept is not None and self.random.random() < _RETURN:
            self.here = _Draft(self.kept, here.price, 0, np.inf, cost=self.best)

    def _exchanged(self, seconds: float) -> NDArray[np.int64] | None:
        """The best sequence with other recomputations, if that is better.

        Nothing is tried where none costs anything, or where values are brought back from the host, which exchanges do
        not know.
        """
        if self.kept is None or self.best <= 0 or self.problem.hosted.any():
            return None
        count, heat = max(_FEWEST, int(self.moves * seconds)), float(self.random.choice(_WARMTH))
        hot, cold = heat * self.graph.base_cost, _COOLING * heat * self.graph.base_cost
        clock = time.perf_counter()
        share, before = self.exchange_turns.choose(), self.best
        seed = int(self.random.integers(2**31))
        found = exchange(self.problem, self.links, share, self.room, self.kept, count, hot, cold, seed)
        spent = max(time.perf_counter() - clock, 1e-6)
        self.moves = count / spent
        better = self._offer(found)
        self.exchange_turns.learn(share, before - self.best, spent)
        return better

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
            count = int(min(steps - done, max(self.rate * _SLICE, _FEWEST)))
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
            yield self._offer(self.found[:length]) if length > 0 and best < _NEAR * self.best else None
            yield self._exchanged(min(spent, _SLICE))
            yield from self._settled(min(spent, _SLICE))
        state.weights, state.order, state.extra = best_weights, best_order, best

    # -- the course of a search ------------------------------------------------------------------------------------
    def run(self, keep_sets: Callable[[], list[KeepSet]]) -> Iterator[NDArray[np.int64] | None]:
        pool: list[_State] = []
        attempt, reached_any = 0, False  # whether any recipe leaves something to recompute
        while not pool and self.kept is None:
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
                log.debug("keep-sets start at %g, best %g", fresh[0].extra, self.best)
                for state in fresh[:2]:
                    yield from self._anneal(state, 500, *self._heat(state, 0.05))
                pool += fresh[:2]
            pool.sort(key=lambda s: s.extra)
            del pool[4:]
            if not pool or (
                pool[0].extra > _NEAR * self.best and self.random.random() < _RATHER
            ):  # weights serve badly
                yield from self._settled(_SLICE)
                yield self._exchanged(_SLICE)
                continue
            chosen = pool[0] if self.random.random() < 0.7 else pool[int(self.random.integers(len(pool)))]
            state = self._phased(chosen)
            if rounds % 4 == 3:
                other = state.copy()
                other.alpha = max(0.0, state.alpha + self.random.choice([-0.5, 0.5]))
                if self._play(other) > 0:
                    state = other
            heat, share, before = float(self.random.choice(_HEATS)), 0.0, self.best
            if self.free and rounds >= due:
                share = _REORDER
            yield from self._anneal(state, 2000 * (1 + rounds), *self._heat(state, heat), share)
            if share:
                wait = _OFTEN if self.best < before else min(2 * wait, _SELDOM)
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
            yield self._offer(self.sequence[:length]) if length > 0 else None
            owed = spent if self.here is not None else owed + self.settling * spent
            while owed >= _SLICE or (self.here is not None and owed > 0):
                yield from self._settled(min(owed, _SLICE))
                owed -= _SLICE
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
            if self.kept is not None:
                return pool
            count = int(max(self.rate * _SLICE, _FEWEST))
            clock = time.perf_counter()
            extra, length, reached = self._repaired(state, reached, count)
            state.order = self.problem.order.copy()
            if length > 0:
                state.extra = extra
                yield self._offer(self.sequence[:length])
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

    def call_all(self) -> None:
        """Call each compiled function once, for what it is compiled for then."""
        state = next(self._starts([], self.orders[0]))
        self._play(state)
        state.extra = self.best = 1.0
        next(self._anneal(state, 1, 1.0, 0.1))
        self._repaired(state, 0, 1)
        self.kept = np.arange(len(self.graph))
        self._exchanged(1e-4)
        list(self._settled(1e-4))
        ruined(self.problem, self.kept, 0.5, 0, 1, 0)
