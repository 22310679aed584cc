"""OR-Tools' solvers: GLOP and PDLP for linear programs, HiGHS and SCIP for integer ones.

OR-Tools carries its own HiGHS: do not load `highspy` in the same process (both crash).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from ..machine import cores
from .program import Milp, Report, Solution, safe_bound

__all__ = ["METHODS", "glop", "pdlp", "solve"]

METHODS = ("glop", "pdlp", "highs", "scip")


def solve(milp: Milp, method: str = "glop", time_limit: float = 60.0, gap: float = 0.0, threads: int = 1) -> Solution:
    """Solve with OR-Tools.

    Parameters
    ----------
    milp : Milp
    method : str
        One of `METHODS`; the first two ignore integrality, and their bound is that of the linear program.
    time_limit : float
        Seconds.
    gap, threads : float, int
        PDLP may stop with this relative error of objective and rows (0: its own, 1e-6), and takes as many threads; the
        others ignore both.

    Raises
    ------
    ValueError
        If the method is unknown.
    """
    from ortools.linear_solver.python import model_builder_helper as mb

    if method not in METHODS:
        raise ValueError(f"solver method {method!r} is unknown; choose one of {', '.join(METHODS)}")
    helper: Any = mb.ModelBuilderHelper()
    helper.fill_model_from_sparse_data(
        milp.lower, milp.upper, milp.objective, milp.row_lower, milp.row_upper, sp.csr_matrix(milp.matrix)
    )
    mixed = method in ("highs", "scip")
    if mixed and milp.integer is not None:
        for j in np.flatnonzero(milp.integer):
            helper.set_var_integrality(int(j), True)
    solver: Any = mb.ModelSolverHelper(method)
    solver.set_time_limit_in_seconds(float(time_limit))
    if method == "pdlp":
        accuracy = f"eps_optimal_relative: {gap} eps_optimal_absolute: {gap}" if gap > 0 else ""
        solver.set_solver_specific_parameters(
            f"num_threads: {threads} termination_criteria {{ simple_optimality_criteria {{ {accuracy} }} }}"
        )
    solver.solve(helper)
    status: Any = solver.status() if solver.has_response() else None
    if status == mb.SolveStatus.INFEASIBLE:
        return Solution("infeasible", None, np.inf, np.inf)
    named = {mb.SolveStatus.OPTIMAL: "optimal", mb.SolveStatus.FEASIBLE: "feasible"}.get(status, "unknown")
    x = np.asarray(solver.variable_values()) if solver.has_solution() else None
    objective = float(milp.objective @ x) + milp.constant if x is not None else np.inf
    if mixed:
        bound = solver.best_objective_bound() + milp.constant if named != "unknown" else -np.inf
    else:
        duals = np.asarray(solver.dual_values()) if solver.has_solution() else np.zeros(0)
        if len(duals) != len(milp.row_lower):
            duals = np.zeros(len(milp.row_lower))
        bound = max(
            safe_bound(milp, duals), safe_bound(milp, -duals)
        )  # solvers differ in the sign; any multipliers will do
    return Solution(named, x, objective, bound)


def glop(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution:
    """GLOP: simplex, exact. It takes no start, and reports nothing on its way."""
    del gap, start, report
    return solve(milp, "glop", time_limit)


def pdlp(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution:
    """PDLP: first-order, on every core. It takes no start, and reports nothing on its way."""
    del start, report
    return solve(milp, "pdlp", time_limit, gap, cores())
