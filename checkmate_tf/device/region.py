"""One region for the CPU's allocator, as a GPU's has from the start.

The CPU's BFC allocator takes memory from the system piece by piece, each as large as all before it. A tensor that finds
no room gets such a piece whole, unless it needs less than half of it: 71 MB were measured to take 134. Free memory that
lies in two pieces never becomes one. So a budget is taken in one piece: that is divided exactly, and joins again.

Only addresses are taken. The system gives memory when something is written.
"""

from __future__ import annotations

import logging

import tensorflow as tf

from .measure import Device

__all__ = ["reserve"]

_log = logging.getLogger(__name__)

_ROOM = 2  # times the budget: free memory lies in pieces, so a step needs more than its peak
_MIB = 2**20
_SPARE = 64 * _MIB  # bytes of a hard limit to leave: so much may be taken already though nothing is in it
_PART = 16  # where a 16th of the limit is less than that, leave a 16th

_reserved: dict[str, int] = {}  # device -> bytes


def reserve(device: Device, budget_bytes: int) -> None:
    """Let the CPU's allocator take twice a budget in one piece, or as much of that as its hard limit leaves.

    Does nothing on other devices, where the allocator keeps no statistics, or where as much was reserved before. If the
    piece cannot be had, that is logged, and half of it is asked for. If that fails, too, the allocator goes on as
    before, piece by piece.
    """
    if not (device.measurable and device.is_cpu):
        return
    spare = min(_SPARE, device.limit_bytes // _PART)
    left = device.limit_bytes - 2 * device.current_bytes() - spare  # as large a piece again may be taken
    size = min(_ROOM * budget_bytes, left)
    if size < _MIB or size <= _reserved.get(device.name, 0):
        return
    _reserved[device.name] = size  # noted even if it cannot be had: asking again would only take time
    for part in (size, size // 2):
        try:
            with tf.init_scope(), tf.device(f"/{device.name}"):
                tf.raw_ops.Empty(shape=[part // _MIB, _MIB // 8], dtype=tf.float64)  # and at once given back
            return
        except tf.errors.ResourceExhaustedError as error:
            _log.info("%s cannot take %d bytes in one piece: %s", device.name, part, str(error.message).splitlines()[0])
