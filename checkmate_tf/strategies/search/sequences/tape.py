"""A sequence with its memory profile, which changes with it: a move costs what it changes, not a new profile.

A move adds some recomputations at one position, or leaves one out. Then the lives of a few values change, each over a
range of positions. Only these are looked at; the rest is moved along, in O(length) without looking at any edge.

A tape may be written anew from a sequence (`write`, one profile). Values that are brought back from the host are not
known here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....numba_jit import numba_jit
from ..arrays import Problem
from .keep_where_room import profile

__all__ = ["Tape", "added", "blank", "eject", "extra_cost", "left_out", "sequence_of", "write"]

_LOOKS = 3  # values to choose from: the one of least cost for its bytes is taken

Integers = NDArray[np.int64]


class Tape(NamedTuple):
    """A sequence, and what is known of each position (a named tuple, for Numba). No recomputation is without a reader.

    Attributes
    ----------
    length : (1,) int
        Of the sequence. What is behind it in the arrays is of no meaning.
    nodes : (room,) int
        The sequence.
    memory, last_use, previous : (room,) int
        As `keep_where_room.profile` has them.
    latest : (n,) int
        The last position of each node.
    done : (n + 1,) int
        The position by which the first nodes, so many, have all been computed; -1 for none.
    """

    length: Integers
    nodes: Integers
    memory: Integers
    last_use: Integers
    previous: Integers
    latest: Integers
    done: Integers


@numba_jit
def blank(problem: Problem, room: int) -> Tape:
    """A tape for sequences of so many positions, at most, to be written."""
    return Tape(
        np.zeros(1, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64),
        np.empty(room, np.int64), np.empty(problem.sizes.shape[0], np.int64),
        np.empty(problem.sizes.shape[0] + 1, np.int64),
    )  # fmt: skip


@numba_jit
def write(problem: Problem, tape: Tape, sequence: Integers) -> None:
    """Write a legal sequence, without recomputations that nobody reads, and its profile. O(length + edges)."""
    nodes = profile(problem, sequence, tape.memory, tape.last_use, tape.previous)
    length = nodes.shape[0]
    tape.length[0] = length
    tape.nodes[:length] = nodes
    for q in range(length):
        tape.latest[nodes[q]] = q
        if tape.previous[q] < 0:
            tape.done[nodes[q] + 1] = q
    tape.done[0] = -1
    for i in range(problem.sizes.shape[0]):
        tape.done[i + 1] = max(tape.done[i], tape.done[i + 1])


@numba_jit
def sequence_of(tape: Tape) -> Integers:
    """(length,) The nodes, as an array of its own."""
    return tape.nodes[: tape.length[0]].copy()


@numba_jit
def extra_cost(problem: Problem, tape: Tape) -> float:
    """What recomputations cost."""
    nodes, previous, total = tape.nodes[: tape.length[0]], tape.previous[: tape.length[0]], 0.0
    for q in range(nodes.shape[0]):
        if previous[q] >= 0:
            total += problem.again[nodes[q]]
    return total


@numba_jit
def eject(problem: Problem, tape: Tape, at: int, share: float, most: int) -> tuple[int, Integers]:
    """What is to be computed again, and where, so that a value is not in memory at a place.

    The value is computed again for its next use. What it is computed from is computed again, too, if it would not be
    in memory anyway, or is kept for it.

    Parameters
    ----------
    problem : Problem
    tape : Tape
        It is left as it is; see `added`.
    at : int
        The position where the value is not to be in memory.
    share : float
        With which probability what it is computed from is computed again, too; else it is kept so long.
    most : int
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
    length, here = tape.length[0], tape.nodes[at]
    latest, previous, last_use = tape.latest, tape.previous, tape.last_use
    there, ends = np.empty(at, np.int64), last_use[:at]  # copies that only wait
    count = 0
    for c in range(ends.shape[0]):
        if at < ends[c] < length and problem.sizes[tape.nodes[c]] > 0:
            read = False
            for e in range(ptr[here], ptr[here + 1]):
                read = read or inputs[e] == tape.nodes[c]
            if not read:
                there[count] = c
                count += 1
    if count == 0:
        return 0, nothing
    chosen, price = -1, math.inf
    for _ in range(_LOOKS):
        c = there[int(np.random.random() * count)]  # noqa: NPY002
        rate = problem.again[tape.nodes[c]] / problem.sizes[tape.nodes[c]]
        if rate < price:
            chosen, price = c, rate
    value = tape.nodes[chosen]
    use = length
    for e in range(problem.user_ptr[value], problem.user_ptr[value + 1]):
        q = latest[problem.users[e]]
        while q > at:
            use = min(use, q)
            q = previous[q]
    if not _in_time(problem.until, tape.done, value, use):
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
            if taken[w] or total == most or not _in_time(problem.until, tape.done, w, use):
                continue
            if last_use[_copy(latest, previous, w, use)] >= use:
                continue
            if np.random.random() < share:  # noqa: NPY002
                chain[total] = w
                taken[w] = True
                total += 1
        k += 1
    return use, np.sort(chain[:total])


