"""Chunks of the CPU's allocator, taken one by one: a tensor that nothing writes to, and where it lies.

A chunk is held as long as its tensor is.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from ...allocator.kernel import GRAIN

__all__ = ["GRAIN", "address", "rounded", "take"]


def take(size: int) -> tf.Tensor:
    """A tensor of so many bytes, in the chunk that the allocator gives it."""
    return tf.raw_ops.Empty(shape=[size], dtype=tf.uint8)


def address(tensor: tf.Tensor) -> int:
    """Where a tensor on a CPU lies."""
    found: int = np.asarray(memoryview(tensor)).__array_interface__["data"][0]
    return found


def rounded(size: int) -> int:
    """Bytes of the least chunk that has room for so many."""
    return -(-size // GRAIN) * GRAIN
