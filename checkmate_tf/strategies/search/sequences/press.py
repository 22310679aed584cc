"""Where nothing settles: a sequence is pressed into the budget by simulated annealing.

`settle` takes only moves that gain. Far below the peak it ends where each move costs as much memory in one place as it
saves in another. Here a move that loses may be taken, too, the likelier the hotter. What falls is the *pressure*: for
each stage (from one first computation to the next) the most that is above the budget, summed over stages, and a
little for what is computed again. So a stage that takes too much anyway may take long, and all that is computed again
for one value may be computed again there.

Temperatures fall in rounds. A round begins with the best sequence of those before it, at a temperature drawn at
random: cool rounds finish what hot ones have begun.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graph import Graph
from ....numba_jit import numba_jit
from ...ordering.links import Links
from ..arrays import Problem
from .exchange import SPARE, random_move
from .moves import add, eject
from .profiled import Profiled, blank, extra_cost, sequence_of, write
from .settle import SLICE, moves_at_once

__all__ = ["Press", "Pressed", "press", "pressure"]

_WEIGHT = 10.0  # mean sizes that a step's whole cost, computed again, counts like
_NO_COST = 1e-200  # of a step: what costs less counts like this, so that the weight is finite
_LONGEST = 10  # times as many computations as there are nodes: no more are added
_CHAIN = 24  # values that are computed again for one, at most
_HOT, _COOLING = (0.1, 30.0), 0.02  # mean sizes: first temperatures of rounds are between; the last one of the first
_DROPS = (0.3, 0.5)  # shares of the moves that drop a recomputation
_WORST = (0.0, 0.7)  # shares of the other moves that look for the place that takes most
_NODE_MOVES, _FEWEST = 6_000_000, 1000  # moves of a round times nodes
_STALE = 4.0  # times what it had taken when it last came nearer: then it is given up
_FASTER = 10.0  # times the pace of before, at most: what was measured on few moves may be wrong
_LOOK = 5  # moves between two looks at the clock, at least

Integers = NDArray[np.int64]


class Pressed(NamedTuple):
    """Where some moves have led.

    Attributes
    ----------
    sequence : (length,) int array
        The last one. Legal.
    best : (length,) int array
        The one of least pressure.
    over : float
        Its pressure in bytes, costs left out; 0 if it fits.
    left : int
        Moves that are left, as it fitted before.
    """

    sequence: Integers
    best: Integers
    over: float
    left: int


@numba_jit
def press(
    problem: Problem,
    links: Links,
    turns: float,
    drops: float,
    worst: float,
    budget: int,
    sequence: Integers,
    weight: float,
    hot: float,
    cold: float,
    steps: int,
    seed: int,
) -> Pressed:
    """Try moves until a sequence fits, or until there were so many.

    Parameters
    ----------
    problem, links, turns, drops, budget, sequence
        As `settle.settle` takes them.
    worst : float
        Share of the other moves, of those that drop a value, that do so where its stage takes most. Else any place
        above the budget will do.
    weight : float
        Bytes that a unit of cost counts like.
    hot, cold : float
        The first and the last temperature, in bytes; above 0.
    steps : int
        Moves to try, O(length) each, and the edges of what changes; all edges where wide parts are turned round.
    seed : int

    Returns
    -------
    Pressed
    """
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    most = _LONGEST * problem.sizes.shape[0] + SPARE
    room = max(sequence.shape[0], most)
    current, other = blank(problem, room), blank(problem, room)
    write(problem, current, sequence)
    over, cost = pressure(current, budget), extra_cost(problem, current)
    best, least, step = sequence_of(current), over, 0
    while over > 0 and step < steps:
        heat = hot * (cold / hot) ** (step / steps)
        step += 1
        length = current.length[0]
        kind = np.random.random()  # noqa: NPY002
        if kind < turns + drops:
            if not random_move(problem, links, current, other, kind < turns):
                continue
        else:
            high = np.flatnonzero(current.memory[:length] > budget)
            at = high[int(np.random.random() * high.shape[0])]  # noqa: NPY002
            if np.random.random() < worst:  # noqa: NPY002
                at = _worst(current, at)
            use, again = eject(problem, current, at, np.random.random(), np.int64(_CHAIN))  # noqa: NPY002
            if again.shape[0] == 0 or length + again.shape[0] > most:
                continue
            add(problem, current, other, use, again)
        less, dear = pressure(other, budget), extra_cost(problem, other)
        loss = less - over + weight * (dear - cost)
        if loss < 0 or np.random.random() < math.exp(-loss / heat):  # noqa: NPY002
            over, cost = less, dear
            current, other = other, current
            if over < least:
                best, least = sequence_of(current), over
    return Pressed(sequence_of(current), best, least, steps - step)


@numba_jit
def pressure(current: Profiled, budget: int) -> float:
    """For each stage the most that is above the budget, summed over stages.

    Parameters
    ----------
    current : Profiled
    budget : int
        Bytes, constants left out.

    Returns
    -------
    float
        Bytes; 0 if the sequence fits.
    """
    memory, previous = current.memory[: current.length[0]], current.previous[: current.length[0]]
    total, most = 0.0, 0
    for q in range(memory.shape[0]):
        if previous[q] < 0:
            total += most
            most = 0
        most = max(most, memory[q] - budget)
    return total + most


@numba_jit
def _worst(current: Profiled, at: int) -> int:
    """The position of most memory in the stage of another."""
    begin, end = at, at + 1
    while begin > 0 and current.previous[begin] >= 0:
        begin -= 1
    while end < current.length[0] and current.previous[end] >= 0:
        end += 1
    return begin + int(np.argmax(current.memory[begin:end]))


class Press:
    """A sequence that is brought nearer to a budget, for as long as it is asked.

    Parameters
    ----------
    graph : Graph
    links : Links
        What comes before and after each node in any order.
    budget : int
        Bytes, constants left out.
    sequence : (length,) int array
        Legal; it takes too much.
    turns : float
        Share of the moves that turn a part round; 0 to keep the order of first computations.
    random : numpy.random.Generator
    begun : float
        Seconds that the sequence took: it is pressed for some times as long, at least.

    Attributes
    ----------
    sequence : (length,) int array
        The one of least pressure.
    over : float
        Its pressure in bytes; 0 if it fits.
    seconds : float
        That it has taken, those before included.
    """

    def __init__(
        self,
        graph: Graph,
        links: Links,
        budget: int,
        sequence: Integers,
        turns: float,
        random: np.random.Generator,
        begun: float = 0.0,
    ) -> None:
        self.sequence, self.over = sequence, math.inf
        self.seconds = self._gained = begun
        self._links, self._budget, self._turns, self._random = links, budget, turns, random
        some = graph.sizes[graph.sizes > 0]
        self._size = float(some.mean()) if some.size else 1.0
        self._weight = _WEIGHT * self._size / max(graph.base_cost, _NO_COST)
        self._round = max(_FEWEST, _NODE_MOVES // max(len(graph), 1))
        self._pace = moves_at_once(graph) / SLICE  # moves a second, measured as it goes
        self._begin()

    @property
    def price(self) -> float:
        """Cost that a byte of pressure counts like."""
        return 1 / self._weight

    @property
    def stale(self) -> bool:
        """Whether it has not come nearer for so long that another sequence is worth the time."""
        return self.seconds > _STALE * self._gained

    def _begin(self) -> None:
        low, high = np.log(_HOT)
        self._at, self._done = self.sequence, 0
        self._heat = self._size * float(np.exp(self._random.uniform(low, high)))
        self._drops, self._worst = float(self._random.choice(_DROPS)), float(self._random.choice(_WORST))

    def go_on(self, problem: Problem, seconds: float) -> bool:
        """Press for so long, or until the sequence fits; whether it does.

        Parameters
        ----------
        problem : Problem
            The graph's, without values that are brought back from the host.
        seconds : float
        """
        until = time.perf_counter() + seconds
        while self.over > 0 and (left := until - (clock := time.perf_counter())) > 0:
            count = int(min(self._round - self._done, max(self._pace * left, _LOOK)))
            hot, cold = (self._heat * _COOLING ** (k / self._round) for k in (self._done, self._done + count))
            found = press(
                problem, self._links, self._turns, self._drops, self._worst, self._budget, self._at, self._weight,
                hot, cold, count, int(self._random.integers(2**31)),
            )  # fmt: skip
            spent = max(time.perf_counter() - clock, 1e-6)
            self._pace = min((count - found.left + 1) / spent, _FASTER * self._pace)
            self.seconds += spent
            self._at, self._done = found.sequence, self._done + count
            if found.over <= self.over:
                if found.over < self.over:
                    self._gained = self.seconds
                self.sequence, self.over = found.best, found.over
            if self._done >= self._round:
                self._begin()
        return self.over == 0
