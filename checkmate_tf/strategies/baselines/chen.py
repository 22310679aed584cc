"""The checkpointing heuristics of Chen et al., for linear networks, and how they choose from any list of candidates.

Tianqi Chen, Bing Xu, Chiyuan Zhang, Carlos Guestrin: Training Deep Nets with Sublinear Memory Cost (2016), sections 3
and 4; as baselines of Checkmate (Jain et al., MLSys 2020), Table 1 and section 5.1.

- **sqrt(n)**: every k-th of m candidates is kept, k the integer square root of m. On a chain of n unit nodes that is
  about sqrt(n) kept values and segments of sqrt(n), and at most one forward pass is computed twice.
- **greedy** (their algorithm 3): walk through the forward pass and add up sizes; once they exceed b, keep the next
  candidate and start again from 0. They search b around one good guess. Here every b is tried that makes a difference
  (or a geometric series of them, where there are too many), and the cheapest schedule that fits the budget is taken.

Neither takes into account what nodes cost. What is kept stays until its last use.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import numpy as np

from ...graph import Graph
from ...schedule import Schedule
from ..options import SolveOptions
from .keepset import cheapest_that_fits, droppable, keepset_sequence, plain_schedule, require_chain

__all__ = ["by_segment_size", "chen_greedy", "chen_sqrt", "every_root", "solve_greedy", "solve_sqrt"]

_SETS = 500  # keep-sets to look at, at most,
_WORK = 200_000  # or as many as make so many nodes,
_FEWEST = 32  # but some in any case


def chen_sqrt(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Chen's sqrt(n): one schedule, whatever the budget.

    Raises
    ------
    StrategyError
        If the forward pass is not linear.
    InfeasibleBudgetError
        If the schedule does not fit.
    """
    plain = plain_schedule(graph, budget_bytes, "chen-sqrt")
    if plain is not None:
        return plain
    require_chain(graph, "chen-sqrt")
    return solve_sqrt(graph, budget_bytes, "chen-sqrt", np.flatnonzero(droppable(graph)).tolist(), options)


def chen_greedy(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Chen's greedy, with a search over b.

    Raises
    ------
    StrategyError
        If the forward pass is not linear.
    InfeasibleBudgetError
        If no b gives a schedule that fits.
    """
    plain = plain_schedule(graph, budget_bytes, "chen-greedy")
    if plain is not None:
        return plain
    require_chain(graph, "chen-greedy")
    return solve_greedy(graph, budget_bytes, "chen-greedy", np.flatnonzero(droppable(graph)).tolist(), options)


def solve_sqrt(
    graph: Graph, budget_bytes: int, strategy: str, candidates: Sequence[int], options: SolveOptions
) -> Schedule:
    """The schedule that keeps every k-th candidate.

    Raises
    ------
    InfeasibleBudgetError
        If it does not fit.
    """
    sequence = keepset_sequence(graph, every_root(candidates))
    return cheapest_that_fits(graph, budget_bytes, strategy, [sequence], options.time_limit)


def solve_greedy(
    graph: Graph, budget_bytes: int, strategy: str, candidates: Sequence[int], options: SolveOptions
) -> Schedule:
    """The cheapest schedule over all b that fits.

    Raises
    ------
    InfeasibleBudgetError
        If none does.
    """
    sequences = (keepset_sequence(graph, kept) for kept in by_segment_size(graph, candidates))
    return cheapest_that_fits(graph, budget_bytes, strategy, sequences, options.time_limit)


def every_root(candidates: Sequence[int]) -> list[int]:
    """Every k-th candidate, k the integer square root of their number."""
    step = max(math.isqrt(len(candidates)), 1)
    return list(candidates[step - 1 :: step])


def by_segment_size(graph: Graph, candidates: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The different keep-sets of the greedy heuristic as b grows from 0, the last of them empty.

    Parameters
    ----------
    graph : Graph
    candidates : ascending sequence of int
        Forward nodes that may be kept.

    Notes
    -----
    Sizes are of the values that would be dropped otherwise; what must be kept in any case does not count. Between the
    b of one keep-set and the least size that made it keep something, nothing changes: so the next b is that size. If
    there are more keep-sets than can be looked at in a few seconds, they are those of a geometric series of b.
    """
    most = max(_FEWEST, min(_SETS, _WORK // max(len(graph), 1)))
    sums = np.cumsum(np.where(droppable(graph), graph.sizes, 0))
    at = sums[list(candidates)].tolist()  # bytes up to each candidate, its own included
    found: list[tuple[int, ...]] = []
    b = 0
    while len(found) < most:
        kept, least = _cut(at, b)
        found.append(tuple(candidates[k] for k in kept))
        if not kept:
            yield from found
            return
        b = least
    seen = set()
    for b in np.geomspace(max(at[0], at[-1] // len(at), 1), max(at[-1], 1), most).astype(np.int64).tolist():
        chosen = tuple(candidates[k] for k in _cut(at, b)[0])
        if chosen not in seen:
            seen.add(chosen)
            yield chosen


def _cut(at: list[int], b: int) -> tuple[list[int], int]:
    """Which candidates end a segment of more than b bytes, and the least segment so ended."""
    kept: list[int] = []
    begin = least = k = 0
    while (k := bisect_right(at, begin + b, k)) < len(at):
        size = at[k] - begin
        least = min(least, size) if kept else size
        kept.append(k)
        begin = at[k]
        k += 1
    return kept, least
