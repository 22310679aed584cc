"""Strategies: each takes (Graph, budget, options) and gives a Schedule. They are imported when first used."""

from __future__ import annotations

from ..errors import PlanError, StrategyError
from ..graph import Graph
from ..schedule import Schedule
from .budgets import budget_in_bytes
from .options import MoccasinOptions, Progress, SolveOptions
from .registry import STRATEGIES, Strategy, StrategyFunction, Trait, register

__all__ = [
    "STRATEGIES",
    "MoccasinOptions",
    "Progress",
    "SolveOptions",
    "Strategy",
    "StrategyFunction",
    "Trait",
    "minimum_budget",
    "register",
    "solve",
]


def solve(
    graph: Graph, budget: int | float | str, strategy: str = "checkmate", options: SolveOptions | None = None
) -> Schedule:
    """Find a schedule of `graph` within a budget.

    Parameters
    ----------
    graph : Graph
    budget : int, float or str
        Total, constants included: bytes (4_000_000_000), a size ("4GB", "512MiB"), or a share (0.6, "60%"). A share is
        one of the peak without rematerialization, less the constants. The constants are then added to it.
    strategy : str
        One of `STRATEGIES`.
    options : SolveOptions, optional

    Returns
    -------
    Schedule
        Its peak is at most the budget.

    Raises
    ------
    BudgetError
        If the budget cannot be read, or is negative.
    StrategyError
        If there is no such strategy, or it cannot schedule this graph.
    InfeasibleBudgetError
        If no schedule fits the budget, or none was found.
    PlanError
        If a strategy returns a schedule that does not fit. That is a bug: please report it.

    Examples
    --------
    >>> schedule = solve(graph, "4GB")  # doctest: +SKIP
    >>> schedule.overhead, schedule.gap  # doctest: +SKIP
    """
    if strategy not in STRATEGIES:
        raise StrategyError(f"strategy {strategy!r} is unknown; choose one of {', '.join(sorted(STRATEGIES))}")
    budget_bytes = budget_in_bytes(budget, graph)
    schedule = _function(graph, strategy)(graph, budget_bytes, options or SolveOptions())
    if schedule.peak_bytes > budget_bytes:
        raise PlanError(
            f"strategy {strategy!r} made a schedule of {schedule.peak_bytes} bytes for a budget of {budget_bytes}; "
            "please report this"
        )
    return schedule


def _function(graph: Graph, strategy: str) -> StrategyFunction:
    """What solves a graph. If values can be copied to the host (`paging.with_host`), only "checkmate" decides that."""
    if graph.host is None:
        return STRATEGIES[strategy].load()
    if strategy != "checkmate":
        raise StrategyError(
            f'strategy {strategy!r} knows nothing of copies to the host: use "checkmate", or the graph without them '
            "(paging.without_host)"
        )
    from .paging.paging import paging

    return paging


def minimum_budget(graph: Graph, time_limit: float = 12.0) -> tuple[int, int, int]:
    """Find between which bytes the least budget lies that a schedule of a graph can keep.

    Parameters
    ----------
    graph : Graph
    time_limit : float
        Seconds, of which 12 at most are used.

    Returns
    -------
    proven_lower_bytes, achievable_bytes, node : int
        No schedule fits below the first number of bytes. A schedule is known for the second. Both include constants.
        Computing `node` is what needs the first.
    """
    from .compiled import compile_search
    from .search.minimum_budget import minimum_budget as bracket

    compile_search()
    return bracket(graph, time_limit)
