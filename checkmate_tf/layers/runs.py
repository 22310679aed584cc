"""The calls of a model's layers as functions that run alone: which tensors each one reads, and what its gradient needs.

`calls.py` says what calls there are, with every tensor that each reads and makes. Here a call becomes a function of
these tensors, masks and initial states included, which `profiles/layers.py` times with and without its gradient.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..costs.alone.fabricate import fabricate
from .calls import LayerCall, Value, layer_calls
from .settings import exact_settings, exact_words, lasting_settings, lasting_words

__all__ = ["LayerRun", "layer_runs", "fabricated_input"]


@dataclass(frozen=True, eq=False)
class LayerRun:
    """One call of a layer, ready to be run.

    Attributes
    ----------
    call : LayerCall
    wanted : tuple of bool
        Of each argument: something before it is trained, so its gradient is needed.
    arriving : tuple of int
        Of each output: how many gradients reach it, from its readers and the loss. Their sum is part of the run.
    has_gradient : bool
        The graph has a gradient node for the call.
    """

    call: LayerCall
    wanted: tuple[bool, ...]
    arriving: tuple[int, ...]
    has_gradient: bool

    @property
    def weights(self) -> list[Any]:
        """The call's trainable weights."""
        return list(getattr(self.call.operation, "trainable_weights", ()))

    @property
    def differentiates(self) -> bool:
        """Whether there is anything to compute for the gradient node."""
        return self.has_gradient and any(self.arriving) and bool(any(self.wanted) or self.weights)

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """The flat outputs of the call on given tensors, as in training."""
        keras_tensors = self.call.node.arguments.keras_tensors
        given = {id(t): x for t, x in zip(keras_tensors, tensors, strict=True)}
        args, kwargs = self.call.node.arguments.fill_in(given)
        if _takes_training(self.call.operation):
            kwargs = {**kwargs, "training": True}  # as a functional model does, whatever its layers were built with
        with tf.name_scope("alone"):  # as in a model, a layer's name may begin with an underscore
            return keras.tree.flatten(self.call.operation(*args, **kwargs))

    def key(self) -> str:
        """What makes two calls take the same time: class, settings, weights, tensors, gradients.

        Calls of other processes have the same key only if all their settings can be told.
        """
        kind = type(self.call.operation)
        digest = self._digest(exact_settings(self.call.operation), exact_words)
        return f"{kind.__module__}.{kind.__qualname__}{self._tensors()} #{digest}"

    def signature(self) -> str:
        """The same call of the same model has this text in any process; two calls that differ may share it."""
        digest = self._digest(lasting_settings(self.call.operation), lasting_words)
        return f"{type(self.call.operation).__qualname__}{self._tensors()} #{digest}"

    def _tensors(self) -> str:
        given = zip(self.call.arguments, self.wanted, strict=True)
        made = zip(self.call.outputs, self.arriving, strict=True)
        read = ", ".join(f"{v.dtype}{list(v.shape)}{'*' * want}" for v, want in given)
        written = ", ".join(f"{v.dtype}{list(v.shape)}*{n}" for v, n in made)
        return f"({read}) -> {written} {'with gradient' if self.differentiates else 'forward'}"

    def _digest(self, settings: str, words: Callable[[Any], str]) -> str:
        weights = getattr(self.call.operation, "weights", ())
        parts = [settings, _constants(self.call.node.arguments, words)]
        parts += [f"{w.dtype}{tuple(w.shape)}{w.trainable}" for w in weights]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def layer_runs(model: Any, batch_size: int) -> list[LayerRun]:
    """The calls of a model's layers, in the order of `layer_graph`'s forward nodes; errors as for `layer_calls`."""
    known = layer_calls(model, batch_size)
    with_gradient = set(known.differentiated())
    arriving: Counter[tuple[int, int]] = Counter()
    for j in with_gradient:
        arriving.update({(value.call, value.index) for value in known.calls[j].arguments})
    arriving.update({(value.call, value.index) for value in known.results})
    trained: list[bool] = []  # is the call, or anything before it?
    runs = []
    for i, call in enumerate(known.calls):
        wanted = tuple(v.floating and v.call >= 0 and trained[v.call] for v in call.arguments)
        trained.append(any(wanted) or bool(getattr(call.operation, "trainable_weights", ())))
        counts = tuple(arriving[v.call, v.index] if v.floating else 0 for v in call.outputs)
        runs.append(LayerRun(call, wanted, counts, i in with_gradient))
    return runs


def fabricated_input(value: Value, operation: Any = None) -> Any:
    """An eager tensor to run a call on: floats in [0.5, 1.5], bools random, integers 0, or any row of a table."""
    dtype = tf.as_dtype(value.dtype)
    rows = getattr(operation, "input_dim", None)
    if dtype.is_integer and isinstance(rows, int) and rows > 1:
        drawn = np.random.default_rng(0).integers(0, min(rows, dtype.max), value.shape)
        return tf.constant(drawn, dtype)
    return fabricate(tf.TensorShape(value.shape), dtype, "a layer's input")


def _takes_training(operation: Any) -> bool:
    try:
        return "training" in signature(operation.call).parameters
    except (TypeError, ValueError):
        return False


def _constants(arguments: Any, words: Callable[[Any], str]) -> str:
    """What a call is given besides tensors of the model."""
    keep: Callable[[Any], str] = lambda x: (  # noqa: E731 - a short callback
        "tensor"
        if isinstance(x, keras.KerasTensor)
        else f"{x.dtype}{tuple(x.shape)}"
        if hasattr(x, "shape") and hasattr(x, "dtype")
        else words(x)
    )
    args, kwargs = keras.tree.map_structure(keep, arguments.args), keras.tree.map_structure(keep, arguments.kwargs)
    return f"{args} {sorted(kwargs.items())}"
