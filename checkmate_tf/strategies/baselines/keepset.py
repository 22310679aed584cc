"""Schedules from keep-sets. A keep-set is what to keep of the forward pass; all else is computed again when needed.

The heuristics before Checkmate choose which values of the forward pass to keep. Checkmate takes them to any graph: it
solves for the R that is optimal for their S, "via a graph traversal per row of R that fills in entries when a needed
value is not in memory" (Jain et al., MLSys 2020, section 5.1). This is that traversal, and the S that it serves:

- A kept value, the loss, and every value of the backward pass is in memory from its first computation to its last use.
- The kept values cut the forward pass into segments, which the backward pass goes through from the last to the first.
- Another forward value is dropped after its last reader in the forward pass; not so in the last segment that has any,
  whose back-propagation comes next.
- What is computed again is held as long as it is of use for the segment being back-propagated, and dropped then. So on
  a chain every segment is computed again once, as Chen et al. (2016) do it: no more than one forward pass in all.
- What must not be computed again (`Graph.recompute_until`) is kept.

Each stage computes just what is missing, in the order of the graph, so R is the least for this S. There are no
matrices on the way: a sequence of computations is all that a schedule needs.

**Where the papers are silent.** In a chain it is plain which segment is being back-propagated. In general it is the
earliest so far over the backward nodes, each counted as the latest segment of the dropped values that it reads: a skip
connection from an early segment does not make that the current one. Values of other segments that a node needs are
held with the segment's own. Checkmate's artifact holds a segment in the stages that mirror those in which it was first
computed, which supposes one gradient for each forward node; on chains of such the two agree.

**What this does badly.** Where segments end inside residual blocks, the way back to a kept value can lead through most
of the network, once a segment.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasibleBudgetError, StrategyError
from ...graph import BACKWARD, FORWARD, Graph
from ...schedule import Schedule, keep_all
from ...units import format_bytes
from ..search.arrays import pinned_bytes

__all__ = [
    "cheapest_that_fits",
    "does_not_fit",
    "droppable",
    "forward_end",
    "keepset_sequence",
    "missing",
    "plain_schedule",
    "require_chain",
]


def forward_end(graph: Graph) -> int:
    """How many nodes come before the first backward node: the forward pass and the loss."""
    backward = np.flatnonzero(graph.kinds == BACKWARD)
    return int(backward[0]) if backward.size else len(graph)


def droppable(graph: Graph) -> NDArray[np.bool_]:
    """(n,) forward nodes that may be computed again in the backward pass. All others are kept in any case."""
    end = forward_end(graph)
    return (np.arange(len(graph)) < end) & (graph.kinds == FORWARD) & (graph.recompute_until > end)


def missing(graph: Graph, node: int, there: bytearray, until: list[int]) -> list[int]:
    """What must be computed again before the first computation of `node`, in the order of the graph.

    Parameters
    ----------
    node : int
        Also the stage.
    there : (n,) bytearray
        1 for values in memory. A value that may no longer be computed again counts as there: its last copy is, as
        `plan_from_sequence` keeps a copy until its last reader.
    until : (n,) list of int
        `graph.recompute_until`.

    Notes
    -----
    A search along the edges, backwards from the inputs of `node`: O(what is found, and its edges).
    """
    found = {i for i in graph.inputs[node] if not there[i] and node < until[i]}
    stack = list(found)
    while stack:
        for i in graph.inputs[stack.pop()]:
            if not there[i] and i not in found and node < until[i]:
                found.add(i)
                stack.append(i)
    return sorted(found)


def keepset_sequence(graph: Graph, kept: Iterable[int]) -> list[int]:
    """The order of computation of a keep-set: frontier-advancing, with the least recomputation.

    Parameters
    ----------
    graph : Graph
    kept : iterable of int
        Forward nodes. Without any there is one segment, and nothing is dropped.

    Returns
    -------
    list of int
        All computations.

    Notes
    -----
    O(n + edges + recomputations with their edges).
    """
    n, end, until = len(graph), forward_end(graph), graph.recompute_until.tolist()
    chosen = np.zeros(n, dtype=bool)
    chosen[list(kept)] = True
    dropped: list[bool] = (droppable(graph) & ~chosen).tolist()
    segment: list[int] = (np.cumsum(chosen) - chosen).tolist()  # of node i: how many kept nodes come before it
    current = max((segment[i] for i in range(end) if dropped[i]), default=0)
    held = [i for i in range(end) if dropped[i] and segment[i] == current]
    there = bytearray(not dropped[i] or segment[i] == current for i in range(n))
    sequence = list(range(end))
    for t in range(end, n):
        of = max((segment[i] for i in graph.inputs[t] if dropped[i]), default=current)
        if of < current:
            for i in held:
                there[i] = 0
            held, current = [], of
        again = missing(graph, t, there, until)
        for i in again:
            there[i] = 1
        held += again
        sequence += again
        sequence.append(t)
    return sequence


def plain_schedule(graph: Graph, budget_bytes: int, strategy: str) -> Schedule | None:
    """The schedule without recomputation, if it fits: then no strategy has anything to decide."""
    begun = time.perf_counter()
    plain = keep_all(graph)
    if plain.peak_bytes > budget_bytes:
        return None
    return replace(plain, strategy=strategy, budget_bytes=budget_bytes, seconds=time.perf_counter() - begun)


def cheapest_that_fits(
    graph: Graph, budget_bytes: int, strategy: str, sequences: Iterable[Sequence[int]], time_limit: float
) -> Schedule:
    """Evaluate sequences, the cheapest first, up to one that fits.

    Parameters
    ----------
    budget_bytes : int
        Constants included.
    sequences : iterable of sequences of int
        At least one. No more are asked for once half of the time is over.
    time_limit : float
        Seconds.

    Raises
    ------
    InfeasibleBudgetError
        If none fits. Its `minimum_bytes` is the least peak of those that were evaluated.

    Notes
    -----
    What holds too many bytes across the loss alone is not evaluated: values computed before the backward pass, once,
    and read in it.
    """
    begun, end = time.perf_counter(), forward_end(graph)
    across = (
        np.array([i < end and bool(users) and users[-1] >= end for i, users in enumerate(graph.users)]) * graph.sizes
    )
    offers: list[tuple[float, int, int, NDArray[np.int64]]] = []
    for sequence in sequences:
        order = np.array(sequence, dtype=np.int64)
        counts = np.bincount(order)
        held = graph.constant_bytes + int(across[counts == 1].sum())
        offers.append((float((graph.costs * counts).sum()), held, len(offers), order))
        if time.perf_counter() - begun > time_limit / 2:
            break
    least = np.inf
    for _, held, _, order in sorted(offers, key=lambda offer: offer[:3]):
        if held > budget_bytes and held >= least:
            continue
        schedule = Schedule(graph, order, strategy=strategy, budget_bytes=budget_bytes)
        if schedule.peak_bytes <= budget_bytes:
            return replace(schedule, seconds=time.perf_counter() - begun)
        least = min(least, schedule.peak_bytes)
        if time.perf_counter() - begun > time_limit:
            break
    raise does_not_fit(graph, budget_bytes, strategy, int(least))


def does_not_fit(graph: Graph, budget_bytes: int, strategy: str, least_bytes: int) -> InfeasibleBudgetError:
    """The error of a strategy whose smallest schedule needs `least_bytes`, constants included."""
    message = (
        f'budget {format_bytes(budget_bytes)} is too small for strategy "{strategy}", whose smallest schedule for this '
        f'model needs {format_bytes(least_bytes)}; raise the budget, lower the batch size or use strategy="checkmate"'
    )
    proven = budget_bytes < graph.constant_bytes + int(pinned_bytes(graph).max())
    return InfeasibleBudgetError(message, budget_bytes, least_bytes, proven)


def require_chain(graph: Graph, strategy: str) -> None:
    """Check that the forward pass is linear: each node, and the loss, reads the one before it and no other.

    Raises
    ------
    StrategyError
        Names the first node that breaks the chain.
    """
    for node in range(1, forward_end(graph)):
        if graph.inputs[node] != (node - 1,):
            reads = ", ".join(graph.names[i] for i in graph.inputs[node]) or "no node"
            raise StrategyError(
                f'strategy "{strategy}" serves linear networks only, where each node reads just the one before it: '
                f"here {graph.names[node]} (node {node}) comes after {graph.names[node - 1]} and reads {reads}; use "
                'strategy="linearized-greedy" or "checkmate"'
            )
