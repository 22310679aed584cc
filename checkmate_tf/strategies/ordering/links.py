"""What comes before and after each node in any order, and moves of an order that keep to it.

A move takes a window of the order, and a node at one of its ends. Either what follows from the first node comes last,
or what leads to the last node comes first; the rest keeps its order. So every order stays legal. A window of two swaps
neighbours. Longer windows move subtrees, and turn branches round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from ..orders import with_order_of_effects

__all__ = ["Links", "again_in_time", "links", "move", "pointers", "ragged"]


class Links(NamedTuple):
    """What comes before and after each node in any order: by values that it reads, and by effects (for Numba).

    `before[before_ptr[i]:before_ptr[i + 1]]` comes before node i, and so on.
    """

    before_ptr: NDArray[np.int64]
    before: NDArray[np.int64]
    after_ptr: NDArray[np.int64]
    after: NDArray[np.int64]


def links(graph: Graph) -> Links:
    """What comes before and after each node in any order."""
    whole = with_order_of_effects(graph)
    return Links(*ragged(whole.inputs), *ragged(whole.users))


@numba_jit
def move(
    order: NDArray[np.int64], links: Links, begin: int, end: int, later: bool, mark: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], bool]:
    """A window of an order after a move, and whether anything moved.

    Parameters
    ----------
    order : (length,) int
        Legal. A node may come again, as in a sequence with recomputations.
    begin, end : int
        The window: places from `begin` to `end`, the latter left out.
    later : bool
        Whether the first node, and what follows from it, comes last. Else the last one, and what leads to it, comes
        first.
    mark : (n,) bool
        Scratch, False before and after.
    """
    window = order[begin:end]
    count = end - begin
    pointer, linked = (links.before_ptr, links.before) if later else (links.after_ptr, links.after)
    moves = np.zeros(count, np.bool_)
    moving = 0
    for step in range(count):
        place = step if later else count - 1 - step
        k = window[place]
        follows = step == 0 or mark[k]
        for e in range(pointer[k], pointer[k + 1]):
            follows = follows or mark[linked[e]]
        moves[place] = mark[k] = follows
        moving += follows
    at, moved_at = (0, count - moving) if later else (moving, 0)
    result = np.empty_like(window)
    for place in range(count):
        k = window[place]
        mark[k] = False
        if moves[place]:
            result[moved_at] = k
            moved_at += 1
        else:
            result[at] = k
            at += 1
    return result, moving < count


@numba_jit
def again_in_time(sequence: NDArray[np.int64], until: NDArray[np.int64]) -> bool:
    """Whether a sequence, or the beginning of one, computes no node again in a stage in which it may not.

    Parameters
    ----------
    sequence : (length,) int
    until : (n,) int
        The first stage in which each node may no longer be computed again (`Graph.recompute_until`).
    """
    seen = np.zeros(len(until), np.bool_)
    stage = 0
    for node in sequence:
        if seen[node] and stage >= until[node]:
            return False
        seen[node] = True
        while stage < len(until) and seen[stage]:
            stage += 1
    return True


def ragged(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each row begins, the end as one more, and all rows in one array."""
    return pointers([len(row) for row in rows]), np.array([x for row in rows for x in row], dtype=np.int64)


def pointers(lengths: Sequence[int]) -> NDArray[np.int64]:
    """Where rows of these lengths begin in one array, and its end."""
    pointers = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=pointers[1:])
    return pointers
