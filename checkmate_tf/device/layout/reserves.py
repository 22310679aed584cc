"""Batch reserves: free chunks of the CPU's allocator that are kept for tensors of batches, each of just their size.

While a step runs, the input pipeline allocates batches that outlive it. The BFC allocator gives each of them the
smallest free chunk that it fits in. In the middle of a step those are holes between activations. What comes back later
finds its place cut, and takes a larger chunk whole. One plan of a U-Net (141 MB predicted, batches of 6 MB, one strict
order) took 177 to 200 MB in six processes, and its steps differed by up to 10%. With reserves it took 176 to 190 MB in
five processes, and all steps were alike.

A reserve is exactly as large as a tensor of a batch. So it is the smallest chunk that the tensor fits in, and the
tensor goes there. Its neighbours are walls of a few bytes that are never given back, so a reserve never joins other
free memory. Only the walls are allocated.

*Slips* are small reserves, for the many small values of a step: statistics, masks, shapes. Without them these lie in
holes between activations, each time elsewhere, since small operations overlap. Then steps of one plan differ by up to
10%, in strict order, too. With them the steps of most networks are alike to a thousandth, and can be predicted.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import tensorflow as tf

from ..measure import Device
from .chunks import GRAIN, address, rounded, take

__all__ = ["SMALL_BYTES", "is_reserved", "keep_batch_reserves"]

_log = logging.getLogger(__name__)

_PLUGS = 4096  # most chunks to be taken while looking for a place
_SHAPES = 16 * GRAIN  # what operations that allocate need themselves
_TRIES = 3
_SMALL = 2**16  # bytes: a smaller tensor has no reserve of its own, and finds room anywhere
_SLIPS, _EACH = [GRAIN << k for k in range(8)], 16  # bytes of slips, and how many there are of each at least
_ROOM = 1.5  # times what small values take at a time: the largest slips have so much, since pieces of them are lost

_walls: list[tf.Tensor] = []  # between reserves, for good
_kept: Counter[tuple[str, int]] = Counter()  # (device, bytes) -> reserves
_places: list[range] = []  # of addresses, walls included


class _NoPlace(Exception):
    """Memory was allocated elsewhere than expected: by other threads, maybe."""


SMALL_BYTES = _SLIPS[-1]
"""Values below this many bytes lie in slips."""


def keep_batch_reserves(
    device: Device, batch: Sequence[int], batches: int, most_bytes: int, small_bytes: int = 0
) -> None:
    """Make sure that the allocator has reserves for so many batches. Those that were made before count.

    Parameters
    ----------
    device : Device
        Nothing is done unless it is a CPU whose allocator keeps statistics (and so is the one that this is made for).
    batch : sequence of int
        Bytes of its tensors. What is too small to matter is left out.
    batches : int
    most_bytes : int
        What all that are made now may take. If it is too little, there are reserves for fewer batches. So much memory,
        and room for one tensor more, has to be free in one piece. If it is not, there are none, and that is logged.
    small_bytes : int
        What values below `SMALL_BYTES` take at a time. There are slips for them.
    """
    if not (device.measurable and device.is_cpu):
        return
    asked = Counter((device.name, rounded(size)) for size in batch if size >= _SMALL)
    slips = Counter({(device.name, size): _EACH for size in _SLIPS})
    slips[device.name, SMALL_BYTES] += int(min(_ROOM * small_bytes, most_bytes // 4)) // SMALL_BYTES
    for count in range(batches, -1, -1):
        wanted = Counter({key: count * n for key, n in asked.items()}) + slips
        missing = [size for (_, size) in (wanted - _kept).elements()]
        if _whole(missing) <= most_bytes:
            break
    else:
        if asked and batches:
            _log.info("%s has no reserves for batches: %d bytes are too few for one", device.name, most_bytes)
        return
    if not missing:
        return
    for _ in range(_TRIES):
        try:
            with tf.init_scope(), tf.device(f"/{device.name}"):
                walls = _build(missing)
        except _NoPlace as error:
            _log.info("%s has no reserves for batches: %s", device.name, str(error))  # its frames hold plugs
        except tf.errors.ResourceExhaustedError as error:
            _log.info("%s has no room for reserves: %s", device.name, str(error.message).splitlines()[0])
            return  # to ask again would only take time
        else:
            _walls.extend(walls)
            _places.append(range(address(walls[0]), address(walls[-1]) + GRAIN))
            _kept.update((device.name, size) for size in missing)
            return


def is_reserved(at: int) -> bool:
    """Whether an address lies between walls of reserves."""
    return any(at in place for place in _places)


def _whole(reserves: list[int]) -> int:
    """Bytes of reserves with their walls."""
    return sum(reserves) + (len(reserves) + 1) * GRAIN


def _build(reserves: list[int]) -> list[tf.Tensor]:
    """Make reserves in the smallest free chunk that all of them fit in. Returns the walls between them.

    Once nothing smaller is free, all that is allocated comes from that chunk, one after the other.
    """
    room = _whole(reserves) + max(reserves) + _SHAPES  # a chunk is only divided if it is twice what is asked for
    first = address(take(room))  # and at once given back
    place, plugs = range(first, first + room), list[tf.Tensor]()

    def placed(size: int, at: int | None = None) -> tf.Tensor:
        """A tensor in the place, where given at an address; what goes to chunks that are smaller is a plug."""
        while address(tensor := take(size)) not in place:
            plugs.append(tensor)
            if len(plugs) > _PLUGS:
                raise _NoPlace(f"{_PLUGS} smaller chunks are free")
        if at not in (None, address(tensor)):
            raise _NoPlace("others came between")
        return tensor

    size = room
    while size > GRAIN:
        size = rounded(size // 2)
        placed(size)
    walls, held = [placed(GRAIN)], []
    for size in reserves:
        at = address(walls[-1]) + GRAIN
        held.append(placed(size, at))
        walls.append(placed(GRAIN, at + size))
    return walls
