"""What comes before each node in any order, and what is read across it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph

__all__ = ["MOST", "ancestors", "crossing"]

MOST = 6000
"""Nodes of a graph, for which this is asked: ancestors are a matrix, 36 MB then."""


def ancestors(graph: Graph) -> NDArray[np.bool_]:
    """(n, n) bool: [v, i], node i comes before node v in any order, because v is made of it."""
    before = np.zeros((len(graph), len(graph)), dtype=np.bool_)
    for v, row in enumerate(graph.inputs):
        for i in row:
            before[v] |= before[i]
            before[v, i] = True
    return before


def crossing(graph: Graph, before: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n, n) bool: [i, v], i comes before v, and is read after v or a result: it is kept across v, or made again."""
    read = np.zeros_like(before)
    for i, users in enumerate(graph.users):
        read[i] = before[np.array(users)].any(axis=0) if users else True
    return read & before.T
