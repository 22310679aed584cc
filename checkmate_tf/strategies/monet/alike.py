"""A schedule for one choice of ways, made of a schedule for another one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...operators import ChosenGraph
from ..ordering.links import links
from ..orders import legalise, without_dead
from ..search.arrays import flatten
from ..search.sequences.keep_where_room import keep_where_room
from ..search.sequences.settle import first_price, in_memory, settle

__all__ = ["alike"]

# Of settling, which has more time and other prices in a search (`sequences.refine`).
_DROPS, _GROWTH, _PATIENCE, _MOVES = 0.2, 2.0, 100, 3000


def alike(
    known: ChosenGraph, sequence: NDArray[np.int64], chosen: ChosenGraph, budget_bytes: int, seed: int
) -> NDArray[np.int64] | None:
    """The same computations in the same order, as far as another choice has them.

    What is new comes at its place in the graph's order, if first computations are in that order; else as early as it
    can. Where that takes too much, values are dropped until it fits (`settle`). Where there is room, values are kept.

    Parameters
    ----------
    known, sequence : ChosenGraph, (length,) int
        A choice, and a legal sequence for it.
    chosen : ChosenGraph
        Another choice of the same operators.
    budget_bytes : int
        Constants included.
    seed : int

    Returns
    -------
    (length,) int array or None
        Legal for `chosen.graph`, and within the budget; None if that was not found.
    """
    graph, sequence = chosen.graph, _carried_over(known, sequence, chosen)
    problem, room = flatten(graph), budget_bytes - graph.constant_bytes
    if in_memory(problem, sequence).max(initial=0) > room:
        price = first_price(graph, problem, sequence, room)
        settled = settle(
            problem, links(graph), 0.0, _DROPS, room, sequence, price, _GROWTH, _PATIENCE, _MOVES, seed
        )  # fmt: skip
        if settled.excess:
            return None
        sequence = settled.sequence
    return keep_where_room(problem, room, sequence)


def _carried_over(known: ChosenGraph, sequence: NDArray[np.int64], chosen: ChosenGraph) -> NDArray[np.int64]:
    """What both choices compute, in the known order, and what is new in the other one; legal."""
    place = {int(node): at for at, node in enumerate(chosen.nodes)}
    graph, order = chosen.graph, [place[node] for node in known.nodes[sequence].tolist() if node in place]
    first = list(dict.fromkeys(order))
    in_order = first == sorted(first)
    for new in sorted(set(range(len(graph))) - set(order)):
        if in_order:
            at = next((q for q, node in enumerate(order) if node > new), len(order))
        else:
            at = max((order.index(i) for i in graph.inputs[new]), default=-1) + 1
        order.insert(at, new)
    if not in_order:
        order = without_dead(graph, order)
    return np.array(legalise(graph, order), np.int64)
