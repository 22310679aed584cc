"""The optimum of small graphs over all recomputations: best-first search, with a bound at every state.

It is over all orders of first computations, or over schedules in the graph's order, in which each node waits for all
before it. A stage may compute nodes in any order, and as often as it likes.

A state is the set of values that have been computed so far, and the set of those in memory. A move computes one node
whose inputs are in memory. If it does not fit, values are dropped first, no more than it takes. A value of which every
descendant has been computed is dropped as soon as it can be. A result is not dropped: it could be computed later. Only
where another node waits for it, it may be, and then what it is made of is of use, too.

The next state explored has the least cost so far plus a lower bound on what must follow:

- each node that has not been computed costs C_i once;
- each value that is missing, though a node that must still be computed is made of it, costs C_i again;
- at the first computation of a node v, some values made before it are still to be read after it. What does not fit
  beside v is computed again later: the cheapest by C_i / M_i (a fractional knapsack), for the v where that is most.

So when the best state is complete, or promises no less than a known schedule costs, the optimum is proven. Before that
its promise is a lower bound for any order. This is A* (Hart, Nilsson and Raphael, 1968) on the graph of states.

What it does badly: the number of states grows exponentially with the width of the graph, and with what recomputation
costs beyond the bound.
"""

from __future__ import annotations

import time
from functools import reduce
from operator import or_
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...numba_jit import numba_jit
from ..options import Order
from ..orders import with_order_of_effects
from .links import ragged
from .states import LARGEST, Tree, bits, find, path, pop, push, reach, tree_of

__all__ = ["BestFirst"]

_STATES = 3_000_000  # at most: 0.2 GB
_SETS = 200_000  # of values to drop that are tried for one state, at most: there may be C(m, m / 2) of m values alike
_FEWEST = 500  # states, and sets, between two looks at the clock: far less than a millisecond
_SLICE = 0.1  # seconds of compiled code between two looks at the clock
_SLACK = 1e-9  # of the base cost: sums of the same costs in another order


class _Steps(NamedTuple):
    """The graph, in bits (for Numba).

    Value i is of use until all of `serves[i]` has been computed. `earlier[v]` has been computed before v is. Of these,
    `order[ptr[v]:ptr[v + 1]]` may be in memory across v, the cheapest first. Values among `fixed` are not dropped.
    """

    sizes: NDArray[np.int64]
    needs: NDArray[np.int64]
    held: NDArray[np.int64]
    costs: NDArray[np.float64]
    inputs: NDArray[np.int64]
    own: NDArray[np.int64]
    before: NDArray[np.int64]
    below: NDArray[np.int64]
    users: NDArray[np.int64]
    serves: NDArray[np.int64]
    earlier: NDArray[np.int64]
    working_set: NDArray[np.int64]
    fixed: int
    ptr: NDArray[np.int64]
    order: NDArray[np.int64]


class BestFirst:
    """A search for the optimum of a graph of at most `LARGEST` nodes, in slices.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    order : "fixed" or "free"
        Which schedules to search.

    Attributes
    ----------
    bound : float
        No schedule within the budget costs less, of those in that order. Infinite if there is none.
    sequence : (length,) int array or None
        The optimum, once it is found.
    ended : bool
        Nothing is left to explore, or there is no room for more states, or one of them has too many after it.
    """

    def __init__(self, graph: Graph, budget_bytes: int, order: Order = "free") -> None:
        if len(graph) > LARGEST:
            raise ValueError(f"{graph.name!r} has {len(graph)} nodes; best-first search takes {LARGEST} at most")
        self.steps, self.room = _steps(graph, order), budget_bytes - graph.constant_bytes
        self.tree = tree_of(_STATES)
        self.slack = _SLACK * graph.base_cost
        self.rate = 1000.0  # states, and sets of values to drop, a second: measured as it goes
        self.bound, self.ended = graph.base_cost, False
        self.sequence: NDArray[np.int64] | None = None
        _add(self.steps, self.tree, self.room, 0, 0, 0.0, -1, -1, np.inf)

    def explore(self, seconds: float, known: float = np.inf) -> None:
        """Explore states for about so long, but some at least: those that promise less than a known schedule costs."""
        begun, left = time.perf_counter(), seconds
        while not self.ended:
            clock = time.perf_counter()
            count = max(_FEWEST, int(self.rate * min(left, _SLICE)))
            found, bound, more, done = explore(self.steps, self.tree, self.room, count, known - self.slack)
            self.rate = done / max(time.perf_counter() - clock, 1e-6)
            self.bound, self.ended = max(self.bound, min(bound, known)), not more
            if found >= 0:
                self.sequence = path(self.tree, found)
            left = seconds - (time.perf_counter() - begun)
            if left <= 0:
                return