@numba_jit
def added(problem: Problem, tape: Tape, other: Tape, at: int, again: Integers) -> None:
    """Write on another tape what this one becomes with some nodes computed again right before a position.

    Parameters
    ----------
    problem : Problem
    tape : Tape
        It is left as it is.
    other : Tape
        There is room on it for as many positions more.
    at : int
    again : (count,) int
        Nodes that have been computed before, inputs before what reads them. Each is read by what is at the position, or
        by another of them.
    """
    k, length = again.shape[0], tape.length[0]
    other.length[0] = length + k
    for old, new in (
        (tape.nodes, other.nodes), (tape.memory, other.memory), (tape.previous, other.previous),
        (tape.last_use, other.last_use),
    ):  # fmt: skip
        new[:at] = old[:at]
        new[at + k : length + k] = old[at:length]
    other.latest[:] = tape.latest
    other.done[:] = tape.done
    _later(other.latest, at, k)
    _later(other.done, at, k)
    _later(other.previous[at + k : length + k], at, k)
    _later(other.last_use[:at], at, k)
    _raise(other.last_use[at + k : length + k], k)
    passing = _live(problem, other, at + k) - problem.sizes[other.nodes[at + k]]
    other.memory[at : at + k] = passing
    unread, count = np.empty(k, np.int64), 0
    for j in range(k):
        if _joined(problem, other, at + j, again[j]):
            unread[count] = other.previous[at + j]
            count += 1
    if count:
        _without(problem, other, unread[:count])


@numba_jit
def left_out(problem: Problem, tape: Tape, other: Tape, at: int) -> None:
    """Write on another tape what this one becomes without a recomputation.

    Parameters
    ----------
    problem : Problem
    tape : Tape
        It is left as it is.
    other : Tape
    at : int
        The recomputation's position.
    """
    length = tape.length[0]
    other.length[0] = length
    for old, new in (
        (tape.nodes, other.nodes), (tape.memory, other.memory), (tape.previous, other.previous),
        (tape.last_use, other.last_use),
    ):  # fmt: skip
        new[:length] = old[:length]
    other.latest[:] = tape.latest
    other.done[:] = tape.done
    _without(problem, other, np.array([at]))


# Functions of the inner loop take the arrays that they need: a tuple of many arrays is dear to hand on.


@numba_jit
def _raise(part: Integers, by: int) -> None:
    """Add to all of an array. (Loops over a whole array are compiled to vector instructions.)"""
    for q in range(part.shape[0]):
        part[q] += by


@numba_jit
def _later(positions: Integers, at: int, by: int) -> None:
    """Move positions from one on."""
    for q in range(positions.shape[0]):
        positions[q] += by if positions[q] >= at else 0


@numba_jit
def _in_time(until: Integers, done: Integers, node: int, before: int) -> bool:
    """Whether a node may be computed again before a position (`Graph.recompute_until`)."""
    return until[node] >= done.shape[0] or done[until[node]] >= before


@numba_jit
def _copy(latest: Integers, previous: Integers, node: int, before: int) -> int:
    """The last position of a node before another; -1 if there is none."""
    q = latest[node]
    while q >= before:
        q = previous[q]
    return q


@numba_jit
def _last_read(
    user_ptr: Integers, users: Integers, latest: Integers, previous: Integers, node: int, copy: int, before: int
) -> int:
    """The last position that reads a copy of a node and comes before another; the copy's own if there is none."""
    last = copy
    for e in range(user_ptr[node], user_ptr[node + 1]):
        last = max(last, _copy(latest, previous, users[e], before))
    return last


@numba_jit
def _held(problem: Problem, tape: Tape, at: int) -> int:
    """What takes memory of its own at a position, since what only its node reads is read again later (`Graph.held`)."""
    node = tape.nodes[at]
    if problem.held[node] <= 0:
        return 0
    for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
        i = problem.inputs[e]
        alone = problem.user_ptr[i + 1] - problem.user_ptr[i] == 1
        if alone and tape.last_use[_copy(tape.latest, tape.previous, i, at)] > at:
            return int(problem.held[node])
    return 0


@numba_jit
def _live(problem: Problem, tape: Tape, at: int) -> int:
    """The bytes of values that are in memory at a position, its own included."""
    node = tape.nodes[at]
    return tape.memory[at] - (problem.needs[node] - problem.sizes[node]) - _held(problem, tape, at)


