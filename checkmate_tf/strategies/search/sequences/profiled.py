"""A sequence with its memory profile, which changes with it: a move costs what it changes, not a new profile.

A move adds some recomputations at one position, or leaves one out. Then the lives of a few values change, each over a
range of positions. Only these are looked at; the rest is moved along, in O(length) without looking at any edge.

All may be written anew from a sequence (`write`, one profile). Each node has to be in it. Values that are brought back
from the host (`Problem.hosted`) are not known here.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....numba_jit import numba_jit
from ..arrays import Problem
from .keep_where_room import profile

__all__ = ["Profiled", "add", "blank", "eject", "extra_cost", "leave_out", "sequence_of", "write"]

_FEW = 4  # positions that are left out one after the other, by vector instructions; more are counted first
_LOOKS = 3  # values to choose from: the one of least cost for its bytes is taken

Integers = NDArray[np.int64]


class Profiled(NamedTuple):
    """A sequence, and what is known of each position (a named tuple, for Numba). Each recomputation has a reader.

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
        done[k] is the position by which nodes 0 to k - 1 have all been computed; done[0] is -1.
    """

    length: Integers
    nodes: Integers
    memory: Integers
    last_use: Integers
    previous: Integers
    latest: Integers
    done: Integers


@numba_jit
def blank(problem: Problem, room: int) -> Profiled:
    """Room for a sequence of so many positions, at most, to be written."""
    return Profiled(
        np.zeros(1, np.int64), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64),
        np.empty(room, np.int64), np.empty(problem.sizes.shape[0], np.int64),
        np.empty(problem.sizes.shape[0] + 1, np.int64),
    )  # fmt: skip


@numba_jit
def write(problem: Problem, profiled: Profiled, sequence: Integers) -> None:
    """Write a legal sequence, without recomputations that nobody reads, and its profile. O(length + edges)."""
    nodes = profile(problem, sequence, profiled.memory, profiled.last_use, profiled.previous)
    length = nodes.shape[0]
    profiled.length[0] = length
    profiled.nodes[:length] = nodes
    profiled.latest[:] = -1
    profiled.done[:] = -1
    for q in range(length):
        profiled.latest[nodes[q]] = q
        if profiled.previous[q] < 0:
            profiled.done[nodes[q] + 1] = q
    for i in range(problem.sizes.shape[0]):
        profiled.done[i + 1] = max(profiled.done[i], profiled.done[i + 1])


@numba_jit
def sequence_of(profiled: Profiled) -> Integers:
    """(length,) The nodes, as an array of its own."""
    return profiled.nodes[: profiled.length[0]].copy()


@numba_jit
def extra_cost(problem: Problem, profiled: Profiled) -> float:
    """What recomputations cost."""
    nodes, previous, total = profiled.nodes[: profiled.length[0]], profiled.previous[: profiled.length[0]], 0.0
    for q in range(nodes.shape[0]):
        if previous[q] >= 0:
            total += problem.again[nodes[q]]
    return total


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
    if not _in_time(problem.until, profiled.done, value, use):
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
            if taken[w] or total == most or not _in_time(problem.until, profiled.done, w, use):
                continue
            if last_use[_copy_before(latest, previous, w, use)] >= use:
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
    _copied(profiled, other, at, np.int64(k))
    _shift_from(other.latest, at, k)
    _shift_from(other.done, at, k)
    _shift_from(other.previous[at + k : length + k], at, k)
    _shift_from(other.last_use[:at], at, k)
    _add_to_all(other.last_use[at + k : length + k], k)
    passing = _live(problem, other, at + k) - problem.sizes[other.nodes[at + k]]
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
    _copied(profiled, other, profiled.length[0], np.int64(0))
    _remove(problem, other, np.array([at]))


@numba_jit
def _copied(profiled: Profiled, other: Profiled, at: int, gap: np.int64) -> None:
    """Write all to `other`, with so many empty positions at one. What refers to positions is left as it is."""
    length = profiled.length[0]
    other.length[0] = length + gap
    for old, new in (
        (profiled.nodes, other.nodes), (profiled.memory, other.memory), (profiled.previous, other.previous),
        (profiled.last_use, other.last_use),
    ):  # fmt: skip
        new[:at] = old[:at]
        new[at + gap : length + gap] = old[at:length]
    other.latest[:] = profiled.latest
    other.done[:] = profiled.done


# Functions of the inner loop take the arrays that they need: a tuple of many arrays is dear to hand on.


@numba_jit
def _add_to_all(part: Integers, by: int) -> None:
    """Add to all of an array. (Loops over a whole array are compiled to vector instructions.)"""
    for q in range(part.shape[0]):
        part[q] += by


@numba_jit
def _shift_from(positions: Integers, at: int, by: int) -> None:
    """Move positions from one on."""
    for q in range(positions.shape[0]):
        positions[q] += by if positions[q] >= at else 0


@numba_jit
def _in_time(until: Integers, done: Integers, node: int, before: int) -> bool:
    """Whether a node may be computed again before a position (`Graph.recompute_until`)."""
    return until[node] >= done.shape[0] or done[max(until[node], 0)] >= before


@numba_jit
def _copy_before(latest: Integers, previous: Integers, node: int, before: int) -> int:
    """The last position of a node before another; -1 if there is none."""
    q = latest[node]
    while q >= before:
        q = previous[q]
    return q


@numba_jit
def _link(latest: Integers, previous: Integers, node: int, old: int, new: int) -> None:
    """What comes after a copy of a node comes after another one from now on: its next copy, or nothing."""
    if latest[node] == old:
        latest[node] = new
        return
    q = latest[node]
    while previous[q] != old:
        q = previous[q]
    previous[q] = new


@numba_jit
def _last_read(
    user_ptr: Integers, users: Integers, latest: Integers, previous: Integers, node: int, copy: int, before: int
) -> int:
    """The last position that reads a copy of a node and comes before another; the copy's own if there is none."""
    last = copy
    for e in range(user_ptr[node], user_ptr[node + 1]):
        last = max(last, _copy_before(latest, previous, users[e], before))
    return last


