"""The default strategy: the eviction search for schedules, and beside it, in another process, a proven lower bound.

Both serve problem (9) of Checkmate (Jain et al., MLSys 2020, section 4) without a licensed solver: the search gives the
schedule, the relaxation (`bound`) says how far from the optimum it can be, and its keep-sets are starts for the search.

In graphs without a backward pass many values are read late, and recomputing one needs others kept for its sake, which
the search seldom finds. There CP-SAT improves its schedule in a third process (`moccasin.improve`).
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np

from ..graph import BACKWARD, Graph
from ..plan import evaluate, plan_from_sequence
from ..schedule import Schedule, keep_all
from ..solvers.child import BoundProcess
from ..solvers.intervals import IntervalsProcess
from .feasible import infeasible, proven_minimum, tightest
from .moccasin import improve
from .options import SolveOptions
from .search import KeepSet, search

__all__ = ["checkmate"]

log = logging.getLogger(__name__)

_CLOSED = 1e-5  # relative: what the solvers' tolerances leave open
_STALL = 5e-4  # of the base cost: an improvement below this in the last quarter of the time is not worth waiting for
_PATIENCE = 3.0  # seconds at least
_QUIET = 10.0  # seconds after which a bound that has not moved for half of the time is taken for done
_LEAST = 12.0  # seconds to look for the least budget, for the error message
_IMPROVE = 3.0  # seconds after which CP-SAT takes over what the search has found in a graph without a backward pass
_MOST_EDGES = 5000  # of such a graph: 2,500 take 0.6 GB


def checkmate(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The cheapest schedule found within the budget, with a proven lower bound.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits, or none was found in time.

    Notes
    -----
    Stops at the gap, at the time limit, on Ctrl-C (with what it has), or when it settles, if that is asked for.
    """
    begun = time.perf_counter()
    plain = keep_all(graph)
    if plain.peak_bytes <= budget_bytes:
        seconds = time.perf_counter() - begun
        return replace(plain, strategy="checkmate", budget_bytes=budget_bytes, solver="none needed", seconds=seconds)
    least = proven_minimum(graph)[0]
    if budget_bytes < least:
        known, tight = tightest(graph, least, min(_LEAST, options.time_limit), options.seed)
        raise infeasible(graph, budget_bytes, known, sequence=tight)

    best: np.ndarray | None = None
    cost, lower = np.inf, graph.base_cost
    history: list[tuple[float, float]] = []  # (seconds, cost)
    sets: list[KeepSet] = []

    def take_sets() -> list[KeepSet]:
        taken = sets[-2:]
        sets.clear()
        return taken

    improver: IntervalsProcess | None = None
    improvable = not (graph.kinds == BACKWARD).any() and len(graph.edges) <= _MOST_EDGES
    with BoundProcess(graph, budget_bytes, options.time_limit, options.memory_limit) as process, ExitStack() as stack:
        told = raised = 0.0
        try:
            for sequence in search(graph, budget_bytes, options.seed, take_sets):
                now = time.perf_counter() - begun
                offers = [] if sequence is None else [sequence]
                for news in process.news():
                    if float(news["cost"]) > lower + 0.1 * _STALL * graph.base_cost:
                        raised = now
                    lower = max(lower, float(news["cost"]))
                    if news.get("kept"):
                        sets.append(KeepSet(np.array(news["boundaries"]), np.array(news["kept"])))
                    if news.get("sequence"):
                        offers.append(np.array(news["sequence"], dtype=np.int64))
                if improver is not None:
                    offers += [np.array(news["sequence"]) for news in improver.news() if "sequence" in news]
                elif improvable and now > _IMPROVE:
                    start = [] if best is None else best.tolist()
                    improver = improve(graph, budget_bytes, start, options.time_limit - now, options)
                    stack.enter_context(improver)
                for offer in offers:
                    found = evaluate(graph, plan_from_sequence(graph, offer))
                    if found.peak_bytes <= budget_bytes and found.cost < cost:
                        best, cost = offer, found.cost
                        history.append((now, cost))
                gap = 1 - lower / cost if cost else 0.0
                if options.progress and (now - told >= 1 or not told):
                    told = now
                    options.progress(now, cost, lower, gap)
                if now >= options.time_limit or (best is None and lower == np.inf):
                    break
                quiet = options.settle and (not process.running or (now > _QUIET and raised < 0.5 * now))
                if best is not None and (gap <= max(options.gap, _CLOSED) or (quiet and _stalled(history, now, graph))):
                    break
        except KeyboardInterrupt:
            if best is None:
                raise
            log.warning("interrupted: going on with the best schedule so far")
    if best is None:
        high, best = tightest(graph, least, min(_LEAST, options.time_limit), options.seed)
        if high > budget_bytes:
            raise infeasible(graph, budget_bytes, high, relaxation=lower == np.inf, sequence=best)
        cost = evaluate(graph, plan_from_sequence(graph, best)).cost
    lower = min(lower, cost)
    seconds = time.perf_counter() - begun
    status = "optimal" if cost - lower <= _CLOSED * cost else "feasible"
    log.info("cost %.6g, lower bound %.6g, %s after %.1f s", cost, lower, status, seconds)
    return Schedule(
        graph, best, strategy="checkmate", solver="eviction search; GLOP, HiGHS" + (", CP-SAT" if improver else ""),
        status=status, budget_bytes=budget_bytes, lower_bound=lower, seconds=seconds,
    )  # fmt: skip


def _stalled(history: list[tuple[float, float]], now: float, graph: Graph) -> bool:
    if now < _PATIENCE:
        return False
    before = [cost for when, cost in history if when <= 0.75 * now]
    return bool(before) and before[-1] - history[-1][1] < _STALL * graph.base_cost
