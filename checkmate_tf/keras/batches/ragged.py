"""Ragged and sparse inputs: how many values come is another matter than how many samples.

A plan is for as many values as one batch had, and some more. A batch with more of them is planned for when it comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...trace.sizes.seen import MARGIN

__all__ = [
    "NOT_KNOWN",
    "are_more",
    "enlarged",
    "have_ragged",
    "is_ragged",
    "opened_ragged",
    "rows_of",
    "shapes_of",
]

NOT_KNOWN = (
    "ragged and sparse inputs have no size that follows from the batch size: leave batch_size=, input_spec= and data= "
    "out, and memory is planned for the first batch that comes"
)

_KINDS = (tf.RaggedTensor, tf.SparseTensor, tf.RaggedTensorSpec, tf.SparseTensorSpec)

Shape = tuple[int | None, ...]


def is_ragged(t: Any) -> bool:
    """Whether it is a ragged or a sparse tensor, or the spec of one."""
    return isinstance(t, _KINDS)


def have_ragged(data: Any) -> bool:
    """Whether there is such an input in a nest."""
    return any(map(is_ragged, tf.nest.flatten(data)))


def opened_ragged(t: Any) -> Any:
    """The spec of such a tensor, or of such a spec, with an open batch dimension."""
    spec = tf.type_spec_from_value(t) if isinstance(t, (tf.RaggedTensor, tf.SparseTensor)) else t
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensorSpec(shape, spec.dtype)
    return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)


def rows_of(t: Any) -> tf.Tensor:
    """The number of samples of such a tensor."""
    return tf.cast(t.nrows() if isinstance(t, tf.RaggedTensor) else t.dense_shape[0], tf.int64)


def shapes_of(data: Any, opened: Any = None) -> list[Shape]:
    """The shapes of all tensors of a nest; those of a ragged or sparse one are of its parts.

    The first dimension of others is the batch, and left open, unless it is known in `opened`, the specs of the same
    with an open batch. None of the nest has no shape.
    """
    shapes: list[Shape] = []
    given = tf.nest.flatten(data)
    for t, spec in zip(given, [None] * len(given) if opened is None else tf.nest.flatten(opened), strict=True):
        if is_ragged(t):
            shapes += [tuple(part.shape) for part in tf.nest.flatten(t, expand_composites=True)]
        elif t is not None:
            whole = tf.TensorShape(t.shape)
            shapes.append((None if spec is None else spec.shape[0], *whole[1:]) if whole.rank else ())
    return shapes


def are_more(given: Sequence[Shape], planned: Sequence[Shape]) -> bool:
    """Whether a size is above the planned one. Sizes that are open are not."""
    pairs = ((a, b) for one, other in zip(given, planned, strict=True) for a, b in zip(one, other, strict=True))
    return any(a is not None and b is not None and a > b for a, b in pairs)


def enlarged(t: Any, share: float = MARGIN) -> Any:
    """A ragged or sparse tensor with so many more values of its own; any other tensor as it is."""
    if isinstance(t, tf.RaggedTensor):
        return _longer_rows(t, share)
    return _fuller(t, share) if isinstance(t, tf.SparseTensor) else t


def _longer_rows(t: tf.RaggedTensor, share: float) -> tf.RaggedTensor:
    """The innermost rows become longer: each begins once more."""
    splits = [part.numpy() for part in t.nested_row_splits]
    lengths = np.diff(splits[-1])
    longer = np.ceil(lengths * (1 + share)).astype(lengths.dtype)
    ends = np.concatenate([[0], np.cumsum(longer)]).astype(lengths.dtype)
    within = np.arange(ends[-1]) - np.repeat(ends[:-1], longer)
    rows = np.repeat(splits[-1][:-1], longer) + within % np.repeat(np.maximum(lengths, 1), longer)
    values = tf.gather(t.flat_values, rows)
    return tf.RaggedTensor.from_nested_row_splits(values, [*splits[:-1], ends], validate=False)


def _fuller(t: tf.SparseTensor, share: float) -> tf.SparseTensor:
    """Some of the places that are free hold values, too."""
    places, values, shape = t.indices.numpy(), t.values.numpy(), t.dense_shape.numpy()
    cells = math.prod(map(int, shape))
    taken = np.ravel_multi_index(tuple(places.T), shape) if len(places) else np.zeros(0, np.int64)
    wanted = min(cells, math.ceil(len(taken) * (1 + share)))
    rng = np.random.default_rng(0)
    if wanted > cells // 2:
        more = rng.permutation(np.setdiff1d(np.arange(cells), taken))[: wanted - len(taken)]
    else:  # most places are free, and they may be too many for a list
        filled = np.unique(taken)
        while len(filled) < wanted:
            filled = np.union1d(filled, rng.integers(0, cells, wanted - len(filled)))
        more = np.setdiff1d(filled, taken)
    order = np.argsort(np.concatenate([taken, more]), kind="stable")
    whole = np.concatenate([values, np.resize(values, len(more))])[order]
    where = np.stack(np.unravel_index(np.concatenate([taken, more])[order], shape), axis=1)
    return tf.SparseTensor(where.astype(np.int64), whole, shape)
