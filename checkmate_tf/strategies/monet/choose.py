"""Chooses implementations of operators around any strategy: the ways and the schedule that cost least in a budget.

A choice gives a graph (`OperatorGraph.choose`), so any strategy can schedule it. Solved first are the choices of one
rule for all nodes: the default way, the cheapest, for each name of a way that way wherever there is one, and the
lightest (the fewest bytes read and held). If none fits, others near the one that needs least are tried. From the best
it goes on, as long as that helps and there is time:

- all ways of another name are added, and that is solved;
- single ways, and those of neighbours, are changed for the schedule that is known (`alike`). A mask is dropped if it
  saves nothing because the value is in memory anyhow. A cheaper way is taken if there is room for it;
- the best choice is solved anew, and so is what changes of neighbours make of it.

It ends at once where a cost is as low as that of the cheapest ways, each computed once.

MONeT (Shah et al., ICLR 2021) chooses both in one program (`monet`); this is a search, and needs no such program.

What it does badly: nothing is proved of choices that were not solved.
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
from ...solvers.tolerances import EXACT
from .. import solve
from ..compiled import compile_search
from ..options import SolveOptions
from .alike import alike

__all__ = ["choose_operators"]

log = logging.getLogger(__name__)

_STARTS = 0.25  # of the time, for the first choices
_LAST = 0.2  # of the time, for the best choice at the end
_PATIENCE, _MORE = 200, 5  # changes that gain nothing; and for each node that has ways
_TRIES = 2  # changes that are solved and gain nothing, for each node that has ways
_MOST = 3  # choices that are solved for longer, where none fits
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
        The time limit is for all solves together. Many choices are solved, each in a small share of it.
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
    KeyboardInterrupt
        On Ctrl-C, if nothing is found yet. Else it ends with what there is.
    """
    options = options or SolveOptions()
    compile_search()
    return _Chooser(operators, int(budget_bytes), options, strategy, inexact).run()


def _needs(failed: tuple[InfeasibleBudgetError, Mapping[int, int]]) -> int:
    return failed[0].minimum_bytes


