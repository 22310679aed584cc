"""One pass of the eviction search, compiled by Numba.

The training order is played through with a memory of `budget` bytes. In stage t the missing ancestors of node t are
computed again, in the order of the graph, then t. When a node does not fit, the value with the least score

    log w[phase(t), i] - alpha log(distance to its next use)

is evicted, unless this stage still needs it. In `plan.evaluate` a value dies at its last use. Here it dies then at the
latest, or when it is evicted, so the memory counted is never below that of `plan.evaluate` for the sequence.

Related: the h-DTR heuristics of Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021) and Belady's rule. Those
decide online with fixed weights; here the weights are variables of a search (`anneal`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...numba_jit import numba_jit
from ..ordering.links import Links
from .arrays import Problem, place
from .reorder import reorder

__all__ = ["FAILED", "anneal", "buffers", "repair", "simulate"]

FAILED = 1e300
_LOOKS = 500_000_000  # at values that might be evicted, in one simulation at most: two or three seconds


def buffers(n: int) -> tuple[NDArray[Any], ...]:
    """Scratch arrays that `simulate` reuses from call to call."""
    integers = np.zeros((9, n + 1), dtype=np.int64)
    return (*integers, np.zeros(n + 1, dtype=np.bool_), np.log(np.maximum(np.arange(n + 2), 1).astype(np.float64)))


@numba_jit
def simulate(
    problem: Problem,
    budget: int,
    weights: NDArray[np.float64],
    phase: NDArray[np.int64],
    alpha: float,
    source_bias: float,
    limit: float,
    scratch: Any,
    sequence: NDArray[np.int64],
    evictions: NDArray[np.int64],
) -> tuple[float, int, int]:
    """Play the training order once.

    Parameters
    ----------
    weights : (phases, n) float
        log w.
    phase : (n,) int
        Row of `weights` for each stage.
    source_bias : float
        Added to the score of values that only recomputation can read.
    limit : float
        Give up when the cost of recomputation exceeds this, or when too many values had to be looked at.
    sequence : (capacity,) int, written
        The nodes in order of computation.
    evictions : (n,) int, written
        How often each value was computed again.

    Returns
    -------
    extra, length, stage : float, int, int
        Cost of recomputation, length of `sequence`, and n, or the stage that failed (extra is then `FAILED`, or at
        least `limit`). On failure for lack of memory length is negative: minus the number of nodes that the stage
        computes.
    """
    inputs, ptr = problem.inputs, problem.input_ptr
    order, rank = problem.order, problem.rank
    uses, use_end = problem.uses, problem.use_ptr
    hints, hint_end = problem.hints, problem.hint_ptr
    sizes, needs, again, hosted = problem.sizes, problem.needs, problem.again, problem.hosted
    horizon, last_need, evictable = problem.horizon, problem.last_need, problem.evictable
    locks, use_at, hint_at, pool, place, todo, stack, mark, _spare, present, logs = scratch
    n = sizes.shape[0]
    for i in range(n):
        locks[i] = 0
        use_at[i] = use_end[i]
        hint_at[i] = hint_end[i]
        place[i] = -1
        mark[i] = -1
        present[i] = False
        evictions[i] = 0
    pooled = 0
    live = 0
    extra = 0.0
    length = looks = 0
    for t in range(n):
        row = weights[phase[t]]
        count, depth = 1, 1
        todo[0] = t  # in places of the order
        stack[0] = order[t]
        while depth > 0:
            depth -= 1
            k = stack[depth]
            for e in range(ptr[k], ptr[k + 1]):
                p = inputs[e]
                locks[p] += 1
                if not present[p] and mark[p] != t:
                    mark[p] = t
                    if horizon[p] < t:
                        return FAILED, -count, t
                    todo[count] = rank[p]
                    count += 1
                    if not hosted[p]:
                        stack[depth] = p
                        depth += 1
                    extra += again[p]
                    evictions[p] += 1
        if extra > limit or length + count > sequence.shape[0]:
            return max(extra, limit), length, t
        if count > 1:
            todo[:count].sort()
        for at in range(count):
            k = order[todo[at]]
            fetched = hosted[k] and todo[at] < t
            need = sizes[k] if fetched else needs[k]
            while live + need > budget:
                worst, lowest = -1, np.inf
                looks += pooled
                if looks > _LOOKS:
                    return max(extra, limit), length, t
                for q in range(pooled):
                    i = pool[q]
                    if locks[i] > 0:
                        continue
                    a = use_at[i]
                    while a < use_end[i + 1] and uses[a] <= t:
                        a += 1
                    use_at[i] = a
                    if a < use_end[i + 1]:
                        if uses[a] > horizon[i]:
                            continue  # could not be had again in time
                        score = row[i] - alpha * logs[uses[a] - t]
                    else:
                        a = hint_at[i]
                        while a < hint_end[i + 1] and hints[a] <= t:
                            a += 1
                        hint_at[i] = a
                        near = hints[a] if a < hint_end[i + 1] else last_need[i]
                        score = row[i] - alpha * logs[max(near - t, 1)] + source_bias
                    if score < lowest:
                        worst, lowest = q, score
                if worst < 0:
                    return FAILED, -count, t
                i = pool[worst]
                pooled -= 1
                pool[worst] = pool[pooled]
                place[pool[worst]] = worst
                place[i] = -1
                present[i] = False
                live -= sizes[i]
            present[k] = True
            live += sizes[k]
            sequence[length] = k
            length += 1
            if evictable[k]:
                pool[pooled] = k
                place[k] = pooled
                pooled += 1
            for e in range(ptr[k], ptr[k] if fetched else ptr[k + 1]):
                p = inputs[e]
                locks[p] -= 1
                if locks[p] == 0 and last_need[p] <= t:
                    present[p] = False
                    live -= sizes[p]
                    q = place[p]
                    if q >= 0:
                        pooled -= 1
                        pool[q] = pool[pooled]
                        place[pool[q]] = q
                        place[p] = -1
    return extra, length, n


@numba_jit
def nudge(
    weights: NDArray[np.float64], before: NDArray[np.float64], movable: NDArray[np.int64]
) -> tuple[int, int, int, int, int]:
    """A random change of `weights`, in place. `before` gets what they were; the result tells `restore` where."""
    phases, m = weights.shape[0], movable.shape[0]
    kind = np.random.random()  # noqa: NPY002 - Numba's own generator
    a = int(np.random.random() * m)  # noqa: NPY002
    b = a + 1
    size = math.exp(np.random.random() * 4.0 - 2.5)  # noqa: NPY002
    if kind < 0.15:
        b = min(m, a + 2 + int(np.random.random() * 14))  # noqa: NPY002
    low, high = 0, phases
    if phases > 1 and np.random.random() < 0.6:  # noqa: NPY002
        low = int(np.random.random() * phases)  # noqa: NPY002
        high = phases if np.random.random() < 0.5 else low + 1  # noqa: NPY002
    delta = size * np.random.normal()  # noqa: NPY002
    for q in range(a, b):
        i = movable[q]
        for r in range(low, high):
            before[r, i] = weights[r, i]
            weights[r, i] += delta
    partner = -1
    if kind > 0.6:  # one up, one down
        partner = movable[int(np.random.random() * m)]  # noqa: NPY002
        if b == a + 1 and partner != movable[a]:
            for r in range(low, high):
                before[r, partner] = weights[r, partner]
                weights[r, partner] -= delta
        else:
            partner = -1
    return a, b, partner, low, high


@numba_jit
def restore(
    weights: NDArray[np.float64],
    before: NDArray[np.float64],
    movable: NDArray[np.int64],
    a: int,
    b: int,
    partner: int,
    low: int,
    high: int,
) -> None:
    """Take back what `nudge` did."""
    for q in range(a, b):
        i = movable[q]
        for r in range(low, high):
            weights[r, i] = before[r, i]
    if partner >= 0:
        for r in range(low, high):
            weights[r, partner] = before[r, partner]


@numba_jit
def anneal(
    problem: Problem,
    spare: Problem,
    links: Links,
    share: float,
    budget: int,
    weights: NDArray[np.float64],
    phase: NDArray[np.int64],
    alpha: float,
    source_bias: float,
    movable: NDArray[np.int64],
    current: float,
    best: float,
    hot: float,
    cold: float,
    steps: int,
    seed: int,
    scratch: Any,
    sequence: NDArray[np.int64],
    best_sequence: NDArray[np.int64],
    best_weights: NDArray[np.float64],
    best_order: NDArray[np.int64],
) -> tuple[float, float, int, int]:
    """Simulated annealing on `weights` and the problem's order (both changed in place), `steps` simulations.

    Parameters
    ----------
    spare : Problem
        A copy of `problem`, to be written to.
    links : Links
        What an order has to keep.
    share : float
        Of the steps, how many change the order, and not the weights.
    hot, cold : float
        Temperatures at the begin and the end.

    Returns
    -------
    current, best, length, accepted
        Costs of recomputation; length of `best_sequence`, or -1 if it was not improved.
    """
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    phases, n = weights.shape
    evictions = np.zeros(n, dtype=np.int64)
    before = np.zeros((phases, n))
    mark = np.zeros(n, dtype=np.bool_)
    here, trial = problem, spare
    found, accepted = -1, 0
    for step in range(steps):
        temperature = hot * (cold / hot) ** (step / steps)
        limit = current - temperature * math.log(1.0 - np.random.random())  # noqa: NPY002
        reordered = share > 0 and np.random.random() < share  # noqa: NPY002
        a, b, partner, low, high = 0, 0, -1, 0, 0
        if not reordered:
            a, b, partner, low, high = nudge(weights, before, movable)
        elif not reorder(here, links, trial, np.int64(-1), mark):  # a literal would be a kind of its own
            continue
        extra, length, stage = simulate(
            trial if reordered else here,
            budget,
            weights,
            phase,
            alpha,
            source_bias,
            limit,
            scratch,
            sequence,
            evictions,
        )
        if stage == n and extra <= limit and not (reordered and extra == current):
            accepted += 1
            current = extra
            if reordered:
                here, trial = trial, here
            if extra < best:
                best = extra
                found = length
                best_sequence[:length] = sequence[:length]
                best_weights[:] = weights
                best_order[:] = here.order
        elif not reordered:
            restore(weights, before, movable, a, b, partner, low, high)
    if share > 0:
        problem.order[:] = here.order
        place(problem)
    return current, best, found, accepted


@numba_jit
def repair(
    problem: Problem,
    spare: Problem,
    links: Links,
    share: float,
    budget: int,
    weights: NDArray[np.float64],
    phase: NDArray[np.int64],
    alpha: float,
    source_bias: float,
    movable: NDArray[np.int64],
    reached: int,
    steps: int,
    seed: int,
    scratch: Any,
    sequence: NDArray[np.int64],
) -> tuple[float, int, int]:
    """Random walk on `weights` and the order towards later failures, until a simulation reaches the end.

    Parameters are those of `anneal`.

    Returns
    -------
    extra, length, stage
        As `simulate` for the weights and the order left behind.
    """
    np.random.seed(seed)  # noqa: NPY002
    phases, n = weights.shape
    evictions = np.zeros(n, dtype=np.int64)
    mark = np.zeros(n, dtype=np.bool_)
    before = weights.copy()
    here, trial = problem, spare
    m = movable.shape[0]
    extra, length = FAILED, 0
    for _ in range(steps):
        reordered = share > 0 and np.random.random() < share  # noqa: NPY002
        if reordered:
            if not reorder(here, links, trial, reached, mark):
                continue
        else:
            before[:] = weights
            size = math.exp(np.random.random() * 4.0 - 2.0)  # noqa: NPY002
            for _again in range(1 + int(np.random.random() * 6)):  # noqa: NPY002
                a = int(np.random.random() * m)  # noqa: NPY002
                b = min(m, a + 1 + int(np.random.random() ** 3 * 16))  # noqa: NPY002
                delta = size * np.random.normal()  # noqa: NPY002
                for q in range(a, b):
                    weights[:, movable[q]] += delta
        extra, length, stage = simulate(
            trial if reordered else here,
            budget,
            weights,
            phase,
            alpha,
            source_bias,
            1e299,
            scratch,
            sequence,
            evictions,
        )
        if stage >= reached:
            reached = stage
            if reordered:
                here, trial = trial, here
            if stage == n and length > 0:
                break
        elif not reordered:
            weights[:] = before
        extra, length = FAILED, 0
    if share > 0:
        problem.order[:] = here.order
        place(problem)
    return extra, length, reached
