"""What a step allocates and frees, operation by operation, when its nodes are computed in a given order.

A plan counts a node as one value and one workspace. An allocator sees more: each output of each operation, the buffers
that elementwise operations take over, lists whose elements lie apart, and values that only another operation of the
same node reads. `Kernels` says all that of a graph's nodes, in arrays, for compiled code. It is made where operations
are known (`trace.kernels`). Here it is put in the order of a plan (`linked`): which copy each operation reads follows
from that order alone. When operations begin and end is another thing. They may do so one after the other, as plans in
strict order do, or side by side (`interleave`). `allocated` takes any such order of begins and ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..numba_jit import numba_jit
from .bfc import Events

__all__ = ["Kernels", "Runs", "allocated", "events_of", "expand", "linked", "small_bytes"]

Integers = NDArray[np.int64]


class Kernels(NamedTuple):
    """What the operations of each node allocate, read and take over (a named tuple, for Numba).

    There are n nodes, m operations in order of nodes, and b buffers, the operations' outputs in order.

    Attributes
    ----------
    operations : (n + 1,) int64
        Node i is made of operations[i] to operations[i + 1] - 1.
    outputs : (m + 1,) int64
        Operation k makes buffers outputs[k] to outputs[k + 1] - 1.
    reads : (m + 1,) int64
        Operation k reads the buffers in `read[reads[k]:reads[k + 1]]`, each listed once, in order of its inputs.
    read : (r,) int64
    bytes : (b,) int64
        Of each buffer. 0 if it takes no memory.
    pieces : (b,) int64
        In how many chunks of equal size it lies: more than one for lists.
    kept : (b,) bool
        Whether the step returns it.
    takes_over : (m,) int64
        Which output takes over the memory of an input of the same size that dies there; -1 if none does.
    workspaces : (m + 1,) int64
        Operation k's kernel has the chunks workspaces[k] to workspaces[k + 1] - 1 only while it runs.
    before : (m,) int64
        How many of these it takes before its outputs.
    workspace : (w,) int64
        Bytes of each of these chunks.
    """

    operations: Integers
    outputs: Integers
    reads: Integers
    read: Integers
    bytes: Integers
    pieces: Integers
    kept: NDArray[np.bool_]
    takes_over: Integers
    workspaces: Integers
    before: Integers
    workspace: Integers


class Runs(NamedTuple):
    """The operations of a sequence of computations, each as often as it runs (a named tuple, for Numba).

    There are r runs in plan order, and c copies of buffers, the runs' outputs in order.

    Attributes
    ----------
    operation : (r,) int64
        Which one it is, an index of `Kernels`.
    computation : (r,) int64
        To which entry of the sequence it belongs.
    makes : (r + 1,) int64
        Run i makes copies makes[i] to makes[i + 1] - 1.
    reads : (r + 1,) int64
        Run i reads the copies in `copy[reads[i]:reads[i + 1]]`, each listed once, in order of its inputs.
    copy : (e,) int64
    readers : (c,) int64
        How many runs read each copy. What the step returns has one more, which never ends.
    """

    operation: Integers
    computation: Integers
    makes: Integers
    reads: Integers
    copy: Integers
    readers: Integers


def events_of(kernels: Kernels, sequence: Sequence[int] | Integers, first_id: int = 0) -> Events:
    """Allocations and frees of a step whose nodes are computed in a given order.

    A buffer is freed when the last operation that reads this copy of it has run; one that nobody reads, when its own
    operation has. What the step returns stays.

    Parameters
    ----------
    kernels : Kernels
    sequence : (length,) int
        Nodes in order of computation; those beyond the kernels' nodes have no operations.
    first_id : int
        Of the events' ids, which are consecutive.

    Notes
    -----
    O(operations + reads) for each computation.
    """
    ids, sizes, _ = expand(kernels, np.array(sequence, np.int64))
    return Events(ids + first_id, sizes)


def small_bytes(kernels: Kernels, sequence: Sequence[int] | Integers, below: int, grain: int) -> int:
    """The most bytes that chunks smaller than `below` take at a time, each rounded up to `grain`."""
    ids, sizes, _ = expand(kernels, np.array(sequence, np.int64))
    return int(_small_bytes(ids, sizes, below, grain))


@numba_jit
def _small_bytes(ids: Integers, sizes: Integers, below: int, grain: int) -> int:
    held = np.zeros(len(ids) + 1, np.int64)
    live, most = 0, 0
    for at in range(len(ids)):
        if sizes[at] < 0:
            live -= held[ids[at]]
        elif sizes[at] < below:
            held[ids[at]] = (sizes[at] + grain - 1) // grain * grain
            live += held[ids[at]]
            most = max(most, live)
    return most


@numba_jit
def expand(kernels: Kernels, sequence: Integers) -> Any:
    """Ids and sizes of events in the sense of `Events`, and the operation (an index) that each belongs to."""
    runs = linked(kernels, sequence)
    return allocated(kernels, runs, _one_by_one(len(runs.operation)))


@numba_jit
def linked(kernels: Kernels, sequence: Integers) -> Any:
    """The `Runs` of a sequence. Each reads the newest copies that come before it."""
    operations, outputs, reads, read = kernels.operations, kernels.outputs, kernels.reads, kernels.read
    nodes = len(operations) - 1
    length, edges = 0, 0
    for node in sequence:
        if node < nodes:
            length += operations[node + 1] - operations[node]
            edges += reads[operations[node + 1]] - reads[operations[node]]
    operation = np.empty(length, np.int64)
    computation = np.empty(length, np.int64)
    makes = np.zeros(length + 1, np.int64)
    begins = np.zeros(length + 1, np.int64)
    copies = np.empty(edges, np.int64)
    newest = np.full(len(kernels.bytes), -1, np.int64)  # buffer -> its newest copy
    run, edge = 0, 0
    for position in range(len(sequence)):
        node = sequence[position]
        if node < nodes:
            for k in range(operations[node], operations[node + 1]):
                for e in range(reads[k], reads[k + 1]):
                    if newest[read[e]] >= 0:
                        copies[edge] = newest[read[e]]
                        edge += 1
                for b in range(outputs[k], outputs[k + 1]):
                    newest[b] = makes[run] + b - outputs[k]
                operation[run], computation[run] = k, position
                run += 1
                makes[run], begins[run] = makes[run - 1] + outputs[k + 1] - outputs[k], edge
    copies = copies[:edge]
    readers = np.zeros(makes[length], np.int64)
    for copy in copies:
        readers[copy] += 1
    for b in range(len(newest)):
        if kernels.kept[b] and newest[b] >= 0:
            readers[newest[b]] += 1
    return Runs(operation, computation, makes, begins, copies, readers)


@numba_jit
def _one_by_one(length: int) -> Integers:
    """Begins and ends of runs in strict order."""
    moments = np.empty(2 * length, np.int64)
    for run in range(length):
        moments[2 * run], moments[2 * run + 1] = run, ~run
    return moments


@numba_jit
def allocated(kernels: Kernels, runs: Runs, moments: Integers) -> Any:
    """Ids and sizes of events in the sense of `Events`, and the operation (an index) that each belongs to.

    A run allocates its outputs as it begins, and its workspace before or after them. As it ends it frees its workspace,
    the inputs that no other run has still to read, and outputs that nobody reads. An output takes over the memory of an
    input if nobody else reads it as the run begins, or will.

    Parameters
    ----------
    moments : (2 r,) int64
        Run i begins where this is i, and ends where it is -i - 1.
    """
    outputs, makes = kernels.outputs, runs.makes
    chunks = 0
    for k in runs.operation:
        chunks += kernels.workspaces[k + 1] - kernels.workspaces[k]
        for b in range(outputs[k], outputs[k + 1]):
            chunks += kernels.pieces[b]
    ids = np.empty(2 * chunks, np.int64)
    sizes = np.empty(2 * chunks, np.int64)
    owner = np.empty(2 * chunks, np.int64)
    left = runs.readers.copy()  # of each copy: how many have not ended
    first = np.full(len(left), -1, np.int64)  # of its chunks' ids
    count = np.zeros(len(left), np.int64)  # of its chunks; 0 once another copy took them over
    held = np.zeros(len(left), np.int64)  # bytes
    own = np.zeros(len(runs.operation), np.int64)  # the first id of a run's workspace before its outputs
    more = np.zeros(len(runs.operation), np.int64)  # and of that after them
    events, upcoming = 0, 0
    for moment in moments:
        run = moment if moment >= 0 else ~moment
        k = runs.operation[run]
        begin, middle, end = kernels.workspaces[k], kernels.workspaces[k] + kernels.before[k], kernels.workspaces[k + 1]
        if moment >= 0:
            own[run] = upcoming
            for j in range(begin, middle):
                ids[events], sizes[events], owner[events] = upcoming, kernels.workspace[j], k
                events += 1
                upcoming += 1
            taking = -1  # the copy that needs no memory of its own
            if kernels.takes_over[k] >= 0:
                size = kernels.bytes[outputs[k] + kernels.takes_over[k]]
                pieces = kernels.pieces[outputs[k] + kernels.takes_over[k]]
                for e in range(runs.reads[run], runs.reads[run + 1]):
                    copy = runs.copy[e]
                    if left[copy] == 1 and held[copy] == size and count[copy] == pieces and size > 0:
                        taking = makes[run] + kernels.takes_over[k]
                        first[taking], count[taking], held[taking] = first[copy], pieces, size
                        count[copy] = 0
                        break
            for copy in range(makes[run], makes[run + 1]):
                b = outputs[k] + copy - makes[run]
                if copy != taking and kernels.bytes[b] > 0:
                    first[copy], count[copy], held[copy] = upcoming, kernels.pieces[b], kernels.bytes[b]
                    for _ in range(kernels.pieces[b]):
                        ids[events], sizes[events], owner[events] = upcoming, kernels.bytes[b] // kernels.pieces[b], k
                        events += 1
                        upcoming += 1
            more[run] = upcoming
            for j in range(middle, end):
                ids[events], sizes[events], owner[events] = upcoming, kernels.workspace[j], k
                events += 1
                upcoming += 1
            continue
        for j in range(own[run], own[run] + middle - begin):
            ids[events], sizes[events], owner[events] = j, -1, k
            events += 1
        for j in range(more[run], more[run] + end - middle):
            ids[events], sizes[events], owner[events] = j, -1, k
            events += 1
        for e in range(runs.reads[run], runs.reads[run + 1]):
            left[runs.copy[e]] -= 1
        for e in range(runs.reads[run], runs.reads[run + 1] + makes[run + 1] - makes[run]):
            copy = runs.copy[e] if e < runs.reads[run + 1] else makes[run] + e - runs.reads[run + 1]
            if left[copy] == 0:
                for j in range(first[copy], first[copy] + count[copy]):
                    ids[events], sizes[events], owner[events] = j, -1, k
                    events += 1
                count[copy] = 0
    return ids[:events], sizes[:events], owner[:events]
