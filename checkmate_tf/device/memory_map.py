"""What lies where in an allocator now, from its own map.

When a BFC allocator runs out of memory, it can write all of its chunks to a file. So it is asked for more than its
limit. It writes the file at once, and then waits ten seconds for memory, as it always does. So a thread asks and waits,
and the file is read meanwhile. When the ten seconds are over, TensorFlow logs that memory ran out, with a summary of
the allocator. Nothing is wrong then.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from numpy.typing import NDArray

from .measure import CPU_LIMIT, HOW_TO_MEASURE, Device
from .record import NotRecorded

__all__ = ["MemoryMap", "memory_map"]

_PLACE = "TF_BFC_MEMORY_DUMP"  # TensorFlow's own: where to write maps
_MORE = 2  # times the limit, and times what a CPU's allocator has where the machine has less
_ONE_AT_A_TIME = threading.Lock()  # the environment says where a map goes
_SECONDS, _PAUSE = 5.0, 0.002  # to wait for a map at most, and between two looks


@dataclass(frozen=True, eq=False)
class MemoryMap:
    """Every chunk of an allocator, in order of addresses.

    Attributes
    ----------
    address, size, requested_bytes : (n,) int64
    in_use : (n,) bool
    """

    address: NDArray[np.int64]
    size: NDArray[np.int64]
    requested_bytes: NDArray[np.int64]
    in_use: NDArray[np.bool_]


def memory_map(device: Device) -> MemoryMap:
    """The chunks of a device's allocator.

    Takes some milliseconds. A thread that does nothing but wait lives on for ten seconds.

    Nothing else may allocate meanwhile if the map is to be that of any later time.

    Raises
    ------
    NotRecorded
        If the allocator writes no map.
    """
    if not device.measurable:
        raise NotRecorded(f"the allocator of {device.name} writes no map: {HOW_TO_MEASURE}")
    from tensorflow.core.protobuf import bfc_memory_map_pb2  # no part of TensorFlow's public interface

    with tf.init_scope(), tf.device(f"/{device.name}"):
        shape = tf.constant([_MORE * max(device.limit_bytes, CPU_LIMIT) // 2**20 + 1, 2**20])
    own = int(np.asarray(memoryview(shape)).__array_interface__["data"][0])  # given back when the thread ends
    with _ONE_AT_A_TIME, tempfile.TemporaryDirectory() as folder:
        before = os.environ.get(_PLACE)
        os.environ[_PLACE] = str(Path(folder) / "map")
        try:
            asking = threading.Thread(target=_ask, args=(device, shape), daemon=True)
            asking.start()
            found = _written(Path(folder), bfc_memory_map_pb2.MemoryDump, asking)
        finally:
            del os.environ[_PLACE]
            if before is not None:
                os.environ[_PLACE] = before
    if found is None:
        raise NotRecorded(f"the allocator of {device.name} wrote no map when it ran out of memory")
    chunks = sorted(found.chunk, key=lambda chunk: chunk.address)
    return MemoryMap(
        np.array([c.address for c in chunks], np.int64),
        np.array([c.size for c in chunks], np.int64),
        np.array([c.requested_size for c in chunks], np.int64),
        np.array([c.in_use and c.address != own for c in chunks], bool),
    )


def _ask(device: Device, shape: tf.Tensor) -> None:
    """Ask for more than there is, which fails after ten seconds."""
    with contextlib.suppress(tf.errors.OpError), tf.device(f"/{device.name}"):
        tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)


def _written(folder: Path, kind: Callable[[], Any], asking: threading.Thread) -> Any | None:
    """The map that the allocator writes while a thread asks it, once it is whole; None if none comes."""
    until = time.monotonic() + _SECONDS
    more = 2  # looks once nobody asks any longer
    while time.monotonic() < until and more:
        more -= not asking.is_alive()
        time.sleep(_PAUSE)
        for path in folder.glob("map*"):
            found = kind()
            with contextlib.suppress(message.DecodeError):  # there is only a part of it yet
                found.ParseFromString(path.read_bytes())
                if found.HasField("stats"):  # what comes last
                    return found
    return None
