"""The calls of a model's layers as functions that run alone: which tensors each one reads, and what its gradient needs.

`layers.graph` says what calls there are, in order, with static shapes. Here the same walk is taken once more with the
Keras nodes, which hold the arguments of each call: every tensor with its dtype, masks and initial states included.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..costs.fabricate import fabricate
from ..errors import TraceError
from ..graph import BACKWARD
from .graph import LayerCall, Shape, layer_calls, layer_graph

__all__ = ["LayerRun", "Value", "example", "layer_runs"]

_NO_MATTER = ("_initializer", "_regularizer", "_constraint")  # settings that take no time in a layer's call,
_ACTIVITY = "activity_regularizer"  # but for this one


@dataclass(frozen=True)
class Value:
    """A tensor between layers: which call made it (-1: an input of the model), as which output; shape and dtype."""

    call: int
    index: int
    shape: Shape
    dtype: str

    @property
    def floating(self) -> bool:
        return "float" in self.dtype or "complex" in self.dtype


@dataclass(frozen=True, eq=False)
class LayerRun:
    """One call of a layer, ready to be run.

    Attributes
    ----------
    call : LayerCall
    node : keras Node
        Holds the arguments of the call.
    arguments : tuple of Value
        The tensors among them, in the order of `node.arguments.keras_tensors`.
    outputs : tuple of Value
    wanted : tuple of bool
        Of each argument: something before it is trained, so its gradient is needed.
    arriving : tuple of int
        Of each output: how many gradients reach it, from its readers and the loss. Their sum is part of the run.
    has_gradient : bool
        The graph has a gradient node for the call.
    """

    call: LayerCall
    node: Any
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    wanted: tuple[bool, ...]
    arriving: tuple[int, ...]
    has_gradient: bool

    @property
    def weights(self) -> list[Any]:
        """The call's trainable weights."""
        return list(getattr(self.node.operation, "trainable_weights", ()))

    @property
    def differentiates(self) -> bool:
        """Whether there is anything to compute for the gradient node."""
        return self.has_gradient and any(self.arriving) and bool(any(self.wanted) or self.weights)

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The flat outputs of the call on given tensors, as in training."""
        keras_tensors = self.node.arguments.keras_tensors
        given = {id(t): x for t, x in zip(keras_tensors, tensors, strict=True)}
        args, kwargs = self.node.arguments.fill_in(given)
        if _takes_training(self.node.operation):
            kwargs = {**kwargs, "training": True}  # as a functional model does, whatever its layers were built with
        return keras.tree.flatten(self.node.operation(*args, **kwargs))

    def key(self) -> str:
        """What makes two calls take the same time: class, settings, weights, tensors, gradients."""
        operation = self.node.operation
        tensors = [f"{v.dtype}{list(v.shape)}{'*' * want}" for v, want in zip(self.arguments, self.wanted, strict=True)]
        made = [f"{v.dtype}{list(v.shape)}*{n}" for v, n in zip(self.outputs, self.arriving, strict=True)]
        settings = [_settings(operation), _constants(self.node.arguments)]
        settings += [f"{w.dtype}{tuple(w.shape)}{w.trainable}" for w in getattr(operation, "weights", ())]
        digest = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:16]
        direction = "with gradient" if self.differentiates else "forward"
        kind = type(operation)
        return f"{kind.__module__}.{kind.__qualname__}({', '.join(tensors)}) -> {', '.join(made)} {direction} #{digest}"


def layer_runs(model: Any, batch_size: int) -> list[LayerRun]:
    """The calls of a model's layers, in the order of `layer_graph`'s forward nodes; errors as there."""
    calls = layer_calls(model, batch_size).calls
    graph = layer_graph(model, batch_size)
    gradients = {name for name, kind in zip(graph.names, graph.kinds, strict=True) if kind == BACKWARD}
    function = _function(model)
    values = {id(t): Value(-1, k, (batch_size, *t.shape[1:]), t.dtype) for k, t in enumerate(function.inputs)}
    steps: list[tuple[Any, tuple[Value, ...], tuple[Value, ...]]] = []
    results = _walk(function, values, iter(enumerate(calls)), steps)
    if len(steps) != len(calls):
        raise TraceError(f"the layers of {model.name!r} are called {len(calls)} times, but {len(steps)} were found")
    has_gradient = [f"grad_{call.name}" in gradients for call in calls]
    arriving: dict[tuple[int, int], int] = {}
    for j, (_, read, _) in enumerate(steps):
        if has_gradient[j]:
            for key in dict.fromkeys((v.call, v.index) for v in read):
                arriving[key] = arriving.get(key, 0) + 1
    for key in dict.fromkeys((v.call, v.index) for v in results):
        arriving[key] = arriving.get(key, 0) + 1
    trained: list[bool] = []  # is the call, or anything before it?
    runs = []
    for call, (node, read, made), known in zip(calls, steps, has_gradient, strict=True):
        wanted = tuple(v.floating and v.call >= 0 and trained[v.call] for v in read)
        trained.append(any(wanted) or bool(getattr(node.operation, "trainable_weights", ())))
        counts = tuple(arriving.get((v.call, v.index), 0) if v.floating else 0 for v in made)
        runs.append(LayerRun(call, node, read, made, wanted, counts, known))
    return runs


def example(value: Value, operation: Any = None) -> Any:
    """An eager tensor to run a call on: floats in [0.5, 1.5], bools random, integers 0, or any row of a table."""
    dtype = tf.as_dtype(value.dtype)
    rows = getattr(operation, "input_dim", None)
    if dtype.is_integer and isinstance(rows, int) and rows > 1:
        drawn = np.random.default_rng(0).integers(0, min(rows, dtype.max), value.shape)
        return tf.constant(drawn, dtype)
    return fabricate(tf.TensorShape(value.shape), dtype, "a layer's input")


def _function(model: Any) -> Any:
    return model if hasattr(model, "_nodes_by_depth") else model._functional


def _walk(
    function: Any,
    values: dict[int, Value],
    calls: Iterator[tuple[int, LayerCall]],
    steps: list[tuple[Any, tuple[Value, ...], tuple[Value, ...]]],
) -> list[Value]:
    """Append (node, what it reads, what it makes) of each call in the order of `calls`; return the outputs' values."""
    for depth in sorted(function._nodes_by_depth, reverse=True):
        for node in function._nodes_by_depth[depth]:
            if node.is_input or any(id(t) not in values for t in node.input_tensors):
                continue
            operation = node.operation
            if isinstance(operation, keras.Model):
                inner = _function(operation)
                first = node.arguments.args[0] if node.arguments.args else node.arguments.kwargs.get("inputs")
                given = [values[id(t)] for t in keras.tree.flatten(first) if id(t) in values]
                made = _walk(inner, {id(t): v for t, v in zip(inner.inputs, given, strict=True)}, calls, steps)
            else:
                number, call = next(calls)
                if call.operation is not operation:
                    raise TraceError(f"layer {operation.name!r} was found where {call.name!r} should be")
                shaped = zip(call.output_shapes, node.outputs, strict=True)
                made = [Value(number, k, shape, t.dtype) for k, (shape, t) in enumerate(shaped)]
                read = tuple(values[id(t)] for t in node.arguments.keras_tensors)
                steps.append((node, read, tuple(made)))
            values.update((id(t), value) for t, value in zip(node.outputs, made, strict=True))
    return [values[id(t)] for t in function.outputs]


