"""A graph flattened to arrays for compiled code, and what can be told of each value before any search.

Indices are 0-based stages and nodes. For each node i:

- `horizon[i]`: the last stage in which i can be computed again, its ancestors permitting; i itself if never.
- `last_need[i]`: the last stage in which the value can be of use, read directly or to recompute a reader; n for a sink,
  which is an output and is kept to the end.
- `uses[use_ptr[i]:use_ptr[i + 1]]`: the stages whose first computation reads i, ascending. A value that cannot be
  recomputed but may be a source of recomputation has its last need as one more use, if `keep_sources` says so.
- `again[i]`: what it costs to have the value again. `hosted[i]`: it is brought back from the host then, for which no
  other value is needed, and which is possible at any time.
- `hints[hint_ptr[i]:hint_ptr[i + 1]]`: the uses of i and of its recomputable readers: how far away the need for a mere
  source of recomputation is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import BACKWARD, Graph
from ...numba_jit import numba_jit
from ..ordering.links import pointers, ragged

__all__ = ["Hosted", "Problem", "copy", "flatten", "last_needs", "pinned_bytes", "place"]

_ORDERED = frozenset({"order", "rank", "uses", "hints", "horizon", "last_need", "evictable"})  # what `place` writes


class Problem(NamedTuple):
    """Arrays of a graph (a named tuple, for Numba). Bytes without the constants.

    Stages are places in an order of first computations, `order`, of which `rank` is the inverse. What depends on the
    order is written by `place`.
    """

    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int64]
    user_ptr: NDArray[np.int64]
    users: NDArray[np.int64]
    sizes: NDArray[np.int64]
    needs: NDArray[np.int64]
    held: NDArray[np.int64]
    costs: NDArray[np.float64]
    again: NDArray[np.float64]
    hosted: NDArray[np.bool_]
    until: NDArray[np.int64]
    source: NDArray[np.bool_]
    order: NDArray[np.int64]
    rank: NDArray[np.int64]
    use_ptr: NDArray[np.int64]
    uses: NDArray[np.int64]
    hint_ptr: NDArray[np.int64]
    hints: NDArray[np.int64]
    horizon: NDArray[np.int64]
    last_need: NDArray[np.int64]
    evictable: NDArray[np.bool_]


class Hosted(NamedTuple):
    """Values that are copied to the host: (n,) which, and what it costs to have each again from there."""

    values: NDArray[np.bool_]
    costs: NDArray[np.float64]


def last_needs(graph: Graph, until: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """(n,) last stage in which each value can be read, by a first computation or by a permitted recomputation."""
    n = len(graph)
    until = graph.recompute_until if until is None else until
    last = np.zeros(n, dtype=np.int64)
    for i in range(n - 1, -1, -1):
        users = graph.users[i]
        last[i] = n if not users else max(max(j, min(int(until[j]) - 1, int(last[j]), n - 1)) for j in users)
    return last


def flatten(
    graph: Graph,
    *,
    recompute_backward: bool = False,
    keep_sources: float = np.inf,
    order: NDArray[np.int64] | None = None,
    host: Hosted | None = None,
) -> Problem:
    """Arrays of `graph`.

    Parameters
    ----------
    recompute_backward : bool
        Whether backward nodes may be evicted and recomputed, too. Rarely of use; more to search.
    keep_sources : float
        Values that cannot be recomputed are kept for the sake of recomputing their readers if they have at most this
        many bytes. Larger ones are dropped after their last direct use, and what depends on them is then kept.
    order : (n,) int, optional
        Nodes in the order of their first computations; the graph's own by default.
    host : Hosted, optional
        Which values are brought back from the host, and not computed again.
    """
    n, sizes = len(graph), np.array(graph.sizes)
    rows = [len(users) or 1 for users in graph.users]
    use_ptr = pointers([row + 1 for row in rows])
    hint_ptr = pointers([row + 1 + sum(rows[j] + 1 for j in graph.users[i]) for i, row in enumerate(rows)])
    problem = Problem(
        *ragged(graph.inputs),
        *ragged(graph.users),
        sizes,
        np.array(sizes + graph.workspace),
        np.array(graph.held),
        np.array(graph.costs),
        np.array(graph.costs if host is None else np.where(host.values, host.costs, graph.costs)),
        np.zeros(n, np.bool_) if host is None else np.array(host.values, np.bool_),
        np.where((graph.kinds == BACKWARD) & (not recompute_backward), 0, graph.recompute_until),
        sizes <= keep_sources,
        np.arange(n) if order is None else np.array(order, dtype=np.int64),
        np.zeros(n, np.int64),
        use_ptr,
        np.zeros(use_ptr[-1], np.int64),
        hint_ptr,
        np.zeros(hint_ptr[-1], np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        np.zeros(n, np.bool_),
    )
    place(problem)
    return problem


def copy(problem: Problem) -> Problem:
    """A problem with an order of its own, and all that depends on it. The rest is shared."""
    return Problem(*(array.copy() if name in _ORDERED else array for name, array in problem._asdict().items()))


@numba_jit
def place(problem: Problem) -> None:
    """Write what depends on the order, which is `problem.order`.

    A node may be computed again until the first of those from its `until` on is reached, in the order of the graph:
    while any before that is missing (`legalise`). Rows that are shorter than the room for them end in repetitions.
    """
    order, rank, until = problem.order, problem.rank, problem.until
    user_ptr, users = problem.user_ptr, problem.users
    uses, use_ptr = problem.uses, problem.use_ptr
    hints, hint_ptr = problem.hints, problem.hint_ptr
    horizon, last = problem.horizon, problem.last_need
    n = order.shape[0]
    missing = np.empty(n, dtype=np.int64)  # the first node, in the order of the graph, that is missing at each place
    least = n
    for t in range(n - 1, -1, -1):
        rank[order[t]] = t
        least = min(least, order[t])
        missing[t] = least
    ends = np.empty(n, dtype=np.int64)  # of being recomputed, its inputs aside
    for i in range(n):
        ends[i] = n if until[i] >= n or problem.hosted[i] else np.searchsorted(missing, until[i])
    for t in range(n - 1, -1, -1):
        i = order[t]
        begin, end = user_ptr[i], user_ptr[i + 1]
        last[i] = n if begin == end else 0
        for e in range(begin, end):
            j = users[e]
            last[i] = max(last[i], rank[j] if problem.hosted[j] else max(rank[j], min(ends[j] - 1, last[j], n - 1)))
    reach = np.empty(n, dtype=np.int64)  # last stage in which the value can be had at all
    for t in range(n):
        i = order[t]
        far = min(ends[i] - 1, n - 1)
        for e in range(problem.input_ptr[i], problem.input_ptr[i] if problem.hosted[i] else problem.input_ptr[i + 1]):
            far = min(far, reach[problem.inputs[e]])
        horizon[i] = max(t, far)
        begin, count = use_ptr[i], 0
        for e in range(user_ptr[i], user_ptr[i + 1]):
            uses[begin + count] = rank[users[e]]
            count += 1
        if count == 0:
            uses[begin] = n
            count = 1
        row = uses[begin : begin + count]
        if count > 1:
            row.sort()
        uses[begin + count] = row[-1]
        if horizon[i] < last[i] and row[-1] < last[i] and problem.source[i]:
            uses[begin + count] = last[i]
        reach[i] = max(horizon[i], uses[begin + count])
    # What can no longer be recomputed has fewer needs than `last` promises; the search frees values by these.
    for t in range(n - 1, -1, -1):
        i = order[t]
        last[i] = uses[use_ptr[i + 1] - 1]
        for e in range(user_ptr[i], user_ptr[i + 1]):
            j = users[e]
            if not problem.hosted[j]:
                last[i] = max(last[i], min(horizon[j], last[j]))
    for i in range(n):
        problem.evictable[i] = horizon[i] > rank[i] and problem.sizes[i] > 0 and user_ptr[i] < user_ptr[i + 1]
    for i in range(n):
        if not problem.evictable[i] or last[i] <= uses[use_ptr[i + 1] - 1]:
            continue  # nobody asks for its hints
        begin, at = hint_ptr[i], hint_ptr[i]
        for a in range(use_ptr[i], use_ptr[i + 1]):
            hints[at] = uses[a]
            at += 1
        for e in range(user_ptr[i], user_ptr[i + 1]):
            j = users[e]
            if problem.evictable[j]:
                for a in range(use_ptr[j], use_ptr[j + 1]):
                    hints[at] = uses[a]
                    at += 1
        hints[begin:at].sort()
        for a in range(at, hint_ptr[i + 1]):
            hints[a] = hints[at - 1]


def pinned_bytes(graph: Graph) -> NDArray[np.int64]:
    """(n,) bytes that any schedule needs while node t is first computed, constants left out.

    The working set W_t, and every other value computed before t that is read after t and cannot be recomputed after t.
    """
    n = len(graph)
    pinned = np.zeros(n + 1, dtype=np.int64)  # differences over t
    extra = np.zeros(n, dtype=np.int64)  # pinned values among the inputs of t, counted in W_t already
    for i in range(n):
        first = max(i + 1, int(graph.recompute_until[i]) - 1)
        last = graph.users[i][-1] if graph.users[i] else n
        if first < last:
            pinned[first] += graph.sizes[i]
            pinned[min(last, n)] -= graph.sizes[i]
            for t in graph.users[i]:
                if first <= t < last:
                    extra[t] += graph.sizes[i]
    bytes_needed: NDArray[np.int64] = graph.working_set + np.cumsum(pinned[:n]) - extra
    return bytes_needed
