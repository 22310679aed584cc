"""Computations moved up to where they are ready.

Some nodes are not told to wait for their turn: nothing but what they read holds them back. Wherever a sequence has
them, they run as soon as that is there, and what only they read may go then. So a sequence has them there, too, and its
bytes are those of the step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from .links import Links, again_in_time

__all__ = ["when_ready"]

Integers = NDArray[np.int64]


def when_ready(graph: Graph, links: Links, sequence: Integers, free: NDArray[np.bool_]) -> Integers:
    """A sequence in which some nodes come right after the last computation that they need.

    Parameters
    ----------
    graph : Graph
    links : Links
        Of the graph.
    sequence : (length,) int
        A valid order of computation.
    free : (n,) bool
        Which nodes come when they are ready. Those that are computed again then keep their places.

    Returns
    -------
    (length,) int array
        The same computations, each of which reads the same copies. The sequence that was given, where all are ready
        only there, or some node would be computed again too late (`Graph.recompute_until`).

    Notes
    -----
    O(length log length + reads).
    """
    moved: Integers = _moved(links, np.array(sequence), free)
    same = np.array_equal(moved, sequence)
    return moved if not same and again_in_time(moved, np.array(graph.recompute_until)) else sequence


@numba_jit
def _moved(links: Links, sequence: Integers, free: NDArray[np.bool_]) -> Integers:
    behind = np.arange(len(sequence))  # the last place that each needs, of those that keep theirs, or its own
    newest = np.full(len(free), -1, np.int64)  # node -> the place of its newest computation
    for place in range(len(sequence)):
        node = sequence[place]
        if free[node] and newest[node] < 0:
            behind[place] = -1
            for e in range(links.before_ptr[node], links.before_ptr[node + 1]):
                if newest[links.before[e]] >= 0:
                    behind[place] = max(behind[place], behind[newest[links.before[e]]])
        newest[node] = place
    return sequence[np.argsort(behind, kind="mergesort")]
