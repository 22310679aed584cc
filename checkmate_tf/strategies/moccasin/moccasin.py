"""Moccasin: retention intervals and constraint programming (Bartan et al., ICML 2023).

Each computation of a node is an interval [start, end] of events during which its value is in memory. Node v has at most
C_v of them. With a_v^c for "interval c of v is active", w_v the cost and m_v the bytes of a value:

    min sum w_v a_v^c                                                                    (1)
    start <= end, the intervals of a node follow each other                              (2, 3)
    sum of m_v over the active intervals that hold at t  <=  budget                      (4)  cumulative
    each active start of v is inside an active interval of every input of v              (5)  reservoir
    starts are all different                                                             (6)
    the first interval of every node is active                                           (7)

"moccasin" keeps the input order (section 2.3): stage j has j events, node k can start in event k of a stage, and the
first interval of node j starts in the last event of stage j. That implies (6). "moccasin-free" leaves the order open:
as many events as intervals, and alldifferent. Both are solved in two phases with CP-SAT (section 2.4): the first
minimises max(peak, budget), from the input order without recomputation, the second the cost, from what the first found.

Beyond the paper, so that a solution costs and needs what `plan.evaluate` says of its sequence:

- Workspace is held in the event in which a node starts. A node that computes into the memory of an input (negative
  workspace) takes that much less in it, unless an input that only it reads outlives the event (`held`).
- The last interval of a value that nobody reads ends with the last event.
- `recompute_until` bounds later starts. With a free order effects stay in order, and a node is computed again only
  before the last first computation among the nodes below its limit.

**What the solver's bound means.** It holds for schedules with at most C intervals a node, in the input order for
"moccasin". It bounds no others, so `Schedule.lower_bound` is 0 and the status "feasible", unless nothing is lost. The
solver's own bound goes to `options.progress` and the log.

What Moccasin does badly: CP-SAT compares all 4 C events of a reservoir with each other, one reservoir an edge, before
it starts to search; and with a free order it rarely gets past a hundred nodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from ...errors import StrategyError
from ...graph import Graph
from ...machine import cores
from ...plan import evaluate, plan_from_sequence
from ...schedule import Schedule, keep_all
from ..options import Order, SolveOptions
from ..orders import legalise
from ..search.minimum_budget import infeasible, proven_minimum
from .cpsat_process import IntervalsProcess

__all__ = ["improve", "moccasin", "moccasin_free"]

log = logging.getLogger(__name__)

_TICK = 0.5  # seconds
_GRACE = 5.0  # seconds past the time limit until the process is ended
_LEAST = 5.0  # seconds to look for the least peak, for the error message


def moccasin(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The cheapest schedule that CP-SAT finds in the graph's order, with at most C computations of each node.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions
        `gap` is the gap to the solver's own bound, which `progress` hears of, too. `solver` may be "auto" or "cp-sat".
        `moccasin.copies` is C, or one C_v for each node.

    Returns
    -------
    Schedule
        Its `solver` says whether CP-SAT proved it optimal for this C and order. Its lower bound is 0 (see above).

    Raises
    ------
    InfeasibleBudgetError
        If no schedule was found. The least budget it names is the least peak of the first phase.
    StrategyError
        If another solver is asked for, or OR-Tools is not installed.
    """
    return _moccasin("moccasin", graph, budget_bytes, options)


