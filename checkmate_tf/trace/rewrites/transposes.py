"""Transposes of matrices, folded into the products that read them.

A product can read either of its matrices transposed, so Grappler leaves the transpose out where it finds the two next
to each other. It finds them so in a plain step. In a plan something may be between them that one waits for, and then
the transpose is computed after all. Folded here, a plan counts no memory for it, and it is what runs.
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
    """Let products of matrices read what transposes of their matrices read.

    These are the kernels that run in a plain step. So where Grappler is off, nothing is folded. Complex numbers are
    left alone, and constants, which Grappler transposes beforehand. What a transpose waits for, the product waits for.

    Parameters
    ----------
    graph : FuncGraph
        Changed in place.

    Returns
    -------
    dict
        From products to those that replace them.
    """
    found: dict[tf.Operation, tf.Operation] = {}
    for op in graph.get_operations() if _grappler_folds() else ():
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
    """The axes, if they are known. A swap is its own inverse."""
    while t.op.type == "InvertPermutation":
        t = t.op.inputs[0]
    value = tf.get_static_value(t)
    return None if value is None else [int(axis) for axis in value]
