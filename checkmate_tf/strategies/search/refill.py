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
from .arrays import Problem, flatten
from .keep_where_room import useful

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
    until, problem = time.perf_counter() + seconds, flatten(graph)
    sequence = np.asarray(sequence, np.int64)
    names = np.arange(len(sequence))  # of computations, as positions change
    tried: set[int] = set()
    while True:
        first = np.unique(sequence, return_index=True)[1]
        again = np.setdiff1d(np.arange(len(sequence)), first).tolist()
        rest = {q: _rest(problem, sequence, q) for q in again if int(names[q]) not in tried}
        left = {q: float(graph.costs[sequence[kept]].sum()) for q, kept in rest.items()}
        for q in sorted(left, key=left.__getitem__):  # what saves most comes first
            if time.perf_counter() >= until:
                return sequence
            tried.add(int(names[q]))
            if fits(sequence[rest[q]]):
                sequence, names = sequence[rest[q]], names[rest[q]]
                break
        else:
            return sequence


def _rest(problem: Problem, sequence: Integers, q: int) -> Integers:
    """Positions of a sequence without one, and without recomputations that nobody reads then."""
    others = np.delete(np.arange(len(sequence)), q)
    kept: Integers = others[useful(problem, sequence[others])]
    return kept
