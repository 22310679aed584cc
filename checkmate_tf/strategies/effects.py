"""Nodes that run once (updates of variables, counters) in orders of computation that repeat and move other nodes.

Such nodes must keep their order. Whoever reorders computations can learn it from the graph (`with_order_of_effects`),
and have them come as early as their inputs allow (`early_effects`). What is out of order then, `legal.legalise` mends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..graph import Graph
from .legal import before_effects

__all__ = ["early_effects", "with_order_of_effects"]

_UPDATES = 3  # a gradient serves so many updates at most: Adam assigns both moments and the variable


def with_order_of_effects(graph: Graph) -> Graph:
    """The graph with edges to each node that may run only once from what must come before it (`legal.legalise`)."""
    inputs = [list(row) for row in graph.inputs]
    for v, earlier in before_effects(graph.recompute_until.tolist()).items():
        inputs[v] += earlier
    return replace(graph, inputs=inputs)


def early_effects(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """The sequence with each node that runs once moved up to where all it reads is in memory first.

    Divide and conquer computes what nobody reads, such as the update of a variable, after everything else, and for that
    computes its ancestors once more. What serves nothing but a few updates, such as the gradient that they apply, is
    computed together with the first of them, if all that takes no more memory than some computation of the graph.

    Parameters
    ----------
    sequence : sequence of int
        Inputs come before their readers; every node is there.

    Returns
    -------
    list of int
        Moved nodes keep the order of the graph: one whose inputs are never together in memory holds up those after it.
        Computations that have become useless are still there.

    Notes
    -----
    O(length * inputs).
    """
    n = len(graph)
    once = (graph.recompute_until == 0).tolist()
    serves = _few_updates(graph, once)
    dies = _last_readers(graph, sequence)
    sizes, room = graph.sizes.tolist(), int(graph.working_set.max(initial=0))
    effects = [v for v in range(n) if once[v]]
    done, newest, following = [False] * n, [-1] * n, 0
    order: list[int] = []
    moved: set[int] = set()  # to the present position

    def ready(v: int, position: int) -> list[int] | None:
        """What to compute now to have v, v last; None if an input is not in memory, or it takes too much."""
        found, todo, needs = {v}, [v], sizes[v]
        while todo:
            for i in graph.inputs[todo.pop()]:
                if i in found or i in moved or (done[i] and (once[i] or dies[newest[i]] >= position)):
                    continue
                needs += sizes[i]
                if not serves[i] or needs > room:
                    return None
                found.add(i)
                todo.append(i)
        return sorted(found)

    for position, v in enumerate(sequence):
        if not (once[v] and done[v]):
            order.append(v)
        done[v], newest[v] = True, position
        moved = set()
        while following < len(effects):
            if not done[effects[following]]:
                more = ready(effects[following], position)
                if more is None:
                    break
                order += more
                moved.update(more)
                for i in more:
                    done[i] = done[i] or once[i]
            following += 1
    return order


def _few_updates(graph: Graph, once: Sequence[bool]) -> list[bool]:
    """For each node, whether it serves nothing but a few nodes that run once and are read by nobody."""
    serves: list[frozenset[int]] = [frozenset()] * len(graph)  # which; empty if they are many, or others
    for v in range(len(graph) - 1, -1, -1):
        rows = [serves[u] for u in graph.users[v]] or [frozenset([v] if once[v] else [])]
        together = frozenset().union(*rows)
        if all(rows) and len(together) <= _UPDATES:
            serves[v] = together
    return list(map(bool, serves))


def _last_readers(graph: Graph, sequence: Sequence[int]) -> list[int]:
    """For each computation of the sequence the position of the last one that reads it; its own if none does."""
    last, newest = list(range(len(sequence))), [-1] * len(graph)
    for position, v in enumerate(sequence):
        newest[v] = position
        for i in graph.inputs[v]:
            last[newest[i]] = position
    return last