def _steps(graph: Graph, kind: Order) -> _Steps:
    n = len(graph)
    ancestors, descendants = reach(graph)
    before = [bits(row) for row in with_order_of_effects(graph).inputs]
    earlier, later = ancestors, descendants
    if kind == "fixed":
        before = earlier = [(1 << v) - 1 for v in range(n)]
        later = [(1 << n) - (2 << v) for v in range(n)]
    users = [bits(row) for row in graph.users]
    ratio = graph.costs / np.maximum(graph.sizes, 1)
    ratio[graph.recompute_until <= 0] = np.inf
    cheapest = np.argsort(ratio, kind="stable").tolist()
    apart = lambda i, v: i != v and not later[v] >> i & 1  # noqa: E731 - i may be computed before v
    across = [
        [i for i in cheapest if apart(i, v) and graph.sizes[i] and (users[i] & later[v] or not users[i])]
        for v in range(n)
    ]  # fmt: skip
    ptr, order = ragged(across)
    results = bits(i for i in range(n) if not users[i])
    early = results & reduce(or_, before, 0)  # results that another node waits for
    never = 1 << LARGEST  # no node: what waits for it to be computed goes on to the end
    column = lambda values: np.array(values, dtype=np.int64)  # noqa: E731
    return _Steps(
        sizes=graph.sizes, needs=graph.sizes + graph.workspace, held=graph.held, costs=graph.costs,
        inputs=column([bits(row) for row in graph.inputs]),
        own=column([bits(i for i in row if graph.users[i] == (k,)) for k, row in enumerate(graph.inputs)]),
        before=column(before),
        below=column([(1 << u) - 1 if u <= n else never for u in np.maximum(graph.recompute_until, 0).tolist()]),
        users=column(users), earlier=column(earlier), working_set=graph.working_set,
        serves=column([row | never if row & early else row for row in descendants]), fixed=results & ~early,
        ptr=ptr, order=order,
    )  # fmt: skip


@numba_jit
def _needed(steps: _Steps, done: int, memory: int) -> tuple[float, int]:
    """What nodes to come and missing values cost, and which values are missing; infinite if one cannot be had again."""
    n = steps.sizes.shape[0]
    every = (1 << n) - 1
    left, missing = 0.0, 0
    for i in range(n - 1, -1, -1):
        bit = 1 << i
        if not done & bit:
            left += steps.costs[i]
        elif not memory & bit and (steps.users[i] & ((every & ~done) | missing) or not steps.users[i]):
            missing |= bit
            left += steps.costs[i]
            if done & steps.below[i] == steps.below[i]:
                return np.inf, missing
    return left, missing


@numba_jit
def _promise(steps: _Steps, room: int, done: int, memory: int) -> float:
    """What must still be spent, at least; infinite if the step cannot be finished."""
    left, missing = _needed(steps, done, memory)
    if left == np.inf:
        return left
    most = 0.0
    for v in range(steps.sizes.shape[0]):
        if done >> v & 1:
            continue
        made = (done | steps.earlier[v]) & ~missing & ~steps.inputs[v]
        excess = steps.working_set[v] - room
        for at in range(steps.ptr[v], steps.ptr[v + 1]):
            i = steps.order[at]
            if made >> i & 1:
                excess += steps.sizes[i]
        if excess <= 0:
            continue
        extra = 0.0
        for at in range(steps.ptr[v], steps.ptr[v + 1]):
            i = steps.order[at]
            if made >> i & 1:
                if steps.below[i] == 0:
                    return np.inf
                share = min(1.0, excess / steps.sizes[i])
                extra += share * steps.costs[i]
                excess -= steps.sizes[i]
                if excess <= 0:
                    break
        if excess > 0:
            return np.inf
        most = max(most, extra)
    return left + most


@numba_jit
def _add(
    steps: _Steps, tree: Tree, room: int, done: int, memory: int, spent: float, parent: int, node: int, known: float
) -> bool:
    """Keep a state if it is new, or cheaper than before, and promises less than `known`. False if there is no room."""
    for i in range(steps.sizes.shape[0]):  # drop what nobody can need
        if memory >> i & 1 and steps.users[i] and steps.serves[i] & ~done == 0:
            memory &= ~(1 << i)
    state, new = find(tree, done, memory)
    if new:
        promise = spent + _promise(steps, room, done, memory)
    else:
        promise = tree.promise[state] - tree.spent[state] + spent
        if spent >= tree.spent[state]:
            return True
    if promise >= known:
        return True
    return push(tree, state, new, done, memory, spent, promise, parent, node)