def moccasin_free(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The same with the order left open (section 2.1); see `moccasin`."""
    return _moccasin("moccasin-free", graph, budget_bytes, options)


def improve(
    graph: Graph, budget_bytes: int, sequence: Sequence[int], time_limit: float, options: SolveOptions
) -> IntervalsProcess:
    """Look for better schedules than one that is known, in the order of the graph.

    A node may be computed C times (`MoccasinOptions.copies`), or as often as in `sequence` if that is more. If
    `sequence` is empty, this is Moccasin from its phase 1. It takes `MoccasinOptions.workers` threads; by default it
    leaves two cores to the search and the bound.

    Returns
    -------
    IntervalsProcess
        Not entered yet. If there was no sequence, its "sequence" messages need not fit the budget.

    Notes
    -----
    Measured from a schedule of the search: on random layered graphs (100 to 250 nodes) this takes off most of what the
    search loses. Overhead falls from 10.1 to 4.0%, and from 33.6 to 12.8%. On ResNet50 and a transformer, at 20 and 15%
    of their peak, it gains below 0.04 points in the time of the search. A neighbourhood of 6 to 28 stages at a time
    gains no more.
    """
    workers = options.moccasin.workers or max(2, cores() - 2)
    copies = np.maximum(_copies(graph, options), np.bincount(np.array(sequence, dtype=np.int64), minlength=len(graph)))
    return IntervalsProcess(
        graph, budget_bytes, copies.tolist(), free=False, time_limit=time_limit, gap=options.gap, workers=workers,
        seed=options.seed, memory_limit=options.memory_limit, start=sequence,
    )  # fmt: skip


def _moccasin(name: str, graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    begun = time.perf_counter()
    if options.solver not in ("auto", "cp-sat"):
        raise StrategyError(f'strategy {name!r} is a constraint program: use solver="cp-sat", not {options.solver!r}')
    if find_spec("ortools") is None:
        raise StrategyError(f"strategy {name!r} needs ortools: pip install ortools")
    known = keep_all(graph).peak_bytes
    if known <= budget_bytes:
        return _schedule(graph, list(range(len(graph))), name, "none needed", budget_bytes, begun)
    limit = options.time_limit
    order: Order = "fixed" if name == "moccasin" else "free"
    if budget_bytes < proven_minimum(graph, order)[0]:
        limit = min(limit, _LEAST)
    best: list[int] | None = None
    cost, bound, proved, told = np.inf, graph.base_cost, False, 0.0
    with IntervalsProcess(
        graph, budget_bytes, _copies(graph, options), free=order == "free",
        time_limit=limit - (time.perf_counter() - begun), gap=options.gap, workers=options.moccasin.workers,
        seed=options.seed, memory_limit=options.memory_limit,
    ) as process:  # fmt: skip
        try:
            more = True
            while more:
                more = process.running and time.perf_counter() - begun <= limit + _GRACE
                for news in process.news(_TICK):
                    bound, proved = max(bound, news.get("bound", 0.0)), news.get("proved", False)
                    if "sequence" not in news:
                        continue
                    sequence = legalise(graph, news["sequence"])
                    found = evaluate(graph, plan_from_sequence(graph, sequence))
                    known = min(known, found.peak_bytes)
                    if found.peak_bytes <= budget_bytes and found.cost < cost:
                        best, cost, told = sequence, found.cost, 0.0
                now = time.perf_counter() - begun
                if options.progress and (now - told >= 1 or not told or not more):
                    told = now
                    options.progress(now, cost, min(bound, cost), max(0.0, 1 - bound / cost) if cost else 0.0)
            if process.ending:
                log.warning("%s: %s; going on with what was found before", name, process.ending)
        except KeyboardInterrupt:
            if best is None:
                raise
            log.warning("interrupted: going on with the best schedule so far")
    if best is None:
        raise infeasible(graph, budget_bytes, known, order=order)
    log.info("cost %.6g, for this C and order at least %.6g", cost, bound)
    return _schedule(graph, best, name, "CP-SAT, optimal for its C" if proved else "CP-SAT", budget_bytes, begun)


def _copies(graph: Graph, options: SolveOptions) -> list[int]:
    copies = options.moccasin.copies
    if not isinstance(copies, int) and len(copies) != len(graph):
        raise StrategyError(f"copies has {len(copies)} numbers for {len(graph)} nodes; give one for each, or one")
    return [int(c) for c in np.broadcast_to(np.array(copies), len(graph))]


def _schedule(graph: Graph, sequence: Sequence[int], name: str, solver: str, budget: int, begun: float) -> Schedule:
    schedule = Schedule(
        graph, np.array(sequence), name, solver, budget_bytes=budget, seconds=time.perf_counter() - begun
    )  # fmt: skip
    if schedule.cost > graph.base_cost:
        return schedule
    return replace(schedule, status="optimal", lower_bound=graph.base_cost)
