"""One region for the CPU's allocator, as a GPU's has from the start.

The CPU's BFC allocator takes memory from the system piece by piece, each as large as all before it. A tensor that finds
no room gets such a piece whole, unless it needs less than half of it: 71 MB were measured to take 134. Free memory that
lies in two pieces never becomes one. So a budget is taken in one piece: that is divided exactly, and joins again.

Only addresses are taken. The system gives memory when something is written.

What was free before lies in older pieces: of a plain training in the same process, say. The allocator gives the
smallest chunk that a tensor fits in, so those are used first, and cut in another way each time. A step that was
measured at 11.0 MB took 13 to 15 MB in `fit`. So older free memory is divided by small walls, until large tensors find
no room there.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator

import tensorflow as tf

from ..measure import Device
from .chunks import GRAIN, address, rounded, take
from .reserves import is_reserved

__all__ = ["in_one_piece", "reserve"]

_log = logging.getLogger(__name__)

_ROOM = 2  # times the budget: free memory lies in pieces, so a step needs more than its peak
_MIB = 2**20
_SPARE = 64 * _MIB  # bytes of a hard limit to leave: so much may be taken already though nothing is in it
_PART = 16  # where a 16th of the limit is less than that, leave a 16th

_PARTS, _LEAST_PART = 256, 2**16  # of a budget, and bytes: what finds room in older memory is smaller than one
_MOST_WALLS = 256  # if there is more older memory, its parts are larger
_MOST_HELD = 2**15  # chunks to be taken meanwhile: where there are more, older memory stays as it is
_FAR = 2  # times all that was taken: where a limit is nearer, older memory is needed as it is

_reserved: dict[str, int] = {}  # device -> bytes
_walls: list[tf.Tensor] = []  # in older memory, for good


def reserve(device: Device, budget_bytes: int) -> None:
    """Let the CPU's allocator take twice a budget in one piece, or as much of that as its hard limit leaves.

    Older memory that is free then is divided, unless a hard limit is near: then all of it is needed.

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
                piece = _new_piece(part)
                if part == _ROOM * budget_bytes:
                    _divide_older(device, piece, budget_bytes)
            return
        except tf.errors.ResourceExhaustedError as error:
            _log.info("%s cannot take %d bytes in one piece: %s", device.name, part, str(error.message).splitlines()[0])


@contextlib.contextmanager
def in_one_piece(device: Device, size: int) -> Iterator[bool]:
    """Let tensors lie in one new piece for a while, so that each takes what it needs, and no chunk that is too large.

    What is measured then is exact. (A kernel's 8.4 MB were measured as 16.8: it was given a chunk whole.) Older memory
    that is free is taken meanwhile.

    Does nothing on other devices, where the allocator keeps no statistics, and where a hard limit is near. The
    record of the most bytes allocated begins anew in the end.

    Parameters
    ----------
    device : Device
    size : int
        Bytes that are needed at a time, at most.

    Yields
    ------
    bool
        Whether it is so.
    """
    held: dict[int, tf.Tensor] | None = None
    spare = min(_SPARE, device.limit_bytes // _PART)
    helps = device.measurable and device.is_cpu
    helps = helps and _FAR * (device.current_bytes() + size) + spare < device.limit_bytes
    if helps:
        try:
            with tf.init_scope(), tf.device(f"/{device.name}"):
                size = max(size, _MIB)
                held = _older_memory(_new_piece(size), rounded(size // 2), _LEAST_PART)
        except tf.errors.ResourceExhaustedError as error:
            _log.info("%s cannot take %d bytes in one piece: %s", device.name, size, str(error.message).splitlines()[0])
    try:
        yield held is not None
    finally:
        held = None
        if helps:
            tf.config.experimental.reset_memory_stats(device.name)  # which has what was held


def _new_piece(size: int) -> range:
    """Addresses of memory that is taken from the system and free now."""
    begin = address(tf.raw_ops.Empty(shape=[size // _MIB, _MIB // 8], dtype=tf.float64))
    return range(begin, begin + size // _MIB * _MIB)


def _older_memory(piece: range, part: int, least: int) -> dict[int, tf.Tensor] | None:
    """All free memory that was taken before that of a piece, in chunks of `part` bytes, a half of that, and so on.

    By address. None if there are too many.
    """
    held, size = dict[int, tf.Tensor](), part
    while True:
        while (at := address(tensor := take(size))) not in piece:
            held[at] = tensor
            if len(held) > _MOST_HELD:
                _log.info("older memory stays as it is: it is free in more than %d chunks", _MOST_HELD)
                return None
        if size <= least:
            break
        size = max(least, rounded(size // 2))
    return held


def _divide_older(device: Device, piece: range, budget_bytes: int) -> None:
    """Put walls into all free memory that is taken before that of a piece, but for reserves.

    That memory is filled. Then one large tensor after the other makes way for a wall, which finds no other place.
    """
    part = rounded(max(budget_bytes // _PARTS, _LEAST_PART))
    held = _older_memory(piece, part, GRAIN)
    if held is None:
        return
    large = sorted(at for at, tensor in held.items() if len(tensor) == part and not is_reserved(at))
    if _FAR * (device.current_bytes() + len(piece)) > device.limit_bytes:
        _log.info("older memory stays as it is: the limit of %s is near", device.name)
        return
    for at in large[:: max(1, math.ceil(len(large) / _MOST_WALLS))]:
        del held[at]
        wall = take(GRAIN)
        held[at] = take(part - GRAIN)  # or the next wall would come here
        if address(wall) == at:
            _walls.append(wall)
    _log.debug("%d parts of at least %d bytes are free in older memory", len(large), part)
