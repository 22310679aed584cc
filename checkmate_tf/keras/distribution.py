"""Training spread over devices by `tf.distribute`: every replica runs one and the same plan on its share of the batch.

Keras runs `train_step` once for each replica. The replicas meet, what they were given is put together, the planned step
of all of them is emitted, and each takes its own result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from ..device.measure import Device, find_device
from ..errors import ModelError
from .frameworks import framework_of

__all__ = ["NOT_MEASURED", "Distribution", "distribution_of"]

NOT_MEASURED = (
    "replicas on one CPU share its allocator, and workers would have to run each plan in step: measure the plan on one "
    "device, with the batch of one replica"
)


@dataclass(frozen=True, eq=False)
class Distribution:
    """How a model is spread.

    Attributes
    ----------
    strategy : tf.distribute.Strategy
    devices : tuple of str
        Of the replicas in this process.
    replicas : int
        Of all processes.
    """

    strategy: tf.distribute.Strategy
    devices: tuple[str, ...]
    replicas: int

    @property
    def device(self) -> Device:
        """The first replica's device; not measurable unless it is a GPU, and all replicas are in this process.

        Replicas on the CPU have equal shares of its memory.
        """
        place = tf.DeviceSpec.from_string(self.devices[0])
        found = find_device(f"{place.device_type}:{place.device_index or 0}")
        if found.is_cpu:
            return Device(found.name, found.limit_bytes // len(self.devices), measurable=False)
        return Device(found.name, found.limit_bytes, found.measurable and self.replicas == len(self.devices))

    def share(self, batch_size: int) -> int:
        """The most samples that a replica gets of a batch."""
        return -(-batch_size // self.replicas)

    def side_by_side(self, step: Callable[[Any], Any]) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
        """The steps of all replicas of this process: takes the data of each, and returns the result of each."""

        def steps(data: Sequence[Any]) -> tuple[Any, ...]:
            results = self.strategy.run(tf.autograph.experimental.do_not_convert(lambda: step(data[self._here()])))
            return tuple(self._part(results, k) for k in range(len(self.devices)))

        return steps

    def together(self, data: Any, action: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Called by each replica with its data: one call of `action` with the data of all, and for each its result."""

        def meet(strategy: tf.distribute.Strategy, given: Any) -> list[Any]:
            return list(action([self._part(given, k) for k in range(len(self.devices))]))

        return tf.distribute.get_replica_context().merge_call(meet, args=(data,))[self._here()]

    def _part(self, values: Any, k: int) -> Any:
        """What replica `k` has; all have the same where it is not spread (`train_on_batch`)."""

        def part(value: Any) -> Any:
            found = self.strategy.experimental_local_results(value)
            return found[k] if len(found) > 1 else found[0]

        return tf.nest.map_structure(part, values)

    def _here(self) -> int:
        """Which of this process's replicas is running."""
        number = tf.distribute.get_replica_context().replica_id_in_sync_group  # in a graph, a constant
        return int(tf.get_static_value(number) if tf.is_tensor(number) else number) % len(self.devices)


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
