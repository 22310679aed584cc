"""A graph flattened to arrays for compiled code, and what can be told of each value before any search.

Indices are 0-based stages and nodes. For each node i:

- `horizon[i]`: the last stage in which i can be computed again, its ancestors permitting; i itself if never.
- `last_need[i]`: the last stage in which the value can be of use, read directly or to recompute a reader; n for a sink,
  which is an output and is kept to the end.
- `uses[use_ptr[i]:use_ptr[i + 1]]`: the stages whose first computation reads i, ascending. A value that cannot be
  recomputed but may be a source of recomputation has its last need as one more use, if `keep_sources` says so.
- `hints[hint_ptr[i]:hint_ptr[i + 1]]`: the uses of i and of its recomputable readers: how far away the need for a mere
  source of recomputation is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import BACKWARD, Graph

__all__ = ["Problem", "flatten", "last_needs", "pinned_bytes"]


class Problem(NamedTuple):
    """Arrays of a graph (a named tuple, for Numba). Bytes without the constants."""

    input_ptr: NDArray[np.int64]
    inputs: NDArray[np.int64]
    sizes: NDArray[np.int64]
    needs: NDArray[np.int64]
    costs: NDArray[np.float64]
    use_ptr: NDArray[np.int64]
    uses: NDArray[np.int64]
    hint_ptr: NDArray[np.int64]
    hints: NDArray[np.int64]
    horizon: NDArray[np.int64]
    last_need: NDArray[np.int64]
    evictable: NDArray[np.bool_]


def last_needs(graph: Graph, until: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """(n,) last stage in which each value can be read, by a first computation or by a permitted recomputation."""
    n = len(graph)
    until = graph.recompute_until if until is None else until
    last = np.zeros(n, dtype=np.int64)
    for i in range(n - 1, -1, -1):
        users = graph.users[i]
        last[i] = n if not users else max(max(j, min(int(until[j]) - 1, int(last[j]), n - 1)) for j in users)
    return last


def flatten(graph: Graph, *, recompute_backward: bool = False, keep_sources: float = np.inf) -> Problem:
    """Arrays of `graph`.

    Parameters
    ----------
    recompute_backward : bool
        Whether backward nodes may be evicted and recomputed, too. Rarely of use; more to search.
    keep_sources : float
        Values that cannot be recomputed are kept for the sake of recomputing their readers if they have at most this
        many bytes. Larger ones are dropped after their last direct use, and what depends on them is then kept.
    """
    n = len(graph)
    kinds, sizes = graph.kinds, graph.sizes
    until = np.where((kinds == BACKWARD) & (not recompute_backward), 0, graph.recompute_until)
    last = last_needs(graph, until)
    uses: list[list[int]] = [list(users) or [n] for users in graph.users]
    horizon = np.zeros(n, dtype=np.int64)  # of recomputation
    reach = np.zeros(n, dtype=np.int64)  # last stage in which the value can be had at all
    for i in range(n):
        horizon[i] = max(i, min([int(until[i]) - 1, n - 1, *(int(reach[p]) for p in graph.inputs[i])]))
        if horizon[i] < last[i] and uses[i][-1] < last[i] and sizes[i] <= keep_sources:
            uses[i].append(int(last[i]))
        reach[i] = max(horizon[i], uses[i][-1])
    # What can no longer be recomputed has fewer needs than `last` promises; the search frees values by these.
    need = np.zeros(n, dtype=np.int64)
    for i in range(n - 1, -1, -1):
        need[i] = max([uses[i][-1], *(min(int(horizon[j]), int(need[j])) for j in graph.users[i])])
    evictable = (horizon > np.arange(n)) & (sizes > 0) & np.array([bool(users) for users in graph.users])
    hints = [
        sorted({*uses[i], *(u for j in graph.users[i] if evictable[j] for u in uses[j])}) if evictable[i] else []
        for i in range(n)
    ]
    return Problem(
        *_ragged(graph.inputs),
        np.array(sizes),
        np.array(sizes + graph.workspace),
        np.array(graph.costs),
        *_ragged(uses),
        *_ragged(hints),
        horizon,
        need,
        evictable,
    )


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


def _ragged(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    pointers = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=pointers[1:])
    return pointers, np.array([x for row in rows for x in row], dtype=np.int64)