@numba_jit
def _held(problem: Problem, profiled: Profiled, at: int) -> int:
    """`Graph.held` of the node at a position if an input that only this node reads stays in memory after it; or 0."""
    node = profiled.nodes[at]
    if problem.held[node] <= 0:
        return 0
    for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
        i = problem.inputs[e]
        alone = problem.user_ptr[i + 1] - problem.user_ptr[i] == 1
        if alone and profiled.last_use[_copy_before(profiled.latest, profiled.previous, i, at)] > at:
            return int(problem.held[node])
    return 0


@numba_jit
def _live(problem: Problem, profiled: Profiled, at: int) -> int:
    """The bytes of values that are in memory at a position, its own included."""
    node = profiled.nodes[at]
    return profiled.memory[at] - (problem.needs[node] - problem.sizes[node]) - _held(problem, profiled, at)


@numba_jit
def _insert(problem: Problem, profiled: Profiled, at: int, node: int) -> bool:
    """Compute a node again at an empty position that others have made room for.

    The memory there is that of the values which are there before and after. Returns whether the copy before is a
    recomputation that has no reader left.
    """
    latest, previous, last_use, memory = profiled.latest, profiled.previous, profiled.last_use, profiled.memory
    user_ptr, users, sizes, held = problem.user_ptr, problem.users, problem.sizes, problem.held
    size, copy = sizes[node], _copy_before(latest, previous, node, at)
    _link(latest, previous, node, copy, at)
    profiled.nodes[at], previous[at], unread = node, copy, False
    until = last_use[copy]
    if until > at:  # its later readers have the new copy
        last_use[at] = until
        last = _last_read(user_ptr, users, latest, previous, node, copy, at)
        if held[profiled.nodes[last]] > 0:
            _held_until(problem, profiled, copy, last)
        last_use[copy] = last
        _add_to_all(memory[last + 1 : at], -size)
        unread = last == copy and previous[copy] >= 0
    else:
        last_use[at] = at
        memory[at] += size
    memory[at] += problem.needs[node] - size
    if held[node] > 0:
        memory[at] += _held(problem, profiled, at)
    for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
        i = problem.inputs[e]
        source = _copy_before(latest, previous, i, at)
        old = last_use[source]
        if old < at:
            if held[node] > 0:
                _held_until(problem, profiled, source, at)
            last_use[source] = at
            _add_to_all(memory[old + 1 : at + 1], sizes[i])
    return unread


@numba_jit
def _held_until(problem: Problem, profiled: Profiled, copy: int, use: int) -> None:
    """Make a position the last use of a copy, and correct what is held there and in the last use before."""
    old = profiled.last_use[copy]
    profiled.memory[old] -= _held(problem, profiled, old)
    profiled.memory[use] -= _held(problem, profiled, use)
    profiled.last_use[copy] = use
    profiled.memory[old] += _held(problem, profiled, old)
    profiled.memory[use] += _held(problem, profiled, use)


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
        _link(latest, previous, node, q, copy)
        if until > q:  # its readers have the copy before
            last = last_use[copy]
            if held[profiled.nodes[last]] > 0:
                _held_until(problem, profiled, copy, until)
            last_use[copy] = until
            _add_to_all(memory[last + 1 : q], sizes[node])
        for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
            i = problem.inputs[e]
            source = _copy_before(latest, previous, i, q)
            if last_use[source] == q:
                last = _last_read(user_ptr, users, latest, previous, i, source, q)
                if held[node] > 0:
                    _held_until(problem, profiled, source, last)
                last_use[source] = last
                _add_to_all(memory[last + 1 : q + 1], -sizes[i])
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
                _shift_from(some, out[k], -1)
        return
    earlier = np.zeros(length + 2, np.int64)  # how many are left out before each position; the first is -1
    for k in range(count):
        earlier[out[k] + 2] = 1
    earlier = np.cumsum(earlier)
    for some in positions:
        for q in range(some.shape[0]):
            some[q] -= earlier[some[q] + 1]
