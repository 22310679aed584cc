"""The best sequence that is known, and how it is made better: by what settles, and by exchanges.

Values are dropped, cheap ones first, until a sequence fits (`settle`); that gives the first schedule, too. What does
not settle at any price is pressed into the budget, which takes longer and gives dearer ones (`press`). Others are
made of what has settled: some recomputations are left out, and it settles anew. Such a line of sequences may end where
other recomputations, far from its own, would cost less. So when it has gained nothing for long, another begins with a
plain sequence; then the best is gone on from for as long, and so on in turn. And some recomputations of the best are
exchanged for others (`exchange`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....graph import Graph
from ...ordering.links import Links
from ..arrays import Problem
from .exchange import exchange
from .keep_where_room import keep_where_room, profile
from .press import Press
from .settle import HIGHEST, SLICE, first_price, moves_at_once, ruined, settle
from .shares import Shares

__all__ = ["FEWEST", "NEAR", "Refiner"]

FEWEST = 5  # moves or simulations in a slice, however long they take
NEAR = 1.4  # times the best: what is worth a look at what there is room for
_WARMTH, _COOLING = (0.02, 0.005, 0.001), 0.01  # of exchanges: first temperatures, of the base cost; the last one of it
_TURNS = (0.0, 0.1, 0.5)  # of exchanges, and of settling: shares that move the order (`shares`)
_GROWTHS, _PATIENCES = (1.5, 2.0), (200, 100)  # of the price: for a first sequence that fits, and for others
_DROPS = (0.2, 0.5)  # of settling: shares that drop a recomputation, in turn by chance
_MOVES = 6000  # that another sequence that fits is given
_RUINED, _WIDTHS = (0.1, 0.3, 0.6, 1.0), (0.02, 0.05, 0.15, 0.4, 2.0)  # recomputations left out; of what part
_CHEAP = 0.02  # of the price that it took: where it begins anew, at most
_WANDER = (0.0, 5e-4, 2e-3)  # of the base cost: temperatures at which a dearer sequence is gone on from
_STALE = 4.0  # times what it had when it last gained something: then a line has gained all that it will
_RETURN = 0.1  # of the time it goes on from the best again


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
    excess : float
        That is left, once it is given up.
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
    excess: float = np.inf
    seconds: float = 0.0


@dataclass(eq=False)
class _Line:
    """Sequences that are each made of one before.

    Attributes
    ----------
    fresh : bool
        Whether it begins with a plain sequence, though others have settled.
    top : _Draft, optional
        The cheapest of it; None until one has settled.
    seconds, gained : float
        That it has taken; and had, when it last became cheaper.
    turn : float
        Seconds that it has at least.
    """

    fresh: bool = False
    top: _Draft | None = None
    seconds: float = 0.0
    gained: float = 0.0
    turn: float = 0.0


class Refiner:
    """Keeps the best sequence, and makes better ones of it.

    Parameters
    ----------
    graph : Graph
    problem : Problem
        It, with what may be recomputed; that may be changed later.
    links : Links
        What comes before and after each node in any order.
    room : int
        Bytes, constants left out.
    random : numpy.random.Generator
    free : bool
        Whether first computations may come in any order.
    orders : list of (n,) int arrays
        Those that first sequences are settled in.
    drafts : int
        Which of them is the first.

    Attributes
    ----------
    best : float
        What the best sequence computes again costs; infinity until there is one.
    kept : (length,) int array, optional
        The best sequence.
    here : _Draft, optional
        What has settled last, and is gone on from.
    """

    def __init__(
        self,
        graph: Graph,
        problem: Problem,
        links: Links,
        room: int,
        random: np.random.Generator,
        free: bool,
        orders: list[NDArray[np.int64]],
        drafts: int = 0,
    ) -> None:
        self.graph, self.problem, self.links, self.room = graph, problem, links, room
        self.random, self.orders = random, orders
        self.best = np.inf
        self.kept: NDArray[np.int64] | None = None
        self.here: _Draft | None = None
        self.draft: _Draft | None = None  # what settles
        self.failed: list[_Draft] = []  # plain ones that do not, one after the other
        self.press: Press | None = None  # where none does
        self.line = _Line()  # that it belongs to
        self.drafts = drafts
        self.settles = 0.0  # seconds that it took until one had settled
        self.moves = 2000.0  # exchanges a second, measured as it goes
        self.pace = moves_at_once(graph) / SLICE  # moves of settling a second, measured as it goes
        turns = _TURNS if free else (0.0,)
        self.settling_turns, self.exchange_turns = (Shares(turns, random) for _ in range(2))

    def offer(self, sequence: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The sequence, with all kept that there is room for, if it is the best by then."""
        better = keep_where_room(self.problem, self.room, sequence)
        extra = float(self._counts(better) @ self.problem.again)
        if extra < self.best * (1 - 1e-12) and self._fits(better):
            self.best, self.kept = extra, better
            return better
        return None

    def _fits(self, sequence: NDArray[np.int64]) -> bool:
        """Whether it fits with the memory that is not taken over (`Graph.held`), which simulations do not count."""
        memory, last_use, previous = np.zeros((3, len(sequence)), np.int64)
        profile(self.problem, sequence, memory, last_use, previous)
        return bool(memory.max() <= self.room)

    def settled(self, seconds: float) -> Iterator[NDArray[np.int64]]:
        """Better sequences, for so long: a first one that fits, then others made of it.

        Nothing is tried where values are brought back from the host, which this does not know.
        """
        if self.problem.hosted.any() or self.best <= 0:
            return
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            draft = self.draft = self.draft or self._new_draft()
            if self.press is not None:
                yield from self._pressed(self.press, draft, left)
                continue
            count, clock = int(min(draft.left, max(self.pace * left, FEWEST))), time.perf_counter()
            first = draft.since == np.inf
            found = settle(
                self.problem, self.links, draft.turns, float(self.random.choice(_DROPS)), self.room, draft.sequence,
                draft.price, _GROWTHS[not first], _PATIENCES[not first], count, int(self.random.integers(2**31)),
            )  # fmt: skip
            seconds = max(time.perf_counter() - clock, 1e-6)
            draft.seconds += seconds
            self.pace = (count - found.left + 1) / seconds
            draft.sequence, draft.price, draft.left = found.sequence, found.price, draft.left - count
            if not found.excess:
                yield from self._fitted(draft, found.cost)
            elif first and draft.price > draft.highest:
                draft.excess = found.excess
                self._unsettled(draft)
            elif not draft.left or draft.price > draft.highest:
                self._end_of(draft)

    def _unsettled(self, draft: _Draft) -> None:
        """A plain draft settles nowhere. Once all have been tried so, the one that came nearest is pressed."""
        self.failed.append(draft)
        if len(self.failed) < len(self.orders) * len(self.settling_turns.shares):
            self._end_of(draft)
            return
        nearest = self.draft = min(self.failed, key=lambda one: one.excess)
        self.failed = []
        self.press = Press(
            self.graph, self.links, self.room, nearest.sequence, nearest.turns, self.random, nearest.seconds
        )

    def _pressed(self, press: Press, draft: _Draft, seconds: float) -> Iterator[NDArray[np.int64]]:
        """Press what did not settle for so long."""
        fits = press.go_on(self.problem, seconds)
        draft.sequence, draft.seconds = press.sequence, press.seconds
        if fits:
            draft.price = press.price
            yield from self._fitted(draft, float(self._counts(draft.sequence) @ self.problem.again))
        elif press.stale:
            self._end_of(draft)

    def _fitted(self, draft: _Draft, cost: float) -> Iterator[NDArray[np.int64]]:
        """A draft fits: it is offered, and may be gone on from."""
        draft.cost, self.failed = cost, []
        self._go_on_from(draft)
        better = self.offer(draft.sequence) if cost < NEAR * self.best else None
        if better is not None:
            yield better
        self._end_of(draft)

    def _counts(self, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) How often each node is computed again."""
        return np.bincount(sequence, minlength=len(self.graph)) - 1

    def _new_draft(self) -> _Draft:
        """A sequence to settle: a plain one until one has settled, then what that is without some recomputations."""
        self.drafts += 1
        if self.here is None or self.line.top is None:
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
            or self.line.top is None
            or draft.cost <= here.cost
            or (heat and self.random.random() < np.exp((here.cost - draft.cost) / heat))
        ):
            self.here = draft
        elif self.random.random() < _RETURN:
            self.here = self.line.top if self.line.fresh else self._best(here)

    def _best(self, here: _Draft) -> _Draft:
        """The best sequence, to go on from, at the price of another; that other where none was good enough to keep."""
        return here if self.kept is None else _Draft(self.kept, here.price, 0, np.inf, cost=self.best)

    def _end_of(self, draft: _Draft) -> None:
        """A draft is done. Where its line gains nothing any more, the next begins: plain ones and the best in turn."""
        if draft.since < np.inf:
            self.settling_turns.learn(draft.turns, max(0.0, draft.since - draft.cost), draft.seconds)
        self.draft = self.press = None
        line = self.line
        line.seconds += draft.seconds
        if draft.cost < (line.top.cost if line.top else np.inf):
            line.top, line.gained = draft, line.seconds
            self.settles = self.settles or line.seconds
        if self.here is None or line.seconds < max(_STALE * max(line.gained, self.settles), line.turn):
            return
        if line.fresh:
            self.here = self._best(self.here)
            self.line = _Line(top=self.here, turn=line.seconds)
        else:
            self.line = _Line(fresh=True)

    def exchanged(self, seconds: float) -> NDArray[np.int64] | None:
        """The best sequence with other recomputations, if that is better.

        Nothing is tried where none costs anything, or where values are brought back from the host, which exchanges do
        not know.
        """
        if self.kept is None or self.best <= 0 or self.problem.hosted.any():
            return None
        count, heat = max(FEWEST, int(self.moves * seconds)), float(self.random.choice(_WARMTH))
        hot, cold = heat * self.graph.base_cost, _COOLING * heat * self.graph.base_cost
        clock = time.perf_counter()
        share, before = self.exchange_turns.choose(), self.best
        seed = int(self.random.integers(2**31))
        found = exchange(self.problem, self.links, share, self.room, self.kept, count, hot, cold, seed)
        spent = max(time.perf_counter() - clock, 1e-6)
        self.moves = count / spent
        better = self.offer(found)
        self.exchange_turns.learn(share, before - self.best, spent)
        return better
