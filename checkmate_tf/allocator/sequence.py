"""What a step allocates and frees, operation by operation, when its nodes are computed in a given order.

A plan counts a node as one value and one workspace. An allocator sees more: each output of each operation, the buffers
that elementwise operations take over, lists whose elements lie apart, and values that only another operation of the
same node reads. `Kernels` says all that of a graph's nodes, in arrays, for compiled code. It is made where operations
are known (`trace.kernels`). Here it is put in the order of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..numba_jit import numba_jit
from .bfc import Events

__all__ = ["Kernels", "events_of", "expand", "small_bytes"]

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
    scratch, scratch_pieces : (m,) int64
        Bytes that its kernel has while it runs, and in how many chunks.
    """

    operations: Integers
    outputs: Integers
    reads: Integers
    read: Integers
    bytes: Integers
    pieces: Integers
    kept: NDArray[np.bool_]
    takes_over: Integers
    scratch: Integers
    scratch_pieces: Integers


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
    ids, sizes, _ = expand(kernels, np.asarray(sequence, np.int64))
    return Events(ids + first_id, sizes)


def small_bytes(kernels: Kernels, sequence: Sequence[int] | Integers, below: int, grain: int) -> int:
    """The most bytes that chunks smaller than `below` take at a time, each rounded up to `grain`."""
    ids, sizes, _ = expand(kernels, np.asarray(sequence, np.int64))
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
    operations, outputs, reads, read = kernels.operations, kernels.outputs, kernels.reads, kernels.read
    nodes = len(operations) - 1
    length = 0  # computations of operations
    chunks = 0
    for node in sequence:
        if node < nodes:
            for k in range(operations[node], operations[node + 1]):
                length += 1
                chunks += kernels.scratch_pieces[k]
                for b in range(outputs[k], outputs[k + 1]):
                    chunks += kernels.pieces[b]
    # The last computation that reads each copy of a buffer. A copy is known by the computation that made it.
    made = np.full(len(kernels.bytes), -1, np.int64)  # buffer -> where its newest copy was made
    offset = np.zeros(length + 1, np.int64)  # computation -> its first copy
    which = np.zeros(length, np.int64)  # computation -> operation
    at = 0
    for node in sequence:
        if node < nodes:
            for k in range(operations[node], operations[node + 1]):
                which[at] = k
                offset[at + 1] = offset[at] + outputs[k + 1] - outputs[k]
                at += 1
    copies = offset[length]
    ends = np.zeros(copies, np.int64)
    for at in range(length):
        k = which[at]
        for e in range(reads[k], reads[k + 1]):
            copy = made[read[e]]
            if copy >= 0:
                ends[copy] = at
        for b in range(outputs[k], outputs[k + 1]):
            copy = offset[at] + b - outputs[k]
            made[b] = copy
            ends[copy] = at
    for b in range(len(made)):
        if kernels.kept[b] and made[b] >= 0:
            ends[made[b]] = length
    ids = np.empty(2 * chunks, np.int64)
    sizes = np.empty(2 * chunks, np.int64)
    owner = np.empty(2 * chunks, np.int64)
    first = np.full(copies, -1, np.int64)  # of its chunks' ids; -1 if another copy took them over
    count = np.zeros(copies, np.int64)
    held = np.zeros(copies, np.int64)  # bytes
    made[:] = -1
    events, upcoming = 0, 0
    for at in range(length):
        k = which[at]
        taken = -1  # the buffer that needs no memory of its own
        if kernels.takes_over[k] >= 0:
            taking = outputs[k] + kernels.takes_over[k]
            size = kernels.bytes[taking]
            for e in range(reads[k], reads[k + 1]):
                copy = made[read[e]]
                if copy >= 0 and ends[copy] == at and held[copy] == size and count[copy] == 1 and size > 0:
                    mine = offset[at] + kernels.takes_over[k]
                    first[mine], count[mine], held[mine] = first[copy], 1, size
                    count[copy] = 0
                    taken = taking
                    break
        for b in range(outputs[k], outputs[k + 1]):
            copy = offset[at] + b - outputs[k]
            if b != taken and kernels.bytes[b] > 0:
                first[copy], count[copy], held[copy] = upcoming, kernels.pieces[b], kernels.bytes[b]
                for _ in range(kernels.pieces[b]):
                    ids[events], sizes[events], owner[events] = upcoming, kernels.bytes[b] // kernels.pieces[b], k
                    events += 1
                    upcoming += 1
        begin = upcoming
        if kernels.scratch[k] > 0:
            for _ in range(kernels.scratch_pieces[k]):
                ids[events], sizes[events], owner[events] = upcoming, kernels.scratch[k] // kernels.scratch_pieces[k], k
                events += 1
                upcoming += 1
            for j in range(begin, upcoming):
                ids[events], sizes[events], owner[events] = j, -1, k
                events += 1
        for e in range(reads[k], reads[k + 1]):
            copy = made[read[e]]
            if copy >= 0 and ends[copy] == at:
                for j in range(first[copy], first[copy] + count[copy]):
                    ids[events], sizes[events], owner[events] = j, -1, k
                    events += 1
                count[copy] = 0
        for b in range(outputs[k], outputs[k + 1]):
            copy = offset[at] + b - outputs[k]
            made[b] = copy
            if ends[copy] == at:
                for j in range(first[copy], first[copy] + count[copy]):
                    ids[events], sizes[events], owner[events] = j, -1, k
                    events += 1
                count[copy] = 0
    return ids[:events], sizes[:events], owner[:events]
