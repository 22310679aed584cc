"""Paging: values that wait in the memory of the host, and when everything in a plan happens.

A device has one engine for copies to the host and one for copies back. Both run beside the computations:

- A value that a plan copies is on its way as soon as it is computed, after those copied before it. The plan says where
  it is waited for: at the node that copies (`Graph.host`). From then on its memory can be taken by others.
- A value comes back in the plan's order, when all that stands before it has been computed, its copy is complete, and
  the values that are brought back before it have come. Its memory is taken from then on. Who reads it waits for it.

So peaks follow from the plan's order alone, as for other plans. What may have to wait is the computation, and that is
what copies cost (`timeline`).

POET (Patil et al., ICML 2022) decides paging together with rematerialization, too. It adds up the costs of both.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .errors import GraphError
from .graph import FORWARD, Graph, Host
from .statements import ALLOCATE, COMPUTE, Statement

__all__ = ["Timeline", "timeline", "with_host", "without_host"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """When the computations and copies of a plan happen, in the graph's cost unit from the begin of the step.

    Attributes
    ----------
    starts, ends : (number of COMPUTE statements,) float
        Of each computation, or of the copy that it stands for. At a node that copies, of the copy to the host.
    cost : float
        When all is done.
    computing : float
        How much of that is computation. In the rest, computation waits for copies.
    """

    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    cost: float
    computing: float


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
        If there are copies in it already, or a rate is not above 0.
    """
    if graph.host is not None:
        raise GraphError(f"graph {graph.name!r} has copies in the host's memory already")
    if not (to_host > 0 and from_host > 0):
        raise GraphError(f"bytes are copied at {to_host} and {from_host} a unit of cost: give rates above 0")
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


def timeline(graph: Graph, plan: Iterable[Statement]) -> Timeline:
    """When everything in a plan happens.

    Parameters
    ----------
    graph : Graph
    plan : Plan or iterable of Statement
        One that `evaluate` takes.

    Notes
    -----
    O(statements). Computations come one after another, in the plan's order.
    """
    statements = tuple(plan)
    host, costs = graph.host, graph.costs.tolist()
    node_of = {s.register: s.node for s in statements if s.op == ALLOCATE}
    computations = [s for s in statements if s.op == COMPUTE]
    first = len(graph) if host is None else host.first
    going = {s.node for s in computations if s.node >= first}
    starts, ends = [], []
    clock = computing = out_free = in_free = 0.0
    there: dict[int, float] = {}  # register that is brought back -> when it has come
    leaving: dict[int, tuple[float, float]] = {}  # node that copies -> when its copy begins and ends
    for s in computations:
        copy = graph.copies.get(s.node)
        if host is not None and s.node >= first:
            begin, end = leaving[s.node]
            clock = max(clock, end)
        elif host is not None and copy is not None and s.reads and node_of[s.reads[0]] == copy:
            begin = max(clock, in_free, leaving[copy][1])
            end = in_free = begin + float(host.from_host[copy - first])
            there[s.register] = end
        else:
            begin = max([clock, *(there[r] for r in s.reads if r in there)])
            end = clock = begin + costs[s.node]
            computing += costs[s.node]
            if host is not None and copy in going and copy not in leaving:
                gone = max(end, out_free)
                out_free = gone + float(host.to_host[copy - first])
                leaving[copy] = gone, out_free
        starts.append(begin)
        ends.append(end)
    return Timeline(np.array(starts), np.array(ends), max(clock, in_free, out_free), computing)
