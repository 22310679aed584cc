"""Improves a schedule by exchanges: one recomputation goes, and others come where memory is short for that.

The eviction search knows a schedule by weights, and computes a value again at most once a stage. Here the sequence
itself is changed, with its exact memory profile. A move drops a random recomputation. Where that takes too much memory,
a value that nothing reads there is dropped until its next use, and computed again right before.
Moves that cost more are accepted with a probability that falls (simulated annealing). In a free order other moves
turn a part of the sequence round, which costs nothing, and may give room.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....numba_jit import numba_jit
from ...ordering.links import Links, again_in_time, move
from ..arrays import Problem
from ..reorder import span
from .moves import add, eject, leave_out, turn
from .profiled import Profiled, blank, extra_cost, sequence_of, write

__all__ = ["CHAIN", "LONGEST", "SPARE", "WITH", "ejected", "exchange", "random_move", "turned"]

_EJECTIONS = 6  # values that are dropped for one that is kept, at most
_HIGH = 0.9  # of the most that is in memory: where a value is dropped, at least so much is
LONGEST, SPARE = 4, 64  # times as many computations as there are, and so many: no more are added
_WIDE = 10  # a part that is turned is wide if the sequence is not so many times as long: then all is written anew
CHAIN, WITH = 8, 0.5  # values that are computed again for one, at most; the share of what is missing for it

Integers = NDArray[np.int64]


@numba_jit
def exchange(
    problem: Problem,
    links: Links,
    turns: float,
    budget: int,
    sequence: Integers,
    steps: int,
    hot: float,
    cold: float,
    seed: int,
) -> Integers:
    """A sequence that costs at most as much, within the same budget.

    Parameters
    ----------
    problem : Problem
        Without values that are brought back from the host.
    links : Links
        What comes before and after each node in any order.
    turns : float
        Share of the moves that change the order; 0 to keep that of first computations.
    budget : int
        Bytes, constants left out; the sequence must fit.
    sequence : (length,) int
        Recomputations are legal, and remain so.
    steps : int
        Moves to try, O(length) each, and the edges of what changes; all edges where wide parts are turned round.
    hot, cold : float
        The first and the last temperature, in units of cost; above 0.
    seed : int

    Returns
    -------
    (length,) int array
        The best that was seen.
    """
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    room = LONGEST * sequence.shape[0] + SPARE
    current, other, spare = blank(problem, room), blank(problem, room), blank(problem, room)
    write(problem, current, sequence)
    if current.memory[: current.length[0]].max() > budget:  # it computes an output again, which is kept here
        return sequence
    cost = extra_cost(problem, current)
    best, least = sequence_of(current), cost
    for step in range(steps):
        if cost <= 0:
            break
        turning = np.random.random() < turns  # noqa: NPY002
        if not random_move(problem, links, current, other, turning):
            continue
        fits = False
        for _ in range(1 if turning else _EJECTIONS + 1):
            worst = int(np.argmax(other.memory[: other.length[0]]))
            fits = other.memory[worst] <= budget
            if fits or other.length[0] + CHAIN >= room:
                break
            use, again = eject(problem, other, worst, WITH, np.int64(CHAIN))
            if again.shape[0] == 0:
                break
            add(problem, other, spare, use, again)
            other, spare = spare, other
        if not fits:
            continue
        price = extra_cost(problem, other)
        heat = hot * (cold / hot) ** (step / steps)
        if price <= cost or np.random.random() < math.exp((cost - price) / heat):  # noqa: NPY002
            cost = price
            current, other = other, current
            if cost < least:
                best, least = sequence_of(current), cost
    return best


@numba_jit
def turned(problem: Problem, links: Links, sequence: Integers, seed: int) -> Integers:
    """A sequence of the same computations in another order, by one random move; as it was if that may not be.

    Parameters
    ----------
    problem, links, sequence
        As `exchange` takes them.
    seed : int
    """
    np.random.seed(seed)  # noqa: NPY002
    begin, part, moved = _turned_part(problem, links, sequence)
    return _with_part(problem, sequence, begin, part)[0] if moved else sequence


@numba_jit
def ejected(problem: Problem, sequence: Integers, seed: int) -> Integers:
    """A sequence with one value less in memory where there is much, which is computed again later.

    Parameters
    ----------
    problem, sequence
        As `exchange` takes them.
    seed : int

    Returns
    -------
    (length,) int array
        Without recomputations that nobody reads. Nothing is added if nothing can be dropped there.
    """
    np.random.seed(seed)  # noqa: NPY002
    current, other = blank(problem, sequence.shape[0]), blank(problem, sequence.shape[0] + CHAIN)
    write(problem, current, sequence)
    memory = current.memory[: current.length[0]]
    high = np.flatnonzero(memory >= (_HIGH + (1 - _HIGH) * np.random.random()) * memory.max())  # noqa: NPY002
    at = high[int(np.random.random() * high.shape[0])]  # noqa: NPY002
    use, again = eject(problem, current, at, WITH, np.int64(CHAIN))
    if again.shape[0] == 0:
        return sequence_of(current)
    add(problem, current, other, use, again)
    return sequence_of(other)


@numba_jit
def random_move(problem: Problem, links: Links, current: Profiled, other: Profiled, turning: bool) -> bool:
    """Write to `other` what a random move makes of a sequence: one that adds nothing.

    Parameters
    ----------
    problem, links
        As `exchange` takes them.
    current : Profiled
        It is left as it is.
    other : Profiled
        With room for as much.
    turning : bool
        Whether a part is turned round, which keeps what is computed. Else a recomputation is left out.

    Returns
    -------
    bool
        False if there is no such move, or it is not allowed. Then `other` is of no meaning.
    """
    length = current.length[0]
    if turning:
        begin, part, moved = _turned_part(problem, links, current.nodes[:length])
        if moved and _WIDE * part.shape[0] < length:
            return turn(problem, current, other, begin, part)
        if moved:
            sequence, moved = _with_part(problem, current.nodes[:length], begin, part)
            write(problem, other, sequence)
        return moved
    again = np.flatnonzero(current.previous[:length] >= 0)
    if again.shape[0] == 0:
        return False
    leave_out(problem, current, other, again[int(np.random.random() * again.shape[0])])  # noqa: NPY002
    return True


@numba_jit
def _turned_part(problem: Problem, links: Links, sequence: Integers) -> tuple[int, Integers, bool]:
    """Where a part of a sequence begins, the part after a random move (`links.move`), and whether anything moved."""
    length = sequence.shape[0]
    begin = int(np.random.random() * (length - 1))  # noqa: NPY002
    end = min(length, begin + span(length))
    mark = np.zeros(problem.sizes.shape[0], np.bool_)
    part, moved = move(sequence, links, begin, end, np.random.random() < 0.5, mark)  # noqa: NPY002
    return begin, part, moved


@numba_jit
def _with_part(problem: Problem, sequence: Integers, begin: int, part: Integers) -> tuple[Integers, bool]:
    """The sequence with a part in another order, and whether that may be; if not, as it was."""
    end = begin + part.shape[0]
    result = np.concatenate((sequence[:begin], part, sequence[end:]))
    return (result, True) if again_in_time(result[:end], problem.until) else (sequence, False)
