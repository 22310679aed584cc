"""Casts of whole numbers to larger ones, made where they are read: a view of one is a view first, and cast then.

Keras casts labels to int64 before it gives them another shape, at the beginning of a step, for a loss at its end.
Grappler turns such pairs round, since the cast then reads the smaller numbers. What a plan takes for a value that
lives through the forward pass is made anew at the end. In a U-Net with a label for each pixel that put other values
elsewhere, and its steps took 4% more than was placed. Turned round here, that is what runs, with Grappler or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..ops import copy_attributes, inputs_of
from .edges import put_in_place

__all__ = ["cast_late"]

_VIEWS = frozenset({"Reshape", "Squeeze", "ExpandDims"})
_LOOKS = frozenset({"Shape", "Size", "Rank"})  # at no value


def cast_late(graph: tf.Graph, results: Sequence[tf.Tensor] = ()) -> dict[Any, tf.Tensor]:
    """Let views of casts to larger whole numbers be casts of views.

    A cast that anything else reads, or that is a result, stays where it is.

    Parameters
    ----------
    graph : FuncGraph
        Changed in place.
    results : sequence of tf.Tensor
        Of the graph.

    Returns
    -------
    dict
        From references of all tensors that were replaced to those that replace them, `results` among them.
    """
    kept, found = {t.ref() for t in results}, dict[Any, tf.Tensor]()
    casts = [op for op in graph.get_operations() if _is_enlarging(op)]
    while casts:
        cast = casts.pop()
        (result,) = cast.outputs
        readers = result.consumers()
        if result.ref() in kept or not all(r.type in _VIEWS | _LOOKS and r.inputs[0] is result for r in readers):
            continue
        for reader in readers:
            other = _of_another(reader, inputs_of(cast)[0], cast.control_inputs)
            if reader.type in _VIEWS:
                with graph.as_default(), graph.device(cast.device or None):
                    other = tf.raw_ops.Cast(x=other.outputs[0], DstT=result.dtype, name=cast.name).op
                casts.append(other)
            other.outputs[0].set_shape(reader.outputs[0].shape)  # tracing may know more of it than the operation
            found[reader.outputs[0].ref()] = other.outputs[0]
            if reader.outputs[0].ref() in kept:
                kept.add(other.outputs[0].ref())
            put_in_place(reader, other)
    return found


def _is_enlarging(op: tf.Operation) -> bool:
    """Whether an operation casts to larger whole numbers."""
    if op.type != "Cast":
        return False
    source, result = op.inputs[0].dtype, op.outputs[0].dtype
    return bool(result.is_integer and result.size > source.size)


def _of_another(op: tf.Operation, source: tf.Tensor, after: Sequence[tf.Operation]) -> tf.Operation:
    """The same operation of another tensor, of another type."""
    attributes = copy_attributes(op)
    attributes["T"].type = source.dtype.as_datatype_enum
    dtypes = [source.dtype if op.type in _VIEWS else op.outputs[0].dtype]
    graph = op.graph
    with graph.as_default(), graph.device(op.device or None), graph.control_dependencies([*op.control_inputs, *after]):
        inputs = [source, *inputs_of(op)[1:]]
        return graph._create_op_internal(  # noqa: SLF001
            op.type, inputs, dtypes, attrs=attributes, name=op.name, op_def=op.op_def
        )
