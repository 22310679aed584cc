"""Data to run a step on: the user's, or made-up data of the same shapes and types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

__all__ = ["example", "examples"]


def examples(tensors: Sequence[Any], sample: Sequence[Any] | None) -> list[Callable[[], tf.Tensor]]:
    """For each tensor, a function that makes data of its shape and type: the sample's, if it is alike, or made-up data.

    Values do not matter for memory, but a step may fail on some.
    """
    alike = sample is not None and [a.shape for a in sample] == [tuple(t.shape) for t in tensors]
    if alike:
        return [partial(tf.cast, a, t.dtype) for a, t in zip(sample or (), tensors, strict=True)]
    return [partial(example, t) for t in tensors]


def example(t: Any) -> tf.Tensor:
    """Made-up data of the shape and type of a tensor or a spec."""
    if t.dtype.is_floating:
        return tf.cast(tf.random.stateless_uniform(t.shape, [0, 0]), t.dtype)
    return tf.zeros(t.shape, t.dtype)
