"""Orders of computation made legal: effects stay in order, and nothing is computed again after it may be.

Systems that choose their own order of first computations (TWRemat, Moccasin's free order) know nothing of effects. In a
real training step an assignment must come after what reads the old value.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..graph import Graph

__all__ = ["before_effects", "legalise"]


def legalise(graph: Graph, sequence: Iterable[int]) -> list[int]:
    """The sequence with as few changes as make it one that can be run.

    - A computation that `recompute_until` forbids is dropped: the value is kept instead.
    - Before a node with effects (`recompute_until` 0) comes what precedes it in the graph's order and has effects, too,
      or may not be computed again from then on.
    - A node that is computed without an input gets that computed first, and nodes that are missing come at the end.

    Parameters
    ----------
    graph : Graph
    sequence : iterable of int
        Any nodes in any order.

    Returns
    -------
    list of int
        Accepted by `plan.evaluate`. A legal sequence is returned as it is.

    Notes
    -----
    O(length + nodes + edges). Memory may be more than the sequence promised: evaluate the result.
    """
    n, until = len(graph), graph.recompute_until.tolist()
    first: list[list[int]] = [list(row) for row in graph.inputs]  # what comes before the first computation of a node
    for node, earlier in before_effects(until).items():
        first[node] += earlier
    done, stage, order = [False] * n, 0, []
    asked = [int(node) for node in sequence]
    for seen, wanted in enumerate([*asked, *range(n)]):
        if done[wanted]:
            if seen < len(asked) and stage < until[wanted]:
                order.append(wanted)
            continue
        stack = [wanted]
        while stack:
            node = stack[-1]
            missing = [] if done[node] else [i for i in first[node] if not done[i]]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if not done[node]:
                done[node] = True
                order.append(node)
        while stage < n and done[stage]:
            stage += 1
    return order


def before_effects(until: list[int]) -> dict[int, list[int]]:
    """For each node with effects, the nodes below it that must be computed before it and not before an earlier one."""
    found: dict[int, list[int]] = {}
    waiting: list[int] = []
    for node, limit in enumerate(until):
        if limit == 0:
            found[node] = [i for i in waiting if until[i] <= node]
            waiting = [i for i in waiting if until[i] > node]
        if limit < len(until):
            waiting.append(node)
    return found
