"""How many samples a batch has: what its inputs tell of it, by those first axes that are the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from .apart import first_sizes, is_input
from .ragged import is_ragged
from .sizes import without_optional

__all__ = ["batch_axes", "most_samples", "shapes_said", "spec_of", "told_samples"]


def spec_of(value: Any) -> Any:
    """The spec of a value of a batch, without the optional around it; None of None."""
    value = without_optional(value)
    if value is None or is_ragged(value):
        return value if value is None else tf.type_spec_from_value(value)
    if not isinstance(value, tf.Tensor) and not (isinstance(value, np.ndarray) and value.dtype.kind in "biuf"):
        value = tf.convert_to_tensor(value)  # as Keras and TensorFlow do later
    return tf.TensorSpec(value.shape, tf.as_dtype(value.dtype))


def told_samples(specs: Any, opened: Any = None) -> int | None:
    """The number of samples, if each input tells it, and all the same one. `opened` tells which first axes count."""
    sizes = _sizes_of_batch(specs, opened)
    return sizes.pop() if len(sizes) == 1 else None


def most_samples(given: Any, opened: Any = None) -> int | None:
    """The most samples that an input has; None if that is open. `opened` tells which first axes count."""
    return max((s for s in _sizes_of_batch(given, opened) if s is not None), default=None)


def _sizes_of_batch(specs: Any, opened: Any) -> set[int | None]:
    """The sizes of the first axes that are open in `opened`."""
    sizes = first_sizes(specs)
    axes = [True] * len(sizes) if opened is None else batch_axes(opened)
    return {size for size, is_batch in zip(sizes, axes, strict=True) if is_batch}


def batch_axes(opened: Any) -> list[bool]:
    """Of each first axis, whether it is the batch, which is open."""
    return [size is None for size in first_sizes(opened)]


def shapes_said(given: Any) -> str:
    """The shapes of all inputs, for people."""
    return ", ".join(str(tuple(t.shape)) for t in tf.nest.flatten(given) if is_input(t))
