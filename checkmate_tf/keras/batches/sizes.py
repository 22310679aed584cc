"""Inputs whose sizes differ from batch to batch, as buckets of sequence lengths. The batch dimension is another matter.

A plan is for one combination of sizes. Each has a train function of its own: in one function TensorFlow would leave the
sizes open as soon as two of them have come.

The step itself is traced with such sizes open, as a plain one is. Keras decides by known sizes how it multiplies: a
step that was traced for one length would give other last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from .ragged import have_ragged, is_ragged, opened_ragged

__all__ = [
    "Functions",
    "Sizes",
    "as_given",
    "have_open_sizes",
    "is_wider",
    "open_where_they_differ",
    "opened_batch",
    "sizes_of",
    "without_optional",
]

Sizes = tuple[tuple[int | None, ...] | None, ...]
"""Of each input that is given, all dimensions but the first; None for what is no tensor."""


def sizes_of(data: Any) -> Sizes:
    """The sizes of a nest of tensors, arrays or specs. What is None, such as weights that were not given, has none."""
    shapes = [getattr(t, "shape", None) for t in map(without_optional, tf.nest.flatten(data)) if t is not None]
    return tuple(None if s is None else tuple(tf.TensorShape(s)[1:]) if _rank(s) else () for s in shapes)


def without_optional(value: Any) -> Any:
    """What stands for None in a pipeline is None to a step."""
    optional = (tf.experimental.Optional, tf.OptionalSpec)
    return None if isinstance(value, optional) or type(value).__name__ == "NoneTensorSpec" else value


def have_open_sizes(spec: Any) -> bool:
    """Whether batches of these specs may differ in more than their number of samples."""
    dense = [t for t in tf.nest.flatten(spec) if isinstance(t, tf.TensorSpec)]
    return have_ragged(spec) or any(t.shape.rank is None or None in t.shape.as_list()[1:] for t in dense)


def as_given(spec: Any, batch: Any) -> Any:
    """Specs of a pipeline, with the sizes of one of its batches. Their batch dimension stays as it is."""

    def sized(t: Any, value: Any) -> Any:
        if is_ragged(t):
            return opened_ragged(value)
        if not isinstance(t, tf.TensorSpec) or not _rank(value.shape):
            return t
        return tf.TensorSpec([t.shape[0] if t.shape.rank else None, *value.shape[1:]], t.dtype)

    return tf.nest.map_structure(sized, spec, batch)


def is_wider(spec: Any, opened: Any) -> bool:
    """Whether batches of these specs may differ in more than their number of samples, which is open in `opened`."""
    pairs = zip(tf.nest.flatten(spec), tf.nest.flatten(opened), strict=True)
    return have_open_sizes(spec) or any(
        isinstance(t, tf.TensorSpec) and t.shape.rank and t.shape[0] is None and other.shape[0] is not None
        for t, other in pairs
    )


def opened_batch(spec: Any, opened: Any) -> Any:
    """The same specs with the batch dimension, which is open in `opened`, open, too."""

    def one(t: Any, other: Any) -> Any:
        if is_ragged(t):
            return opened_ragged(t)
        if not isinstance(t, tf.TensorSpec) or not t.shape.rank or other.shape[0] is not None:
            return t
        return tf.TensorSpec([None, *t.shape[1:]], t.dtype)

    return tf.nest.map_structure(one, spec, opened)


def open_where_they_differ(spec: Any, others: Sequence[Sequence[Any]]) -> Any:
    """The specs of a batch, open in each dimension in which one of `others` (the same inputs, flat) differs."""

    def common(t: Any, *same: Any) -> Any:
        if not isinstance(t, tf.TensorSpec) or not t.shape.rank:
            return t
        shape = t.shape
        for other in same:
            if isinstance(other, tf.TensorSpec) and other.shape.rank == shape.rank:
                shape = tf.TensorShape([a if a == b else None for a, b in zip(shape, other.shape, strict=True)])
        return tf.TensorSpec(shape, t.dtype)

    flat = [common(*each) for each in zip(tf.nest.flatten(spec), *others, strict=True)]
    return tf.nest.pack_sequence_as(spec, flat)


class Functions:
    """Train functions, one for each combination of sizes.

    Attributes
    ----------
    last : callable or None
        The one that was made last.
    """

    def __init__(self) -> None:
        self.last: Callable[..., Any] | None = None
        self._known: dict[Sizes, Callable[..., Any]] = {}

    def begin(self, function: Callable[..., Any]) -> None:
        """Forget all but a new one, which is for the sizes that come first."""
        self.last, self._known = function, {}

    def get(self, sizes: Sizes, make: Callable[[], object]) -> Callable[..., Any]:
        """The function for such sizes. One more is made by `make`, which calls `begin`."""
        if sizes not in self._known:
            known = self._known
            if known or self.last is None:
                make()
            assert self.last is not None
            self._known = {**known, sizes: self.last}
        return self._known[sizes]

    def forget(self, sizes: Sizes) -> None:
        """Forget the function for such sizes, if there is one."""
        if self._known.pop(sizes, None) is self.last:
            self.last = None


def _rank(shape: Any) -> int:
    return tf.TensorShape(shape).rank or 0
