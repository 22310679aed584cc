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

_DROPS, _GROWTH, _PATIENCE, _MOVES = (
    0.2,
    2.0,
    100,
    3000,
)  # of settling, nearly as in `sequences.refine`


def alike(
    known: ChosenGraph, sequence: NDArray[np.int64], chosen: ChosenGraph, budget_bytes: int, seed: int
) -> NDArray[np.int64] | None:
    """The same computations in the same order, as far as another choice has them.

    What is new comes as early as it can. Where that takes too much, values are dropped until it fits (`settle`). Where
    there is room, values are kept.

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
    place = {int(node): at for at, node in enumerate(chosen.nodes)}
    graph, order = chosen.graph, [place[node] for node in known.nodes[sequence].tolist() if node in place]
    for new in sorted(set(range(len(graph))) - set(order)):
        after = [order.index(i) for i in graph.inputs[new]]
        order.insert(max(after, default=-1) + 1, new)
    found = np.array(legalise(graph, without_dead(graph, order)), np.int64)
    problem, room = flatten(graph), budget_bytes - graph.constant_bytes
    if in_memory(problem, found).max(initial=0) > room:
        price = first_price(graph, problem, found, room)
        settled = settle(
            problem, links(graph), 0.0, _DROPS, room, found, price, _GROWTH, _PATIENCE, _MOVES, seed
        )  # fmt: skip
        if settled.excess:
            return None
        found = settled.sequence
    return keep_where_room(problem, room, found)
