"""Inputs for running one operation of a graph alone.

Floats are random in [0.5, 1.5], so that there is no logarithm or root of a negative, and no denormal. Bools are random.
Integers are zero, unless constants and static shapes say what they are (axes, shapes, paddings, split sizes); so token
ids and labels are zero. What chooses between branches has each of its values in turn, where data decides it
(`Fabricator.of_branches`). Resource handles become new variables. Lists of tensors (variants) cannot be invented, nor
can what cuDNN keeps of a recurrent layer for its gradient. The operations that make them are run, on fabricated inputs,
back to the first tensors that can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from ...trace.ops import is_stateful
from ...trace.sizes.learned import LEARNED
from ..calls import may_not_end
from ..counts import BRANCHES, CALLS, words
from .eager import REACHES_OUT, called_graphs, called_names, handle_shape_dtype, run_op

__all__ = ["MAX_BYTES", "Fabricator", "may_run"]

Values = Callable[[Any], np.ndarray | None]
#: Larger inputs are not fabricated: what does not fit is estimated.
MAX_BYTES = 64 << 30
_BLOCK = 1 << 16

# Stateful operations that are safe to run on fabricated inputs. Others may block, write files or call Python.
_RUNNABLE_STATEFUL = words(
    "ReadVariableOp AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceGather ResourceGatherNd "
    "ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate VariableShape RandomUniform RandomUniformInt "
    "RandomStandardNormal TruncatedNormal Multinomial RandomShuffle Assert"
)

_OF_LAYERS = words("CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3")  # they read what a layer wrote


def may_run(op: tf.Operation) -> bool:
    """Whether an operation can be run alone: without side effects, in what it calls, too, and to an end."""
    return _is_safe(op) and not may_not_end(op)


def _is_safe(op: tf.Operation) -> bool:
    """Whether an operation, and every one in the functions that it calls, has no side effects."""
    if op.op_def is None or op.type == "Placeholder" or op.type in REACHES_OUT:
        return False
    if op.type in CALLS:
        graphs = called_graphs(op)
        return len(graphs) == len(called_names(op)) and all(
            inner.type in ("Placeholder", "Const") or _is_safe(inner) for g in graphs for inner in g.get_operations()
        )
    if any(attr.type == "func" or attr.type == "list(func)" for attr in op.op_def.attr):
        return False
    layer = not is_stateful(op) and (op.type in LEARNED or (op.type in _OF_LAYERS and _layer_may_run(op)))
    safe = layer or op.type in _RUNNABLE_STATEFUL or op.type.startswith("ResourceApply")
    return safe or not op.op_def.is_stateful


def _layer_may_run(gradient: tf.Operation) -> bool:
    """Whether what a recurrent layer's gradient reads of the layer comes from one that can be run."""
    layers = {t.op for t in gradient.inputs if t.op.type in LEARNED}
    return bool(layers) and all(may_run(layer) for layer in layers)


class Fabricator:
    """Makes the inputs of one operation, and holds them: keep it no longer than that operation.

    Parameters
    ----------
    values : callable(tensor) -> array or None
        The value of a small tensor, where it is known (`StaticValues`).
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._made: dict[Any, Any] = {}
        self._variables: list[tf.Variable] = []

    def inputs_of(self, op: tf.Operation) -> list[Any]:
        """Eager tensors for the data inputs of an operation.

        Raises
        ------
        ValueError
            If an input cannot be fabricated (an unknown shape, a handle of unknown content).
        """
        chained = op.type in CALLS | _OF_LAYERS or any(t.dtype == tf.variant for t in op.inputs)
        return [self._tensor(t, chained) for t in op.inputs]

    def of_branches(self, op: tf.Operation) -> Iterator[Fabricator]:
        """One for each branch that an operation may take, where data decides which; otherwise this one."""
        values, chosen = self._values, op.inputs[0] if op.type in BRANCHES else None
        if chosen is None or values(chosen) is not None or not (chosen.dtype.is_bool or chosen.dtype.is_integer):
            yield self
            return
        for branch in range(len(called_names(op))):
            yield Fabricator(_but(values, chosen, np.array(branch, chosen.dtype.as_numpy_dtype)))

    def _tensor(self, tensor: Any, chained: bool) -> Any:
        key = tensor.ref()
        if key not in self._made:
            self._made[key] = self._make(tensor, chained)
        return self._made[key]

    def _make(self, tensor: Any, chained: bool) -> Any:
        if tensor.dtype == tf.resource:
            return self._handle(tensor)
        value = self._values(tensor)
        if value is not None:
            return tf.constant(value, tensor.dtype)
        # The counter of a forward loop bounds its gradient loop, so it must come from the same run as the lists.
        if tensor.dtype == tf.variant or (chained and (tensor.op.type in CALLS or tensor.op.type in LEARNED)):
            return self._computed(tensor)
        return fabricate(tensor.shape, tensor.dtype, tensor.name)

    def _computed(self, tensor: Any) -> Any:
        op = tensor.op
        if not may_run(op):
            raise ValueError(f"{tensor.name} is made by {op.type}, which cannot be run alone")
        for output, value in zip(op.outputs, run_op(op, self.inputs_of(op)), strict=True):
            self._made.setdefault(output.ref(), value)
        return self._made[tensor.ref()]

    def _handle(self, tensor: Any) -> Any:
        found = handle_shape_dtype(tensor)
        if found is None:
            raise ValueError(f"what the resource {tensor.name} holds is unknown")
        variable = tf.Variable(fabricate(tf.TensorShape(found[0]), found[1], tensor.name), trainable=False)
        self._variables.append(variable)
        return variable.handle


def _but(values: Values, tensor: Any, value: np.ndarray) -> Values:
    """Known values, with one more."""
    return lambda t: value if t.ref() == tensor.ref() else values(t)


def fabricate(shape: tf.TensorShape, dtype: tf.DType, name: str = "tensor") -> Any:
    """An eager tensor of a static shape with harmless content.

    Raises
    ------
    ValueError
        If the shape is not fully known, or the tensor is past `MAX_BYTES`.
    """
    if not shape.is_fully_defined():
        raise ValueError(f"{name} has shape {shape}")
    size = tuple(shape.as_list())
    if np.prod(size, dtype=np.float64) * max(dtype.size, 1) > MAX_BYTES:
        raise ValueError(f"{name} of shape {shape} is too large to fabricate")
    if dtype == tf.string:
        return tf.fill(size, "")
    random = np.random.default_rng(0)
    if dtype == tf.bool:
        block = random.random(_BLOCK) < 0.5
    elif dtype.is_floating or dtype.is_complex:
        block = random.uniform(0.5, 1.5, _BLOCK).astype(dtype.as_numpy_dtype)
    else:
        return tf.zeros(size, dtype)
    return tf.constant(np.resize(block, size), dtype)
