"""Data to run a step on: the user's, or made-up data of the same shapes and types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

__all__ = ["example", "examples", "is_alike"]


def examples(tensors: Sequence[Any], sample: Sequence[Any] | None) -> list[NDArray[Any]]:
    """For each tensor, an array of its shape and type: the sample's, if it is alike, or made-up data.

    Values do not matter for memory, but a step may fail on some. Arrays take nothing of the device's memory.
    """
    if sample is not None and is_alike(sample, tensors):
        return [np.asarray(a).astype(t.dtype.as_numpy_dtype) for a, t in zip(sample, tensors, strict=True)]
    return [_made_up(t) for t in tensors]


def is_alike(sample: Sequence[Any], tensors: Sequence[Any]) -> bool:
    """Whether a batch has the shapes of these tensors, so that a step can be run on it."""
    return [a.shape for a in sample] == [tuple(t.shape) for t in tensors]


def example(t: Any) -> tf.Tensor:
    """Made-up data of the shape and type of a tensor or a spec, as a tensor."""
    if t.dtype.is_floating:
        return tf.cast(tf.random.stateless_uniform(t.shape, [0, 0]), t.dtype)
    return tf.zeros(t.shape, t.dtype)


def _made_up(t: Any) -> NDArray[Any]:
    kind = t.dtype.as_numpy_dtype
    if t.dtype.is_floating:
        return np.random.default_rng(0).random(tuple(t.shape), np.float32).astype(kind)
    return np.full(tuple(t.shape), b"", object) if t.dtype == tf.string else np.zeros(tuple(t.shape), kind)
