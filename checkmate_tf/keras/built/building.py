"""Makes what Keras makes when a model is first trained: slots of optimizers, variables of losses and metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras

from ..frameworks import is_own_step

__all__ = ["build_training"]

log = logging.getLogger("checkmate_tf")


def build_training(model: keras.Model, spec: Any, step: Callable[[Any], Any]) -> None:
    """Create the optimizer's slots and the variables of losses and metrics, as Keras does at the first fit.

    A step that creates variables has to be traced twice. That still happens to a model that cannot be built here, and
    with a `train_step` of one's own: it may train only some of the variables, or have other optimizers.

    Parameters
    ----------
    spec : nest of tf.TensorSpec
        Of the data.
    step : callable
        The training step. Nothing is built unless it is Keras's own.
    """
    if not is_own_step(step):
        return
    if model.built and getattr(model, "compiled", False) and model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            _build_whole(model.optimizer, model.trainable_variables)
    try:
        with model.distribute_strategy.scope():
            model._symbolic_build(data_batch=spec)
    except Exception as error:  # noqa: BLE001 - whatever user code raises; tracing will tell, if it matters
        log.debug("%s: losses and metrics are built while tracing: %s", model.name, error)


def _build_whole(optimizer: keras.Optimizer, variables: list[Any]) -> None:
    """Make all slots or none: Keras calls an optimizer built before it has them all.

    They get the names that they have when a step makes them.
    """
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    before = [(o, o.built, list(o._variables)) for o in (optimizer, inner) if o is not None]
    try:
        with keras.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)
    except BaseException:
        for o, built, kept in before:
            o.built = built
            o._variables[:] = kept
        raise
