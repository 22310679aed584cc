"""Shapes that can be concluded, though TensorFlow's own shape functions leave them open.

Data alone tells the begin and the end of a random crop, `x[:, k : k + 14]`. But where the end of an axis is its begin
and a known number, the slice has that many entries. A lookup in a table gives a value for each key. A count of the
values in each row has as many rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ..ops import inputs_of

__all__ = ["inferred_shape"]

Known = Callable[[tf.Tensor], np.ndarray | None]


def inferred_shape(op: tf.Operation, copy: tf.Operation, known: Known) -> tf.TensorShape:
    """The shape of an operation's first output, as far as it can be concluded.

    Parameters
    ----------
    op, copy : tf.Operation
        The traced operation, and its copy with static inputs.
    known : callable
        The value of a traced tensor, None if data decides it.
    """
    shape = copy.outputs[0].shape
    if op.type == "StridedSlice":
        return _slice(op, shape, known)
    if op.type == "LookupTableFindV2" and op.inputs[1].shape.rank == op.outputs[0].shape.rank:
        return copy.inputs[1].shape
    if op.type == "DenseBincount" and copy.inputs[0].shape.rank == shape.rank == 2:
        return tf.TensorShape([copy.inputs[0].shape[0], shape[1]])
    return shape


def _slice(op: tf.Operation, inferred: tf.TensorShape, known: Known) -> tf.TensorShape:
    """The shape of a slice, given what TensorFlow infers of it."""
    masks = {key: op.get_attr(key) for key in ("begin_mask", "end_mask", "shrink_axis_mask")}
    if op.get_attr("ellipsis_mask") or op.get_attr("new_axis_mask") or inferred.rank is None:
        return inferred
    _, begin, end, stride = inputs_of(op)
    strides = known(stride)
    if begin.op.type != "Pack" or end.op.type != "Pack" or strides is None:
        return inferred
    sizes: list[int | None] = []
    for axis, (b, e) in enumerate(zip(inputs_of(begin.op), inputs_of(end.op), strict=True)):
        if masks["shrink_axis_mask"] >> axis & 1:
            continue
        place = len(sizes)
        sizes.append(inferred[place])
        whole = (masks["begin_mask"] | masks["end_mask"]) >> axis & 1
        if sizes[place] is None and not whole and strides[axis] == 1:
            sizes[place] = _added(e, b, known)
    return tf.TensorShape([*sizes, *inferred[len(sizes) :]])


def _added(end: tf.Tensor, begin: tf.Tensor, known: Known) -> int | None:
    """The number that `end` is above `begin`; None if `end` was not made by such an addition."""
    if end.op.type not in ("Add", "AddV2"):
        return None
    terms = inputs_of(end.op)
    for one, other in (terms, terms[::-1]):
        value = known(other)
        if one is begin and value is not None:
            return int(value)
    return None
