"""After the search: drops recomputations if there is room to keep the value instead.

The simulation counts a value until it is evicted. In the plan it already dies at its last use. The memory in between is
free, and so is what other changes leave. It is used here, on the exact memory profile of the sequence.

What is kept needs room until it would have been computed again. But its inputs, and what they were computed from, need
not be in memory for that any more. So where there is not enough room beside them, the profile without them decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ....numba_jit import numba_jit
from ..arrays import Problem

__all__ = ["keep_where_room", "profile", "useful"]

_MOST_STEPS = 100_000_000  # a tenth of a second or two: only sequences of ten thousand and more come there
_STEPS = 30  # for each position of a profile
_MOST_PROFILES = 20_000_000  # steps for profiles of what there is no room for at first


@numba_jit
def _without(sequence: NDArray[np.int64], q: int) -> NDArray[np.int64]:
    """A sequence without what it computes at a position."""
    return np.concatenate((sequence[:q], sequence[q + 1 :]))


@numba_jit
def useful(problem: Problem, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of a sequence, ascending, without those of recomputations that nobody reads."""
    ptr, inputs, n = problem.input_ptr, problem.inputs, problem.sizes.shape[0]
    first = np.full(n, -1, dtype=np.int64)
    for q in range(sequence.shape[0]):
        if first[sequence[q]] < 0:
            first[sequence[q]] = q
    wanted = np.zeros(n, dtype=np.bool_)
    kept = np.empty(sequence.shape[0], dtype=np.int64)
    length = 0
    for q in range(sequence.shape[0] - 1, -1, -1):
        k = sequence[q]
        if first[k] == q or wanted[k]:
            wanted[k] = False
            for e in range(ptr[k], ptr[k] if problem.hosted[k] and first[k] < q else ptr[k + 1]):
                wanted[inputs[e]] = True
            kept[length] = q
            length += 1
    return kept[:length][::-1].copy()


@numba_jit
def profile(
    problem: Problem,
    sequence: NDArray[np.int64],
    memory: NDArray[np.int64],
    last_use: NDArray[np.int64],
    previous: NDArray[np.int64],
) -> NDArray[np.int64]:
    """A sequence without recomputations that nobody reads, and what is in memory while it runs.

    Parameters
    ----------
    sequence : (length,) int
        Legal.
    memory, last_use, previous : (length or more,) int
        Written for each position that is left: bytes while it runs, constants left out; the position of its value's
        last use (one past the end for an output); and the position at which the same node was computed before, or -1.

    Returns
    -------
    (at most length,) int array
    """
    ptr, inputs, sizes, needs = problem.input_ptr, problem.inputs, problem.sizes, problem.needs
    n = sizes.shape[0]
    result = sequence[useful(problem, sequence)]
    length = result.shape[0]
    copy = np.full(n, -1, dtype=np.int64)
    for q in range(length):
        k = result[q]
        previous[q] = copy[k]
        copy[k] = q
        last_use[q] = q
        for e in range(ptr[k], ptr[k] if problem.hosted[k] and previous[q] >= 0 else ptr[k + 1]):
            last_use[copy[inputs[e]]] = q
    for i in range(n):
        if problem.last_need[i] == n and problem.uses[problem.use_ptr[i]] == n:
            last_use[copy[i]] = length  # a sink
    change = np.zeros(length + 2, dtype=np.int64)
    for q in range(length):
        change[q] += sizes[result[q]]
        change[min(last_use[q], length) + 1] -= sizes[result[q]]
    live = 0
    for q in range(length):
        k = result[q]
        live += change[q]
        copy[k] = q
        memory[q] = live
        if problem.hosted[k] and previous[q] >= 0:
            continue
        memory[q] += needs[k] - sizes[k]
        if problem.held[k] > 0:  # unless what it alone reads ends here
            for e in range(ptr[k], ptr[k + 1]):
                i = inputs[e]
                if problem.user_ptr[i + 1] - problem.user_ptr[i] == 1 and last_use[copy[i]] > q:
                    memory[q] += problem.held[k]
                    break
    return result


@numba_jit
def keep_where_room(problem: Problem, budget: int, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """A sequence that costs at most as much, within the same budget.

    Parameters
    ----------
    budget : int
        Bytes, constants left out; the sequence must fit.
    sequence : (length,) int
        Frontier-advancing.

    Notes
    -----
    Recomputations are tried once each, the dearest first; every success costs a new profile, O(length + edges), and
    begins again. Long sequences with much room are left as they are after `_MOST_STEPS`. Those that there is no room
    for at first cost a profile each, in short sequences.
    """
    memory = np.zeros(sequence.shape[0], dtype=np.int64)
    last_use = np.zeros(sequence.shape[0], dtype=np.int64)
    previous = np.zeros(sequence.shape[0], dtype=np.int64)
    sequence = profile(problem, sequence, memory, last_use, previous)
    others = np.zeros((3, sequence.shape[0]), dtype=np.int64)
    again, steps, profiles = True, 0, 0
    while again and steps < _MOST_STEPS:
        again = False
        length = sequence.shape[0]
        steps += _STEPS * length  # the profile and the sorting
        price = np.zeros(length)
        for q in range(length):
            price[q] = -problem.again[sequence[q]] if previous[q] >= 0 else 1.0
        for q in np.argsort(price):
            if price[q] > 0:
                break
            size = problem.sizes[sequence[q]]
            fits = True
            for r in range(last_use[previous[q]] + 1, q):
                steps += 1
                if memory[r] + size > budget:
                    fits = False
                    break
            if not fits and profiles < _MOST_PROFILES:
                profiles += _STEPS * length
                shorter = profile(problem, _without(sequence, q), others[0], others[1], others[2])
                fits = others[0, : shorter.shape[0]].max() <= budget
            if fits:
                sequence = profile(problem, _without(sequence, q), memory, last_use, previous)
                again = True
                break
    return sequence
