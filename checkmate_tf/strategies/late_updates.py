"""Where a weight's gradient is larger than what it is made of: compute it, and update the weight, when memory is free.

A trace has each update right after its gradient. For most weights that is best: the gradient dies at once. But when
the backward pass begins, all activations are in memory, and the last layers may have the largest weights. VGG16's dense
layers have 67 MB of weights, and read 2 MB of activations: with their updates at the end of the backward pass, the peak
of the plain step is a quarter lower.

So here the peak is taken down, one move at a time: a node that is computed at the peak, or shortly before, goes to the
place of least memory after it, together with all that follows from it. A move counts if the peak falls, and if what
has to be kept for it until then is little beside what it makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import Graph

__all__ = ["late_updates"]

_NEAR = 32  # nodes before the peak that may move, and most that move together: an optimizer's update has up to ten
_KEPT = 0.1  # of what a move's largest node takes: what is kept longer for it
_GAIN = 0.001  # of the peak: what a move takes off it at least
_MOVES = 64  # at most; large networks have some ten that count
_WORTH = 0.01  # of the peak: what all moves together take off it at least, or the order stays as it is


def late_updates(graph: Graph, followers: Sequence[set[int]]) -> list[int]:
    """An order of nodes in which the plain step has a lower peak.

    Parameters
    ----------
    graph : Graph
        Costs do not matter.
    followers : sequence of n sets of int
        For each node, those that come after it in any order: that read it, or wait for it. All are later nodes.

    Returns
    -------
    list of n int
        All nodes, in the new order. Those that follow a node come after it. It is 0, 1, ... where nothing is gained.
    """
    traced = order = list(range(len(graph)))
    first = _usage(graph, traced).peak
    for _ in range(_MOVES):
        usage = _usage(graph, order)
        moves = [m for k in _near_peak(usage) if (m := _moved(graph, followers, order, usage, k)) is not None]
        if not moves:
            break
        peak, best = min(moves, key=lambda move: move[0])
        if peak > (1 - _GAIN) * usage.peak:
            break
        order = best
    return order if _usage(graph, order).peak <= (1 - _WORTH) * first else traced


@dataclass(frozen=True)
class _Usage:
    """Bytes of a step that computes each node once, in an order, and keeps values until their last use.

    What nobody reads is a result, and stays. This only guides moves: whoever takes the order asks the evaluator.
    """

    during: list[int]  # while each is computed
    after: list[int]  # and once what dies with it is gone
    last: list[int]  # of each node: the place at which its value is last used

    @property
    def peak(self) -> int:
        return max(self.during)


def _usage(graph: Graph, order: Sequence[int]) -> _Usage:
    place = _places(order)
    last = [max((place[u] for u in users), default=len(order)) for users in graph.users]
    sizes, workspace = graph.sizes.tolist(), graph.workspace.tolist()
    during, after, live = [], [], 0
    for at, k in enumerate(order):
        live += sizes[k]
        during.append(live + workspace[k])
        live -= sum(sizes[i] for i in {k, *graph.inputs[k]} if last[i] == at)
        after.append(live)
    return _Usage(during, after, last)


def _near_peak(usage: _Usage) -> range:
    at = usage.during.index(usage.peak)
    return range(max(0, at - _NEAR), at + 1)


def _moved(
    graph: Graph, followers: Sequence[set[int]], order: Sequence[int], usage: _Usage, at: int
) -> tuple[int, list[int]] | None:
    """The peak, and the order, if what is at a place moves to where least is in memory; None if that keeps too much."""
    peak = usage.during.index(usage.peak)
    moving, end = {order[at]}, len(order)
    places: list[int] = []  # of what moves
    for place in range(at, len(order)):
        if order[place] in moving:
            if len(places) == _NEAR:
                end = place
                break
            places.append(place)
            moving |= followers[order[place]]
    if end <= peak + 1:
        return None
    until = min(range(peak + 1, end), key=lambda place: (usage.after[place], place))
    mine = [order[place] for place in places if place <= until]
    others = set(mine)
    new = [k for k in order[: until + 1] if k not in others] + mine + list(order[until + 1 :])
    moved = _usage(graph, new)
    sizes = graph.sizes
    read = {i for k in mine for i in graph.inputs[k]} - others
    kept = sum(int(sizes[i]) for i in read if usage.last[i] < until and moved.last[i] > usage.last[i])
    if kept > _KEPT * max(int(sizes[k] + graph.workspace[k]) for k in mine):
        return None
    return moved.peak, new


def _places(order: Sequence[int]) -> list[int]:
    places = [0] * len(order)
    for place, k in enumerate(order):
        places[k] = place
    return places
