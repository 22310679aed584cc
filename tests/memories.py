"""Memories of devices for graphs without TensorFlow: each node is one operation with one output."""

from __future__ import annotations

import numpy as np

from checkmate_tf.allocator.bfc import Bfc, empty_state
from checkmate_tf.allocator.memory import Memory, with_more
from checkmate_tf.allocator.sequence import Kernels
from checkmate_tf.graph import Graph


def kernels_of_graph(graph: Graph) -> Kernels:
    """Nothing is taken over, nothing is returned, no kernel has memory of its own."""
    n = len(graph)
    one_each = np.arange(n + 1)
    reads = np.cumsum([0, *(len(inputs) for inputs in graph.inputs)])
    read = np.array([i for inputs in graph.inputs for i in inputs], np.int64)
    ones, none = np.ones(n, np.int64), np.zeros(n + 1, np.int64)
    sizes = np.array(graph.sizes, np.int64)
    return Kernels(
        one_each, one_each, reads, read, sizes, ones, np.zeros(n, bool), -ones, none, none[1:], np.zeros(0, np.int64)
    )


def memory_of(graph: Graph, limit_bytes: int = 1 << 24, there: tuple[int, ...] = ()) -> Memory:
    """One region of so many bytes, in which chunks of some sizes lie already, one beside the other."""
    allocator = Bfc(limit_bytes, growth=False)
    return Memory(allocator, with_more(allocator, empty_state(allocator), there), kernels_of_graph(graph))
