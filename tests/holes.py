"""The holes of an allocator, filled: what is measured then does not depend on what earlier tests left."""

from __future__ import annotations

import tensorflow as tf

from checkmate_tf.allocator.bfc import FREE, state_of_chunks
from checkmate_tf.device.memory_map import memory_map
from checkmate_tf.device.replay import allocator_of

_LEAST, _MOST = 1 << 20, 1 << 30  # bytes: what tests measure is larger, and nothing is wasted in a larger hole


def without_holes(device):
    """Tensors that fill all free chunks but the very large ones. Hold them while something is measured."""
    lies = memory_map(device)
    state = state_of_chunks(allocator_of(device), lies.address, lies.size, lies.in_use)
    free = sorted(int(size) for size in state.size[state.owner == FREE])
    with tf.device(f"/{device.name}"):
        return [tf.raw_ops.Empty(shape=[size], dtype=tf.uint8) for size in free if _LEAST <= size < _MOST]
