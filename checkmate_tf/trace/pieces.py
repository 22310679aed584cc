"""Operations whose results are pieces of their input's buffer: slices, and parts, along the first dimension.

TensorFlow's kernels copy nothing where a piece begins and ends at a multiple of 64 bytes. So the whole buffer stays in
memory for as long as any piece of it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.lib.stride_tricks import as_strided

__all__ = ["PIECES", "piece_of"]

#: By type, the input of which results may be pieces.
PIECES = {"Slice": 0, "Split": 1, "SplitV": 0, "StridedSlice": 0, "Unpack": 0}

_ALIGNED = 64  # bytes: Eigen's in TensorFlow's builds
_AXIS = {"Split": 0, "SplitV": 2}  # the input that says along which dimension it is divided


def piece_of(op: tf.Operation) -> int | None:
    """Index of the input that all results are pieces of; None if they have buffers of their own.

    Shapes and bounds are read from the operation's own graph: give the one with the static batch, if there is one.
    """
    index = PIECES.get(op.type)
    if index is None:
        return None
    source, shape = op.inputs[index], op.inputs[index].shape
    if shape.rank is None or 0 in shape.as_list() or source.dtype in (tf.string, tf.variant, tf.resource):
        return None
    if op.type in ("Slice", "StridedSlice"):
        length = op.outputs[0].shape.num_elements()
        begin = _begin(op, source) if length is not None and shape.is_fully_defined() else None
        if begin is None:
            return None
        return index if length == shape.num_elements() or _is_aligned(source, begin, length) else None
    if op.type in _AXIS and len(op.outputs) == 1:
        return index
    axis = op.get_attr("axis") if op.type == "Unpack" else tf.get_static_value(op.inputs[_AXIS[op.type]])
    along_first = axis is not None and int(axis) in (0, -shape.rank)
    return index if along_first and _rows_are_aligned(source) else None


def _is_aligned(source: tf.Tensor, begin: int, length: int) -> bool:
    """Whether a slice, in elements from the first, can be a piece."""
    if source.shape.rank > 1:
        return _rows_are_aligned(source)
    return all(n * source.dtype.size % _ALIGNED == 0 for n in (begin, begin + length))


def _rows_are_aligned(source: tf.Tensor) -> bool:
    """Whether what lies at each index of the first dimension begins where a piece can, whatever sizes are open."""
    return source.shape.rank > 1 and _row(source.shape) * source.dtype.size % _ALIGNED == 0


def _row(shape: Sequence[int | None]) -> int:
    """Elements at an index of the first dimension, or what they are a multiple of where sizes are open."""
    return math.prod(size for size in shape[1:] if size is not None)


def _begin(op: tf.Operation, source: tf.Tensor) -> int | None:
    """Where a slice begins, in elements, if it has whole rows one after another; None if not, or if it is not known."""
    where = _indices(op)
    if where is None:
        return None
    shape = source.shape.as_list()
    rows = as_strided(np.zeros(1, np.int8), shape, [_row(shape[k:]) for k in range(len(shape))])  # nothing reads it
    try:
        found = rows[where if Ellipsis in where else (*where, ...)]  # an array, also where it is one element
    except IndexError:  # beyond the end, for this batch
        return None
    whole = bool(found.flags.c_contiguous) and found.size % _row(shape) == 0
    begin = found.__array_interface__["data"][0] - rows.__array_interface__["data"][0]
    return begin if whole and found.size and begin % _row(shape) == 0 else None


def _indices(op: tf.Operation) -> tuple[Any, ...] | None:
    """What NumPy would be given for a slice; None if that is not known, or if it takes steps: then kernels copy."""
    bounds = [tf.get_static_value(t) for t in op.inputs[1:]]
    if any(bound is None for bound in bounds):
        return None
    if op.type == "Slice":
        begins, sizes = bounds
        return tuple(slice(int(b), None if n < 0 else int(b) + int(n)) for b, n in zip(begins, sizes, strict=True))
    masks = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    where: list[Any] = []
    for k, (begin, end, step) in enumerate(zip(*bounds, strict=True)):
        on = {name for name, mask in masks.items() if mask >> k & 1}
        if "ellipsis" in on:
            where.append(Ellipsis)
        elif "new_axis" in on:
            where.append(None)
        elif "shrink_axis" in on:
            where.append(int(begin))
        elif step != 1:
            return None
        else:
            where.append(slice(None if "begin" in on else int(begin), None if "end" in on else int(end)))
    return tuple(where)
