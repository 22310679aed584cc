"""Greedy walks (`greedy_walk`) in any order of first computations."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ..greedy_walk import greedy_sequence, whole_sequence
from ..ordering.renumbered import renumbered

__all__ = ["by_stages", "greedy", "within"]

_SHARES = (1.0, 0.98, 0.95, 0.9, 0.85)  # of the budget: limits of walks, which may end above them


def greedy(
    graph: Graph, limit_bytes: int, order: NDArray[np.int64], keep: bool, seconds: float = math.inf
) -> NDArray[np.int64]:
    """The sequence that a walk makes, whose peak may be above the limit.

    Parameters
    ----------
    graph : Graph
    limit_bytes : int
        Constants included.
    order : (n,) int
        Of first computations, legal.
    keep : bool
        Whether first computations keep to that order, and recomputations to it within each stage. Else those that
        nobody reads are left out: their nodes are first computed later.
    seconds : float
        After so many no further value is given up.
    """
    walk = whole_sequence if keep else greedy_sequence
    sequence = walk(renumbered(graph, order), limit_bytes, seconds)
    found: NDArray[np.int64] = order[np.array(by_stages(sequence) if keep else sequence, dtype=np.int64)]
    return found


def within(
    graph: Graph, budget_bytes: int, order: NDArray[np.int64], keep: bool, seconds: float
) -> NDArray[np.int64] | None:
    """The first of some walks, each with a lower limit than the one before, that is within the budget.

    Parameters are those of `greedy`; the seconds are for all walks. None if there is no such walk.
    """
    until, constant = time.perf_counter() + seconds, graph.constant_bytes
    for share in _SHARES:
        left = until - time.perf_counter()
        if left <= 0:
            break
        sequence = greedy(graph, constant + int(share * (budget_bytes - constant)), order, keep, left)
        if evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes <= budget_bytes:
            return sequence
    return None


def by_stages(sequence: Sequence[int]) -> list[int]:
    """The same, each stage in the order of the graph, and no node twice in it; empty if first computations are not."""
    stages: list[int] = []
    again: set[int] = set()
    frontier = 0
    for node in sequence:
        if node == frontier:
            stages += [*sorted(again), node]
            again.clear()
            frontier += 1
        elif node < frontier:
            again.add(node)
        else:
            return []
    return stages
