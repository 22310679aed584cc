"""What lies where in an allocator now, from its own map.

When a BFC allocator runs out of memory, it can write all of its chunks to a file. So it is asked for more than its
limit. It tries that for ten seconds, as it always does, since another thread may free something. So this is for studies
and tests, not for every `compile`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from .measure import HOW_TO_MEASURE, Device
from .record import NotRecorded

__all__ = ["MemoryMap", "memory_map"]

_log = logging.getLogger(__name__)

_PLACE = "TF_BFC_MEMORY_DUMP"  # TensorFlow's own: where to write maps
_MORE = 2  # times the limit


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
    """The chunks of a device's allocator. Takes ten seconds.

    Nothing else may allocate meanwhile if the map is to be that of any later time.

    Raises
    ------
    NotRecorded
        If the allocator writes no map.
    """
    if not device.measurable:
        raise NotRecorded(f"the allocator of {device.name} writes no map: {HOW_TO_MEASURE}")
    from tensorflow.core.protobuf import bfc_memory_map_pb2  # no part of TensorFlow's public interface

    with tempfile.TemporaryDirectory() as folder, tf.init_scope(), tf.device(f"/{device.name}"):
        shape = tf.constant([_MORE * device.limit_bytes // 2**20 + 1, 2**20])
        before = os.environ.get(_PLACE)
        os.environ[_PLACE] = str(Path(folder) / "map")
        try:
            tf.raw_ops.Empty(shape=shape, dtype=tf.uint8)
        except tf.errors.ResourceExhaustedError as error:
            _log.debug("as expected: %s", error.message)
        finally:
            del os.environ[_PLACE]
            if before is not None:
                os.environ[_PLACE] = before
        paths = sorted(Path(folder).glob("map*"))
        if not paths:
            raise NotRecorded(f"the allocator of {device.name} wrote no map when it ran out of memory")
        found = bfc_memory_map_pb2.MemoryDump()
        found.ParseFromString(paths[-1].read_bytes())
        own = np.asarray(memoryview(shape)).__array_interface__["data"][0]  # given back when this ends
    chunks = sorted(found.chunk, key=lambda chunk: chunk.address)
    return MemoryMap(
        np.array([c.address for c in chunks], np.int64),
        np.array([c.size for c in chunks], np.int64),
        np.array([c.requested_size for c in chunks], np.int64),
        np.array([c.in_use and c.address != own for c in chunks], bool),
    )
