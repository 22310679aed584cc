"""Orders of computation: made legal, rid of dead computations, and with effects as early as may be.

Systems that choose their own order of first computations (TWRemat, Moccasin's free order) know nothing of effects. In a
real training step an assignment must come after what reads the old value, and updates of variables, counters and the
like run once, in the order of the graph. Whoever reorders computations can

- learn that order from the graph (`with_order_of_effects`),
- have effects come as early as their inputs allow (`early_effects`),
- drop computations that serve nothing (`without_dead`), and
- mend what is out of order then (`legalise`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..graph import Graph

__all__ = ["before_effects", "early_effects", "legalise", "with_order_of_effects", "without_dead"]

_UPDATES = 3  # a gradient serves so many updates at most: Adam assigns both moments and the variable


def legalise(graph: Graph, sequence: Iterable[int]) -> list[int]:
    """The sequence with as few changes as make it one that can be run.

    - A computation that `recompute_until` forbids is dropped: the value is kept instead.
    - Before a node with effects (`recompute_until` 0) comes what precedes it in the graph's order and has effects, too,
      or may not be computed again from then on.
    - A node that is computed without an input, or one that it waits for, gets that computed first. Nodes that are
      missing come at the end.

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
    first = [[*row, *graph.waits[i]] for i, row in enumerate(graph.inputs)]  # what comes before its first computation
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


def with_order_of_effects(graph: Graph) -> Graph:
    """The graph with edges to each node from all that comes before it in any order (`legalise`)."""
    inputs = [[*row, *graph.waits[i]] for i, row in enumerate(graph.inputs)]
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
        Computations that have become dead are still there.

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


def without_dead(graph: Graph, sequence: Sequence[int]) -> list[int]:
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
