"""Transposes that no step computes: those of matrices that a product reads, and pairs that undo each other.

A product can read either of its matrices transposed, so Grappler leaves the transpose out where it finds the two next
to each other. Two transposes, one after the other, may leave everything as it was, as those between two recurrent
layers do. Then Grappler leaves them out, too. It finds them so in a plain step. In a plan something may be between them
that one waits for, and then they are computed after all. Left out here, a plan counts no memory for them, and it is
what runs.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from ..ops import copy_attributes
from .edges import put_in_place
from .sums import grappler_sorts

__all__ = ["fold_transposes"]

# The attributes that say whether the first and the second factor are read transposed.
_TRANSPOSED = {"MatMul": ("transpose_a", "transpose_b")} | dict.fromkeys(
    ("BatchMatMul", "BatchMatMulV2"), ("adj_x", "adj_y")
)
_NEEDED = ("arithmetic_optimization", "constant_folding")  # of Grappler's optimizers


def fold_transposes(graph: tf.Graph) -> dict[tf.Operation, tf.Operation]:
    """Let products of matrices read what transposes of their matrices read, and leave out what two of them undo.

    These are the kernels that run in a plain step. So where Grappler is off, nothing is folded. Complex matrices are
    left alone, and constants, which Grappler transposes beforehand. What a transpose waits for, the product waits for.
    A pair of which one waits for something stays.

    Parameters
    ----------
    graph : FuncGraph
        Changed in place.

    Returns
    -------
    dict
        From products, and the second transposes of pairs, to what replaces them.
    """
    found: dict[tf.Operation, tf.Operation] = {}
    if not _grappler_folds():
        return found
    for op in graph.get_operations():
        source = _unchanged(op)
        if source is not None:
            with graph.as_default(), graph.device(op.device or None), graph.control_dependencies(None):
                found[op] = tf.identity(source, name=op.name).op
            found[op].outputs[0].set_shape(op.outputs[0].shape)  # tracing may know more of it
            put_in_place(op, found[op])
    for op in graph.get_operations():
        folded = [k for k in range(2) if op.type in _TRANSPOSED and _swaps_matrices(op.inputs[k].op)]
        if folded:
            found[op] = _reading_what_they_read(op, folded)
            put_in_place(op, found[op])
    return found


def _grappler_folds() -> bool:
    options = tf.config.optimizer.get_experimental_options()
    return grappler_sorts() and all(options.get(name, True) for name in _NEEDED)


def _reading_what_they_read(op: tf.Operation, folded: Sequence[int]) -> tf.Operation:
    """The same product, in which some factors are read without their transposes."""
    inputs, after, attributes = list(op.inputs), list(op.control_inputs), copy_attributes(op)
    for k in folded:
        after += inputs[k].op.control_inputs
        inputs[k] = inputs[k].op.inputs[0]
        name = _TRANSPOSED[op.type][k]
        attributes[name] = attr_value_pb2.AttrValue(b=not op.get_attr(name))
    graph = op.graph
    with graph.as_default(), graph.device(op.device or None), graph.control_dependencies(after):
        other = graph._create_op_internal(  # noqa: SLF001
            op.type, inputs, [op.outputs[0].dtype], attrs=attributes, name=op.name, op_def=op.op_def
        )
    other.outputs[0].set_shape(op.outputs[0].shape)  # tracing may know more of it than the operation
    return other


def _unchanged(op: tf.Operation) -> tf.Tensor | None:
    """What the first of two transposes reads, and the second, this one, gives back; None if it is no such pair."""
    if op.type != "Transpose" or op.inputs[0].op.type != "Transpose":
        return None
    first = op.inputs[0].op
    if op.control_inputs or first.control_inputs:
        return None
    before, after = _permutation(first.inputs[1]), _permutation(op.inputs[1])
    if before is None or after is None or [before[axis] for axis in after] != list(range(len(before))):
        return None
    source: tf.Tensor = first.inputs[0]
    return source


def _swaps_matrices(op: tf.Operation) -> bool:
    """Whether an operation transposes matrices, and does nothing else."""
    if op.type != "Transpose" or op.inputs[0].dtype.is_complex:
        return False
    order = _permutation(op.inputs[1])
    if order is None or len(order) < 2 or tf.get_static_value(op.inputs[0]) is not None:
        return False
    rank = len(order)
    return order == [*range(rank - 2), rank - 1, rank - 2]


def _permutation(t: tf.Tensor) -> list[int] | None:
    """The axes, if they are known."""
    if t.op.type == "InvertPermutation":
        axes = _permutation(t.op.inputs[0])
        return None if axes is None else sorted(range(len(axes)), key=axes.__getitem__)
    value = tf.get_static_value(t)
    return None if value is None else [int(axis) % len(value) for axis in value]
