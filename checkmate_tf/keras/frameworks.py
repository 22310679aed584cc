"""Tells Keras 3 from Keras 2, which the package tf_keras keeps. What differs between the two is asked for here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api
from tensorflow.python.framework.config import is_op_determinism_enabled

from ..trace.rewrites.sums import grappler_sorts

__all__ = [
    "as_called",
    "bytes_of",
    "bytes_of_variables",
    "compiled_with",
    "framework_of",
    "graphs_are_made",
    "in_thread",
    "is_compiled",
    "is_from_keras",
    "is_functional",
    "is_own_step",
    "one_step_at_a_time",
    "put",
    "steps_of",
    "structs_of",
]


def framework_of(model: Any) -> Any:
    """The package whose `Model` it is, `keras` or `tf_keras`; None if it is neither's.

    tf_keras is not imported here: whoever has such a model has imported it.
    """
    legacy: Any = sys.modules.get("tf_keras")
    packages = (keras, legacy) if hasattr(legacy, "Model") else (keras,)
    return next((package for package in packages if isinstance(model, package.Model)), None)


def graphs_are_made() -> tuple[bool, bool]:
    """How graphs are made now: whether Grappler is on, which sorts terms, and whether operations are deterministic.

    A step that was traced or planned in another way computes other numbers than a plain step would now.
    """
    return grappler_sorts(), bool(is_op_determinism_enabled())


def as_called(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap a step as the model's `fit` calls it: tf_keras lets autograph convert layers, losses and custom steps."""
    if isinstance(model, keras.Model):
        return step
    return api.tf_convert(step, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))


def is_functional(model: Any) -> bool:
    """Whether its call, loss and metrics are Keras 3's, which flatten what they get: a list is as good as a tuple."""
    names = ("call", "compute_loss", "compute_metrics")
    return all(getattr(type(model), name, None) is getattr(Functional, name) for name in names)


def is_own_step(step: Callable[[Any], Any]) -> bool:
    """Whether it is the step that Keras 3 gives its models, and not one that a class or a user wrote."""
    return getattr(step, "__func__", None) is keras.Model.train_step


def is_from_keras(given: Any) -> bool:
    """Whether a loss or a metric, given by its name, as a function or as an object, is Keras's own, or None."""
    if given is None:
        return True
    if isinstance(given, str):
        return given not in keras.saving.get_custom_objects()
    inner = getattr(given, "fn", None) or getattr(given, "_fn", None)  # of a wrapper
    owner = given if isinstance(getattr(given, "__name__", None), str) else type(given)
    return str(owner.__module__).startswith(("keras.src.", "tf_keras.src.")) and (inner is None or is_from_keras(inner))


def in_thread(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function in a thread of its own, where no graph is being built, no tape records and no replica runs.

    What Keras keeps for each thread (the generator of unseeded random numbers, the default types) is as in this one.
    """
    state = dict(vars(global_state.GLOBAL_STATE_TRACKER))

    def run() -> Any:
        vars(global_state.GLOBAL_STATE_TRACKER).update(state)
        try:
            return function(*given)
        finally:
            state.update(vars(global_state.GLOBAL_STATE_TRACKER))

    with ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(run).result()
        finally:
            vars(global_state.GLOBAL_STATE_TRACKER).update(state)


def is_compiled(model: Any) -> bool:
    """True if `model.compile` was called."""
    return bool(model.compiled if isinstance(model, keras.Model) else model._is_compiled)


def compiled_with(model: Any) -> tuple[Any, ...]:
    """What `model.compile` makes for the training step. Each call makes some of these objects anew."""
    legacy = ("optimizer", "compiled_loss", "compiled_metrics")
    names = ("optimizer", "_compile_loss", "_compile_metrics", "_loss_tracker")
    return tuple(getattr(model, name, None) for name in (names if isinstance(model, keras.Model) else legacy))


def structs_of(model: Any) -> tuple[Any, Any]:
    """Symbolic inputs and outputs of a model that declares them, in the structure that it takes and gives."""
    if not isinstance(model, keras.Model):
        return model._nested_inputs, model._nested_outputs
    functional = model if hasattr(model, "_inputs_struct") else getattr(model, "_functional", None)
    return getattr(functional, "_inputs_struct", model.inputs), getattr(functional, "_outputs_struct", model.outputs)


def steps_of(model: Any) -> int:
    """How many steps a call of the train function takes."""
    if isinstance(model, keras.Model):
        return int(model.steps_per_execution)
    steps = getattr(model, "_steps_per_execution", None)
    return 1 if steps is None else int(steps.numpy())


@contextlib.contextmanager
def one_step_at_a_time(model: Any) -> Iterator[None]:
    """Let the train function take one step. In Keras 3 it ends where batches end; in Keras 2 that is an error."""
    steps = None if isinstance(model, keras.Model) else getattr(model, "_steps_per_execution", None)
    if steps is None:
        yield
        return
    before = int(steps.numpy())
    steps.assign(1)
    try:
        yield
    finally:
        steps.assign(before)


def bytes_of_variables(model: Any) -> int:
    """Bytes of the variables of a model and of the optimizer that it was compiled with, as far as they are made."""
    optimizer = getattr(model, "optimizer", None)
    slots = getattr(optimizer, "variables", ())
    return bytes_of([*(model.variables if model.built else ()), *(slots() if callable(slots) else slots)])


def bytes_of(variables: Iterable[Any]) -> int:
    """Bytes of variables, of Keras or TensorFlow, each counted once."""
    shapes = {id(v): (tf.TensorShape(v.shape), tf.as_dtype(v.dtype)) for v in variables}
    return sum((shape.num_elements() or 0) * dtype.size for shape, dtype in shapes.values())


def put(model: keras.Model, name: str, value: Any) -> None:
    """Set an attribute past Keras's tracking, so that saving does not see it."""
    object.__setattr__(model, name, value)
