"""How a model is spread over devices, asked of the model."""

from __future__ import annotations

import keras
import tensorflow as tf

from ..device.distribution import Distribution
from ..errors import ModelError
from .frameworks import framework_of

__all__ = ["distribution_of"]


def distribution_of(model: keras.Model) -> Distribution | None:
    """How a model is spread over devices; None if it is not.

    Raises
    ------
    ModelError
        For other strategies than MirroredStrategy and MultiWorkerMirroredStrategy, for models of tf_keras, and for
        those that run eagerly.
    """
    strategy = getattr(model, "distribute_strategy", None)
    servers = isinstance(strategy, tf.distribute.ParameterServerStrategy)
    if strategy is None or (strategy.num_replicas_in_sync == 1 and not servers):
        return None
    mirrored = isinstance(strategy, (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy))
    if not mirrored or framework_of(model) is not keras:
        raise ModelError(
            f"{model.name!r} is spread over {strategy.num_replicas_in_sync} devices by {type(strategy).__name__}; "
            "plans are for one device, or for a Keras 3 model under MirroredStrategy or MultiWorkerMirroredStrategy: "
            "build and compile the model under one of these, or outside of any strategy's scope"
        )
    if getattr(model, "run_eagerly", False):
        raise ModelError(
            f"{model.name!r} runs eagerly under {type(strategy).__name__}: compile it with run_eagerly=False"
        )
    return Distribution(strategy, tuple(strategy.extended.worker_devices), strategy.num_replicas_in_sync)
