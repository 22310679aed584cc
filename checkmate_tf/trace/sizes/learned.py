"""Sizes that only the device knows: an operation is run once, on zeros, and what comes out is looked at.

cuDNN decides how much a recurrent layer keeps for its gradient. TensorFlow's shape functions leave that open, since it
depends on the card and on the version of the library. The size depends on shapes alone, so any data will do.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

__all__ = ["LEARNED", "learn_shapes"]

LEARNED = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
"""Types of operations whose outputs' shapes are learned."""

_TIME_AXIS = 0  # of the first input, as Keras gives it; else it is the next
_known: dict[Any, tuple[tf.TensorShape, ...]] = {}  # layers are alike
_CANNOT_RUN = (tf.errors.OpError, TypeError, ValueError)  # no such kernel on this device, or no memory


def learn_shapes(op: tf.Operation) -> tuple[tf.TensorShape, ...] | None:
    """The shapes of an operation's outputs, as they are on this device.

    Parameters
    ----------
    op : tf.Operation
        One of `LEARNED`, whose inputs have static shapes.

    Returns
    -------
    tuple of tf.TensorShape, or None
        One for each output; None if the operation cannot be run here.
    """
    if not all(t.shape.is_fully_defined() for t in op.inputs):
        return None
    shapes = tuple((t.dtype, tuple(t.shape.as_list())) for t in op.inputs)
    attributes = tuple((a.name, op.get_attr(a.name)) for a in op.op_def.attr if a.type != "type")
    key = (op.type, shapes, attributes)
    if key not in _known:
        found = _run(op.type, tuple(a.name for a in op.op_def.input_arg), shapes, attributes)
        if found is None:  # memory may have been short, so the next plan asks again
            return None
        _known[key] = found
    return _known[key]


def _run(
    kind: str,
    names: tuple[str, ...],
    shapes: tuple[tuple[tf.DType, tuple[int, ...]], ...],
    attributes: tuple[tuple[str, object], ...],
) -> tuple[tf.TensorShape, ...] | None:
    steps = shapes[0][1][_TIME_AXIS if dict(attributes).get("time_major", True) else 1]
    try:
        with ops.init_scope():
            given = {
                name: tf.fill(shape, tf.cast(steps if dtype == tf.int32 else 0, dtype))  # lengths of sequences
                for name, (dtype, shape) in zip(names, shapes, strict=True)
            }
            outputs = getattr(tf.raw_ops, kind)(**given, **dict(attributes))
            return tuple(t.shape for t in outputs)
    except _CANNOT_RUN:
        return None
