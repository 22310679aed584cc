"""Moves of a profiled sequence: each costs what it changes, not a new profile.

A move adds some recomputations at one position, leaves one out, or turns a part round. Then the lives of a few values
change, each over a range of positions. Only these are looked at; the rest is moved along, in O(length) without looking
at any edge.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ....numba_jit import numba_jit
from ..arrays import Problem
from .profiled import (
    Profiled,
    add_to_all,
    copied,
    copy_before,
    held_at,
    held_until,
    in_time,
    last_read,
    link,
    live_at,
    shift_from,
)

__all__ = ["add", "eject", "leave_out", "turn"]

_FEW = 4  # positions that are left out one after the other, by vector instructions; more are counted first
_LOOKS = 3  # values to choose from: the one of least cost for its bytes is taken

Integers = NDArray[np.int64]


@numba_jit
def eject(problem: Problem, profiled: Profiled, at: int, share: float, most: np.int64) -> tuple[int, Integers]:
    """What is to be computed again, and where, so that a value is not in memory at a place.

    The value is computed again for its next use. What it is computed from is computed again, too, if it would not be
    in memory anyway, or is kept for it.

    Parameters
    ----------
    problem : Problem
    profiled : Profiled
        It is left as it is; see `add`.
    at : int
        The position where the value is not to be in memory.
    share : float
        With which probability what it is computed from is computed again, too; else it is kept so long.
    most : numpy.int64
        So many values are computed again at most.

    Returns
    -------
    int
        The position of the next use.
    (count,) int array
        Nodes, ascending, so that inputs come before what reads them; empty if no value can be dropped there.
    """
    ptr, inputs = problem.input_ptr, problem.inputs
    nothing = np.empty(0, np.int64)
    length, here = profiled.length[0], profiled.nodes[at]
    latest, previous, last_use = profiled.latest, profiled.previous, profiled.last_use
    there, ends = np.empty(at, np.int64), last_use[:at]  # copies in memory that are not read here, and no outputs
    count = 0
    for c in range(ends.shape[0]):
        if at < ends[c] < length and problem.sizes[profiled.nodes[c]] > 0:
            read = False
            for e in range(ptr[here], ptr[here + 1]):
                read = read or inputs[e] == profiled.nodes[c]
            if not read:
                there[count] = c
                count += 1
    if count == 0:
        return 0, nothing
    chosen, price = -1, math.inf
    for _ in range(_LOOKS):
        c = there[int(np.random.random() * count)]  # noqa: NPY002
        rate = problem.again[profiled.nodes[c]] / problem.sizes[profiled.nodes[c]]
        if rate < price:
            chosen, price = c, rate
    value = profiled.nodes[chosen]
    use = length
    for e in range(problem.user_ptr[value], problem.user_ptr[value + 1]):
        q = latest[problem.users[e]]
        while q > at:
            use = min(use, q)
            q = previous[q]
    if not in_time(problem.until, profiled.done, value, use):
        return 0, nothing
    taken = np.zeros(problem.sizes.shape[0], np.bool_)
    chain = np.empty(most, np.int64)
    chain[0] = value
    taken[value] = True
    total, k = 1, 0
    while k < total:
        v = chain[k]
        for e in range(ptr[v], ptr[v + 1]):
            w = inputs[e]
            if taken[w] or total == most or not in_time(problem.until, profiled.done, w, use):
                continue
            if last_use[copy_before(latest, previous, w, use)] >= use:
                continue
            if np.random.random() < share:  # noqa: NPY002
                chain[total] = w
                taken[w] = True
                total += 1
        k += 1
    return use, np.sort(chain[:total])


@numba_jit
def add(problem: Problem, profiled: Profiled, other: Profiled, at: int, again: Integers) -> None:
    """Write to `other` the sequence with some nodes computed again right before a position.

    Parameters
    ----------
    problem : Problem
    profiled : Profiled
        It is left as it is.
    other : Profiled
        With room for as many positions more.
    at : int
    again : (count,) int
        Nodes that have been computed before, inputs before what reads them. Each is read by what is at the position, or
        by another of them.
    """
    k, length = again.shape[0], profiled.length[0]
    copied(profiled, other, at, np.int64(k))
    shift_from(other.latest, at, k)
    shift_from(other.done, at, k)
    shift_from(other.previous[at + k : length + k], at, k)
    shift_from(other.last_use[:at], at, k)
    add_to_all(other.last_use[at + k : length + k], k)
    passing = live_at(problem, other, at + k) - problem.sizes[other.nodes[at + k]]
    other.memory[at : at + k] = passing
    unread, count = np.empty(k, np.int64), 0
    for j in range(k):
        if _insert(problem, other, at + j, again[j]):
            unread[count] = other.previous[at + j]
            count += 1
    if count:
        _remove(problem, other, unread[:count])


@numba_jit
def leave_out(problem: Problem, profiled: Profiled, other: Profiled, at: int) -> None:
    """Write to `other` the sequence without a recomputation, and without those that nobody reads then.

    Parameters
    ----------
    problem : Problem
    profiled : Profiled
        It is left as it is.
    other : Profiled
    at : int
        The recomputation's position.
    """
    copied(profiled, other, profiled.length[0], np.int64(0))
    _remove(problem, other, np.array([at]))


@numba_jit
def turn(problem: Problem, profiled: Profiled, other: Profiled, begin: int, part: Integers) -> bool:
    """Write to `other` the sequence with a part in another order, without recomputations that nobody reads then.

    Parameters
    ----------
    problem : Problem
    profiled : Profiled
        It is left as it is.
    other : Profiled
        With room for as much.
    begin : int
        Where the part begins.
    part : (count,) int array
        The nodes that are computed there, in another legal order.

    Returns
    -------
    bool
        False if a node would be computed again too late (`Graph.recompute_until`). Then `other` is of no meaning.
    """
    ptr, inputs, sizes, n = problem.input_ptr, problem.inputs, problem.sizes, problem.sizes.shape[0]
    nodes, latest, previous, last_use = other.nodes, other.latest, other.previous, other.last_use
    end = begin + part.shape[0]
    copied(profiled, other, profiled.length[0], np.int64(0))
    # Of each value that is computed or read in the part: its last copy before it, the one at hand in it, the first copy
    # after it, and its last use if that is after it.
    met, known, count = np.empty(n, np.int64), np.zeros(n, np.bool_), 0
    before, at_hand, after, later = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64), np.full(n, -1)
    for k in part:
        for e in range(ptr[k], ptr[k + 1] + 1):
            i = inputs[e] if e < ptr[k + 1] else k
            if known[i]:
                continue
            known[i] = True
            met[count] = i
            count += 1
            after[i], q = -1, latest[i]
            while q >= end:
                after[i], q = q, previous[q]
            if last_use[q] >= end:
                later[i] = last_use[q]
            before[i] = at_hand[i] = copy_before(latest, previous, i, begin)
    nodes[begin:end] = part
    read = np.full(n, -1)  # where copies from before are read last in the part
    for q in range(begin, end):
        for e in range(ptr[nodes[q]], ptr[nodes[q] + 1]):
            i = inputs[e]
            if at_hand[i] == before[i]:
                read[i] = q
            else:
                last_use[at_hand[i]] = q
        previous[q] = at_hand[nodes[q]]
        last_use[q] = at_hand[nodes[q]] = q
    for i in met[:count]:
        if after[i] >= 0:
            previous[after[i]] = at_hand[i]
        else:
            latest[i] = at_hand[i]
        if later[i] >= 0:
            last_use[at_hand[i]] = later[i]
    _find_done(other, begin, end)
    for q in range(begin, end):
        if previous[q] >= 0 and not in_time(problem.until, other.done, nodes[q], q):
            return False
    passing = live_at(problem, profiled, begin) - sizes[profiled.nodes[begin]]  # bytes from before that are used later
    for i in met[:count]:
        copy = before[i]
        if copy >= 0 and (later[i] < 0 or at_hand[i] != copy):
            passing += _read_until(problem, other, i, copy, begin, read[i])
    ends = np.zeros(end - begin, np.int64)  # bytes that are read last at each position of the part
    unread, gone = np.empty(count + end - begin, np.int64), 0
    for m in range(count + end - begin):
        copy = before[met[m]] if m < count else begin + m - count
        if copy < 0:
            continue
        if begin <= last_use[copy] < end:
            ends[last_use[copy] - begin] += sizes[nodes[copy]]
        if last_use[copy] == copy and previous[copy] >= 0:
            unread[gone] = copy
            gone += 1
    for q in range(begin, end):
        k = nodes[q]
        passing += sizes[k]
        other.memory[q] = passing + problem.needs[k] - sizes[k]
        if problem.held[k] > 0:
            other.memory[q] += held_at(problem, other, q)
        passing -= ends[q - begin]
    if gone:
        _remove(problem, other, unread[:gone])
    return True


@numba_jit
def _find_done(profiled: Profiled, begin: int, end: int) -> None:
    """Correct `done` where the order of a part has changed."""
    done, low, high = profiled.done, np.searchsorted(profiled.done, begin), np.searchsorted(profiled.done, end)
    done[low:high] = -1
    for q in range(begin, end):
        if profiled.previous[q] < 0 and profiled.nodes[q] + 1 < high:
            done[profiled.nodes[q] + 1] = q
    for k in range(low, high):
        done[k] = max(done[k], done[k - 1])


@numba_jit
def _read_until(problem: Problem, profiled: Profiled, node: int, copy: int, begin: int, read: int) -> int:
    """Correct the life of a copy from before a part, and what is in memory before the part.

    Parameters
    ----------
    node, copy : int
        The node, and the copy's position.
    begin : int
        Where the part begins.
    read : int
        Where the copy is now read last in the part; -1 if it is not.

    Returns
    -------
    int
        How many bytes more there are where the part begins.
    """
    size, old = problem.sizes[node], profiled.last_use[copy]
    if read < 0:
        read = last_read(problem.user_ptr, problem.users, profiled.latest, profiled.previous, node, copy, begin)
    until, since = min(old, begin - 1), min(read, begin - 1)
    if problem.held[profiled.nodes[until]] > 0 or problem.held[profiled.nodes[since]] > 0:
        held_until(problem, profiled, copy, read)
    profiled.last_use[copy] = read
    add_to_all(profiled.memory[until + 1 : since + 1], size)
    add_to_all(profiled.memory[since + 1 : until + 1], -size)
    return size * (int(read >= begin) - int(old >= begin))


@numba_jit
def _insert(problem: Problem, profiled: Profiled, at: int, node: int) -> bool:
    """Compute a node again at an empty position that others have made room for.

    The memory there is that of the values which are there before and after. Returns whether the copy before is a
    recomputation that has no reader left.
    """
    latest, previous, last_use, memory = profiled.latest, profiled.previous, profiled.last_use, profiled.memory
    user_ptr, users, sizes, held = problem.user_ptr, problem.users, problem.sizes, problem.held
    size, copy = sizes[node], copy_before(latest, previous, node, at)
    link(latest, previous, node, copy, at)
    profiled.nodes[at], previous[at], unread = node, copy, False
    until = last_use[copy]
    if until > at:  # its later readers have the new copy
        last_use[at] = until
        last = last_read(user_ptr, users, latest, previous, node, copy, at)
        if held[profiled.nodes[last]] > 0:
            held_until(problem, profiled, copy, last)
        last_use[copy] = last
        add_to_all(memory[last + 1 : at], -size)
        unread = last == copy and previous[copy] >= 0
    else:
        last_use[at] = at
        memory[at] += size
    memory[at] += problem.needs[node] - size
    if held[node] > 0:
        memory[at] += held_at(problem, profiled, at)
    for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
        i = problem.inputs[e]
        source = copy_before(latest, previous, i, at)
        old = last_use[source]
        if old < at:
            if held[node] > 0:
                held_until(problem, profiled, source, at)
            last_use[source] = at
            add_to_all(memory[old + 1 : at + 1], sizes[i])
    return unread


@numba_jit
def _remove(problem: Problem, profiled: Profiled, positions: Integers) -> None:
    """Leave recomputations out, and those that nobody reads then."""
    latest, previous, last_use, memory = profiled.latest, profiled.previous, profiled.last_use, profiled.memory
    user_ptr, users, sizes, held = problem.user_ptr, problem.users, problem.sizes, problem.held
    length, count = profiled.length[0], positions.shape[0]
    out = np.empty(length, np.int64)
    out[:count] = positions
    k = 0
    while k < count:
        q = out[k]
        k += 1
        node, copy, until = profiled.nodes[q], previous[q], last_use[q]
        link(latest, previous, node, q, copy)
        if until > q:  # its readers have the copy before
            last = last_use[copy]
            if held[profiled.nodes[last]] > 0:
                held_until(problem, profiled, copy, until)
            last_use[copy] = until
            add_to_all(memory[last + 1 : q], sizes[node])
        for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
            i = problem.inputs[e]
            source = copy_before(latest, previous, i, q)
            if last_use[source] == q:
                last = last_read(user_ptr, users, latest, previous, i, source, q)
                if held[node] > 0:
                    held_until(problem, profiled, source, last)
                last_use[source] = last
                add_to_all(memory[last + 1 : q + 1], -sizes[i])
                if last == source and previous[source] >= 0:
                    out[count] = source
                    count += 1
    _close_gaps(profiled, np.sort(out[:count]))


@numba_jit
def _close_gaps(profiled: Profiled, out: Integers) -> None:
    """Move all together where positions, ascending, are left out. Nothing refers to these any more."""
    length, count = profiled.length[0], out.shape[0]
    for column in (profiled.nodes, profiled.memory, profiled.previous, profiled.last_use):
        for k in range(count):
            end = out[k + 1] if k + 1 < count else length
            column[out[k] - k : end - k - 1] = column[out[k] + 1 : end]
    profiled.length[0] = left = length - count
    positions = (profiled.last_use[:left], profiled.previous[:left], profiled.latest, profiled.done)
    if count <= _FEW:
        for k in range(count - 1, -1, -1):
            for some in positions:
                shift_from(some, out[k], -1)
        return
    earlier = np.zeros(length + 2, np.int64)  # how many are left out before each position; the first is -1
    for k in range(count):
        earlier[out[k] + 2] = 1
    earlier = np.cumsum(earlier)
    for some in positions:
        for q in range(some.shape[0]):
            some[q] -= earlier[some[q] + 1]