def _takes_training(operation: Any) -> bool:
    try:
        return "training" in signature(operation.call).parameters
    except (TypeError, ValueError):
        return False


def _settings(operation: Any) -> str:
    """A layer's settings as text; where Keras cannot tell them, a text that no other layer has."""
    try:
        return json.dumps(_plain(operation.get_config()), sort_keys=True, default=_described)
    except Exception:  # noqa: BLE001 - whatever the user's layer raises
        return f"{operation.name} {id(operation)}"


def _plain(value: Any) -> Any:
    """Settings without the names of layers, and without what takes no time."""
    if isinstance(value, dict):
        keep = [k for k in value if k != "name" and (k == _ACTIVITY or not str(k).endswith(_NO_MATTER))]
        return {str(k): _plain(value[k]) for k in keep}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _described(value: Any) -> str:
    """Of a setting that JSON has no word for. Nothing that differs may read the same, so addresses stay in it."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    return repr(value)


def _constants(arguments: Any) -> str:
    """What a call is given besides tensors of the model."""
    keep: Callable[[Any], str] = lambda x: (  # noqa: E731 - a short callback
        "tensor"
        if isinstance(x, keras.KerasTensor)
        else f"{x.dtype}{tuple(x.shape)}"
        if hasattr(x, "shape") and hasattr(x, "dtype")
        else repr(x)
    )
    args, kwargs = keras.tree.map_structure(keep, arguments.args), keras.tree.map_structure(keep, arguments.kwargs)
    return f"{args} {sorted(kwargs.items())}"