@numba_jit
def _joined(problem: Problem, tape: Tape, at: int, node: int) -> bool:
    """Compute a node again at an empty position that others have made room for.

    Its memory there is that of the values which are there before and after. Whether nobody reads the copy before any
    more, if that is a recomputation.
    """
    latest, previous, last_use, memory = tape.latest, tape.previous, tape.last_use, tape.memory
    user_ptr, users, sizes, held = problem.user_ptr, problem.users, problem.sizes, problem.held
    size, copy = sizes[node], _copy(latest, previous, node, at)
    if latest[node] == copy:
        latest[node] = at
    else:
        q = latest[node]
        while previous[q] != copy:
            q = previous[q]
        previous[q] = at
    tape.nodes[at], previous[at], unread = node, copy, False
    until = last_use[copy]
    if until > at:  # its later readers have the new copy
        last_use[at] = until
        last = _last_read(user_ptr, users, latest, previous, node, copy, at)
        if held[tape.nodes[last]] > 0:
            memory[last] -= _held(problem, tape, last)
        last_use[copy] = last
        if held[tape.nodes[last]] > 0:
            memory[last] += _held(problem, tape, last)
        _raise(memory[last + 1 : at], -size)
        unread = last == copy and previous[copy] >= 0
    else:
        last_use[at] = at
        memory[at] += size
    memory[at] += problem.needs[node] - size
    if held[node] > 0:
        memory[at] += _held(problem, tape, at)
    for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
        i = problem.inputs[e]
        source = _copy(latest, previous, i, at)
        old = last_use[source]
        if old < at:
            if held[node] > 0 or held[tape.nodes[old]] > 0:
                _held_until(problem, tape, source, at)
            last_use[source] = at
            _raise(memory[old + 1 : at + 1], sizes[i])
    return unread


@numba_jit
def _held_until(problem: Problem, tape: Tape, copy: int, use: int) -> None:
    """What is held in the last uses of a copy, the old one and another, as it is once the other is the last."""
    old = tape.last_use[copy]
    tape.memory[old] -= _held(problem, tape, old)
    tape.memory[use] -= _held(problem, tape, use)
    tape.last_use[copy] = use
    tape.memory[old] += _held(problem, tape, old)
    tape.memory[use] += _held(problem, tape, use)


@numba_jit
def _without(problem: Problem, tape: Tape, positions: Integers) -> None:
    """Leave recomputations out, and those that nobody reads then."""
    latest, previous, last_use, memory = tape.latest, tape.previous, tape.last_use, tape.memory
    user_ptr, users, sizes, held = problem.user_ptr, problem.users, problem.sizes, problem.held
    length, count = tape.length[0], positions.shape[0]
    out = np.empty(length, np.int64)
    out[:count] = positions
    k = 0
    while k < count:
        q = out[k]
        k += 1
        node, copy, until = tape.nodes[q], previous[q], last_use[q]
        if latest[node] == q:
            latest[node] = copy
        else:
            later = latest[node]
            while previous[later] != q:
                later = previous[later]
            previous[later] = copy
        if until > q:  # its readers have the copy before
            last = last_use[copy]
            if held[tape.nodes[last]] > 0:
                memory[last] -= _held(problem, tape, last)
            last_use[copy] = until
            if held[tape.nodes[last]] > 0:
                memory[last] += _held(problem, tape, last)
            _raise(memory[last + 1 : q], sizes[node])
        for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
            i = problem.inputs[e]
            source = _copy(latest, previous, i, q)
            if last_use[source] == q:
                last = _last_read(user_ptr, users, latest, previous, i, source, q)
                if held[node] > 0 or held[tape.nodes[last]] > 0:
                    _held_until(problem, tape, source, last)
                last_use[source] = last
                _raise(memory[last + 1 : q + 1], -sizes[i])
                if last == source and previous[source] >= 0:
                    out[count] = source
                    count += 1
    _closed(tape, np.sort(out[:count]))


@numba_jit
def _closed(tape: Tape, out: Integers) -> None:
    """Move all together where positions, ascending, are left out. Nothing refers to these any more."""
    length, count = tape.length[0], out.shape[0]
    for column in (tape.nodes, tape.memory, tape.previous, tape.last_use):
        for k in range(count):
            end = out[k + 1] if k + 1 < count else length
            column[out[k] - k : end - k - 1] = column[out[k] + 1 : end]
    tape.length[0] = length - count
    for k in range(count - 1, -1, -1):
        _later(tape.last_use[: length - count], out[k], -1)
        _later(tape.previous[: length - count], out[k], -1)
        _later(tape.latest, out[k], -1)
        _later(tape.done, out[k], -1)
