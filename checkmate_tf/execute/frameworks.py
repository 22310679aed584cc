"""Whose model it is: Keras 3, or Keras 2 as the package tf_keras keeps it; what differs between them is asked here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import keras
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api

__all__ = ["as_called", "framework_of", "is_compiled", "loss_of", "structs_of"]


def framework_of(model: Any) -> Any:
    """The package whose `Model` it is, `keras` or `tf_keras`; None if it is neither's.

    tf_keras is not imported: whoever has such a model has done so.
    """
    legacy: Any = sys.modules.get("tf_keras")
    packages = (keras, legacy) if hasattr(legacy, "Model") else (keras,)
    return next((package for package in packages if isinstance(model, package.Model)), None)


def as_called(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A step as the model's `fit` calls it: tf_keras lets autograph convert layers, losses and steps of one's own."""
    if isinstance(model, keras.Model):
        return step
    return api.tf_convert(step, ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED))


def is_compiled(model: Any) -> bool:
    """True if `model.compile` was called."""
    return bool(model.compiled if isinstance(model, keras.Model) else model._is_compiled)


def loss_of(model: Any) -> Any:
    """What holds the compiled losses: another object after each `model.compile`."""
    return getattr(model, "_compile_loss" if isinstance(model, keras.Model) else "compiled_loss", None)


def structs_of(model: Any) -> tuple[Any, Any]:
    """Symbolic inputs and outputs of a model that declares them, in the structure that it takes and gives."""
    if not isinstance(model, keras.Model):
        return model._nested_inputs, model._nested_outputs
    functional = model if hasattr(model, "_inputs_struct") else getattr(model, "_functional", None)
    return getattr(functional, "_inputs_struct", model.inputs), getattr(functional, "_outputs_struct", model.outputs)
