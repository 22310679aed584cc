"""From a device's memory and a schedule to what the schedule does to that memory (`MemoryUse`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..allocator.bfc import FREE, State
from ..allocator.memory import Memory
from ..allocator.packing import best_packing, blocks_of, most_alive
from ..graph import BACKWARD
from ..schedule import Schedule
from . import memory_use as kinds
from .memory_use import MemoryUse

__all__ = ["memory_use", "placed_fields"]

_CHUNKS = 2_000  # on a map at most
_PACKED = 30_000  # chunks at most, of a step that is packed: it takes about a second
_ENDLESS = 1 << 62  # above all addresses

Integers = NDArray[np.int64]


def placed_fields(memory: Memory | None, schedule: Schedule) -> dict[str, Any]:
    """The fields of a `Report` that tell where a schedule's values lie; all None if there is no model of the memory."""
    use = None if memory is None else memory_use(memory, schedule)
    return {
        "packed_peak_bytes": use and use.packed_bytes,
        "placed_peak_bytes": use and use.placed_bytes,
        "memory_map": use,
    }


def memory_use(memory: Memory, schedule: Schedule, *, packing: bool = True) -> MemoryUse:
    """What a schedule does to a device's memory.

    Parameters
    ----------
    memory : Memory
        Before the step; its kernels are those of the schedule's graph.
    schedule : Schedule
    packing : bool
        Whether to look for the best packing. That can take a second. It is not done for more than 30,000 chunks.

    Notes
    -----
    What was there before counts as one solid piece in the best packing. Without a packing it takes milliseconds.
    """
    events, placed, operations = memory.placement(schedule.sequence)
    sequence = np.asarray(schedule.sequence, np.int64)
    blocks = blocks_of(events)
    found = placed.region[blocks.begin] >= 0
    first, last = blocks.begin[found], blocks.end[found]
    before = memory.state.bytes_in_use
    packed = before + best_packing(events).packed_bytes if packing and len(first) <= _PACKED else None
    whole = memory.whole(sequence)
    computation = _computations(memory.kernels.operations, whole, operations) - (len(whole) - len(sequence))
    time = np.append(_times(np.maximum(computation, 0)), len(sequence))
    old_address, old_size = _held(memory.state)
    old = len(old_address)
    address = np.concatenate([old_address, placed.address[first]])
    size = np.concatenate([old_size, placed.chunk_bytes[first]])
    begin = np.concatenate([np.zeros(old), time[first]])
    end = np.concatenate([np.full(old, len(sequence)), time[last]])
    made = computation[first]
    kind = np.where(made < 0, kinds.BEFORE, _kinds(schedule, made))
    largest = np.sort(np.argsort(-(size * (end - begin)), kind="stable")[:_CHUNKS])
    return MemoryUse(
        asked_bytes=before + most_alive(blocks),
        packed_bytes=packed,
        placed_bytes=placed.peak_bytes,
        range_bytes=placed.range_bytes,
        out_of_memory=bool(len(placed.failed)),
        computations=len(sequence),
        peak_at=float(time[np.argmax(placed.bytes_in_use)]) if len(events.ids) else 0.0,
        address=(address - address.min(initial=_ENDLESS))[largest],
        size=size[largest],
        asked=np.concatenate([old_size, events.sizes[first]])[largest],
        begin=begin[largest],
        end=end[largest],
        kind=np.concatenate([np.full(old, kinds.BEFORE), kind])[largest],
        node=np.concatenate([np.full(old, -1), np.where(made < 0, -1, sequence[made])])[largest],
        chunks=len(address),
    )


def _computations(first_operations: Integers, sequence: Integers, operations: Integers) -> Integers:
    """Which computation of a sequence each event belongs to, from the operation that it belongs to."""
    nodes = np.searchsorted(first_operations, operations, side="right") - 1
    order = sequence.tolist()
    found = np.zeros(len(nodes), np.int64)
    at, last = 0, -1
    for event, (node, operation) in enumerate(zip(nodes.tolist(), operations.tolist(), strict=True)):
        if order[at] != node or operation < last:
            at = order.index(node, at if order[at] != node else at + 1)
        found[event], last = at, operation
    return found


def _times(computation: Integers) -> NDArray[np.float64]:
    """When each event is: those of a computation are spread over it."""
    _, first, count = np.unique(computation, return_index=True, return_counts=True)
    rank = np.arange(len(computation)) - np.repeat(first, count)
    times: NDArray[np.float64] = computation + rank / np.repeat(count, count)
    return times


def _held(state: State) -> tuple[Integers, Integers]:
    """Addresses and bytes of what is in use; neighbours are one."""
    used = np.flatnonzero(state.owner != FREE)
    used = used[np.argsort(state.address[used], kind="stable")]
    address, size = state.address[used], state.size[used]
    begins = np.flatnonzero(np.concatenate([[True], address[1:] != address[:-1] + size[:-1]])[: len(used)])
    return address[begins], np.add.reduceat(size, begins) if len(begins) else size


def _kinds(schedule: Schedule, computation: Integers) -> Integers:
    """Forward for the first time, forward again, or backward, be it for the first time or not."""
    sequence = np.asarray(schedule.sequence, np.int64)
    firsts = np.zeros(len(sequence), bool)
    firsts[np.unique(sequence, return_index=True)[1]] = True
    backward = schedule.graph.kinds[sequence] == BACKWARD
    of = np.where(backward, kinds.BACKWARD, np.where(firsts, kinds.FORWARD, kinds.AGAIN))
    found: Integers = of[computation].astype(np.int64)
    return found
