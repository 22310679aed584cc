"""Strategies: each takes (Graph, budget, options) and gives a Schedule. They are imported when first used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from ..errors import PlanError, StrategyError
from ..graph import Graph
from ..schedule import Schedule
from .options import Progress, SolveOptions

__all__ = ["STRATEGIES", "Progress", "SolveOptions", "Strategy", "Trait", "minimum_budget", "solve"]

Trait = Literal[True, False, "partly"]


@dataclass(frozen=True)
class Strategy:
    """A system and its traits, as in Table 1 of Checkmate.

    Attributes
    ----------
    where : str
        Module of this package and function in it: (Graph, budget in bytes, SolveOptions) -> Schedule.
    title, source : str
    general : True, False or "partly"
        Whether it takes any graph; "partly": any, but it finds few places to cut in many, or any with a backward pass.
    cost_aware : True, False or "partly"
        Whether it minds what each node costs.
    memory_aware : True, False or "partly"
        Whether it works towards the budget; "partly": it tries schedules made without it and takes one that fits.
    proves : bool
        Whether its schedules come with a lower bound beyond the base cost.
    """

    where: str
    title: str
    source: str
    general: Trait
    cost_aware: Trait
    memory_aware: Trait
    proves: bool = False

    def load(self) -> Callable[[Graph, int, SolveOptions], Schedule]:
        """The function, its module imported when first asked for."""
        module, name = self.where.split(":")
        function: Callable[[Graph, int, SolveOptions], Schedule] = getattr(import_module(f".{module}", __name__), name)
        return function


_REVOLVE, _CHEN = "Griewank and Walther, TOMS 2000", "Chen et al., 2016"
_CHECKMATE, _TWREMAT = "Jain et al., MLSys 2020", "Kumar et al., NeurIPS 2019"
_MOCCASIN, _MONET = "Bartan et al., ICML 2023", "Shah et al., ICLR 2021"

STRATEGIES: dict[str, Strategy] = {
    "checkmate": Strategy(
        "checkmate:checkmate", "search and proven bound for problem (9)", _CHECKMATE, True, True, True, proves=True
    ),
    "checkpoint-all": Strategy(
        "baselines.checkpoint_all:checkpoint_all", "nothing is recomputed", _CHECKMATE, True, False, False
    ),
    "griewank": Strategy("baselines.griewank:griewank", "revolve, chains only", _REVOLVE, False, False, "partly"),
    "chen-sqrt": Strategy("baselines.chen:chen_sqrt", "sqrt(n) segments, chains only", _CHEN, False, False, False),
    "chen-greedy": Strategy(
        "baselines.chen:chen_greedy", "segments of a size, chains only", _CHEN, False, False, "partly"
    ),
    "ap-sqrt": Strategy(
        "baselines.articulation:ap_sqrt", "sqrt(n) of the points of articulation", _CHECKMATE, "partly", False, False
    ),
    "ap-greedy": Strategy(
        "baselines.articulation:ap_greedy",
        "segments between points of articulation",
        _CHECKMATE,
        "partly",
        False,
        "partly",
    ),
    "linearized-sqrt": Strategy(
        "baselines.linearized:linearized_sqrt", "sqrt(n) of all nodes", _CHECKMATE, True, False, False
    ),
    "linearized-greedy": Strategy(
        "baselines.linearized:linearized_greedy", "segments of a size, of all nodes", _CHECKMATE, True, False, "partly"
    ),
    "milp": Strategy(
        "programs.milp:milp", "problem (9) in a solver of programs", _CHECKMATE, True, True, True, proves=True
    ),
    "lp-rounding": Strategy(
        "programs.rounding:lp_rounding", "relaxation, rounded in two phases", _CHECKMATE, True, True, True
    ),
    "lp-rounding-random": Strategy(
        "programs.rounding:lp_rounding_random", "relaxation, rounded at random", _CHECKMATE, True, True, True
    ),
    "twremat": Strategy(
        "treewidth.twremat:twremat", "divide and conquer on a tree decomposition", _TWREMAT, True, False, "partly"
    ),
    "xla-greedy": Strategy(
        "xla_greedy:xla_greedy", "the greedy pass of XLA, as told there", _TWREMAT, True, False, True
    ),
    "moccasin": Strategy(
        "moccasin.strategy:moccasin", "retention intervals in the input order", _MOCCASIN, True, True, True
    ),
    "moccasin-free": Strategy(
        "moccasin.strategy:moccasin_free", "retention intervals in any order", _MOCCASIN, True, True, True
    ),
    "monet-noop": Strategy(
        "monet.strategy:monet_noop", "forward values by stages of the backward pass", _MONET, "partly", True, True
    ),
}
"""Every strategy by its name."""


def solve(
    graph: Graph, budget_bytes: int, strategy: str = "checkmate", options: SolveOptions | None = None
) -> Schedule:
    """Find a schedule of `graph` within a budget.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Total, constants included.
    strategy : str
        One of `STRATEGIES`.
    options : SolveOptions, optional

    Raises
    ------
    StrategyError
        If there is no such strategy.
    InfeasibleBudgetError
        If no schedule fits the budget, or none was found.
    PlanError
        If a strategy returns a schedule that does not fit: a bug.

    Examples
    --------
    >>> schedule = solve(graph, 4_000_000_000)  # doctest: +SKIP
    >>> schedule.overhead, schedule.gap  # doctest: +SKIP
    """
    if strategy not in STRATEGIES:
        raise StrategyError(f"strategy {strategy!r} is unknown; choose one of {', '.join(sorted(STRATEGIES))}")
    schedule = STRATEGIES[strategy].load()(graph, int(budget_bytes), options or SolveOptions())
    if schedule.peak_bytes > budget_bytes:
        raise PlanError(
            f"strategy {strategy!r} made a schedule of {schedule.peak_bytes} bytes for a budget of {budget_bytes}; "
            "please report this"
        )
    return schedule


def minimum_budget(graph: Graph, time_limit: float = 12.0) -> tuple[int, int, int]:
    """Bytes that any schedule needs, bytes that a known schedule needs, and the node that needs the first.

    See `strategies.search.minimum_budget.minimum_budget`.
    """
    from .search.minimum_budget import minimum_budget as bracket

    return bracket(graph, time_limit)
