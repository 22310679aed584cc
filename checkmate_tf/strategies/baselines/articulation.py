"""Chen's heuristics on articulation points: AP sqrt(n) and AP greedy (Checkmate, Table 1 and section 5.1.1).

Candidates are the articulation points of the forward pass without directions: nodes that part the network's input from
its loss when they are taken out. Every value after one can be computed from it without any before it. In a ResNet they
are the ends of blocks and the head; in a U-Net, whose skips span nearly everything, hardly any.

**How they are found.** Let the input lead to every node, and every node to the loss. If v parts the two, each other
node is an ancestor or a descendant of v, so in no topological order does an edge lead from before v to after it; and if
none does, v parts them. So one pass over the edges finds them all, without a depth-first search. In graphs of
operations the same is asked of v, with two allowances:

- Values that must not be computed again are kept in any case, so edges from and to them do not count: statistics of
  layers and assignments do not hide the ends of blocks.
- A node that reads no other (a dropout mask) can be computed again from what is always in memory. It counts as fed by
  the input in its own place, and hides only the nodes between itself and its readers.

A graph may have none but its first node. Then nothing is dropped, and the only schedule is the one without
recomputation.
"""

from __future__ import annotations

import numpy as np

from ...graph import Graph
from ...schedule import Schedule
from ..options import SolveOptions
from .chen import solve_greedy, solve_sqrt
from .keepset import droppable, forward_end, plain_schedule

__all__ = ["ap_greedy", "ap_sqrt", "articulation_points"]


def articulation_points(graph: Graph) -> list[int]:
    """Forward nodes over which no edge of the forward pass, or to the loss, leads.

    Notes
    -----
    O(n + edges).
    """
    end, candidate = forward_end(graph), droppable(graph)
    spans = np.zeros(end + 1, dtype=np.int64)  # differences of how many edges lead over a node
    for j in range(end):
        if graph.recompute_until[j] > end:
            for i in graph.inputs[j]:
                if candidate[i]:
                    spans[i + 1] += 1
                    spans[j] -= 1
    points: list[int] = np.flatnonzero(candidate[:end] & (np.cumsum(spans[:end]) == 0)).tolist()
    return points


def ap_sqrt(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Every k-th articulation point is kept, k the integer square root of their number: one schedule.

    Raises
    ------
    InfeasibleBudgetError
        If it does not fit.
    """
    plain = plain_schedule(graph, budget_bytes, "ap-sqrt")
    if plain is not None:
        return plain
    return solve_sqrt(graph, budget_bytes, "ap-sqrt", articulation_points(graph), options)


def ap_greedy(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Segments of more than b bytes, each ended by a kept articulation point, with a search over b.

    Raises
    ------
    InfeasibleBudgetError
        If no b gives a schedule that fits.
    """
    plain = plain_schedule(graph, budget_bytes, "ap-greedy")
    if plain is not None:
        return plain
    return solve_greedy(graph, budget_bytes, "ap-greedy", articulation_points(graph), options)
