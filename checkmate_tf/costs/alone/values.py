"""Values of small integer tensors: shapes, axes, permutations, paddings.

An operation can be run alone only if such inputs are valid. They are derived from constants and static shapes: the few
tiny operations in between are run eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..sizes import elements

__all__ = ["MAX_ELEMENTS", "StaticValues"]

MAX_ELEMENTS = 4096
_MAX_DEPTH = 200
_log = logging.getLogger(__name__)


class StaticValues:
    """Evaluates tensors that depend on constants and static shapes only; remembers every answer.

    Tensors of more than `MAX_ELEMENTS` elements are not evaluated. Meant for one pass over one graph.

    Parameters
    ----------
    known : mapping from reference to array or None, optional
        What is known of some tensors: those that a function is given, say.
    """

    def __init__(self, known: Mapping[Any, np.ndarray | None] | None = None) -> None:
        self._known: dict[Any, np.ndarray | None] = dict(known or {})

    def __call__(self, tensor: Any, depth: int = 0) -> np.ndarray | None:
        """The tensor's value, or None if it depends on data."""
        key = tensor.ref()
        if key not in self._known:
            self._known[key] = None
            self._known[key] = self._evaluate(tensor, depth)
        return self._known[key]

    def _evaluate(self, tensor: Any, depth: int) -> np.ndarray | None:
        import tensorflow as tf

        from .eager import REACHES_OUT, RUN_ERRORS, run_op

        op = tensor.op
        if depth > _MAX_DEPTH or tensor.dtype in (tf.resource, tf.variant, tf.string):
            return None
        if (elements(tensor) or 0) > MAX_ELEMENTS or op.type in ("Placeholder", "ReadVariableOp"):
            return None
        if op.type == "Const":
            return tf.make_ndarray(op.get_attr("value"))
        if op.type in ("Shape", "ShapeN", "Size", "Rank"):
            return _of_shape(op, tensor.value_index)
        if op.type == "VariableShape":
            return _of_handle(op)
        if op.type == "PlaceholderWithDefault" or op.op_def is None or op.op_def.is_stateful or not len(op.inputs):
            return None
        if op.type in REACHES_OUT:
            return None
        if any(attr.type == "func" for attr in op.op_def.attr):
            return None
        if any((elements(t) or 0) > MAX_ELEMENTS for t in op.inputs):
            return None
        inputs = []
        for t in op.inputs:
            value = self(t, depth + 1)
            if value is None:
                return None
            inputs.append(value)
        try:
            with tf.device("/CPU:0"):
                tensors = [tf.constant(v, t.dtype) for v, t in zip(inputs, op.inputs, strict=True)]
                outputs = [o.numpy() for o in run_op(op, tensors)]
        except RUN_ERRORS as error:
            _log.debug("the value of %s (%s) stays unknown: %s", op.name, op.type, error)
            return None
        for output, value in zip(op.outputs, outputs, strict=True):
            self._known[output.ref()] = value
        return self._known[tensor.ref()]


def _of_shape(op: Any, index: int) -> np.ndarray | None:
    shape = op.inputs[index].shape
    dtype = op.outputs[0].dtype.as_numpy_dtype
    if op.type == "Rank":
        return None if shape.rank is None else np.array(shape.rank, dtype)
    if not shape.is_fully_defined():
        return None
    return np.array(shape.num_elements() if op.type == "Size" else shape.as_list(), dtype)


def _of_handle(op: Any) -> np.ndarray | None:
    from .eager import handle_shape_dtype

    found = handle_shape_dtype(op.inputs[0])
    return None if found is None else np.array(found[0], op.outputs[0].dtype.as_numpy_dtype)
