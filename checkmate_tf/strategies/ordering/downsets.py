"""The order of least peak of a small graph: best-first search over what has been computed so far.

A state is a set of nodes that holds what each of them needs: a down-set. It determines what is in memory. It promises
the larger of what was needed on the way and what each node to come needs at least. A node that can be computed within
that, and leaves no more in memory than there was, is computed at once: no order loses by that.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from ..orders import with_order_of_effects
from .states import Tree, bits, find, path, pop, push, reach, tree_of

__all__ = ["explore", "least_order"]

_STATES = 1_000_000  # at most: 70 MB
_SLICE = 2_000  # states explored between two looks at the clock


class _Sets(NamedTuple):
    """The graph, in bits (for Numba)."""

    sizes: NDArray[np.int64]
    needs: NDArray[np.int64]
    inputs: NDArray[np.int64]
    before: NDArray[np.int64]
    users: NDArray[np.int64]
    after: NDArray[np.int64]
    ancestors: NDArray[np.int64]


def least_order(graph: Graph, known_bytes: int, seconds: float) -> tuple[NDArray[np.int64] | None, int]:
    """An order of less than a known peak, and bytes that every order needs.

    Parameters
    ----------
    graph : Graph
        Of at most `LARGEST` nodes.
    known_bytes : int
        Without constants, as the result.
    seconds : float

    Returns
    -------
    order, bytes
        The order is None if there is none, or none was found in time. With an order, the bytes are its peak.
    """
    begun, sets, tree = time.perf_counter(), _sets(graph), tree_of(_STATES)
    _add(sets, tree, 0, 0.0, -1, -1, float(known_bytes))
    promise, more = 0.0, True
    while more and time.perf_counter() - begun < seconds:
        found, promise, more = explore(sets, tree, float(known_bytes), _SLICE)
        if found >= 0:
            return path(tree, found), int(promise)
    return None, int(min(promise, known_bytes))


def _sets(graph: Graph) -> _Sets:
    whole = with_order_of_effects(graph)
    ancestors, after = reach(whole)
    column = lambda values: np.array(values, dtype=np.int64)  # noqa: E731
    return _Sets(
        sizes=graph.sizes, needs=graph.sizes + graph.workspace, inputs=column([bits(row) for row in graph.inputs]),
        before=column([bits(row) for row in whole.inputs]), users=column([bits(row) for row in graph.users]),
        after=column(after), ancestors=column(ancestors),
    )  # fmt: skip


@numba_jit
def _alive(sets: _Sets, made: int, computed: int) -> int:
    """Bytes of those of `made` that are read by what is not in `computed`, and of results."""
    total = 0
    for i in range(sets.sizes.shape[0]):
        if made >> i & 1 and (not sets.users[i] or sets.users[i] & ~computed):
            total += sets.sizes[i]
    return total


@numba_jit
def _add(sets: _Sets, tree: Tree, done: int, spent: float, parent: int, node: int, known: float) -> bool:
    """Keep a state if it is new, or needed less than before, and promises less than `known`. False if there is no room.

    `spent` is the most that was needed so far.
    """
    state, new = find(tree, done, 0)
    if not new and spent >= tree.spent[state]:
        return True
    promise = spent
    for v in range(sets.sizes.shape[0]):
        if not done >> v & 1:  # when v is computed, nothing of what follows from it has been
            made = done | sets.ancestors[v]
            held = 0
            for i in range(sets.sizes.shape[0]):
                if made >> i & 1 and (sets.inputs[v] >> i & 1 or not sets.users[i] or sets.users[i] & sets.after[v]):
                    held += sets.sizes[i]
            promise = max(promise, float(held + sets.needs[v]))
    if promise >= known:
        return True
    return push(tree, state, new, done, 0, spent, promise, parent, node)


@numba_jit
def explore(sets: _Sets, tree: Tree, known: float, states: int) -> tuple[int, float, bool]:
    """The complete state of least peak or -1, the least promise of what is left, and whether anything is left."""
    n = sets.sizes.shape[0]
    every = (1 << n) - 1
    for _ in range(states):
        if not tree.taken[1]:
            return -1, known, False
        state = pop(tree)
        done, promise = tree.done[state], tree.promise[state]
        if done == every:
            return state, tree.spent[state], False
        live, free = _alive(sets, done, done), -1
        for k in range(n):
            if not done >> k & 1 and not sets.before[k] & ~done and live + sets.needs[k] <= promise:
                after = done | 1 << k
                if _alive(sets, after, after) <= live:
                    free = k
                    break
        for k in range(n):
            if done >> k & 1 or sets.before[k] & ~done or (free >= 0 and k != free):
                continue
            most = max(tree.spent[state], float(live + sets.needs[k]))
            if not _add(sets, tree, done | 1 << k, most, state, k, known):
                return -1, promise, False
    return -1, tree.promise[tree.heap[0]] if tree.taken[1] else known, True
