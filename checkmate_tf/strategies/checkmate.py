"""The default strategy: an eviction search for schedules, and beside it, in another process, a proven lower bound.

Both are about what problem (9) of Checkmate asks for (Jain et al., MLSys 2020, section 4): the cheapest schedule within
a budget. Neither needs a licensed solver. The search gives the schedule. The relaxation (`bound`) says how far from the
optimum it can be, and what the relaxation keeps is where the search starts. The bound holds for all schedules that
first compute nodes in the graph's order. Problem (9) has fewer of them: its stages keep to that order within, too, and
compute each node at most once.

With a free order the search chooses the order of first computations, too. Its schedules may cost less than that bound,
so another one takes its place, which holds for any order (`any_order`). In graphs of up to 62 nodes a best-first search
runs in turn with the first one. Where it ends, the optimum over all orders is proven (`best_first`).

In most graphs of ten nodes, and in many of thirty, best-first search ends in a moment. So it is tried first, in either
order, and nothing else is begun where it does.

In graphs without a backward pass CP-SAT improves the first schedule, in a third process (`moccasin.improver`). While
its schedule is the best, the search leaves the processors to it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import numpy as np

from ..evaluator import CLOSED_GAP
from ..graph import Graph
from ..plan import evaluate, plan_from_sequence
from ..schedule import Schedule
from .compiled import compile_if_over
from .moccasin.improver import Improver
from .options import SolveOptions
from .ordering.best_first import BestFirst
from .ordering.least_peak import least_peak, once
from .ordering.lives import least_possible
from .ordering.states import LARGEST
from .programs.any_order import any_order_bound
from .programs.bound_process import BoundProcess
from .search.minimum_budget import infeasible, proven_minimum, tightest, without_solving
from .search.search import KeepSet, search

__all__ = ["checkmate"]

log = logging.getLogger(__name__)

_STALL = 5e-4  # of the base cost: an improvement below this in the last quarter of the time is not worth waiting for
_ORDERING = 0.15  # of the time: to look for an order that fits, where one may, or recomputes little
_EASY = 0.5  # seconds in which the search is done with easy budgets: best-first search goes on after them
_MOMENT, _OF_TIME = 0.1, 0.1  # seconds of best-first search before anything else, at most; of the time limit
_RESERVE = 0.2  # of the time: kept for the least budget, which the error names, while there is no schedule
_RESERVE_SECONDS = 1.0  # at least
_HOPE, _HOPE_NODE = 6.0, 0.01  # seconds, or so many for each node, in which a user who waits hopes for a first schedule
_FIRST = 0.1  # of the time, in which CP-SAT waits for a schedule to start from
_PATIENCE = 3.0  # seconds that it goes on in any case,
_PATIENCE_NODE = 0.01  # or so many for each node: in small graphs it has seen all that it will see by then
_QUIET = 10.0  # seconds after which a bound that has not moved for half of the time is taken for done
_FREE_PATIENCE = 2.0  # seconds at most that a search in free order goes on in any case: its bound is there at once
_FREE_PATIENCE_NODE = 0.004  # or so many for each node: in large graphs it has hardly begun by then
_LISTENED = 1.0  # seconds after the relaxation's first word: what it keeps is a start like no other
_EARNED = 5e-4  # of the base cost, for each second: what it has to save in half of the time to go on
_EXACT = 2.0  # seconds that best-first search is given then, for a proof: schedules are as good sooner
_LEFT_ALONE = 4  # times as long a look at best-first search, once the other has stalled
_SLICE = 0.2  # seconds of best-first search at a time
_MOST_EDGES = 5000  # of a graph without a backward pass, for CP-SAT: 2,500 take 0.6 GB


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
    Stops at the gap, at the time limit, on Ctrl-C (with what it has), or when it settles (`SolveOptions.settle`).
    """
    compile_if_over(graph, budget_bytes)
    begun = time.perf_counter()
    done = without_solving(graph, budget_bytes, "checkmate", options, options.order)
    if done is not None:
        return done
    orders = []
    if options.order == "free":
        wanted = not graph.trains or least_possible(graph) + graph.constant_bytes <= budget_bytes
        order = least_peak(graph, _ORDERING * options.time_limit if wanted else 0.0, options.seed, budget_bytes)
        if order.peak_bytes <= budget_bytes:
            return once(graph, order.order, budget_bytes, "checkmate", time.perf_counter() - begun)
        orders = [order.start, order.order]
    race = _Race(graph, budget_bytes, options, begun)
    try:
        race.run(orders)
    except KeyboardInterrupt:
        if race.best is None:
            raise
        log.warning("interrupted: going on with the best schedule so far")
    best, cost = race.best, race.cost
    if best is None:
        low = proven_minimum(graph, options.order)[0]
        left = options.time_limit - (time.perf_counter() - begun)
        left = max(min(left, _RESERVE * options.time_limit) if options.settle else left, _RESERVE_SECONDS)
        high, best = tightest(graph, low, left, options.seed, options.order)
        if high > budget_bytes:
            proven = race.lower == np.inf
            raise infeasible(graph, budget_bytes, high, relaxation=proven, sequence=best, order=options.order)
        cost = evaluate(graph, plan_from_sequence(graph, best)).cost
    lower = min(race.lower, cost)
    seconds = time.perf_counter() - begun
    status = "optimal" if cost - lower <= CLOSED_GAP * cost else "feasible"
    log.info("cost %.6g, lower bound %.6g (graph's order: %.6g), %s, %.1f s", cost, lower, race.fixed, status, seconds)
    return Schedule(
        graph, best, strategy="checkmate", solver=race.solver, status=status, budget_bytes=budget_bytes,
        lower_bound=lower, bound_order=options.order, seconds=seconds,
    )  # fmt: skip


