"""The oracle: the least cost over all schedules of a tiny graph, in its order or in any."""

from __future__ import annotations

import heapq

from checkmate_tf.graph import Graph
from checkmate_tf.strategies.orders import before_effects, with_order_of_effects

__all__ = ["least_cost", "least_free_cost", "least_peak_of_any_order", "least_staged_cost"]


def least_cost(graph: Graph, budget_bytes: int) -> float:
    """Dijkstra over (next node of the training order, values in memory); infinite if no schedule fits.

    A move computes one node, the next of the order or an earlier one that may be computed again, or drops a
    value. Within a stage nodes may come in any order and repeat. Counts `held`, too: what computing a node needs more
    if an input that only it reads outlives it.
    """
    n, room = len(graph), budget_bytes - graph.constant_bytes
    own = [{i for i in graph.inputs[k] if graph.users[i] == (k,)} for k in range(n)]
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
            if not memory.issuperset(graph.inputs[k]):
                continue
            needs, then, total = live + graph.sizes[k] + graph.workspace[k], stage + (k == stage), cost + graph.costs[k]
            if needs <= room:
                moves.append((then, memory - own[k] | {k}, float(total)))
            if needs + graph.held[k] <= room:
                moves.append((then, memory | {k}, float(total)))
        for *state, total in moves:
            if total < costs.get((state[0], state[1]), float("inf")):
                costs[state[0], state[1]] = total
                heapq.heappush(heap, (total, state[0], tuple(sorted(state[1]))))
    return float("inf")


def least_free_cost(graph: Graph, budget_bytes: int) -> float:
    """The same over all orders of first computations: Dijkstra over (values computed so far, values in memory)."""
    n, room = len(graph), budget_bytes - graph.constant_bytes
    own = [{i for i in graph.inputs[k] if graph.users[i] == (k,)} for k in range(n)]
    before = [{*graph.inputs[k], *graph.waits[k]} for k in range(n)]
    for k, earlier in before_effects(graph.recompute_until.tolist()).items():
        before[k] |= set(earlier)
    sinks = {i for i in range(n) if not graph.users[i]}
    start: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())
    costs = {start: 0.0}
    heap: list[tuple[float, tuple[int, ...], tuple[int, ...]]] = [(0.0, (), ())]
    while heap:
        cost, computed, kept = heapq.heappop(heap)
        done, memory = frozenset(computed), frozenset(kept)
        if cost > costs[done, memory]:
            continue
        if len(done) == n and sinks <= memory:
            return cost
        live = sum(int(graph.sizes[i]) for i in memory)
        stage = min(set(range(n + 1)) - done)
        moves = [(done, memory - {i}, cost) for i in memory]
        for k in set(range(n)) - memory:
            if (k in done and stage >= graph.recompute_until[k]) or not memory.issuperset(graph.inputs[k]):
                continue
            if not done.issuperset(before[k]):
                continue
            needs, total = live + int(graph.sizes[k] + graph.workspace[k]), cost + float(graph.costs[k])
            if needs <= room:
                moves.append((done | {k}, memory - own[k] | {k}, total))
            if needs + graph.held[k] <= room:
                moves.append((done | {k}, memory | {k}, total))
        for *state, total in moves:
            if total < costs.get((state[0], state[1]), float("inf")):
                costs[state[0], state[1]] = total
                heapq.heappush(heap, (total, tuple(sorted(state[0])), tuple(sorted(state[1]))))
    return float("inf")


def least_staged_cost(graph: Graph, budget_bytes: int) -> float:
    """The same where a stage computes each node at most once, in the order of the graph: the space of problem (9)."""
    n, room = len(graph), budget_bytes - graph.constant_bytes
    own = [{i for i in graph.inputs[k] if graph.users[i] == (k,)} for k in range(n)]
    sinks = {i for i in range(n) if not graph.users[i]}
    start: tuple[int, int, frozenset[int]] = (0, 0, frozenset())
    costs = {start: 0.0}
    heap: list[tuple[float, int, int, tuple[int, ...]]] = [(0.0, 0, 0, ())]
    while heap:
        cost, stage, k, kept = heapq.heappop(heap)
        memory = frozenset(kept)
        if cost > costs[stage, k, memory]:
            continue
        if stage == n:
            if sinks <= memory:
                return cost
            continue
        moves = [(stage, k, memory - {i}, cost) for i in memory]
        following = (stage + 1, 0) if k == stage else (stage, k + 1)
        if k < stage:
            moves.append((*following, memory, cost))
        if memory.issuperset(graph.inputs[k]) and (k == stage or stage < graph.recompute_until[k]) and k not in memory:
            total = cost + float(graph.costs[k])
            needs = sum(int(graph.sizes[i]) for i in memory) + int(graph.sizes[k] + graph.workspace[k])
            if needs <= room:
                moves.append((*following, memory - own[k] | {k}, total))
            if needs + graph.held[k] <= room:
                moves.append((*following, memory | {k}, total))
        for *state, total in moves:
            if total < costs.get((state[0], state[1], state[2]), float("inf")):
                costs[state[0], state[1], state[2]] = total
                heapq.heappush(heap, (total, state[0], state[1], tuple(sorted(state[2]))))
    return float("inf")


def least_peak_of_any_order(graph: Graph) -> int:
    """The least peak over all orders without recomputation: Dijkstra over the values computed so far."""
    n, before = len(graph), with_order_of_effects(graph).inputs
    least: dict[frozenset[int], int] = {frozenset(): 0}
    heap: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while True:
        peak, computed = heapq.heappop(heap)
        done = frozenset(computed)
        if len(done) == n:
            return peak + graph.constant_bytes
        live = sum(int(graph.sizes[i]) for i in done if not done.issuperset(graph.users[i]) or not graph.users[i])
        for k in set(range(n)) - done:
            if not done.issuperset(before[k]):
                continue
            then = max(peak, live + int(graph.sizes[k] + graph.workspace[k]))
            if then < least.get(done | {k}, then + 1):
                least[done | {k}] = then
                heapq.heappush(heap, (then, tuple(sorted(done | {k}))))
