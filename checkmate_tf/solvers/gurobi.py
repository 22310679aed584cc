"""Gurobi, the solver that the paper used. Tells which licence is here, too.

`python -m checkmate_tf.solvers.gurobi` prints "none", "size-limited" or "full", and why.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from .program import Milp, Report, Solution, safe_bound

__all__ = ["LIMIT", "QUADRATIC_LIMIT", "gurobi_licence", "licence_details", "solve"]

LIMIT = 2_000
"""Variables and constraints that the licence in gurobipy's wheel allows."""

QUADRATIC_LIMIT = 200
"""Variables that it allows if a row has products (measured with Gurobi 13.0). Rows may still be up to `LIMIT`."""

_TOO_LARGE = 10010


def gurobi_licence(timeout: float = 30.0) -> str:
    """The licence found here: "none", "size-limited" (models of up to `LIMIT` variables and constraints) or "full"."""
    return licence_details(timeout)["licence"]


def licence_details(timeout: float = 30.0) -> dict[str, str]:
    """Probe the licence in a process of its own, and never fail. A licence server that hangs must not hang the caller.

    Returns
    -------
    dict with "licence" ("none", "size-limited" or "full") and "detail"
    """
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", f"import sys; sys.path.append({root!r}); from {__name__} import probe; probe()"]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return {"licence": "none", "detail": f"Gurobi did not answer in {timeout:.0f} s (a licence server?)"}
    except OSError as error:
        return {"licence": "none", "detail": str(error)}
    for line in reversed(run.stdout.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and "licence" in found:
            return found
    lines = run.stderr.strip().splitlines()
    return {"licence": "none", "detail": lines[-1] if lines else f"the probe ended with status {run.returncode}"}


def probe() -> None:
    """Optimize a model just over the limit of the wheel's licence."""
    try:
        import gurobipy

        with gurobipy.Env(empty=True) as env:
            env.setParam("OutputFlag", 0)
            env.start()
            with gurobipy.Model(env=env) as model:
                model.addVars(LIMIT + 1)
                try:
                    model.optimize()
                    found = {"licence": "full", "detail": "no limit on size"}
                except gurobipy.GurobiError as error:
                    if error.errno != _TOO_LARGE:
                        raise
                    limit = f"models up to {LIMIT:,} variables and {LIMIT:,} constraints"
                    found = {"licence": "size-limited", "detail": limit}
    except ImportError as error:
        found = {"licence": "none", "detail": f"gurobipy is not installed ({error})"}
    except Exception as error:  # noqa: BLE001 - a licence can fail in any way; that is the finding
        found = {"licence": "none", "detail": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found) + "\n")


def solve(
    milp: Milp, time_limit: float, gap: float = 0.0, start: np.ndarray | None = None, report: Report | None = None
) -> Solution:
    """Solve with Gurobi; see `solvers.solve_milp`.

    Raises
    ------
    ImportError
        Without gurobipy.
    ValueError
        If there is no licence, or none for a program of this size.
    """
    import gurobipy as gp

    try:
        with gp.Env(empty=True) as env:
            for key, value in {"OutputFlag": 0, "TimeLimit": time_limit, "MIPGap": gap, "MIPGapAbs": 0.0}.items():
                env.setParam(key, value)
            env.start()
            with gp.Model(env=env) as model:
                return _solve(model, gp, milp, start, report)
    except gp.GurobiError as error:
        raise ValueError(str(error)) from error


def _solve(model: Any, gp: Any, milp: Milp, start: np.ndarray | None, report: Report | None) -> Solution:
    mixed = milp.integer is not None and bool(milp.integer.any())
    kinds = np.where(milp.integer, "I", "C") if milp.integer is not None else "C"
    x = model.addMVar(len(milp.objective), lb=milp.lower, ub=milp.upper, obj=milp.objective, vtype=kinds)
    model.ObjCon = milp.constant
    # A row with two sides becomes two, unless they are equal.
    equal = milp.row_lower == milp.row_upper
    below, above = np.isfinite(milp.row_upper) & ~equal, np.isfinite(milp.row_lower) & ~equal
    parts = [(equal, "=", milp.row_upper), (below, "<", milp.row_upper), (above, ">", milp.row_lower)]
    matrix = sp.csr_matrix(milp.matrix)
    linear = np.ones(len(equal), dtype=bool)
    if milp.products is not None:
        linear = np.diff(sp.csr_matrix(milp.products.matrix).indptr) == 0
        _add_products(model, gp, milp, x, [(use & ~linear, sense, side) for use, sense, side in parts])
    parts = [(use & linear, sense, side) for use, sense, side in parts]
    rows = [(use, model.addMConstr(matrix[use], x, sense, side[use])) for use, sense, side in parts if use.any()]
    if start is not None:
        x.Start = start

    def told(m: Any, where: int) -> None:
        if report is None:
            return
        if where == gp.GRB.Callback.MIPSOL:
            found = np.array(m.cbGetSolution(m.getVars()))
            report(found, float(m.cbGet(gp.GRB.Callback.MIPSOL_OBJBND)))
        elif where == gp.GRB.Callback.MIP:
            report(None, float(m.cbGet(gp.GRB.Callback.MIP_OBJBND)))

    model.optimize(told)
    if model.Status in (gp.GRB.INFEASIBLE, gp.GRB.INF_OR_UNBD):  # all variables are bounded
        return Solution("infeasible", None, np.inf, np.inf)
    found = np.array(x.X) if model.SolCount else None
    if mixed:
        bound = float(model.ObjBound)
    else:
        duals = np.zeros(len(milp.row_lower))
        if model.Status == gp.GRB.OPTIMAL:
            for use, row in rows:
                duals[use] += row.Pi
        bound = safe_bound(milp, duals)
    status = "optimal" if model.Status == gp.GRB.OPTIMAL else "feasible" if found is not None else "unknown"
    objective = float(milp.objective @ found) + milp.constant if found is not None else np.inf
    return Solution(status, found, objective, bound if bound > -1e99 else -np.inf)


def _add_products(model: Any, gp: Any, milp: Milp, x: Any, parts: list[tuple[np.ndarray, str, np.ndarray]]) -> None:
    """Add the rows that have products: bilinear, so not convex."""
    assert milp.products is not None
    model.Params.NonConvex = 2
    matrix, products = sp.csr_matrix(milp.matrix), sp.csr_matrix(milp.products.matrix)
    variables = x.tolist()
    factor = variables[milp.products.factor]
    senses = {"=": gp.GRB.EQUAL, "<": gp.GRB.LESS_EQUAL, ">": gp.GRB.GREATER_EQUAL}
    for use, sense, side in parts:
        for r in np.flatnonzero(use).tolist():
            row = gp.QuadExpr()
            for j, value in zip(*_entries(matrix, r), strict=True):
                row.addTerms(value, variables[j])
            for j, value in zip(*_entries(products, r), strict=True):
                row.addTerms(value, variables[j], factor)
            model.addQConstr(row, senses[sense], float(side[r]))


def _entries(matrix: Any, row: int) -> tuple[list[int], list[float]]:
    cells = slice(matrix.indptr[row], matrix.indptr[row + 1])
    return matrix.indices[cells].tolist(), matrix.data[cells].tolist()


if __name__ == "__main__":
    probe()
