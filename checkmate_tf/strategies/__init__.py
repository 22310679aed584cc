"""Strategies: each takes (Graph, budget, options) and gives a Schedule. They are imported when first used."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..errors import PlanError, StrategyError
from ..graph import Graph
from ..schedule import Schedule
from .options import Progress, SolveOptions

__all__ = ["STRATEGIES", "Progress", "SolveOptions", "Strategy", "minimum_budget", "solve"]

Strategy = Callable[[Graph, int, SolveOptions], Schedule]

STRATEGIES: dict[str, str] = {
    "checkmate": "checkmate:checkmate",
    "checkpoint-all": "baselines:checkpoint_all",
    "lp-rounding": "rounding:lp_rounding",
    "lp-rounding-random": "rounding:lp_rounding_random",
    "milp": "milp:milp",
}
"""Name of a strategy: module of this package and function in it."""


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
    module, name = STRATEGIES[strategy].split(":")
    function: Strategy = getattr(import_module(f".{module}", __name__), name)
    schedule = function(graph, int(budget_bytes), options or SolveOptions())
    if schedule.peak_bytes > budget_bytes:
        raise PlanError(
            f"strategy {strategy!r} made a schedule of {schedule.peak_bytes} bytes for a budget of {budget_bytes}; "
            "please report this"
        )
    return schedule


def minimum_budget(graph: Graph, time_limit: float = 5.0) -> tuple[int, int, int]:
    """Bytes that any schedule needs, bytes that a known schedule needs, and the node that needs the first.

    See `strategies.feasible.minimum_budget`.
    """
    from .feasible import minimum_budget as bracket

    return bracket(graph, time_limit)
