"""HiGHS and SCIP for integer programs, through OR-Tools' MathOpt.

The older interface (`ortools`) loses HiGHS's solution at the time limit, and crashes on a start (OR-Tools 9.15).
OR-Tools carries its own HiGHS: do not load `highspy` in the same process.
"""

from __future__ import annotations

import datetime
import time
from typing import Any

import numpy as np
import scipy.sparse as sp

from .program import Milp, Report, Solution, safe_bound

__all__ = ["METHODS", "highs", "scip", "solve"]

METHODS = {"highs": "HIGHS", "scip": "GSCIP"}


def solve(
    milp: Milp,
    method: str,
    time_limit: float,
    gap: float = 0.0,
    start: np.ndarray | None = None,
    report: Report | None = None,
) -> Solution:
    """Solve with one of `METHODS`; see `solvers.solve_milp`. HiGHS reports bounds on its way, and no points.

    Raises
    ------
    ImportError
        Without OR-Tools.
    """
    from ortools.math_opt.python import mathopt

    until = time.monotonic() + time_limit
    model = mathopt.Model.from_model_proto(_proto(milp))
    hints = []
    if start is not None:
        values = start.tolist()
        hints = [mathopt.SolutionHint(variable_values={v: values[v.id] for v in model.variables()})]

    def told(lines: list[str]) -> None:
        for line in lines:
            bound = _highs_bound(line)
            if bound is not None and report is not None:
                report(None, bound + milp.constant)

    def once(**more: Any) -> Any:
        parameters = mathopt.SolveParameters(
            time_limit=datetime.timedelta(seconds=max(0.01, until - time.monotonic())),
            relative_gap_tolerance=gap,
            absolute_gap_tolerance=0.0,
            **more,
        )
        return mathopt.solve(
            model,
            getattr(mathopt.SolverType, METHODS[method]),
            params=parameters,
            model_params=mathopt.ModelSolveParameters(solution_hints=hints),
            msg_cb=told if method == "highs" else None,
        )

    reasons = mathopt.TerminationReason
    infeasible = (reasons.INFEASIBLE, reasons.INFEASIBLE_OR_UNBOUNDED)  # all variables are bounded
    result = once()
    if method == "highs" and result.termination.reason in infeasible:
        result = once(presolve=mathopt.Emphasis.OFF)  # HiGHS 1.12's presolve says so of some feasible programs
    reason = result.termination.reason
    if reason in infeasible:
        return Solution("infeasible", None, np.inf, np.inf)
    bound = float(result.termination.objective_bounds.dual_bound) + milp.constant
    if milp.integer is None:
        duals = np.zeros(len(milp.row_lower))
        if result.has_dual_feasible_solution():
            values = result.dual_values()
            duals[:] = [values[row] for row in model.linear_constraints()]
        bound = safe_bound(milp, duals)
    if not result.has_primal_feasible_solution():
        return Solution("unknown", None, np.inf, bound)
    values = result.variable_values()
    x = np.array([values[v] for v in model.variables()])
    objective = float(milp.objective @ x) + milp.constant
    return Solution("optimal" if reason == reasons.OPTIMAL else "feasible", x, objective, bound)


def highs(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution:
    """HiGHS."""
    return solve(milp, "highs", time_limit, gap, start, report)


def scip(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution:
    """SCIP. It reports nothing on its way."""
    return solve(milp, "scip", time_limit, gap, start, report)


def _proto(milp: Milp) -> Any:
    from ortools.math_opt import model_pb2

    proto = model_pb2.ModelProto()
    matrix = sp.csr_matrix(milp.matrix)
    matrix.sum_duplicates()  # sorted by column, too
    entries = matrix.tocoo()
    rows, columns = matrix.shape
    integer = np.zeros(columns, dtype=bool) if milp.integer is None else milp.integer
    proto.variables.ids.extend(range(columns))
    proto.variables.lower_bounds.extend(milp.lower.tolist())
    proto.variables.upper_bounds.extend(milp.upper.tolist())
    proto.variables.integers.extend(integer.tolist())
    proto.objective.linear_coefficients.ids.extend(range(columns))
    proto.objective.linear_coefficients.values.extend(milp.objective.tolist())
    proto.linear_constraints.ids.extend(range(rows))
    proto.linear_constraints.lower_bounds.extend(milp.row_lower.tolist())
    proto.linear_constraints.upper_bounds.extend(milp.row_upper.tolist())
    proto.linear_constraint_matrix.row_ids.extend(entries.row.tolist())
    proto.linear_constraint_matrix.column_ids.extend(entries.col.tolist())
    proto.linear_constraint_matrix.coefficients.extend(entries.data.tolist())
    return proto


def _highs_bound(line: str) -> float | None:
    """The bound in a line of HiGHS's table: [source] processed in-queue leaves explored% BOUND incumbent gap ..."""
    words = line.split()
    if words and len(words[0]) == 1 and words[0].isalpha():
        del words[0]
    if len(words) < 7 or not words[3].endswith("%"):
        return None
    try:
        bound = float(words[4])
    except ValueError:
        return None
    return bound - 1e-9 * abs(bound) if np.isfinite(bound) else None  # it is printed with ten digits
