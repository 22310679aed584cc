"""The states of a best-first search: a table that finds them, and a heap of those to explore next (for Numba).

A state is two sets of nodes, each the bits of an integer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit

__all__ = ["LARGEST", "Tree", "bits", "find", "path", "pop", "push", "reach", "tree_of"]

LARGEST = 62
"""Nodes of a graph: a set of nodes is the bits of an integer of 64 bits, with room for its sign and for 1 << n."""


def bits(nodes: Iterable[int]) -> int:
    """A set of nodes."""
    return sum(1 << int(i) for i in nodes)


def reach(graph: Graph) -> tuple[list[int], list[int]]:
    """Of each node what it is made of, and what is made of it, directly or not."""
    ancestors, descendants = [0] * len(graph), [0] * len(graph)
    for v, row in enumerate(graph.inputs):
        for i in row:
            ancestors[v] |= ancestors[i] | 1 << i
    for i in reversed(range(len(graph))):
        for u in graph.users[i]:
            descendants[i] |= descendants[u] | 1 << u
    return ancestors, descendants


class Tree(NamedTuple):
    """All states reached.

    A state is explored before another if it promises less, or as much and has spent more.
    """

    done: NDArray[np.int64]
    memory: NDArray[np.int64]
    spent: NDArray[np.float64]
    promise: NDArray[np.float64]
    parent: NDArray[np.int32]
    node: NDArray[np.int8]
    heap: NDArray[np.int32]
    place: NDArray[np.int32]  # in the heap, from 1; 0 outside
    table: NDArray[np.int32]  # states, from 1; 0 where there is none
    taken: NDArray[np.int64]  # of the states, and of the heap


def tree_of(most: int) -> Tree:
    """Room for so many states. Pages are taken as they are written to."""
    slots = 1 << (2 * most - 1).bit_length()
    return Tree(
        done=np.zeros(most, np.int64), memory=np.zeros(most, np.int64), spent=np.zeros(most), promise=np.zeros(most),
        parent=np.zeros(most, np.int32), node=np.zeros(most, np.int8), heap=np.zeros(most, np.int32),
        place=np.zeros(most, np.int32), table=np.zeros(slots, np.int32), taken=np.zeros(2, np.int64),
    )  # fmt: skip


@numba_jit
def find(tree: Tree, done: int, memory: int) -> tuple[int, bool]:
    """The state, or the slot of the table where it will be; whether it is new."""
    slots = tree.table.shape[0]
    mixed = (done * 0x9E3779B97F4A7C1 + memory * 0x7F4A7C159E3779B) ^ (done >> 17) ^ (memory >> 23)
    at = (mixed ^ (mixed >> 29)) & (slots - 1)
    while tree.table[at]:
        state = tree.table[at] - 1
        if tree.done[state] == done and tree.memory[state] == memory:
            return state, False
        at = (at + 1) & (slots - 1)
    return at, True


@numba_jit
def push(
    tree: Tree, found: int, new: bool, done: int, memory: int, spent: float, promise: float, parent: int, node: int
) -> bool:
    """Keep a state to be explored, after `find` said where. False if there is no room for it."""
    state = found
    if new:
        state = tree.taken[0]
        if state == tree.done.shape[0]:
            return False
        tree.taken[0] += 1
        tree.table[found] = state + 1
        tree.done[state], tree.memory[state] = done, memory
    tree.spent[state], tree.promise[state] = spent, promise
    tree.parent[state], tree.node[state] = parent, node
    heap, at = tree.heap, tree.place[state] - 1
    if at < 0:
        at = tree.taken[1]
        tree.taken[1] += 1
    while at > 0:
        above = (at - 1) // 2
        if not _first(tree, state, heap[above]):
            break
        heap[at] = heap[above]
        tree.place[heap[at]] = at + 1
        at = above
    heap[at] = state
    tree.place[state] = at + 1
    return True


@numba_jit
def pop(tree: Tree) -> int:
    """The state to explore next, which leaves the heap."""
    heap = tree.heap
    top = heap[0]
    tree.place[top] = 0
    tree.taken[1] -= 1
    size = tree.taken[1]
    if size:
        state, at = heap[size], 0
        while True:
            child = 2 * at + 1
            if child >= size:
                break
            if child + 1 < size and _first(tree, heap[child + 1], heap[child]):
                child += 1
            if not _first(tree, heap[child], state):
                break
            heap[at] = heap[child]
            tree.place[heap[at]] = at + 1
            at = child
        heap[at] = state
        tree.place[state] = at + 1
    return top


@numba_jit
def _first(tree: Tree, a: int, b: int) -> bool:
    if tree.promise[a] != tree.promise[b]:
        return tree.promise[a] < tree.promise[b]
    return tree.spent[a] > tree.spent[b]


def path(tree: Tree, state: int) -> NDArray[np.int64]:
    """The nodes computed on the way to a state."""
    nodes = []
    while tree.parent[state] >= 0:
        nodes.append(int(tree.node[state]))
        state = int(tree.parent[state])
    return np.array(nodes[::-1], dtype=np.int64)
