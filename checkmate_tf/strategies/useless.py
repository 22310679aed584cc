"""Computations that serve nothing, taken out of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Graph

__all__ = ["without_useless"]


def without_useless(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence less each computation that nobody reads before the next one of its node. The last of a sink stays.

    Parameters
    ----------
    sequence : sequence of int
        Nodes in the order of their computations; inputs come before their readers.

    Notes
    -----
    Every node that was computed still is. Its first computation may come later than before, so an order that was legal
    for `recompute_until` has to be checked again. O(length * inputs).
    """
    read = [not users for users in graph.users]
    kept = []
    for node in reversed(sequence):
        if read[node]:
            kept.append(node)
            read[node] = False
            for i in graph.inputs[node]:
                read[i] = True
    return kept[::-1]
