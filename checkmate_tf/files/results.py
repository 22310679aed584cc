"""Answers that others can check: the versioned JSON format "checkmate-result/1".

An answer has "strategy", "solver", "status", "budget_bytes", "cost", "base_cost", "peak_bytes",
"lower_bound", "gap", "seconds", "minimum_budget_bytes" and "plan":

- `plan` is a list of `["compute", i]` and `["deallocate", i]`. At most one copy of a value is in memory at any time.
  Computing i allocates its value while all inputs are there; only then are values freed. The last value of each node
  that nobody reads is kept to the end.
- `cost` sums the costs of all computations, `base_cost` those of every node once. `peak_bytes` is the most memory
  during any computation, constants included.
- `lower_bound`: no schedule within the budget costs less (proven); at least `base_cost`. `gap` is
  cost / lower_bound - 1. `bound_order` says which schedules that is about: those that first compute nodes in the order
  of the graph ("fixed", the default), those of them whose stages compute each node at most once, and in that order,
  too ("stages"), or all ("free").
- `status`: "optimal" (proven), "feasible", "infeasible" (proven that no schedule fits) or "unknown" (none was found,
  though none is ruled out). For the last two `plan`, `cost`, `peak_bytes`, `lower_bound` and `gap` are null.
- `minimum_budget_bytes`: the least budget for which a schedule is known, of whatever strategy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol

from ..errors import InfeasibleBudgetError, PlanError
from ..evaluator import Evaluation
from ..graph import Graph
from ..statements import COMPUTE, DEALLOCATE, Statement

__all__ = ["BOUND_ORDERS", "NO_PLAN", "RESULT_FORMAT", "Answering", "infeasible_result", "result_to_dict"]

RESULT_FORMAT = "checkmate-result/1"

BOUND_ORDERS = {
    "fixed": "in the order of the graph",
    "stages": "in stages, each in the order of the graph",
    "free": "in any order",
}
"""What a bound may be about, in words."""

NO_PLAN = ("infeasible", "unknown")
"""What an answer without a plan may say of its status."""


class Answering(Protocol):
    """What an answer tells of a schedule; the fields are those of `Schedule`."""

    @property
    def graph(self) -> Graph: ...
    @property
    def plan(self) -> Iterable[Statement]: ...
    @property
    def evaluation(self) -> Evaluation: ...
    @property
    def strategy(self) -> str: ...
    @property
    def solver(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def budget_bytes(self) -> int | None: ...
    @property
    def lower_bound(self) -> float: ...
    @property
    def bound_order(self) -> str: ...
    @property
    def seconds(self) -> float: ...


def result_to_dict(
    schedule: Answering, *, minimum_budget_bytes: int | None = None, budget_bytes: int | None = None
) -> dict[str, Any]:
    """A schedule as plain values, "checkmate-result/1".

    Parameters
    ----------
    schedule : Schedule
        Or whatever else tells the same.
    minimum_budget_bytes : int, optional
        The least budget with a known schedule. The schedule's own peak is one such budget.
    budget_bytes : int, optional
        What was asked, constants included. Default: the schedule's.

    Raises
    ------
    PlanError
        If the plan has two copies of one value in memory, which the format cannot tell apart. No plan of
        `plan_from_sequence` has: a value is freed after its last reader before its node is computed again.
    """
    cost, base = float(schedule.evaluation.cost), float(schedule.graph.base_cost)
    peak = int(schedule.evaluation.peak_bytes)
    bound = float(schedule.lower_bound) if math.isfinite(schedule.lower_bound) else base
    bound = min(cost, max(bound, base))
    return {
        "format": RESULT_FORMAT,
        "strategy": schedule.strategy,
        "solver": schedule.solver,
        "status": schedule.status,
        "budget_bytes": schedule.budget_bytes if budget_bytes is None else int(budget_bytes),
        "cost": cost,
        "base_cost": base,
        "peak_bytes": peak,
        "lower_bound": bound,
        "bound_order": schedule.bound_order,
        "gap": max(0.0, cost / bound - 1) if bound else 0.0,
        "seconds": float(schedule.seconds),
        "minimum_budget_bytes": int(min(peak, minimum_budget_bytes or peak)),
        "plan": _statements(schedule.plan),
    }


def infeasible_result(
    graph: Graph,
    error: InfeasibleBudgetError,
    *,
    strategy: str,
    solver: str = "",
    seconds: float = 0.0,
    minimum_budget_bytes: int | None = None,
    bound_order: str | None = None,
) -> dict[str, Any]:
    """The answer "checkmate-result/1" when there is no schedule: "infeasible" if that is proven, else "unknown".

    Parameters
    ----------
    error : InfeasibleBudgetError
        As the strategy raised it.
    strategy, solver : str
        What was asked.
    seconds : float
        Time taken.
    minimum_budget_bytes : int, optional
        The least budget with a known schedule, if it is below the error's.
    bound_order : "fixed" or "free", optional
        Which schedules do not fit. Default: those that the error is about.
    """
    least = error.minimum_bytes if minimum_budget_bytes is None else min(error.minimum_bytes, minimum_budget_bytes)
    return {
        "format": RESULT_FORMAT,
        "strategy": strategy,
        "solver": solver,
        "status": "infeasible" if error.proven else "unknown",
        "budget_bytes": int(error.budget_bytes),
        "cost": None,
        "base_cost": float(graph.base_cost),
        "peak_bytes": None,
        "lower_bound": None,
        "bound_order": bound_order or error.bound_order,
        "gap": None,
        "seconds": float(seconds),
        "minimum_budget_bytes": int(least),
        "plan": None,
    }


def _statements(plan: Iterable[Statement]) -> list[list[Any]]:
    statements: list[list[Any]] = []
    live: set[int] = set()
    for statement in plan:
        if statement.op == COMPUTE:
            if statement.node in live:
                raise PlanError(f"two copies of node {statement.node} are in memory at once; please report this")
            live.add(statement.node)
        elif statement.op == DEALLOCATE:
            live.remove(statement.node)
        else:
            continue  # ALLOCATE: "compute" says it
        statements.append([statement.op, statement.node])
    return statements
