"""Changes of a schedule by whatever measure: until it fits, and as long as it does.

The search counts bytes of values. What an allocator makes of a schedule only placing all values tells. So the measure
is given here, and time is limited.

- `squeeze`: random changes, never to a schedule that takes more. Parts of the order are turned round, which costs
  nothing, and values are dropped where there is much in memory, and computed again later.
- `refill`: recomputations are dropped as long as the schedule fits, each tried once.
- `in_time`: recomputations are dropped that come too late, and what they make is kept from before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ..ordering.links import links
from .arrays import Problem, flatten
from .sequences.exchange import ejected, turned
from .sequences.keep_where_room import useful

__all__ = ["in_time", "refill", "squeeze"]

_LONGEST = 4  # times as many computations as nodes: no more are added

Integers = NDArray[np.int64]


def squeeze(
    graph: Graph,
    sequence: Integers,
    taken: Callable[[Integers], int],
    target: int,
    seconds: float,
    turns: float,
    seed: int = 0,
    most_cost: float = np.inf,
) -> Integers:
    """A sequence that takes no more, and no more than a target if one is found.

    Parameters
    ----------
    graph : Graph
    sequence : (length,) int
        A valid order of computation.
    taken : callable
        What a sequence takes.
    target : int
        Where to stop.
    seconds : float
        When to stop.
    turns : float
        Share of the changes that turn a part of the order round. With 1 nothing more is computed again, and the cost
        stays as it is. With 0 first computations keep their order.
    seed : int
    most_cost : float, optional
        What a sequence may cost, in the graph's unit.

    Returns
    -------
    (length,) int array
        Where it was changed, all that it computes again is read. Some may be needless: see `refill`.
    """
    until = time.perf_counter() + seconds
    problem, before_after = flatten(graph), links(graph)
    random = np.random.default_rng(seed)
    sequence = np.array(sequence, np.int64)
    least = taken(sequence)
    while least > target and time.perf_counter() < until:
        own = int(random.integers(2**31))
        if random.random() < turns:
            other = turned(problem, before_after, sequence, own)
        else:
            other = ejected(problem, sequence, own)
        other = other[useful(problem, other)]  # nobody runs what nobody reads
        if len(other) > _LONGEST * len(graph) or np.array_equal(other, sequence):
            continue
        if len(other) > len(sequence) and graph.costs[other].sum() > most_cost:
            continue
        now = taken(other)
        if now <= least:
            sequence, least = other, now
    return sequence


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
    sequence = np.array(sequence, np.int64)
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


def in_time(graph: Graph, sequence: Integers, ends: Mapping[int, Collection[int]]) -> Integers:
    """A sequence in which no node is computed again once one of those has been computed that end its time.

    Parameters
    ----------
    graph : Graph
    sequence : (length,) int
        A valid order of computation.
    ends : mapping from node to nodes
        For nodes that others end: which.

    Returns
    -------
    (length,) int array
        Valid, and no dearer. What is left out is read where it was computed before, and so are values that only it
        would have read. The sequence that was given, where nothing comes too late.
    """
    seen, kept = set[int](), np.ones(len(sequence), bool)
    for place, node in enumerate(sequence.tolist()):
        kept[place] = node not in seen or seen.isdisjoint(ends.get(node, ()))
        seen.add(node)
    if kept.all():
        return sequence
    rest = sequence[kept]
    return rest[useful(flatten(graph), rest)]


def _rest(problem: Problem, sequence: Integers, q: int) -> Integers:
    """Positions of a sequence without one, and without recomputations that nobody reads then."""
    others = np.delete(np.arange(len(sequence)), q)
    kept: Integers = others[useful(problem, sequence[others])]
    return kept
