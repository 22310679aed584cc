"""Improves a schedule by exchanges: one recomputation goes, and others come where memory is short for that.

The eviction search knows a schedule by weights, and computes a value again at most once a stage. Here the sequence
itself is changed, and its exact memory profile is computed each time. A move drops a random recomputation. Where that
takes too much memory, a value that nothing reads there is dropped until its next use, and computed again right before.
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
from .keep_where_room import profile, without

__all__ = ["CHAIN", "LONGEST", "SPARE", "WITH", "eject", "ejected", "exchange", "extra_cost", "turn", "turned"]

_EJECTIONS = 6  # values that are dropped for one that is kept, at most
_LOOKS = 3  # values to choose from: the one of least cost for its bytes is taken
_HIGH = 0.9  # of the most that is in memory: where a value is dropped, at least so much is
LONGEST, SPARE = 4, 64  # times as many computations as there are, and so many: no more are added
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
        Moves to try, O(length + edges) each.
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
    tables, others = np.zeros((3, room), np.int64), np.zeros((3, room), np.int64)
    current = profile(problem, sequence, tables[0], tables[1], tables[2])
    if tables[0, : current.shape[0]].max() > budget:  # it computes an output again, which is kept here
        return sequence
    cost = extra_cost(problem, current, tables[2])
    best, least = current, cost
    for step in range(steps):
        length = current.shape[0]
        if np.random.random() < turns:  # noqa: NPY002
            changed = turn(problem, links, current)
            ejections = 0
        else:
            again = np.flatnonzero(tables[2, :length] >= 0)
            if again.shape[0] == 0:
                break
            q = again[int(np.random.random() * again.shape[0])]  # noqa: NPY002
            changed = without(current, q)
            ejections = _EJECTIONS
        candidate = profile(problem, changed, others[0], others[1], others[2])
        fits = False
        for _ in range(ejections + 1):
            n = candidate.shape[0]
            worst = int(np.argmax(others[0, :n]))
            fits = others[0, worst] <= budget
            if fits or n + CHAIN >= room:
                break
            wider = eject(problem, candidate, others[1], worst, WITH, CHAIN)
            if wider.shape[0] == n:
                break
            candidate = profile(problem, wider, others[0], others[1], others[2])
        if not fits:
            continue
        price = extra_cost(problem, candidate, others[2])
        heat = hot * (cold / hot) ** (step / steps)
        if price <= cost or np.random.random() < math.exp((cost - price) / heat):  # noqa: NPY002
            current, cost = candidate, price
            tables, others = others, tables
            if cost < least:
                best, least = current, cost
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
    return turn(problem, links, sequence)


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
    tables = np.zeros((3, sequence.shape[0]), np.int64)
    result = profile(problem, sequence, tables[0], tables[1], tables[2])
    memory = tables[0, : result.shape[0]]
    high = np.flatnonzero(memory >= (_HIGH + (1 - _HIGH) * np.random.random()) * memory.max())  # noqa: NPY002
    at = high[int(np.random.random() * high.shape[0])]  # noqa: NPY002
    return eject(problem, result, tables[1], at, WITH, CHAIN)


@numba_jit
def extra_cost(problem: Problem, sequence: Integers, previous: Integers) -> float:
    """What recomputations cost.

    Parameters
    ----------
    problem : Problem
    sequence, previous : (length,) int
        As `profile` has them.
    """
    total = 0.0
    for q in range(sequence.shape[0]):
        if previous[q] >= 0:
            total += problem.again[sequence[q]]
    return total


@numba_jit
def turn(problem: Problem, links: Links, sequence: Integers) -> Integers:
    """The sequence after a random move (`links.move`); as it was if something may not be computed again there.

    Parameters are those of `exchange`; Numba's generator of random numbers decides.
    """
    length = sequence.shape[0]
    begin = int(np.random.random() * (length - 1))  # noqa: NPY002
    end = min(length, begin + span(length))
    mark = np.zeros(problem.sizes.shape[0], np.bool_)
    part, moved = move(sequence, links, begin, end, np.random.random() < 0.5, mark)  # noqa: NPY002
    if not moved:
        return sequence
    result = np.concatenate((sequence[:begin], part, sequence[end:]))
    return result if again_in_time(result[:end], problem.until) else sequence


@numba_jit
def eject(problem: Problem, sequence: Integers, last_use: Integers, at: int, share: float, most: int) -> Integers:
    """The sequence with a value not in memory at a place, and computed again for its next use; itself if there is none.

    What that is computed from is computed again, too, if it would not be in memory anyway, or is kept for it.

    Parameters
    ----------
    problem : Problem
    sequence, last_use : (length,) int
        As `profile` has them.
    at : int
        The position where the value is not to be in memory.
    share : float
        With which probability what it is computed from is computed again, too; else it is kept so long.
    most : int
        So many values are computed again at most.
    """
    ptr, inputs, n = problem.input_ptr, problem.inputs, problem.sizes.shape[0]
    length = sequence.shape[0]
    here = sequence[at]
    read = np.zeros(n, np.bool_)
    for e in range(ptr[here], ptr[here + 1]):
        read[inputs[e]] = True
    there = np.empty(at, np.int64)  # copies that only wait
    count = 0
    for c in range(at):
        if last_use[c] > at and not read[sequence[c]] and problem.sizes[sequence[c]] > 0 and last_use[c] < length:
            there[count] = c
            count += 1
    if count == 0:
        return sequence
    chosen, price = -1, math.inf
    for _ in range(_LOOKS):
        c = there[int(np.random.random() * count)]  # noqa: NPY002
        rate = problem.again[sequence[c]] / problem.sizes[sequence[c]]
        if rate < price:
            chosen, price = c, rate
    value = sequence[chosen]
    use = -1
    for p in range(at + 1, last_use[chosen] + 1):
        k = sequence[p]
        for e in range(ptr[k], ptr[k + 1]):
            if inputs[e] == value:
                use = p
        if use >= 0:
            break
    if use < 0:
        return sequence
    seen = np.zeros(n, np.bool_)
    for p in range(use):
        seen[sequence[p]] = True
    stage = 0
    while stage < n and seen[stage]:
        stage += 1
    if stage >= problem.until[value]:
        return sequence
    alive = np.zeros(n, np.bool_)
    for c in range(use):
        alive[sequence[c]] = last_use[c] >= use  # of its last copy
    chain = np.empty(most, np.int64)
    chain[0] = value
    total, k = 1, 0
    alive[value] = True
    while k < total:
        v = chain[k]
        for e in range(ptr[v], ptr[v + 1]):
            w = inputs[e]
            if alive[w] or total == most or stage >= problem.until[w]:
                continue
            if np.random.random() < share:  # noqa: NPY002
                chain[total] = w
                alive[w] = True
                total += 1
        k += 1
    added = np.sort(chain[:total])  # inputs come before what reads them
    return np.concatenate((sequence[:use], added, sequence[use:]))
