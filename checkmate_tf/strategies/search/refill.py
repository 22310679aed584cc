"""Drops recomputations as long as a schedule fits, by whatever measure.

`keep_where_room` does so by the bytes of values. Where an allocator places values, room is known only by placing them
all again. So the measure is given, each recomputation is tried once, and time is limited.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from ..ordering.links import pointers

__all__ = ["refill"]

Integers = NDArray[np.int64]


def refill(graph: Graph, sequence: Integers, fits: Callable[[Integers], bool], seconds: float) -> Integers:
    """A sequence without recomputations that it fits without.

    Parameters
    ----------
    graph : Graph
    sequence : (length,) int
        A valid order of computation.
    fits : callable
        Whether a sequence fits.
    seconds : float
        No more is tried after that.

    Returns
    -------
    (length,) int array
        It costs no more than the one given. It is that one if nothing else fits.
    """
    until = time.perf_counter() + seconds
    input_ptr = pointers([len(row) for row in graph.inputs])
    inputs = np.array([i for row in graph.inputs for i in row], np.int64)
    sequence = np.asarray(sequence, np.int64)
    names = np.arange(len(sequence))  # of computations, as positions change
    tried: set[int] = set()
    while time.perf_counter() < until:
        again = _again(len(graph), sequence)
        left = [int(q) for q in again if int(names[q]) not in tried]
        if not left:
            break
        rest = {q: _useful(input_ptr, inputs, sequence, q) for q in left}
        total = graph.costs[sequence].sum()
        saved = {q: total - graph.costs[sequence[kept]].sum() for q, kept in rest.items()}
        for q in sorted(left, key=lambda q: -saved[q]):
            if time.perf_counter() >= until:
                break
            tried.add(int(names[q]))
            if fits(sequence[rest[q]]):
                sequence, names = sequence[rest[q]], names[rest[q]]
                break
        else:
            break
    return sequence


@numba_jit
def _again(n: int, sequence: Integers) -> Integers:
    """Positions at which something is computed once more."""
    seen = np.zeros(n, np.bool_)
    found = np.empty(len(sequence), np.int64)
    count = 0
    for q in range(len(sequence)):
        if seen[sequence[q]]:
            found[count] = q
            count += 1
        seen[sequence[q]] = True
    return found[:count]


@numba_jit
def _useful(input_ptr: Integers, inputs: Integers, sequence: Integers, without: int) -> Integers:
    """Positions but one, and but recomputations that nobody reads then."""
    n = len(input_ptr) - 1
    first = np.full(n, -1, np.int64)
    for q in range(len(sequence)):
        if first[sequence[q]] < 0:
            first[sequence[q]] = q
    wanted = np.zeros(n, np.bool_)
    kept = np.empty(len(sequence), np.int64)
    count = 0
    for q in range(len(sequence) - 1, -1, -1):
        k = sequence[q]
        if q == without or (first[k] != q and not wanted[k]):
            continue
        wanted[k] = False
        for e in range(input_ptr[k], input_ptr[k + 1]):
            wanted[inputs[e]] = True
        kept[count] = q
        count += 1
    return kept[:count][::-1].copy()
