"""Has `fit` on arrays make each batch for its step, where the input pipeline lies in the memory of the model.

Keras reads arrays through a tf.data pipeline of its own. It makes as many batches ahead as there are cores to make
them, and keeps more if it was ever too late. On a CPU all of them lie in the model's memory: six batches took 35 of a
U-Net's 136 MB. One that is made while a step runs comes at another time in each step, and what it finds free then
decides where the step's values go: a U-Net measured at 143 MB took 162. To copy rows takes a hundredth of a step.

So the iterator that `fit` trains on is replaced by another one over the same data set, without the prefetch at its end,
which makes a batch when it is asked for one. The batches are the same, shuffled alike. Pipelines of the user's stay as
they are.

An iterator that was there before may have been read: a callback may compile or restore the model within an epoch. It
goes on as it is, and so does what took the place of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import ops

from ...fit.options import Given
from .pipelines import input_of, without_options

__all__ = ["Feed", "given_as", "held_by_caller", "is_pipeline", "without_tuning"]

_ADAPTERS = ("ArrayDataAdapter.", "TensorLikeDataAdapter.")  # of Keras 3 and Keras 2: they make batches of arrays


def is_pipeline(data: Any) -> bool:
    """Whether it is an iterator of tf.data. Single batches, and those of replicas, come as others."""
    return isinstance(data, tf.data.Iterator)


def held_by_caller(data: Any) -> tuple[Any, Given]:
    """What a train function is called with, and as what the caller holds its batch, if that is no pipeline."""
    if is_pipeline(data) or not isinstance(data, Iterator):
        return data, ""
    batch = next(data)
    return _from(batch, data), given_as(batch)


def _from(batch: Any, rest: Iterator[Any]) -> Iterator[Any]:
    """A batch that was looked at, and the rest. Weak references to a generator can be had, as to the caller's own."""
    yield batch
    yield from rest


def given_as(batch: Any) -> Given:
    """As what whoever calls a step from Python holds its batch. Tensors beside arrays count as arrays: that is more."""
    return "tensors" if all(tf.is_tensor(t) for t in tf.nest.flatten(batch) if t is not None) else "arrays"


class Feed:
    """The iterators that take the place of those that Keras makes. Each lives as long as the one that it replaces.

    Parameters
    ----------
    before : Feed, optional
        Of the model so far. What took the place of an iterator there goes on here.
    """

    def __init__(self, before: Feed | None = None) -> None:
        self._held: WeakKeyDictionary[Any, Any] = WeakKeyDictionary() if before is None else before._held
        self._begun = ops.uid()  # tensors that are made later have larger numbers, and so have iterators

    def holds(self, iterator: Any) -> bool:
        """Whether it is one of those that make no batch ahead."""
        return any(iterator is held for held in self._held.values())

    def is_used(self) -> bool:
        """Whether an iterator that is still there has been replaced."""
        return len(self._held) > 0

    def known(self, iterator: Any) -> Any:
        """What has taken an iterator's place; None if nothing has."""
        return self._held.get(iterator) if is_pipeline(iterator) else None

    def held(self, iterator: Any) -> Any:
        """The iterator that makes no batch ahead.

        None if `iterator` is not one that Keras made for arrays, or was there before, so that it may have been read.
        """
        if iterator not in self._held:
            dataset = _one_by_one(iterator)
            if dataset is None or iterator._iterator_resource._id < self._begun:
                return None
            self._held[iterator] = iter(dataset.with_options(_none_ahead()))
        return self._held[iterator]


def _one_by_one(iterator: Any) -> tf.data.Dataset | None:
    """The iterator's data set, as one that makes its batches when they are asked for.

    None if it is not Keras's, or not built as known here: batches gathered by a parallel map, and prefetched.
    """
    prefetching = getattr(iterator, "_dataset", None)
    if type(prefetching).__name__ != "_PrefetchDataset":
        return None
    inner = without_options(input_of(prefetching))
    if type(inner).__name__ != "_ParallelMapDataset":
        return None
    gather = getattr(getattr(inner, "_map_func", None), "_func", None)
    rows = input_of(inner)
    if rows is None or not getattr(gather, "__qualname__", "").startswith(_ADAPTERS):
        return None
    return rows.map(gather)


def without_tuning() -> tf.data.Options:
    """Of a pipeline that has nothing to tune. To end the thread that tunes takes ten milliseconds."""
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def _none_ahead() -> tf.data.Options:
    options = without_tuning()
    options.experimental_optimization.inject_prefetch = False
    return options
