"""A greedy order of least peak: one descent after another.

A descent is a piece of the step that starts with what has been computed, and ends with no more in memory: a hill, then
a valley. Those that need least on the way come first. Where no piece ends lower, the one that leaves least comes first,
or the one that rises most above its end: so Liu merges the branches of a tree (SIAM J. Algebraic Discrete Methods 8,
1987). Pieces are a node and what it needs, in a given order, for some of the next nodes of that order.

The given order is the graph's, or a depth-first one: for each node first the input whose own inputs rise most above
it. For trees that is the best among depth-first orders (Liu, ACM Transactions on Mathematical Software 12, 1986).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from ..orders import with_order_of_effects
from .lives import Lives, compute, lives, peak

__all__ = ["depth_first", "descend", "start_order"]

_WIDTH = 32  # nodes that may end a descent: more gain nothing on trees and grids


def depth_first(graph: Graph) -> NDArray[np.int64]:
    """Node after node with all that it needs, the highest of its inputs first."""
    inputs, sizes = with_order_of_effects(graph).inputs, graph.sizes.tolist()
    needs = graph.working_set.tolist()
    rises = [0] * len(graph)  # bytes that a node and what it needs take at most, over what is in memory before
    ways: list[list[int]] = []  # inputs, the first to be computed last
    for v, row in enumerate(inputs):
        way = sorted(row, key=lambda i: rises[i] - sizes[i])
        held = 0
        for i in reversed(way):
            rises[v] = max(rises[v], held + rises[i])
            held += sizes[i]
        rises[v] = max(rises[v], needs[v])
        ways.append(way)
    order: dict[int, None] = {}
    for result in (v for v, users in enumerate(graph.users) if not users):
        stack = [result]
        while stack:
            v = stack[-1]
            missing = [i for i in ways[v] if i not in order]
            if missing and v not in order:
                stack += missing
                continue
            stack.pop()
            order[v] = None
    return np.array(list(order), dtype=np.int64)


@numba_jit
def descend(lives: Lives, base: NDArray[np.int64], width: int, high: bool) -> NDArray[np.int64]:
    """An order made of descents.

    Parameters
    ----------
    lives : Lives
    base : (n,) int
        A legal order, in which pieces are computed.
    width : int
        How many of the next nodes may end a piece.
    high : bool
        Where no piece ends lower: the one that rises most above its end, and not the one that leaves least.

    Notes
    -----
    O(n width (nodes and edges of a piece)).
    """
    n = lives.sizes.shape[0]
    before_ptr, before = lives.links.before_ptr, lives.links.before
    order, left = np.empty(n, dtype=np.int64), lives.readers.copy()
    done, mark = np.zeros(n, dtype=np.bool_), np.full(n, -1, dtype=np.int64)
    piece, stack, best = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    rank = np.empty(n, dtype=np.int64)
    for place in range(n):
        rank[base[place]] = place
    at, begin, live, tried = 0, 0, 0, 0
    while at < n:
        while done[base[begin]]:
            begin += 1
        length, falls, key, second = 0, False, np.inf, np.inf
        seen, place = 0, begin - 1
        while place + 1 < n and seen < width:
            place += 1
            v = base[place]
            if done[v]:
                continue
            seen += 1
            tried += 1
            count, depth = 0, 1
            stack[0] = v
            mark[v] = tried
            while depth > 0:
                depth -= 1
                k = stack[depth]
                piece[count] = rank[k]
                count += 1
                for e in range(before_ptr[k], before_ptr[k + 1]):
                    p = before[e]
                    if not done[p] and mark[p] != tried:
                        mark[p] = tried
                        stack[depth] = p
                        depth += 1
            piece[:count].sort()
            now, top, ran = live, live, 0
            for q in range(count):
                k = base[piece[q]]
                top = max(top, now + lives.needs[k])
                now = compute(lives, k, now, left)
                ran += 1
                if now <= live:
                    break
            for q in range(ran):
                k = base[piece[q]]
                for e in range(lives.input_ptr[k], lives.input_ptr[k + 1]):
                    left[lives.inputs[e]] += 1
            this_falls = now <= live
            if this_falls:
                one, two = float(top), float(ran)
            elif high:
                one, two = float(now - top), float(now)
            else:
                one, two = float(now), float(top)
            if (this_falls and not falls) or (this_falls == falls and (one < key or (one == key and two < second))):
                falls, key, second, length = this_falls, one, two, ran
                best[:ran] = piece[:ran]
        for q in range(length):
            k = base[best[q]]
            order[at] = k
            done[k] = True
            live = compute(lives, k, live, left)
            at += 1
    return order


def start_order(graph: Graph) -> tuple[NDArray[np.int64], int]:
    """The best of some orders that are had at once, and its peak without constants: the graph's, and greedy ones."""
    steps = lives(graph)
    found: list[tuple[NDArray[np.int64], int]] = []
    for base in (np.arange(len(graph)), depth_first(graph)):
        orders = [base, *(descend(steps, base, _WIDTH, high) for high in (False, True))]
        found += [(order, peak(steps, order)) for order in orders]
    return min(found, key=lambda pair: pair[1])
