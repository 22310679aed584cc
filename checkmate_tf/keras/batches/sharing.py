"""One plan for batches of several sizes, where more sizes come than plans are kept.

A plan whose step was traced with sizes open runs on any of them. Its values are no larger where inputs are no larger in
any dimension, so it keeps its budget there, as it does for a smaller batch. It recomputes more than such inputs need.

Where batches are larger than each plan in some dimension, one plan gives way to another for the larger of both sizes in
each dimension, if there is one. Then what is served stays served, and planning comes to an end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf

from .sizes import without_optional
from .spec import batch_bytes

__all__ = ["Room", "as_packed", "cheapest_to_join", "joined", "least_that_serves", "sized"]

_Key = TypeVar("_Key")


class Room(NamedTuple):
    """What a plan has room for."""

    specs: tuple[tf.TensorSpec, ...]
    """Of the inputs that are given, with the batch open: the largest in each other dimension."""
    batch: int
    """The largest batch."""
    traced: tuple[tf.TensorShape, ...]
    """Of the same inputs, as the step was traced. Sizes that are known here cannot be others."""

    def serves(self, given: Sequence[tf.TensorSpec]) -> bool:
        """Whether its step runs on such a batch, and within its memory. Sizes that are open are not asked for."""
        if len(given) != len(self.specs):
            return False
        for spec, traced, one in zip(self.specs, self.traced, given, strict=True):
            if one.dtype != spec.dtype or one.shape.rank != spec.shape.rank:
                return False
            for planned, known, size in zip(spec.shape, traced, one.shape, strict=True):
                most = self.batch if planned is None else planned
                is_smaller = size is None or size < most
                if size != most and not (is_smaller and known is None):
                    return False
        return True

    @property
    def size_bytes(self) -> int:
        """Of the largest batch."""
        return batch_bytes(self.specs, self.batch)


def least_that_serves(rooms: Mapping[_Key, Room], given: Sequence[tf.TensorSpec]) -> _Key | None:
    """The plan that has the least room of those which serve such a batch; None if none does."""
    fit = [key for key, room in rooms.items() if room.serves(given)]
    return min(fit, key=lambda key: rooms[key].size_bytes, default=None)


def joined(room: Room, specs: Sequence[tf.TensorSpec], batch: int) -> tuple[tuple[tf.TensorSpec, ...], int] | None:
    """What has room for two sizes of batches: specs with the batch open, and the batch. None if no size has.

    Parameters
    ----------
    room : Room
        For one of them.
    specs : sequence of tf.TensorSpec
        Of the other, with the batch open.
    batch : int
    """
    if len(specs) != len(room.specs):
        return None
    larger = []
    for a, b in zip(room.specs, specs, strict=True):
        if a.dtype != b.dtype or a.shape.rank != b.shape.rank:
            return None
        pairs = list(zip(a.shape, b.shape, strict=True))
        if any((m is None) != (n is None) for m, n in pairs):  # the batch of one of them alone
            return None
        larger.append(tf.TensorSpec([None if m is None else max(m, n) for m, n in pairs], a.dtype))
    return tuple(larger), max(room.batch, batch)


def cheapest_to_join(rooms: Mapping[_Key, Room], specs: Sequence[tf.TensorSpec], batch: int) -> _Key | None:
    """The plan to make larger for a batch that none serves; None if no plan can be.

    That is the one which is then the least larger than it and the batch. Of equals, the first.

    Parameters
    ----------
    rooms : mapping
        The plan that was not used for the longest time is first.
    specs, batch
        As for `joined`.
    """
    mine = batch_bytes(specs, batch)
    more = {
        key: batch_bytes(*both) - max(mine, room.size_bytes)
        for key, room in rooms.items()
        if (both := joined(room, specs, batch)) is not None
    }
    return min(more, key=more.__getitem__, default=None)


def as_packed(specs: Sequence[Any], nest: Any) -> Any:
    """Specs of the inputs that are given, in the structure of a batch. What stands for None there stays."""
    rest = iter(specs)
    return tf.nest.map_structure(lambda t: t if without_optional(t) is None else next(rest), nest)


def sized(specs: Sequence[tf.TensorSpec], batch: int, nest: Any) -> Any:
    """Specs with the batch open, in the structure of a batch, with a number of samples."""
    known = [tf.TensorSpec([batch if n is None else n for n in t.shape], t.dtype) for t in specs]
    return as_packed(known, nest)
