"""One region for the CPU's allocator, as a GPU's has from the start.

The CPU's BFC allocator takes memory from the system piece by piece, each as large as all before it. A tensor that comes
when none is free gets such a piece whole unless it is less than half of it, so 71 MB can take 134 (measured); and free
memory of two pieces never becomes one. A budget that is taken in one piece is divided exactly, and joins again.

Only addresses are taken: the system gives memory to what is written.
"""

from __future__ import annotations

import logging

import tensorflow as tf

from .measure import Device

__all__ = ["reserve"]

_log = logging.getLogger(__name__)

_ROOM = 2  # times the budget: what is free is in pieces, too
_MIB = 2**20
_SPARE = 64 * _MIB  # bytes of a hard limit that may be taken already though nothing is in them,
_PART = 16  # or that part of it, where it is less

_reserved: dict[str, int] = {}  # device -> bytes


def reserve(device: Device, budget_bytes: int) -> None:
    """Let the CPU's allocator take twice a budget, bytes, in one piece, or as much of it as its hard limit leaves.

    Does nothing on other devices, where the allocator keeps no statistics, and where as much was reserved before. What
    cannot be had is logged, half of it asked for, and else the allocator goes on piece by piece.
    """
    if not (device.measurable and device.is_cpu):
        return
    spare = min(_SPARE, device.limit_bytes // _PART)
    left = device.limit_bytes - 2 * device.current_bytes() - spare  # as large a piece again may be taken
    size = min(_ROOM * budget_bytes, left)
    if size < _MIB or size <= _reserved.get(device.name, 0):
        return
    _reserved[device.name] = size  # or not to be had: to ask again would only take time
    for part in (size, size // 2):
        try:
            with tf.init_scope(), tf.device(f"/{device.name}"):
                tf.raw_ops.Empty(shape=[part // _MIB, _MIB // 8], dtype=tf.float64)  # and at once given back
            return
        except tf.errors.ResourceExhaustedError as error:
            _log.info("%s cannot take %d bytes in one piece: %s", device.name, part, str(error.message).splitlines()[0])
