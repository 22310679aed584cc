"""A sequence with its memory profile, and what it takes to find and to change the lives of its values.

All is written from a sequence (`write`, one profile), and changes with moves (`moves`). Each node has to be in the
sequence. Values that are brought back from the host (`Problem.hosted`) are not known here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....numba_jit import numba_jit
from ..arrays import Problem
from .keep_where_room import profile

__all__ = [
    "Profiled", "add_to_all", "blank", "copied", "copy_before", "extra_cost", "held_at", "held_until", "in_time",
    "last_read", "link", "live_at", "sequence_of", "shift_from", "write",
]  # fmt: skip

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
def copied(profiled: Profiled, other: Profiled, at: int, gap: np.int64) -> None:
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
def add_to_all(part: Integers, by: int) -> None:
    """Add to all of an array. (Loops over a whole array are compiled to vector instructions.)"""
    for q in range(part.shape[0]):
        part[q] += by


@numba_jit
def shift_from(positions: Integers, at: int, by: int) -> None:
    """Move positions from one on."""
    for q in range(positions.shape[0]):
        positions[q] += by if positions[q] >= at else 0


@numba_jit
def in_time(until: Integers, done: Integers, node: int, before: int) -> bool:
    """Whether a node may be computed again before a position (`Graph.recompute_until`)."""
    return until[node] >= done.shape[0] or done[max(until[node], 0)] >= before


@numba_jit
def copy_before(latest: Integers, previous: Integers, node: int, before: int) -> int:
    """The last position of a node before another; -1 if there is none."""
    q = latest[node]
    while q >= before:
        q = previous[q]
    return q


@numba_jit
def link(latest: Integers, previous: Integers, node: int, old: int, new: int) -> None:
    """What comes after a copy of a node comes after another one from now on: its next copy, or nothing."""
    if latest[node] == old:
        latest[node] = new
        return
    q = latest[node]
    while previous[q] != old:
        q = previous[q]
    previous[q] = new


@numba_jit
def last_read(
    user_ptr: Integers, users: Integers, latest: Integers, previous: Integers, node: int, copy: int, before: int
) -> int:
    """The last position that reads a copy of a node and comes before another; the copy's own if there is none."""
    last = copy
    for e in range(user_ptr[node], user_ptr[node + 1]):
        last = max(last, copy_before(latest, previous, users[e], before))
    return last


@numba_jit
def held_at(problem: Problem, profiled: Profiled, at: int) -> int:
    """`Graph.held` of the node at a position if an input that only this node reads stays in memory after it; or 0."""
    node = profiled.nodes[at]
    if problem.held[node] <= 0:
        return 0
    for e in range(problem.input_ptr[node], problem.input_ptr[node + 1]):
        i = problem.inputs[e]
        alone = problem.user_ptr[i + 1] - problem.user_ptr[i] == 1
        if alone and profiled.last_use[copy_before(profiled.latest, profiled.previous, i, at)] > at:
            return int(problem.held[node])
    return 0


@numba_jit
def live_at(problem: Problem, profiled: Profiled, at: int) -> int:
    """The bytes of values that are in memory at a position, its own included."""
    node = profiled.nodes[at]
    return profiled.memory[at] - (problem.needs[node] - problem.sizes[node]) - held_at(problem, profiled, at)


@numba_jit
def held_until(problem: Problem, profiled: Profiled, copy: int, use: int) -> None:
    """Make a position the last use of a copy, and correct what is held there and in the last use before."""
    old = profiled.last_use[copy]
    profiled.memory[old] -= held_at(problem, profiled, old)
    profiled.memory[use] -= held_at(problem, profiled, use)
    profiled.last_use[copy] = use
    profiled.memory[old] += held_at(problem, profiled, old)
    profiled.memory[use] += held_at(problem, profiled, use)
