"""The oracle: the least cost over all frontier-advancing schedules of a tiny graph."""

from __future__ import annotations

import heapq

from checkmate_tf.graph import Graph

__all__ = ["least_cost"]


def least_cost(graph: Graph, budget_bytes: int) -> float:
    """Dijkstra over (next node of the training order, values in memory); infinite if no schedule fits.

    A move computes one node, the next of the order or an earlier one that may be computed again, or drops a
    value. Within a stage nodes may come in any order and repeat, which is more than the strategies use: a true
    lower bound on them.
    """
    n, room = len(graph), budget_bytes - graph.constant_bytes
    start: tuple[int, frozenset[int]] = (0, frozenset())
    costs = {start: 0.0}
    heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
    sinks = {i for i in range(n) if not graph.users[i]}
    while heap:
        cost, stage, kept = heapq.heappop(heap)
        memory = frozenset(kept)
        if cost > costs[stage, memory]:
            continue
        if stage == n and sinks <= memory:
            return cost
        live = sum(int(graph.sizes[i]) for i in memory)
        moves = [(stage, memory - {i}, cost) for i in memory]
        for k in range(min(stage + 1, n)):
            if k in memory or (k < stage and graph.recompute_until[k] <= stage):
                continue
            if not memory.issuperset(graph.inputs[k]) or live + graph.sizes[k] + graph.workspace[k] > room:
                continue
            moves.append((stage + (k == stage), memory | {k}, cost + float(graph.costs[k])))
        for *state, total in moves:
            if total < costs.get((state[0], state[1]), float("inf")):
                costs[state[0], state[1]] = total
                heapq.heappush(heap, (total, state[0], tuple(sorted(state[1]))))
    return float("inf")
