"""Training spread over devices by `tf.distribute`: every replica runs one and the same plan on its share of the batch.

Keras runs `train_step` once for each replica. Here the replicas wait for each other, and their data is put together.
The planned steps of all of them are emitted at once. Then each replica takes its own result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from .measure import Device, find_device

__all__ = ["NOT_MEASURED", "Distribution"]

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
        The devices of the replicas in this process.
    replicas : int
        How many there are in all processes together.
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
        """Meet the other replicas. `action` is called once, with the data of all; each replica gets its own result."""

        def meet(strategy: tf.distribute.Strategy, given: Any) -> list[Any]:
            return list(action([self._part(given, k) for k in range(len(self.devices))]))

        return tf.distribute.get_replica_context().merge_call(meet, args=(data,))[self._here()]

    def _part(self, values: Any, k: int) -> Any:
        """What replica `k` has. All have the same where nothing is spread (`train_on_batch`)."""

        def part(value: Any) -> Any:
            found = self.strategy.experimental_local_results(value)
            return found[k] if len(found) > 1 else found[0]

        return tf.nest.map_structure(part, values)

    def _here(self) -> int:
        """Which of this process's replicas is running."""
        number = tf.distribute.get_replica_context().replica_id_in_sync_group  # in a graph, a constant
        return int(tf.get_static_value(number) if tf.is_tensor(number) else number) % len(self.devices)
