"""What an order without recomputation holds in memory: a value lives from its computation to its last reader."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from .crossing import MOST, ancestors, crossing
from .links import Links, links, ragged

__all__ = ["Lives", "compute", "least_possible", "lives", "peak", "profile"]


class Lives(NamedTuple):
    """Arrays of a graph (for Numba). Bytes without the constants."""

    links: Links
    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int64]
    readers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    needs: NDArray[np.int64]


def lives(graph: Graph) -> Lives:
    """Arrays of a graph."""
    readers = np.array([len(row) for row in graph.users], dtype=np.int64)
    return Lives(links(graph), *ragged(graph.inputs), readers, graph.sizes, graph.sizes + graph.workspace)


@numba_jit
def compute(lives: Lives, k: int, live: int, left: NDArray[np.int64]) -> int:
    """Bytes in memory after node k, if there were `live`; takes it off the readers that are left of its inputs."""
    live += lives.sizes[k]
    for e in range(lives.input_ptr[k], lives.input_ptr[k + 1]):
        p = lives.inputs[e]
        left[p] -= 1
        if left[p] == 0:
            live -= lives.sizes[p]
    return live


@numba_jit
def profile(lives: Lives, order: NDArray[np.int64], memory: NDArray[np.int64], left: NDArray[np.int64]) -> None:
    """Write the bytes that each computation of an order needs to `memory`. `left` is scratch."""
    left[:] = lives.readers
    live = 0
    for at in range(order.shape[0]):
        k = order[at]
        memory[at] = live + lives.needs[k]
        live = compute(lives, k, live, left)


def peak(lives: Lives, order: NDArray[np.int64]) -> int:
    """Most bytes at any computation of an order."""
    memory, left = np.zeros(len(order), np.int64), np.zeros(len(order), np.int64)
    profile(lives, order, memory, left)
    return int(memory.max(initial=0))


def least_possible(graph: Graph) -> int:
    """Bytes that every order needs, without constants.

    When node v is computed, its inputs are in memory, and what its ancestors made for its descendants, or as results.
    """
    if len(graph) > MOST:
        return int(graph.working_set.max(initial=0))
    held = crossing(graph, ancestors(graph))
    for v, row in enumerate(graph.inputs):
        held[list(row), v] = False  # counted in the working set
    needed: NDArray[np.int64] = held.T @ graph.sizes + graph.working_set
    return int(needed.max(initial=0))
