"""The same graph with its nodes numbered by another order, for systems that keep to the order of the graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph

__all__ = ["renumbered"]


def renumbered(graph: Graph, order: NDArray[np.int64]) -> Graph:
    """Node k of the result is node `order[k]` of the graph.

    Parameters
    ----------
    graph : Graph
    order : (n,) int
        A legal order of first computations (`orders.legalise`).

    Notes
    -----
    A node that may be computed again as long as one below its limit has not been computed may be so until the last of
    these, by the order given.
    """
    rank = np.empty(len(graph), dtype=np.int64)
    rank[order] = np.arange(len(graph))
    last = np.concatenate([[0], 1 + np.maximum.accumulate(rank)])  # of the nodes below a limit
    until = last[np.clip(graph.recompute_until, 0, len(graph))]
    return replace(
        graph,
        names=[graph.names[i] for i in order],
        inputs=[[int(rank[p]) for p in graph.inputs[i]] for i in order],
        waits=[[int(rank[p]) for p in graph.waits[i]] for i in order],
        recompute_until=until[order],
        **{key: getattr(graph, key)[order] for key in ("kinds", "costs", "sizes", "workspace", "held")},
    )
