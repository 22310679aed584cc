"""A recorded step, replayed by the model of the device's allocator."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import tensorflow as tf

from ..allocator.bfc import FREE, Bfc, Events, Placement, State, place, state_of_chunks
from .measure import Device
from .memory_map import MemoryMap
from .record import NotRecorded, Recorded

__all__ = ["allocator_of", "replayed"]


def allocator_of(device: Device) -> Bfc:
    """The model of a device's allocator, as it is set up.

    Raises
    ------
    NotRecorded
        If it is another kind of allocator.
    """
    if device.is_cpu:
        return Bfc(device.limit_bytes)
    kind = os.environ.get("TF_GPU_ALLOCATOR", "")
    if kind:
        raise NotRecorded(f"the allocator of {device.name} is {kind} (TF_GPU_ALLOCATOR), for which there is no model")
    index = int(device.name.partition(":")[2] or 0)
    said = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower()  # goes before what the program says
    growth = bool(tf.config.experimental.get_memory_growth(tf.config.get_visible_devices("GPU")[index]))
    return Bfc(device.limit_bytes, growth={"true": True, "false": False}.get(said, growth), collecting=True)


def replayed(recorded: Recorded, allocator: Bfc, known: MemoryMap | None, compact: bool = False) -> Placement:
    """Where the model puts what was recorded.

    Parameters
    ----------
    recorded : Recorded
    allocator : Bfc
    known : MemoryMap or None
        What lay there before; None if that was nothing.
    compact : bool
        As if what lay there before were side by side at the beginning of one region of the whole limit. Addresses are
        those of that region then. By default they are those that were recorded.

    Raises
    ------
    PlanError
        If something is freed that was not there: the map is of another time, or the record is not complete.
    """
    empty = np.zeros(0, np.int64)
    known = known or MemoryMap(empty, empty, empty, np.zeros(0, bool))
    state = state_of_chunks(allocator, known.address, known.size, known.in_use)
    events = _events(recorded, state)
    if compact:
        one = replace(allocator, growth=False)
        used = state.owner >= 0
        return place(one, events, place(one, Events(state.owner[used], state.size[used])).state)
    return place(allocator, events, state, np.where(recorded.allocates, recorded.address, -1))


def _events(recorded: Recorded, state: State) -> Events:
    """With an id for each allocation: what is freed is what was last allocated at its address."""
    used = state.owner >= 0
    owners = dict(zip(state.address[used].tolist(), state.owner[used].tolist(), strict=True))
    upcoming = int(state.owner.max(initial=-1)) + 1
    unknown = upcoming + len(recorded)
    ids = []
    for allocates, address in zip(recorded.allocates.tolist(), recorded.address.tolist(), strict=True):
        if allocates:
            owners[address] = upcoming
            upcoming += 1
            ids.append(owners[address])
        else:
            ids.append(owners.pop(address, unknown))
    return Events(np.array(ids, np.int64), np.where(recorded.allocates, recorded.requested_bytes, FREE))