class _Chooser:
    """The best so far, and the choices that were solved."""

    def __init__(
        self, operators: OperatorGraph, budget_bytes: int, options: SolveOptions, strategy: str, inexact: bool
    ) -> None:
        self.operators, self.budget_bytes, self.options, self.strategy = operators, budget_bytes, options, strategy
        self.random = np.random.default_rng(options.seed)
        self.until = time.perf_counter() + options.time_limit
        self.allowed = {
            i: [at for at, way in enumerate(operators.ways(i)) if inexact or not way.error]
            for i in operators.implementations
        }
        self.named = self._named()
        some = operators if inexact else operators.exact()
        self.least_cost, self.least_bytes = some.least_cost, some.least_bytes
        self.best: tuple[ChosenGraph, Schedule] | None = None
        self.solved: list[Mapping[int, int]] = []
        self.failed: list[tuple[InfeasibleBudgetError, Mapping[int, int]]] = []

    @property
    def left(self) -> float:
        """Seconds, none where no choice can cost so much less that it counts."""
        if self.best is not None:
            cost = self.best[1].cost
            if cost * (1 - max(self.options.gap, _BETTER)) <= self.least_cost:
                return 0.0
        return self.until - time.perf_counter()

    def run(self) -> Chosen:
        """All of it. When interrupted, it ends with the best so far."""
        begun = time.perf_counter()
        try:
            self._search()
        except KeyboardInterrupt:
            if self.best is None:
                raise
            log.warning("interrupted: going on with the best choice so far")
        if self.best is None:
            raise self._infeasible()
        chosen, schedule = self.best
        schedule = replace(schedule, seconds=time.perf_counter() - begun)
        log.info("%d choices solved, %d nodes in other ways", len(self.solved), len(chosen.choice))
        base = self.operators.choose({}).graph.base_cost
        return Chosen(schedule, chosen, base, schedule.status, schedule.lower_bound)

    def _search(self) -> None:
        starts, limit = self._starts(), self.options.time_limit
        share = _STARTS * limit / len(starts)
        for choice in starts:
            if not self.solved or self.left > 0:
                self._solve(choice, share)
        self._fit(share)
        self._join(share)
        before = np.inf
        while self.best is not None and self.best[1].cost < before * (1 - _BETTER) and self.left > _LAST * limit:
            before = self.best[1].cost
            self._one_by_one(time.perf_counter() + self.left / 3)
            self._together(time.perf_counter() + self.left / 2)
            self._solve(self._best_choice, share)
            self._anew(share)
        if self.best is not None and self.best[1].gap > self.options.gap:  # solved in a share of the time
            self._solve(self._best_choice, self.left, again=True)

    def _starts(self) -> list[Mapping[int, int]]:
        """Choices by one rule for all nodes, each once; the default first."""
        cheapest, lightest = self._each(lambda way: (way.cost,)), self._each(self._weight)
        starts: list[Mapping[int, int]] = []
        for choice in ({}, cheapest, *self.named, lightest):
            if (known := self.operators.choose(choice).choice) not in starts:
                starts.append(known)
        return starts

    def _each(self, weight: Callable[[Implementation], tuple[float, ...]]) -> dict[int, int]:
        """The way of least weight for each node; the default's index is 0, so it is taken where it is as good."""
        return {i: min(ats, key=lambda at: weight(self.operators.ways(i)[at])) for i, ats in self.allowed.items()}

    def _weight(self, way: Implementation) -> tuple[float, ...]:
        return (float(self.operators.graph.sizes[list(way.inputs)].sum()) + way.workspace, way.cost)

    def _named(self) -> list[dict[int, int]]:
        """For each name of a way, the choice that takes it wherever there is one."""
        found: dict[str, dict[int, int]] = {}
        for i, ats in self.allowed.items():
            for at in ats:
                if at:
                    found.setdefault(self.operators.ways(i)[at].name, {})[i] = at
        return list(found.values())

    def _solve(self, choice: Mapping[int, int], seconds: float, again: bool = False) -> None:
        chosen = self.operators.choose(choice)
        if again and seconds <= _LEAST or not again and chosen.choice in self.solved:
            return
        if not again:
            self.solved.append(chosen.choice)
        try:
            limits = replace(self.options, time_limit=max(seconds, _LEAST))
            self._offer(chosen, solve(chosen.graph, self.budget_bytes, self.strategy, limits))
        except InfeasibleBudgetError as error:
            self.failed.append((error, chosen.choice))

    def _offer(self, chosen: ChosenGraph, schedule: Schedule, *, as_good: bool = False) -> bool:
        """Take a schedule if it fits and is cheaper, or as good if that is enough."""
        if self.best is not None:
            cost = self.best[1].cost
            if schedule.cost > cost or (not as_good and schedule.cost >= cost * (1 - _BETTER)):
                return False
        if schedule.peak_bytes > self.budget_bytes:
            return False
        self.best = chosen, schedule
        return True

    # -- where nothing fits yet ------------------------------------------------------------------------------------
    def _fit(self, share: float) -> None:
        """Look for a choice that fits near those that need least, for half of the time; then give those longer."""
        half, tries = self.left / 2, _TRIES * len(self.allowed) if self.named else 0
        while self.best is None and not self._proven and tries and self.left > half:
            self._solve({**min(self.failed, key=_needs)[1], **self._neighbours()}, share)
            tries -= 1
        unproven = sorted((known for known in self.failed if not known[0].proven), key=_needs)
        for _, choice in unproven[:_MOST]:
            if self.best is None and not self._proven:
                self._solve(choice, self.left / 2, again=True)

    @property
    def _proven(self) -> bool:
        """Whether no choice fits, as one operation alone needs more."""
        return self.budget_bytes < self.least_bytes

    def _infeasible(self) -> InfeasibleBudgetError:
        """The error of the choice that needs the least. It proves little where there are others."""
        error, _ = min(self.failed, key=_needs)
        if all(len(ats) == 1 for ats in self.allowed.values()):
            return error
        tried = f"{error}; so many choices of operators were tried: {len(self.solved)}"
        return InfeasibleBudgetError(tried, error.budget_bytes, error.minimum_bytes, proven=self._proven)

    # -- from the best choice --------------------------------------------------------------------------------------
    def _join(self, share: float) -> None:
        """Add further ways to the best choice, all of one name at a time, for as long as that helps."""
        before = np.inf
        while self.best is not None and self.best[1].cost < before * (1 - _BETTER):
            before = self.best[1].cost
            for more in self.named:
                choice = self._best_choice
                for joined in ({**more, **choice}, {**choice, **more}):
                    if self.left > _LAST * self.options.time_limit:
                        self._solve(joined, share)

    def _one_by_one(self, until: float) -> None:
        """Change ways one at a time while any change helps and there is time: to the default if it costs no more."""
        changed = True
        while changed:
            changed = False
            for i, ats in self.allowed.items():
                for at in ats:
                    if time.perf_counter() > until or self.left <= 0:
                        return
                    choice = self._best_choice
                    if at != choice.get(i, 0):
                        changed |= self._change({i: at}, as_good=i in choice and not at)

    def _together(self, until: float) -> None:
        """Give several nodes other ways at once, until many such changes have not helped, or there is no time."""
        failed, most = 0, _PATIENCE + _MORE * len(self.allowed) if self.named else 0
        while failed < most and time.perf_counter() < until and self.left > 0:
            failed = 0 if self._change(self._neighbours()) else failed + 1

    def _anew(self, share: float) -> None:
        """Solve such changes until one helps: a schedule far from the best one may suit it."""
        assert self.best is not None
        before, tries = self.best[1].cost, _TRIES * len(self.allowed) if self.named else 0
        while self.best[1].cost >= before and tries and self.left > _LAST * self.options.time_limit:
            self._solve({**self._best_choice, **self._neighbours()}, share)
            tries -= 1

    def _neighbours(self) -> dict[int, int]:
        """Other ways for nodes that follow each other, from one to all: of one name, the default, or any by chance."""
        kinds = [dict.fromkeys(self.allowed, 0), *self.named, None]
        kind = kinds[self.random.integers(len(kinds))]
        nodes = list(self.allowed if kind is None else kind)
        count = int((len(nodes) + 1) ** self.random.random())
        first = int(self.random.integers(len(nodes) - count + 1))
        some = nodes[first : first + count]
        return {i: int(self.random.choice(self.allowed[i])) if kind is None else kind[i] for i in some}

    @property
    def _best_choice(self) -> Mapping[int, int]:
        assert self.best is not None
        return self.best[0].choice

    def _change(self, changes: Mapping[int, int], *, as_good: bool = False) -> bool:
        """Take other ways if a schedule like the best one costs less then."""
        assert self.best is not None
        (known, best), most = self.best, self.best[1].cost * (1 + _BETTER)
        chosen = self.operators.choose({**known.choice, **changes})
        base = chosen.graph.base_cost
        if chosen.choice == known.choice or base > most:
            return False
        sequence = alike(known, best.sequence, chosen, self.budget_bytes, int(self.random.integers(2**31)))
        if sequence is None or (cost := float(chosen.graph.costs[sequence].sum())) > most:
            return False
        status = "optimal" if cost - base <= EXACT * cost else "feasible"
        schedule = Schedule(
            chosen.graph, sequence, self.strategy, "ways changed", status, self.budget_bytes, lower_bound=base
        )  # fmt: skip
        return self._offer(chosen, schedule, as_good=as_good)
