"""From a sequence that takes too much memory to one that fits: values are dropped, at a rising price of memory.

The *excess* of a sequence is the memory above the budget, summed over positions. A move drops a value where memory is
short, until its next use, and computes it again right before; or it drops a recomputation; in a free order, it may turn
a part of the sequence round. It is taken if cost plus price times excess falls. When nothing has been gained for a
while, the price rises. So what saves much and costs little goes first, and what turns out needless is taken back.

A sequence that fits is made better in the same way (large-neighbourhood search): some recomputations of a part are left
out, and it settles anew, from a low price.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....graph import Graph
from ....numba_jit import numba_jit
from ...ordering.links import Links
from ..arrays import Problem
from .exchange import CHAIN, LONGEST, SPARE, WITH, random_move
from .keep_where_room import profile
from .moves import add, eject
from .profiled import blank, extra_cost, sequence_of, write

__all__ = ["HIGHEST", "SLICE", "Settled", "excess", "first_price", "in_memory", "moves_at_once", "ruined", "settle"]

SLICE = 0.2  # seconds of compiled code between two looks at the clock
HIGHEST = 1e9  # times the first price: what has not settled by then is given up
_FIRST_PRICE = 0.01  # of the base cost, for all that a sequence takes too much
_NODE_MOVES, _FEWEST = 200_000, 20  # moves times nodes between two looks at the clock: some hundredths of a second

Integers = NDArray[np.int64]


class Settled(NamedTuple):
    """Where some moves have led.

    Attributes
    ----------
    sequence : (length,) int array
        Legal. It fits if there is no excess.
    excess, cost : float
        Bytes times positions; what recomputations cost.
    price : float
        What it has risen to: cost of a byte at a position.
    left : int
        Moves that are left, as it fitted before.
    """

    sequence: Integers
    excess: float
    cost: float
    price: float
    left: int


@numba_jit
def settle(
    problem: Problem,
    links: Links,
    turns: float,
    drops: float,
    budget: int,
    sequence: Integers,
    price: float,
    growth: float,
    patience: int,
    steps: int,
    seed: int,
) -> Settled:
    """Try moves until a sequence fits, or until there were so many.

    Parameters
    ----------
    problem : Problem
        Without values that are brought back from the host.
    links : Links
        What comes before and after each node in any order.
    turns, drops : float
        Shares of the moves that turn a part round (0 to keep the order of first computations), and of those that drop
        a recomputation.
    budget : int
        Bytes, constants left out.
    sequence : (length,) int
        Legal; it may take too much.
    price : float
        Cost of a byte at a position, to begin with; above 0.
    growth : float
        What the price is multiplied by when it rises.
    patience : int
        Moves without less excess after which it rises.
    steps : int
        Moves to try, O(length) each, and the edges of what changes; all edges where wide parts are turned round.
    seed : int

    Returns
    -------
    Settled
    """
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    room = max(sequence.shape[0], LONGEST * problem.sizes.shape[0]) + SPARE
    current, other = blank(problem, room), blank(problem, room)
    write(problem, current, sequence)
    over, cost = excess(current.memory[: current.length[0]], budget), extra_cost(problem, current)
    waited = 0
    while over > 0 and steps > 0:
        steps -= 1
        if waited >= patience:
            price *= growth
            waited = 0
        waited += 1
        length = current.length[0]
        kind = np.random.random()  # noqa: NPY002
        if kind < turns + drops:
            if not random_move(problem, links, current, other, kind < turns):
                continue
        else:
            high = np.flatnonzero(current.memory[:length] > budget)
            at = high[int(np.random.random() * high.shape[0])]  # noqa: NPY002
            use, again = eject(problem, current, at, WITH, np.int64(CHAIN))
            if again.shape[0] == 0 or length + again.shape[0] > room:
                continue
            add(problem, current, other, use, again)
        less, dear = excess(other.memory[: other.length[0]], budget), extra_cost(problem, other)
        if dear - cost + price * (less - over) < 0:
            if less < over:
                waited = 0
            over, cost = less, dear
            current, other = other, current
    return Settled(sequence_of(current), over, cost, price, steps)


@numba_jit
def excess(memory: Integers, budget: int) -> float:
    """Bytes above the budget, summed over the positions of a (length,) memory profile."""
    total = 0.0
    for q in range(memory.shape[0]):
        total += max(0, memory[q] - budget)
    return total


@numba_jit
def ruined(problem: Problem, sequence: Integers, share: float, begin: int, end: int, seed: int) -> Integers:
    """A sequence without some recomputations.

    Parameters
    ----------
    problem : Problem
    sequence : (length,) int
        Legal.
    share : float
        With which probability each recomputation is left out.
    begin, end : int
        Positions: from the first to before the second. They may be outside of the sequence.
    seed : int

    Returns
    -------
    (at most length,) int array
        Legal. First computations stay.
    """
    np.random.seed(seed)  # noqa: NPY002
    seen = np.zeros(problem.sizes.shape[0], np.bool_)
    kept = np.ones(sequence.shape[0], np.bool_)
    for q in range(sequence.shape[0]):
        k = sequence[q]
        kept[q] = not (seen[k] and begin <= q < end and np.random.random() < share)  # noqa: NPY002
        seen[k] = True
    return sequence[kept]


def first_price(graph: Graph, problem: Problem, sequence: Integers, budget: int) -> float:
    """A price of memory at which hardly anything is dropped yet.

    Parameters
    ----------
    graph : Graph
    problem : Problem
        The graph's.
    sequence : (length,) int
        What is to settle.
    budget : int
        Bytes, constants left out.

    Returns
    -------
    float
        Cost of a byte at a position; above 0.
    """
    memory = in_memory(problem, sequence)
    return max(_FIRST_PRICE * graph.base_cost / max(excess(memory, budget), 1.0), float(np.finfo(float).tiny))


def moves_at_once(graph: Graph) -> int:
    """How many moves take some hundredths of a second, about."""
    return max(_FEWEST, _NODE_MOVES // max(len(graph), 1))


def in_memory(problem: Problem, sequence: Integers) -> Integers:
    """What is in memory at each position of a sequence, without recomputations that nobody reads.

    Parameters
    ----------
    problem : Problem
    sequence : (length,) int
        Legal.

    Returns
    -------
    (at most length,) int array
        Bytes, constants left out.
    """
    memory, last_use, previous = np.zeros((3, len(sequence)), np.int64)
    return memory[: len(profile(problem, sequence, memory, last_use, previous))]