@numba_jit
def _compute(
    steps: _Steps, tree: Tree, room: int, state: int, k: int, needs: int, dropped: int | np.int64, known: float,
    chosen: NDArray[np.int64], price: NDArray[np.float64], tried: NDArray[np.int64],
) -> bool:  # fmt: skip
    """Add the states in which node k has been computed: one for each least set of values that has to go for it.

    `needs` is what k takes beside what is in memory; `dropped` goes with the computation. Sets whose loss costs too
    much are left out. `chosen` and `price` are scratch. `tried[0]` counts the sets. False if there are too many of
    them, or there is no room.
    """
    n = steps.sizes.shape[0]
    done, memory = tree.done[state], tree.memory[state]
    spent = tree.spent[state] + steps.costs[k]
    excess = needs - room
    movable = memory & ~steps.inputs[k] & ~steps.fixed
    total = 0
    for i in range(n):
        if memory >> i & 1:
            excess += steps.sizes[i]
            if movable >> i & 1:
                total += steps.sizes[i]
    if total < excess:
        return True
    after, kept = done | 1 << k, (memory | 1 << k) & ~dropped
    if excess <= 0:
        return _add(steps, tree, room, after, kept, spent, state, k, known)
    left, missing = _needed(steps, after, kept)
    to_come = ((1 << n) - 1) & ~after | missing
    left += spent
    for i in range(n):
        price[i] = 0.0
        if steps.users[i] & to_come or not steps.users[i]:
            price[i] = np.inf if after & steps.below[i] == steps.below[i] else steps.costs[i]
    depth, i, gone, rest = 0, 0, 0, total  # `rest`: bytes of the movable values from i on
    while True:
        while i < n and gone < excess and gone + rest >= excess:
            if movable >> i & 1:
                rest -= steps.sizes[i]
                if steps.sizes[i] and left + price[i] < known:
                    chosen[depth] = i
                    depth += 1
                    gone += steps.sizes[i]
                    left += price[i]
            i += 1
        tried[0] += 1
        if tried[0] > _SETS:
            return False
        if gone >= excess:
            least, remains = True, kept
            for at in range(depth):
                least = least and gone - steps.sizes[chosen[at]] < excess
                remains &= ~(1 << chosen[at])
            if least and not _add(steps, tree, room, after, remains, spent, state, k, known):
                return False
        if depth == 0:
            return True
        depth -= 1  # without the last one chosen
        i = chosen[depth]
        gone -= steps.sizes[i]
        left -= price[i]
        i += 1
        rest = 0
        for j in range(i, n):
            if movable >> j & 1:
                rest += steps.sizes[j]


@numba_jit
def explore(steps: _Steps, tree: Tree, room: int, count: int, known: float) -> tuple[int, float, bool, int]:
    """Explore states until `count` of them, and of sets of values to drop, were looked at.

    Returns the complete state of least cost or -1, the least promise of what is left, whether anything is left, and how
    many were looked at.
    """
    n = steps.sizes.shape[0]
    every = (1 << n) - 1
    results = 0
    for i in range(n):
        if not steps.users[i]:
            results |= 1 << i
    chosen, price, tried = np.zeros(n + 1, dtype=np.int64), np.zeros(n), np.zeros(1, dtype=np.int64)
    looked = 0
    while looked < count:
        if not tree.taken[1]:
            return -1, np.inf, False, looked
        if tree.promise[tree.heap[0]] >= known:
            return -1, tree.promise[tree.heap[0]], False, looked
        state = pop(tree)
        done, memory = tree.done[state], tree.memory[state]
        if done == every and memory & results == results:
            return state, tree.promise[state], False, looked
        tried[0] = 0
        for k in range(n):
            bit = 1 << k
            if memory & bit or steps.inputs[k] & ~memory:
                continue
            if done & bit:
                if done & steps.below[k] == steps.below[k] or (steps.users[k] and steps.serves[k] & ~done == 0):
                    continue
            elif steps.before[k] & ~done:
                continue
            own = steps.own[k] if steps.held[k] else 0
            fits = _compute(steps, tree, room, state, k, steps.needs[k], own, known, chosen, price, tried)
            if fits and own:
                fits = _compute(
                    steps, tree, room, state, k, steps.needs[k] + steps.held[k], np.int64(0), known, chosen, price,
                    tried,
                )  # fmt: skip
            if not fits:
                return -1, tree.promise[state], False, looked + tried[0]
        looked += 1 + tried[0]
    return -1, tree.promise[tree.heap[0]] if tree.taken[1] else np.inf, True, looked
