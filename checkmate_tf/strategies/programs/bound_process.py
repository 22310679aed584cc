"""The bound in a process of its own: `python -m checkmate_tf.strategies.programs.bound_process GRAPH.npz`.

So a solver that crashes, hangs or is killed costs only the bound, and it has a core of its own. The graph comes as an
NPZ file of plain arrays (no pickle). Each better bound goes to standard output as one line of JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import compress
from typing import Any

import numpy as np

from ...files.arrays import graph_from_arrays, graph_to_arrays
from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ...solvers.json_process import JsonProcess, begin, limit_memory, say

__all__ = ["BoundProcess"]

_SHARE = 0.5  # of the time left, for the exact program at most: where it does not end, best-first search may
_TICK = 0.5  # seconds of best-first search between two messages
_RISE = 1e-6  # of the base cost: the first bound in any order that is told is higher by more


class BoundProcess(JsonProcess):
    """A running search for a lower bound.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    time_limit : float
        Seconds.
    memory_limit : int, optional
        Bytes of address space that the process may have. If it needs more it ends; what it told so far counts.
    max_cost : float, optional
        Bound the peak of schedules that cost no more than this, instead of the cost of those that fit the budget.
    relaxed : bool
        Do no more than the relaxation. Else the optimum of a small graph is looked for when that is done.
    fixed, free : bool
        Bound the cost in the graph's order, and in any order; by turns, if both.

    Notes
    -----
    Use as a context manager: the process is ended on exit. Nothing is raised if it fails; there is no bound then.
    Messages have "cost" (infinite if infeasible; bytes if there is a `max_cost`), "boundaries" and "kept" (rows as
    lists). For small graphs there are more, which have a "cost" or a "sequence". What holds in any order is an
    "any_order".
    """

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        time_limit: float,
        memory_limit: int | None = None,
        max_cost: float | None = None,
        relaxed: bool = False,
        fixed: bool = True,
        free: bool = False,
    ) -> None:
        arrays = {
            **graph_to_arrays(graph),
            "budget_bytes": budget_bytes,
            "time_limit": time_limit,
            "memory_limit": memory_limit or 0,
            "max_cost": np.nan if max_cost is None else max_cost,
            "relaxed": relaxed or max_cost is not None,
            "fixed": fixed,
            "free": free,
        }
        super().__init__(__name__, arrays)

    def __enter__(self) -> BoundProcess:
        return self


def main(path: str) -> None:
    """Print each better bound as a line of JSON."""
    begun = time.perf_counter()
    with np.load(path, allow_pickle=False) as file:
        graph = graph_from_arrays(file)
        budget_bytes, time_limit = int(file["budget_bytes"]), float(file["time_limit"])
        max_cost, relaxed = float(file["max_cost"]), bool(file["relaxed"])
        asked = [bool(file["fixed"]), bool(file["free"])]
        limit_memory(int(file["memory_limit"]))
    work = _fixed(graph, budget_bytes, time_limit, max_cost), _any(graph, budget_bytes, time_limit)
    for message in _by_turns(*compress(work, asked)):
        if message:
            say(**message)
    if not relaxed:
        _solve(graph, budget_bytes, begun + time_limit)


def _fixed(graph: Graph, budget_bytes: int, time_limit: float, max_cost: float) -> Iterator[dict[str, Any]]:
    """A message for each better bound in the graph's order."""
    from .bound import bounds, peak_bounds

    found = bounds(graph, budget_bytes, time_limit) if np.isnan(max_cost) else peak_bounds(graph, max_cost, time_limit)
    for bound in found:
        yield {"cost": bound.cost, "boundaries": bound.boundaries.tolist(), "kept": np.round(bound.kept, 3).tolist()}


def _any(graph: Graph, budget_bytes: int, time_limit: float) -> Iterator[dict[str, Any]]:
    """A message for each better bound in any order, and an empty one for each that is no better."""
    from .any_order import any_order_bounds

    best = graph.base_cost * (1 + _RISE)
    for bound in any_order_bounds(graph, budget_bytes, time_limit):
        yield {"any_order": bound} if bound > best else {}
        best = max(best, bound)


def _by_turns(*work: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What several say, the one next that has taken least time."""
    spent = dict.fromkeys(work, 0.0)
    while spent:
        one = min(spent, key=spent.__getitem__)
        begun = time.perf_counter()
        message = next(one, None)
        spent[one] += time.perf_counter() - begun
        if message is None:
            del spent[one]
        else:
            yield message


def _solve(graph: Graph, budget_bytes: int, until: float) -> None:
    """Look for the optimum of a small graph: the exact program gives a schedule, best-first search the proof."""
    from ..ordering.best_first import BestFirst
    from ..ordering.states import LARGEST
    from .exact import exact

    small, known = len(graph) <= LARGEST, np.inf
    left = until - time.perf_counter()
    sequence = exact(graph, budget_bytes, _SHARE * left if small else left) if left > 0 else None
    if sequence is not None:
        say(sequence=sequence)
        found = evaluate(graph, plan_from_sequence(graph, sequence))
        known = found.cost if found.peak_bytes <= budget_bytes else np.inf
    search = BestFirst(graph, budget_bytes, "fixed") if small else None
    while search is not None and not search.ended and time.perf_counter() < until:
        search.explore(_TICK, known)
        say(cost=search.bound)
        if search.sequence is not None:
            say(sequence=search.sequence.tolist())


if __name__ == "__main__":
    begin(sys.argv[1])
    main(sys.argv[1])
