"""Sequences with recomputations in random places."""

from __future__ import annotations

import numpy as np

from checkmate_tf.graph import BACKWARD, Graph


def with_recomputations(graph: Graph, seed: int) -> np.ndarray:
    """All nodes in order, and in random places some of them again, where they may be."""
    rng, sequence = np.random.default_rng(seed), list[int]()
    for node in range(len(graph)):
        may = [i for i in range(node) if graph.kinds[i] != BACKWARD and node < graph.recompute_until[i]]
        again = rng.permutation(may)[: rng.integers(0, 3)] if may else []
        sequence += [*(int(i) for i in again), node]
    return np.array(sequence, np.int64)
