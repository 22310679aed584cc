"""Schedules near a given one, for budgets near its own: they cost a little more or less, and take less or more memory.

What a schedule keeps at each stage becomes weights of the eviction search, on top of a value's cost and bytes. Then one
pass of the search (`simulate`) gives the same schedule again at the same budget. At another budget it gives one that
keeps the same values as far as they fit. A pass takes about a millisecond. So one solved schedule gives a whole front
of cost against memory, where solving again for each budget would take minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...plan import ALLOCATE, COMPUTE, DEALLOCATE, plan_from_sequence
from .arrays import flatten
from .sequences.keep_where_room import keep_where_room
from .simulate import buffers, simulate

__all__ = ["variants"]

_KEEP = 4.0  # added to the log-weight of what the given schedule keeps
_PROFILES = ((0.5, 1.0), (0.5, 0.0), (1.0, 1.0), (0.25, 2.0))  # powers of cost over bytes, and of the distance
_ROWS = 256  # of weights: more stages than that share a row
_BIAS = -1e3  # of values that only recomputation reads
_ENDLESS = 1e299


def variants(graph: Graph, sequence: Sequence[int], budgets: Sequence[int]) -> Iterator[NDArray[np.int64]]:
    """Sequences near a given one.

    Parameters
    ----------
    graph : Graph
    sequence : (length,) int
        A valid order of computation.
    budgets : sequence of int
        Bytes, constants included, that the variants have to fit by the evaluator.

    Yields
    ------
    (length,) int array
        For each budget up to four, where there are any. None is the same as the one before it.
    """
    n = len(graph)
    order = np.array(list(dict.fromkeys(map(int, sequence))), dtype=np.int64)  # of first computations
    stages = np.unique(np.linspace(0, n - 1, min(n, _ROWS)).astype(np.int64))
    kept = _kept(graph, sequence, order[stages])
    phase = np.searchsorted(stages, np.arange(n), side="left").clip(max=len(stages) - 1)
    scratch, evictions = buffers(n), np.zeros(n, np.int64)
    found = np.zeros(max(64 * n, 4096), np.int64)
    last = np.zeros(0, np.int64)
    for budget in budgets:
        room = int(budget) - graph.constant_bytes
        problem = flatten(graph, keep_sources=room / 1000, order=order)
        costs = problem.costs
        ratio = np.log((costs + 1e-9 + 1e-4 * costs.mean()) / np.maximum(problem.sizes, 1))
        for power, alpha in _PROFILES:
            weights = power * ratio[None, :] + _KEEP * kept
            _, length, stage = simulate(
                problem, room, weights, phase, alpha, _BIAS, _ENDLESS, scratch, found, evictions
            )
            if stage < n:
                continue
            better = keep_where_room(problem, room, found[:length].copy())
            if not np.array_equal(better, last):
                last = better
                yield better


def _kept(graph: Graph, sequence: Sequence[int], nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """(nodes, n) whether each value is in memory when one of the nodes is first computed."""
    row = {int(node): k for k, node in enumerate(nodes)}
    kept = np.zeros((len(nodes), len(graph)))
    alive = np.zeros(len(graph), np.int64)  # copies
    for statement in plan_from_sequence(graph, sequence):
        if statement.op == ALLOCATE:
            alive[statement.node] += 1
        elif statement.op == DEALLOCATE:
            alive[statement.node] -= 1
        elif statement.op == COMPUTE and statement.node in row:
            kept[row.pop(statement.node)] = alive > 0
    return kept
