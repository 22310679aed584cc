"""Hands a batch that was taken out of a pipeline to a train function, which reads iterators.

The iterator is of the type of the one that the batch came from, and it keeps nothing: the batch is freed by the step
that reads it, as it is in other steps. One over `Dataset.from_tensors` would keep it for longer than the step. The
first step of each epoch would then take a batch more than was planned for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from .feeding import without_tuning

__all__ = ["Hand"]


class Hand:
    """Gives batches on, one at a time. What a pipeline of such batches is made of is kept, for the next one."""

    def __init__(self) -> None:
        self._pipelines: dict[Any, tf.data.Dataset] = {}
        self._held: list[Any] = []  # the parts of the batch that comes next

    def over(self, batch: Any, spec: Any) -> Iterator[Any]:
        """An iterator over one batch, which is to be read before the next one is given.

        Parameters
        ----------
        batch : nest of tensors or arrays
            Whoever calls should keep no reference to it.
        spec : nest of tf.TypeSpec
            Of the iterator.
        """
        parts = tf.nest.flatten(batch, expand_composites=True)
        if not parts or not all(hasattr(part, "dtype") and hasattr(part, "shape") for part in parts):  # None, say
            return iter(_typed(tf.data.Dataset.from_tensors(batch), spec))
        types = tuple((tf.as_dtype(part.dtype), len(part.shape)) for part in parts)
        key = types, str(tf.nest.map_structure(lambda _: 0, spec)), tuple(tf.nest.flatten(spec))
        if key not in self._pipelines:
            self._pipelines[key] = _typed(self._pipeline(spec, types), spec)
        self._held[:] = parts
        return iter(self._pipelines[key])

    def _pipeline(self, spec: Any, types: tuple[tuple[tf.DType, int], ...]) -> tf.data.Dataset:
        """Of one batch, the one that is held when it is read."""

        def read(_: Any) -> Any:
            parts = tf.py_function(self._let_go, [], [dtype for dtype, _ in types])
            for part, (_, rank) in zip(parts, types, strict=True):
                part.set_shape([None] * rank)
            return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)

        with tf.device("/device:CPU:0"):  # where batches lie that a pipeline makes
            return tf.data.Dataset.range(1).map(read)

    def _let_go(self) -> list[Any]:
        parts, self._held[:] = list(self._held), []
        return parts


def _typed(dataset: tf.data.Dataset, spec: Any) -> tf.data.Dataset:
    """The same, of such specs."""
    with tf.device("/device:CPU:0"):
        variant = tf.data.experimental.to_variant(dataset)
    return tf.data.experimental.from_variant(variant, spec).with_options(without_tuning())
