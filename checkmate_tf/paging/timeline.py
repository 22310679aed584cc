"""When the computations and copies of a plan happen.

A device has one engine for copies to the host and one for copies back. Both run beside the computations:

- A value that a plan copies is on its way as soon as it is computed, after those copied before it. The plan says where
  it is waited for: at the node that copies (`Graph.host`). From then on its memory can be taken by others.
- A value comes back in the plan's order, when all that stands before it has been computed, its copy is complete, and
  the values that are brought back before it have come. Its memory is taken from then on. Who reads it waits for it.

So peaks follow from the plan's order alone, as for other plans. What may have to wait is the computation, and that is
what copies cost (`timeline`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..graph import Graph
from ..statements import ALLOCATE, COMPUTE, Statement, brought_back

__all__ = ["Timeline", "timeline"]


@dataclass(frozen=True, eq=False)
class Timeline:
    """When the computations and copies of a plan happen, in the graph's cost unit from the begin of the step.

    Attributes
    ----------
    starts, ends : (number of COMPUTE statements,) float
        Of each computation, or of the copy that it stands for. At a node that copies, of the copy to the host.
    waits : dict from node to float
        How long computations wait for the copies of each value, if they do.
    cost : float
        When all is done.
    computing : float
        How much of that is computation. In the rest, computation waits for copies.
    """

    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    waits: dict[int, float]
    cost: float
    computing: float


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
    first = graph.first_copy
    going = {s.node for s in computations if s.node >= first}
    starts, ends = [], []
    clock = computing = out_free = in_free = 0.0
    fetched = brought_back(graph, computations)
    there: dict[int, float] = {}  # register that is brought back -> when it has come
    value_of = {copy: value for value, copy in graph.copies.items()}
    waits: dict[int, float] = {}
    leaving: dict[int, tuple[float, float]] = {}  # node that copies -> when its copy begins and ends
    for s in computations:
        copy = graph.copies.get(s.node)
        if host is not None and s.node >= first:
            begin, end = leaving[s.node]
            if end > clock:
                waits[value_of[s.node]] = waits.get(value_of[s.node], 0.0) + end - clock
                clock = end
        elif host is not None and copy is not None and s.register in fetched:
            begin = max(clock, in_free, leaving[copy][1])
            end = in_free = begin + float(host.from_host[copy - first])
            there[s.register] = end
        else:
            late = max((r for r in s.reads if r in there), key=lambda r: there[r], default=None)
            begin = clock if late is None else max(clock, there[late])
            if late is not None and begin > clock:
                waits[node_of[late]] = waits.get(node_of[late], 0.0) + begin - clock
            end = clock = begin + costs[s.node]
            computing += costs[s.node]
            if host is not None and copy in going and copy not in leaving:
                gone = max(end, out_free)
                out_free = gone + float(host.to_host[copy - first])
                leaving[copy] = gone, out_free
        starts.append(begin)
        ends.append(end)
    return Timeline(np.array(starts), np.array(ends), waits, max(clock, in_free, out_free), computing)
