"""Chooses implementations of operators around any strategy: the ways and the schedule that cost least in a budget.

A choice gives a graph (`OperatorGraph.choose`), so any strategy can schedule it. Three choices are solved first: every
node in its default way, in its lightest way (the fewest bytes read and held), and in its cheapest way. From the best of
them, ways are changed one at a time, while the schedule keeps its computations in the same order. A mask is dropped if
it saves nothing because the value is in memory anyhow. A cheaper way is taken if there is room for it. Then the choice
is solved anew, and so on as long as that helps.

MONeT (Shah et al., ICLR 2021) chooses both in one program (`monet`); this is a search, and needs no such program.

What it does badly: nothing is proved of choices that were not solved, and two ways that only pay together are found
only if both are in one of the first choices.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ...errors import InfeasibleBudgetError
from ...operators import Chosen, ChosenGraph, Implementation, OperatorGraph
from ...schedule import Schedule
from .. import solve
from ..compiled import compile_search
from ..options import SolveOptions
from ..orders import legalise, without_dead
from ..search.arrays import flatten
from ..search.sequences.keep_where_room import keep_where_room

__all__ = ["choose_operators"]

log = logging.getLogger(__name__)

_LEAST = 0.1  # seconds that are worth solving for
_BETTER = 1e-9  # of the cost


def choose_operators(
    operators: OperatorGraph,
    budget_bytes: int,
    options: SolveOptions | None = None,
    strategy: str = "checkmate",
    *,
    inexact: bool = False,
) -> Chosen:
    """The cheapest choice of ways and schedule found within a budget.

    Parameters
    ----------
    operators : OperatorGraph
    budget_bytes : int
        Constants included.
    options : SolveOptions, optional
        The time limit is for all solves together. There are one to a handful of them.
    strategy : str
        One of `STRATEGIES`, for the schedules.
    inexact : bool
        Whether ways may be chosen whose values have other bits (`Implementation.error`).

    Returns
    -------
    Chosen
        It never costs more than what the strategy finds, in its share of the time, with all default ways. Status and
        bound are about the schedule for this choice: other choices may cost less.

    Raises
    ------
    InfeasibleBudgetError
        If no choice has a schedule. It is the error of the choice that needs the least.
    StrategyError
        If there is no such strategy, or it cannot schedule the graph.
    """
    options = options or SolveOptions()
    compile_search()
    return _Chooser(operators, int(budget_bytes), options, strategy, inexact).run()


class _Chooser:
    """The best so far, and the choices that were solved."""

    def __init__(
        self, operators: OperatorGraph, budget_bytes: int, options: SolveOptions, strategy: str, inexact: bool
    ) -> None:
        self.operators, self.budget_bytes, self.options, self.strategy = operators, budget_bytes, options, strategy
        self.until = time.perf_counter() + options.time_limit
        self.allowed = {
            i: [at for at, way in enumerate(operators.ways(i)) if inexact or not way.error]
            for i in operators.implementations
        }
        self.best: tuple[ChosenGraph, Schedule] | None = None
        self.solved: list[Mapping[int, int]] = []
        self.failed: list[InfeasibleBudgetError] = []

    @property
    def left(self) -> float:
        return self.until - time.perf_counter()

    def run(self) -> Chosen:
        """All of it."""
        begun = time.perf_counter()
        base = self.operators.choose({}).graph.base_cost
        starts: list[Mapping[int, int]] = [{}, self._each(self._weight), self._each(lambda way: (way.cost,))]
        for choice in starts:
            self._solve(choice, self.options.time_limit / (len(starts) + 1))
        while self.best is not None and self.left > _LEAST:
            before = self.best[1].cost
            self._replay()
            self._solve(self.best[0].choice, self.left)
            if self.best[1].cost >= before * (1 - _BETTER):
                break
        if self.best is not None and self.best[1].gap > self.options.gap:  # solved in a share of the time
            self._solve(self.best[0].choice, self.left, again=True)
        if self.best is None:
            raise self._infeasible()
        chosen, schedule = self.best
        schedule = replace(schedule, seconds=time.perf_counter() - begun)
        log.info("%d choices solved, %d nodes in other ways", len(self.solved), len(chosen.choice))
        return Chosen(schedule, chosen, base, schedule.status, schedule.lower_bound)

    def _infeasible(self) -> InfeasibleBudgetError:
        """The error of the choice that needs the least. It proves nothing where there are others."""
        error = min(self.failed, key=lambda error: error.minimum_bytes)
        if all(len(ats) == 1 for ats in self.allowed.values()):
            return error
        tried = f"{error}; of many choices of operators {len(self.failed)} were tried"
        return InfeasibleBudgetError(tried, error.budget_bytes, error.minimum_bytes, proven=False)

    def _each(self, weight: Callable[[Implementation], tuple[float, ...]]) -> dict[int, int]:
        """The way of least weight for each node; the default's index is 0, so it is taken where it is as good."""
        return {i: min(ats, key=lambda at: weight(self.operators.ways(i)[at])) for i, ats in self.allowed.items()}

    def _weight(self, way: Implementation) -> tuple[float, ...]:
        return (float(self.operators.graph.sizes[list(way.inputs)].sum()) + way.workspace, way.cost)

    def _solve(self, choice: Mapping[int, int], seconds: float, again: bool = False) -> None:
        chosen = self.operators.choose(choice)
        if again and seconds <= _LEAST or not again and chosen.choice in self.solved:
            return
        self.solved.append(chosen.choice)
        try:
            limits = replace(self.options, time_limit=max(seconds, _LEAST))
            self._offer(chosen, solve(chosen.graph, self.budget_bytes, self.strategy, limits))
        except InfeasibleBudgetError as error:
            self.failed.append(error)

    def _offer(self, chosen: ChosenGraph, schedule: Schedule, *, as_good: bool = False) -> bool:
        """Take a schedule if it fits and is cheaper, or as good if that is enough."""
        if schedule.peak_bytes > self.budget_bytes:
            return False
        if self.best is not None:
            cost = self.best[1].cost
            if schedule.cost > cost or (not as_good and schedule.cost >= cost * (1 - _BETTER)):
                return False
        self.best = chosen, schedule
        return True

    def _replay(self) -> None:
        """Change ways one at a time, for as long as any change helps: to the default if it costs no more."""
        changed = True
        while changed:
            changed = False
            for i, ats in self.allowed.items():
                for at in ats:
                    assert self.best is not None
                    choice = self.best[0].choice
                    if at == choice.get(i, 0) or self.left <= 0:
                        continue
                    chosen = self.operators.choose({**choice, i: at})
                    changed |= self._offer(chosen, self._same_order(chosen), as_good=i in choice and not at)

    def _same_order(self, chosen: ChosenGraph) -> Schedule:
        """The best schedule's order of computation for another choice. What is new comes as early as it can."""
        assert self.best is not None
        place = {int(node): at for at, node in enumerate(chosen.nodes)}
        nodes = self.best[0].nodes[self.best[1].sequence].tolist()
        graph, order = chosen.graph, [place[node] for node in nodes if node in place]
        for new in sorted(set(range(len(graph))) - set(order)):
            after = [order.index(i) for i in graph.inputs[new]]
            order.insert(max(after, default=-1) + 1, new)
        order = legalise(graph, without_dead(graph, order))
        schedule = Schedule(graph, np.array(order), self.strategy, "ways changed", budget_bytes=self.budget_bytes)
        if not schedule.frontier_advancing or schedule.peak_bytes > self.budget_bytes:
            return schedule
        sequence = np.array(schedule.sequence)  # one that may be written to, as everywhere: see numba_jit
        better = keep_where_room(flatten(graph), self.budget_bytes - graph.constant_bytes, sequence)
        polished = replace(schedule, sequence=better)
        polished = polished if polished.peak_bytes <= self.budget_bytes else schedule
        return replace(polished, lower_bound=graph.base_cost)
