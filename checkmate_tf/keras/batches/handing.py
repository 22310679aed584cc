"""Hands a batch that was taken out of a pipeline to a train function, which reads iterators.

The iterator is of the type of the one that the batch came from, and it keeps nothing: the batch is freed by the step
that reads it, as it is in other steps. One over `Dataset.from_tensors` would keep it for longer than the step. The
first step of each epoch would then take a batch more than was planned for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from .feeding import without_tuning

__all__ = ["Hand"]

_ON_CPU = "/device:CPU:0"  # where batches lie that a pipeline makes


class Hand:
    """Gives batches on, one at a time. What a pipeline of such batches is made of is kept, for the next one."""

    def __init__(self) -> None:
        self._pipelines: dict[Any, tf.data.Dataset] = {}
        self._held: list[Any] = []  # the parts of the batch that comes next; pipelines hold this list, and nothing else

    def over(self, batch: Any, spec: Any) -> Iterator[Any]:
        """An iterator over one batch, which is to be read before the next one is given.

        Parameters
        ----------
        batch : nest of tensors or arrays
            Whoever calls should keep no reference to it.
        spec : nest of tf.TypeSpec
            Of the iterator.
        """
        leaves = [None if leaf is None else tf.nest.flatten(leaf, True) for leaf in tf.nest.flatten(batch)]
        parts = [part for leaf in leaves if leaf is not None for part in leaf]
        if not parts or not all(hasattr(part, "dtype") and hasattr(part, "shape") for part in parts):  # bytes, say
            with tf.device(_ON_CPU):
                return _iterator(tf.data.Dataset.from_tensors(batch), spec)
        types = tuple((tf.as_dtype(part.dtype), len(part.shape)) for part in parts)
        forms = tuple(
            None if leaf is None else _opened(t) for leaf, t in zip(leaves, tf.nest.flatten(spec), strict=True)
        )
        key = types, forms, str(tf.nest.map_structure(lambda _: 0, spec))
        if key not in self._pipelines:
            with tf.device(_ON_CPU):
                self._pipelines[key] = tf.data.Dataset.range(1).map(_reading(self._held, types, forms, spec))
        self._held[:] = parts
        return _iterator(self._pipelines[key], spec)

    def drop(self) -> None:
        """Forget the batch, if nobody read it."""
        self._held.clear()


def _reading(
    held: list[Any], types: tuple[tuple[tf.DType, int], ...], forms: tuple[Any, ...], structure: Any
) -> Callable[[Any], Any]:
    """What makes the batch whose parts are held when it is called. They are held no longer then.

    TensorFlow keeps Python functions of pipelines to the end of the process: this one holds the list alone.
    """

    def let_go() -> list[Any]:
        parts = list(held)
        held.clear()
        return parts

    @tf.autograph.experimental.do_not_convert
    def read(_: Any) -> Any:
        parts = tf.py_function(tf.autograph.experimental.do_not_convert(let_go), [], [dtype for dtype, _ in types])
        for part, (_, rank) in zip(parts, types, strict=True):
            part.set_shape([None] * rank)
        leaves, rest = [], list(parts)
        for form in forms:
            count = 0 if form is None else len(tf.nest.flatten(form, True))
            mine, rest = rest[:count], rest[count:]
            leaves.append(None if form is None else tf.nest.pack_sequence_as(form, mine, True))
        return tf.nest.pack_sequence_as(structure, leaves)

    return read


def _opened(spec: Any) -> Any:
    """The spec of a part with no size, so that parts of other sizes are read in the same way."""
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(None, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(None, spec.dtype)
    return tf.TensorSpec(None, spec.dtype)


def _iterator(dataset: tf.data.Dataset, spec: Any) -> Iterator[Any]:
    """Over the same, of such specs."""
    with tf.device(_ON_CPU):
        variant = tf.data.experimental.to_variant(dataset)
    return iter(tf.data.experimental.from_variant(variant, spec).with_options(without_tuning()))
