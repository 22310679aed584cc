"""Shapes that can be concluded, though TensorFlow's own shape functions leave them open.

Data alone tells the begin and the end of a random crop, `x[:, k : k + 14]`. But where the end of an axis is its begin
and a known number, the slice has that many entries. A lookup in a table gives a value for each key. A count of the
values in each row has as many rows. Python functions are taken at the word of `set_shape`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ..ops import inputs_of

__all__ = ["BOUNDED", "PYTHON", "inferred_shape", "largest_shapes", "python_shapes"]

BOUNDED = ("Where", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "DynamicPartition", "ListDiff")
"""Types of operations whose results have a size that data decides, and that their inputs bound."""

PYTHON = ("EagerPyFunc", "PyFunc", "PyFuncStateless")
"""Types of operations that run Python. Nothing is known of what they return, but what the user says."""

Known = Callable[[tf.Tensor], np.ndarray | None]
Shapes = Callable[[tf.Tensor], tf.TensorShape]


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


def python_shapes(op: tf.Operation, copy: tf.Operation, shape_of: Shapes) -> list[tf.TensorShape]:
    """The shapes of what a Python function returns: as told by `set_shape` or `ensure_shape`, with its inputs' batch.

    The gradient of such a function gives what is like its inputs. It waits for the function, by a control edge.

    Parameters
    ----------
    op, copy : tf.Operation
        The traced operation, one of `PYTHON`, and its copy with static inputs.
    shape_of : callable
        The static shape of a traced tensor.
    """
    told = [_ensured(t) for t in op.outputs]
    batches = {t.shape[0] for t in copy.inputs if t.shape.rank}
    if len(batches) == 1:
        told = [tf.TensorShape([*batches, *t[1:]]) if t.rank and t[0] is None else t for t in told]
    for before in op.control_inputs:
        if before.type in PYTHON and [t.dtype for t in before.inputs] == [t.dtype for t in op.outputs]:
            return [t if t.rank is not None else shape_of(s) for t, s in zip(told, inputs_of(before), strict=True)]
    return told


def _ensured(t: tf.Tensor) -> tf.TensorShape:
    """The shape of a tensor, with what is read of it through `ensure_shape`."""
    shape = t.shape
    for reader in t.consumers():
        if reader.type == "EnsureShape":
            shape = shape.merge_with(reader.outputs[0].shape)
    return shape


def largest_shapes(op: tf.Operation, copy: tf.Operation, known: Known) -> list[tf.TensorShape]:
    """The largest shapes that the outputs of an operation of `BOUNDED` can have: nothing is left out.

    Parameters
    ----------
    op, copy, known
        As `inferred_shape`.
    """
    given, found = copy.inputs[0].shape, [t.shape for t in copy.outputs]
    if not given.is_fully_defined():
        return found
    count = given.num_elements()
    if op.type == "Where":
        return [tf.TensorShape([count, given.rank])]
    if op.type == "DynamicPartition":
        inner = given[copy.inputs[1].shape.rank :]
        return [tf.TensorShape([copy.inputs[1].shape.num_elements()]).concatenate(inner)] * len(found)
    if op.type in ("UniqueV2", "UniqueWithCountsV2") and given.rank != 1:
        axis = known(inputs_of(op)[1])
        if axis is None or np.size(axis) != 1:
            return found
        along = tf.TensorShape([given[int(np.ravel(axis)[0])]])
        return [given, *([along] * (len(found) - 1))]
    return [tf.TensorShape([count])] * len(found)


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
