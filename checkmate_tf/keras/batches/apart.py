"""Inputs whose first axis is not the batch: nodes and edges of a graph, a table beside a batch, a second batch.

The batch is the size that most inputs have along their first axis. Of several that are equally frequent, it is the one
that comes first. The other first axes have sizes like the length of a sequence: a plan is for one of them, and batches
of another one have a plan of their own.

In the specs that plans are made for, the batch is open, and those sizes are known.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import tensorflow as tf

from ...errors import BatchSizeError
from .ragged import is_ragged, opened_ragged

__all__ = [
    "apart_in",
    "are_apart",
    "first_sizes",
    "is_input",
    "open_but",
    "samples_of",
    "told_sizes",
    "with_apart",
]


def first_sizes(specs: Any) -> list[int | None]:
    """The size of the first axis of each input that has one; None where it is open."""
    return [t.shape[0] for t in tf.nest.flatten(specs) if is_input(t) and t.shape.rank]


def told_sizes(specs: Any) -> list[int]:
    """The sizes that first axes have, in order, each once. What is open has none."""
    return sorted({size for size in first_sizes(specs) if size is not None})


def samples_of(specs: Any) -> int | None:
    """The batch size: what most inputs have that tell it, and of equals the first one. None if no input tells it."""
    sizes = Counter(size for size in first_sizes(specs) if size is not None)
    return sizes.most_common(1)[0][0] if sizes else None


def open_but(specs: Any, batch: int | None) -> Any:
    """The specs with the batch open; the other first axes keep their sizes.

    Parameters
    ----------
    specs : nest of tf.TensorSpec
    batch : int or None
        The size that is the batch. None: what is open already.

    Raises
    ------
    BatchSizeError
        If a ragged or a sparse input has another number of samples than the batch.
    """

    def opened(t: Any) -> Any:
        if is_ragged(t):
            if batch is not None and t.shape[0] not in (None, batch):
                raise BatchSizeError(
                    f"inputs disagree on the batch size: {told_sizes(specs)}. {batch} would be taken for it, and a "
                    f"ragged or sparse input has {t.shape[0]}: give such inputs as many samples as the batch has"
                )
            return opened_ragged(t)
        if not isinstance(t, tf.TensorSpec) or not t.shape.rank or t.shape[0] != batch:
            return t
        return tf.TensorSpec([None, *t.shape[1:]], t.dtype)

    return tf.nest.map_structure(opened, specs)


def apart_in(opened: Any) -> tuple[int | None, ...]:
    """Of specs with an open batch, the size of each first axis that is not the batch. Empty if there is none."""
    sizes = [_apart(t) for t in tf.nest.flatten(opened) if t is not None]
    return tuple(sizes) if any(size is not None for size in sizes) else ()


def are_apart(opened: Any) -> bool:
    """Whether specs with an open batch have first axes that are not the batch."""
    return bool(apart_in(opened))


def with_apart(specs: Any, opened: Any) -> Any:
    """Specs of the same inputs, with the sizes of those first axes that are not the batch in `opened`."""

    def sized(t: Any, other: Any) -> Any:
        size = _apart(other)
        return t if size is None or not t.shape.rank else tf.TensorSpec([size, *t.shape[1:]], t.dtype)

    flat = zip(tf.nest.flatten(specs), tf.nest.flatten(opened), strict=True)
    return tf.nest.pack_sequence_as(specs, [sized(t, other) for t, other in flat])


def _apart(t: Any) -> int | None:
    """The size of a first axis that is known where the batch is open."""
    return t.shape[0] if isinstance(t, tf.TensorSpec) and t.shape.rank else None


def is_input(t: Any) -> bool:
    """Whether it is the spec of an input, which None is not."""
    return isinstance(t, tf.TensorSpec) or is_ragged(t)
