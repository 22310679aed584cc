"""What a tf.data pipeline tells of its batches without being read.

To read one batch is no small thing: one that shuffles then goes on in another order, and a stream that comes once lacks
it. `Dataset.batch` leaves the batch dimension open, since the last batch may be smaller, but the data set that it makes
knows its number. What lies behind it is followed: data sets that hand batches on as they are, functions that are mapped
over them (which tf.data traces once more, for batches of that size), and data sets zipped together.
"""

from __future__ import annotations

import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops.dataset_ops import UnaryUnchangedStructureDataset

from .ragged import is_ragged

__all__ = ["input_of", "sized_spec", "without_options"]

_BATCHES = ("_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset")
_MAPS = ("_MapDataset", "_ParallelMapDataset")


def input_of(dataset: Any) -> Any:
    """The data set that another one reads; None if it reads none, or several."""
    return getattr(dataset, "_input_dataset", None)


def without_options(dataset: Any) -> Any:
    """The data set that options were set on."""
    while type(dataset).__name__ == "_OptionsDataset":
        dataset = input_of(dataset)
    return dataset


def sized_spec(dataset: tf.data.Dataset) -> Any:
    """The specs of its elements, with the size of the largest batch where the pipeline tells it. It is not read."""
    spec, kind = dataset.element_spec, type(dataset).__name__
    if kind in _BATCHES:
        return _of_size(spec, _largest_batch(dataset))
    if kind in _MAPS:
        with contextlib.suppress(Exception):  # a function of the user's, that may not be meant to be traced again
            return _mapped(dataset)
        return spec
    if kind == "_ZipDataset":
        return tf.nest.pack_sequence_as(dataset._datasets, list(map(sized_spec, tf.nest.flatten(dataset._datasets))))
    return sized_spec(input_of(dataset)) if isinstance(dataset, UnaryUnchangedStructureDataset) else spec


def _largest_batch(batches: Any) -> int | None:
    """Of a data set that makes batches: as many samples as were asked for, or as there are."""
    asked = tf.get_static_value(batches._batch_size)
    if asked is None:
        return None
    there_are = int(input_of(batches).cardinality())
    return min(int(asked), there_are) if there_are > 0 else int(asked)  # below 0: without end, or unknown


def _of_size(spec: Any, size: int | None) -> Any:
    """The specs of batches, with their size."""

    def sized(t: Any) -> Any:
        return tf.TensorSpec([size, *t.shape[1:]], t.dtype) if isinstance(t, tf.TensorSpec) and t.shape.rank else t

    return tf.nest.map_structure(sized, spec)


def _mapped(dataset: Any) -> Any:
    """The specs of a data set that maps a function over another one, as they are for what that one tells."""
    before = input_of(dataset)
    spec = sized_spec(before)
    if spec == before.element_spec or any(map(is_ragged, tf.nest.flatten(spec))):
        return dataset.element_spec
    never_read = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
    return never_read.map(dataset._map_func._func).element_spec
