"""Graphs whose values can be copied to the host, and back."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np

from ..errors import GraphError
from ..graph import FORWARD, Graph, Host

__all__ = ["with_host", "without_host"]


def with_host(
    graph: Graph,
    to_host: float,
    from_host: float,
    *,
    least_bytes: int = 1 << 20,
    latency: float = 0.0,
    only: Container[int] | None = None,
) -> Graph:
    """The same graph, whose forward values can be copied to the host.

    Parameters
    ----------
    graph : Graph
        Without copies.
    to_host, from_host : float
        Bytes that are copied in a unit of the graph's costs, each way.
    least_bytes : int
        Smaller values stay on the device: a copy of them takes longer than its bytes say, and saves little.
    latency : float
        Of each copy, in the graph's cost unit.
    only : container of int, optional
        Nodes whose values can be copied. Default: all can.

    Returns
    -------
    Graph
        With a node more for each forward value that is large enough and that someone reads.

    Raises
    ------
    GraphError
        If there are copies in it already, a rate is not finite or not above 0, or the latency is negative.
    """
    if graph.host is not None:
        raise GraphError(f"graph {graph.name!r} has copies in the host's memory already")
    if not (0 < to_host < np.inf and 0 < from_host < np.inf and 0 <= latency < np.inf):
        raise GraphError(
            f"{to_host} and {from_host} bytes are copied in a unit of cost, after a latency of {latency}: give finite "
            "rates above 0, and a latency that is not negative"
        )
    n = len(graph)
    last = [max(users, default=-1) for users in graph.users]
    chosen = [i for i in range(n) if graph.kinds[i] == FORWARD and graph.sizes[i] >= least_bytes and last[i] > i + 1]
    chosen = [i for i in chosen if only is None or i in only]
    sizes = graph.sizes[chosen].astype(np.float64)
    more = len(chosen)
    until = np.where(graph.recompute_until == n, n + more, graph.recompute_until)
    return replace(
        graph,
        names=[*graph.names, *(f"{graph.names[i]} to the host" for i in chosen)],
        kinds=np.append(graph.kinds, np.full(more, FORWARD, np.int8)),
        costs=np.append(graph.costs, np.zeros(more)),
        sizes=np.append(graph.sizes, np.zeros(more, np.int64)),
        workspace=np.append(graph.workspace, np.zeros(more, np.int64)),
        held=np.append(graph.held, np.zeros(more, np.int64)),
        recompute_until=np.append(until, np.zeros(more, np.int64)),
        inputs=[*graph.inputs, *((i,) for i in chosen)],
        waits=[*graph.waits, *([()] * more)],
        host=Host(n, latency + sizes / to_host, latency + sizes / from_host),
    )


def without_host(graph: Graph) -> Graph:
    """The graph without the nodes that copy; itself if it has none."""
    if graph.host is None:
        return graph
    n = graph.host.first
    until = np.minimum(graph.recompute_until[:n], n)
    columns = {key: getattr(graph, key)[:n] for key in ("names", "kinds", "costs", "sizes", "workspace", "held")}
    return replace(
        graph, **columns, recompute_until=until, inputs=graph.inputs[:n], waits=graph.waits[:n], host=None
    )  # fmt: skip