class _Race:
    """All that look for schedules and bounds at once, and what they have found.

    Attributes
    ----------
    best : (length,) int array or None
        The cheapest sequence that fits.
    cost, lower : float
        Of the best, infinite if there is none; and what is proven for the order that was asked for.
    fixed : float
        What is proven in the graph's order.
    """

    def __init__(self, graph: Graph, budget_bytes: int, options: SolveOptions, begun: float) -> None:
        self.graph, self.budget, self.options, self.begun = graph, budget_bytes, options, begun
        self.free = options.order == "free"
        self.best: np.ndarray | None = None
        self.cost, self.fixed = np.inf, graph.base_cost
        self.lower = any_order_bound(graph, budget_bytes) if self.free else graph.base_cost
        self.exact = BestFirst(graph, budget_bytes, options.order) if len(graph) <= LARGEST else None
        self.alone = False  # whether best-first search was enough
        self.improver: Improver | None = None
        self.history: list[tuple[float, float]] = []  # (seconds of work, cost)
        self.thread = time.thread_time()
        self.sets: list[KeepSet] = []
        self.raised = self.told = 0.0  # when a bound rose, and when progress was told
        self.heard = np.inf  # seconds of work after which the relaxation first said what it keeps

    @property
    def solver(self) -> str:
        """Who took part."""
        if self.alone:
            return "best-first"
        names = ["eviction and order search" if self.free else "eviction search"]
        names = [*(["best-first"] if self.exact is not None else []), *names]
        return f"{', '.join(names)}; GLOP, HiGHS" + (", CP-SAT" if self.improver is not None else "")

    def run(self, orders: Sequence[np.ndarray]) -> None:
        """Go on until it is over; `orders` are starts of the search."""
        graph, options = self.graph, self.options
        self.alone = self._over_at_once()
        if self.alone:
            return
        if not self.free:  # the process proves more in the graph's order
            self.exact = None
        with (
            BoundProcess(graph, self.budget, options.time_limit, options.memory_limit, free=self.free) as process,
            ExitStack() as stack,
        ):
            walk = search(graph, self.budget, options.seed, self._take_sets, self.free, orders)
            if not graph.trains and len(graph.edges) <= _MOST_EDGES:
                self._take_first(walk)
                plain = orders[-1] if self.free else np.arange(len(graph))
                order = np.array(list(dict.fromkeys((plain if self.best is None else self.best).tolist())))
                self.improver = stack.enter_context(Improver(graph, self.budget, options, order, self.best))
            while True:
                now = time.perf_counter() - self.begun
                if self.improver is not None:
                    self._take_improved(self.improver, now)
                offers = []
                if self.improver is None or not self.improver.alone(now):
                    try:
                        sequence = next(walk)
                    except StopIteration:
                        if self.exact is None or self.exact.ended:
                            return
                        sequence = None
                    offers += [] if sequence is None else [sequence]
                offers += [*self._explored(now), *self._relaxed(process, now)]
                self._take(offers, now)
                if self._over(now, process):
                    return

    def _over_at_once(self) -> bool:
        """Whether best-first search ends in a moment: with the optimum, or the proof that there is none."""
        if self.exact is None:
            return False
        self._explore(0.0)  # some states: compiled code is loaded, which may take longer than a moment
        offers = self._explore(min(_MOMENT, _OF_TIME * self.options.time_limit))
        now = time.perf_counter() - self.begun
        self._take(offers, now)
        decided = self.best is not None or self.lower == np.inf
        return self.exact.ended and decided and self._over(now, None)

    def _worked(self, now: float) -> float:
        """Seconds that the search has worked, fewer on a busy machine; all, where it leaves the work to others."""
        return now if self.improver is not None else time.thread_time() - self.thread

    def _take_first(self, walk: Iterator[np.ndarray | None]) -> None:
        """The search's first schedule, if there is one soon."""
        for sequence in walk:
            now = time.perf_counter() - self.begun
            self._take([] if sequence is None else [sequence], now)
            if self.best is not None or now > _FIRST * self.options.time_limit:
                return

    def _take_improved(self, improver: Improver, now: float) -> None:
        before, improver.ahead = self.cost, improver.ahead and self.cost == improver.cost
        self._take(improver.news(now, self.best), now)
        if self.cost < before:
            improver.ahead, improver.cost = True, self.cost

    def _take_sets(self) -> list[KeepSet]:
        taken = self.sets[-2:]
        self.sets.clear()
        return taken

    def _explored(self, now: float) -> list[np.ndarray]:
        """What best-first search finds in a moment."""
        if self.exact is None or self.exact.ended or now <= _EASY:
            return []
        return self._explore(_SLICE * (_LEFT_ALONE if self._stalled(now) else 1))

    def _explore(self, seconds: float) -> list[np.ndarray]:
        exact = self.exact
        assert exact is not None
        exact.explore(seconds, self.cost)
        self.lower = max(self.lower, exact.bound)
        if not self.free:
            self.fixed = max(self.fixed, exact.bound)
        return [] if exact.sequence is None else [exact.sequence]

    def _relaxed(self, process: BoundProcess, now: float) -> list[np.ndarray]:
        """News of the other process: bounds, what the relaxation keeps, and sequences."""
        offers = []
        for news in process.news():
            self.lower = max(self.lower, float(news.get("any_order", 0.0)))
            bound = float(news.get("cost", 0.0))
            if bound > self.fixed + 0.1 * _STALL * self.graph.base_cost:
                self.raised = now
            self.fixed = max(self.fixed, bound)
            self.lower = self.lower if self.free else max(self.lower, self.fixed)
            if news.get("kept"):
                self.sets.append(KeepSet(np.array(news["boundaries"]), np.array(news["kept"])))
            if news.get("kept") or news.get("sequence"):
                self.heard = min(self.heard, self._worked(now))
            if news.get("sequence"):
                offers.append(np.array(news["sequence"], dtype=np.int64))
        return offers

    def _take(self, offers: Sequence[np.ndarray], now: float) -> None:
        for offer in offers:
            found = evaluate(self.graph, plan_from_sequence(self.graph, offer))
            if found.peak_bytes <= self.budget and found.cost < self.cost:
                self.best, self.cost = offer, found.cost
                self.history.append((self._worked(now), self.cost))

    def _over(self, now: float, process: BoundProcess | None) -> bool:
        """Whether to stop. The process is None before it has begun."""
        options, gap = self.options, 1 - self.lower / self.cost if self.cost else 0.0
        if self.best is None:
            gap = 1.0
        if options.progress and (now - self.told >= 1 or not self.told):
            self.told = now
            options.progress(now, self.cost, self.lower, gap)
        if self.best is None:
            hopeless = options.settle and now >= max(_HOPE, _HOPE_NODE * len(self.graph))
            return hopeless or now >= (1 - _RESERVE) * options.time_limit or self.lower == np.inf
        if now >= options.time_limit:
            return True
        if gap <= max(options.gap, CLOSED_GAP):
            return True
        return options.settle and self._final(now, process) and self._stalled(now)

    def _final(self, now: float, process: BoundProcess | None) -> bool:
        """Whether nothing but the search is likely to bring news."""
        final = self.improver is None or not self.improver.running or now > _QUIET
        if self.free:  # what the relaxation proves holds for the graph's order only
            return final and (self.exact is None or self.exact.ended or now > _EXACT)
        return final and (process is None or not process.running or (now > _QUIET and self.raised < 0.5 * now))

    def _stalled(self, now: float) -> bool:
        """Whether the search has gained little for a while: in half of the time in free order, else in a quarter."""
        worked, nodes = self._worked(now), len(self.graph)
        patience = min(_PATIENCE, _PATIENCE_NODE * nodes)
        if self.free:
            patience = min(_FREE_PATIENCE, max(patience, self.heard + _LISTENED))
            patience = max(patience, _FREE_PATIENCE_NODE * nodes)
        quiet = 0.5 * worked if self.free else 0.25 * worked
        before = [cost for when, cost in self.history if when <= worked - quiet]
        gained = before[-1] - self.cost if before else np.inf
        return worked >= patience and gained < (_EARNED * quiet if self.free else _STALL) * self.graph.base_cost
