"""CP-SAT (OR-Tools) for integer programs.

CP-SAT knows integers only. Rows with integer coefficients, or with some decimal multiple that is integer, are exact.
Others are scaled and rounded: sizes up, the budget down. So a point that a row keeps out stays out. Other points may be
lost, so neither a bound nor infeasibility is claimed. The objective is rounded down, which keeps its bound valid.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from .program import Milp, Report, Solution

__all__ = ["solve"]

_SCALES = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
_LARGE = 2.0**40


def solve(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution:
    """Solve with CP-SAT; see `solvers.solve_milp`.

    Raises
    ------
    ImportError
        Without OR-Tools.
    ValueError
        If a variable is continuous, or an equation has no integer multiple.
    """
    from ortools.sat.python import cp_model

    if milp.integer is None or not milp.integer.all():
        raise ValueError("CP-SAT solves integer programs, and this one has continuous variables")
    low, high = np.ceil(milp.lower).astype(np.int64), np.floor(milp.upper).astype(np.int64)
    model = cp_model.CpModel()
    variables = [model.new_int_var(a, b, "") for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    exact = _add_rows(model, cp_model, variables, milp, low)
    spread = float(np.abs(milp.objective) @ (high - low)) or 1.0
    scale = _LARGE / spread
    costs = np.floor(milp.objective * scale).astype(np.int64)
    chosen = np.flatnonzero(costs)
    model.minimize(cp_model.LinearExpr.weighted_sum([variables[j] for j in chosen], costs[chosen].tolist()))
    if start is not None:
        for variable, value in zip(variables, np.round(start).astype(int).tolist(), strict=True):
            model.add_hint(variable, value)
    # sum floor(s c) (x - low) <= s sum c (x - low), so what bounds the former bounds the latter.
    base = float(milp.objective @ low) + milp.constant
    offset = float(costs @ low)

    def lower_bound(value: float) -> float:
        return (value - offset) / scale + base if exact else -np.inf

    class Told(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            if report is not None:
                x = np.array([self.value(v) for v in variables], dtype=float)
                report(x, lower_bound(self.best_objective_bound))

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.relative_gap_limit = gap
    solver.best_bound_callback = lambda value: report(None, lower_bound(value)) if report is not None else None
    status: Any = solver.solve(model, Told())
    if status == cp_model.INFEASIBLE:
        return Solution("infeasible" if exact else "unknown", None, np.inf, np.inf if exact else -np.inf)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solution("unknown", None, np.inf, -np.inf)
    x = np.array([solver.value(v) for v in variables], dtype=float)
    objective = float(milp.objective @ x) + milp.constant
    bound = min(objective, lower_bound(solver.best_objective_bound))
    return Solution("optimal" if exact and status == cp_model.OPTIMAL else "feasible", x, objective, bound)


def _add_rows(model: Any, cp_model: Any, variables: list[Any], milp: Milp, low: np.ndarray) -> bool:
    """Add the rows of `milp`; whether all are exact."""
    matrix = sp.csr_matrix(milp.matrix)
    exact = True
    for r, (lower, upper) in enumerate(zip(milp.row_lower.tolist(), milp.row_upper.tolist(), strict=True)):
        entries = slice(matrix.indptr[r], matrix.indptr[r + 1])
        columns, values = matrix.indices[entries], matrix.data[entries]
        terms = [variables[j] for j in columns.tolist()]
        if not len(columns):
            if lower > 0 or upper < 0:
                model.add_bool_or([])  # no point satisfies it
            continue
        scale = next((s for s in _SCALES if np.allclose(s * values, np.round(s * values), rtol=1e-15, atol=0)), None)
        if scale is not None:
            weights = np.round(scale * values).astype(np.int64).tolist()
            least = int(np.ceil(scale * lower - 1e-6)) if np.isfinite(lower) else cp_model.INT_MIN
            most = int(np.floor(scale * upper + 1e-6)) if np.isfinite(upper) else cp_model.INT_MAX
            model.add_linear_constraint(cp_model.LinearExpr.weighted_sum(terms, weights), least, most)
            continue
        if lower == upper:
            raise ValueError(f"row {r} is an equation without an integer multiple, which CP-SAT cannot hold exactly")
        exact = False
        base = low[columns]
        scale = _LARGE / float(np.abs(values).max())
        for side, sign in ((upper, 1.0), (-lower, -1.0)):
            if np.isfinite(side):
                weights = np.ceil(sign * scale * values).astype(np.int64)
                most = int(np.floor(scale * (side - sign * float(values @ base)))) + int(weights @ base)
                sum_of = cp_model.LinearExpr.weighted_sum(terms, weights.tolist())
                model.add_linear_constraint(sum_of, cp_model.INT_MIN, most)
    return exact
