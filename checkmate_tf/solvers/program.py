"""The two values that every solver shares: a program in sparse form, and what was found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Milp", "Products", "Report", "Solution", "safe_bound"]


@dataclass(frozen=True, eq=False)
class Products:
    """What a row may have beyond linear terms: x[factor] (Q x), a row at a time.

    Parameters
    ----------
    factor : int
        The variable that all products share.
    matrix : SciPy sparse, (rows, variables)
        Q.
    """

    factor: int
    matrix: Any


@dataclass(frozen=True, eq=False)
class Milp:
    """min c x + constant,  row_lower <= A x <= row_upper,  lower <= x <= upper.

    Parameters
    ----------
    objective, lower, upper : (variables,) float
        Bounds must be finite: `safe_bound` depends on it.
    matrix : SciPy sparse, (rows, variables)
    row_lower, row_upper : (rows,) float
    constant : float
    integer : (variables,) bool, optional
        Default: none, a linear program.
    products : Products, optional
        Rows are then row_lower <= A x + x[factor] (Q x) <= row_upper. Only Gurobi serves such programs.
    """

    objective: NDArray[np.float64]
    matrix: Any
    row_lower: NDArray[np.float64]
    row_upper: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    constant: float = 0.0
    integer: NDArray[np.bool_] | None = None
    products: Products | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver found.

    Attributes
    ----------
    status : str
        "optimal", "feasible" (a point, not proved best), "infeasible" or "unknown".
    x : (variables,) float or None
    objective : float
        Of x; infinite if there is no x.
    bound : float
        A proven lower bound. Minus infinity if there is none; infinite if the program is infeasible.
    solver : str
        Who solved it.
    detail : str
        What went wrong on the way, in words; empty if nothing did.
    """

    status: str
    x: NDArray[np.float64] | None
    objective: float
    bound: float
    solver: str = ""
    detail: str = ""


Report = Callable[[NDArray[np.float64] | None, float], None]
"""Called by a solver with a better x (or None) and its bound, as it goes."""


def safe_bound(milp: Milp, duals: NDArray[np.float64]) -> float:
    """The lower bound that multipliers prove, whatever their accuracy.

    Any y gives

        min c x >= sum_r (y_r^+ row_lower_r - y_r^- row_upper_r) + sum_j min_{l_j <= x_j <= u_j} (c - A^T y)_j x_j,

    so a solver's tolerances, or its stopping early, cannot make the bound wrong. Multipliers on an infinite side count
    as 0 (Neumaier and Shcherbina, Math. Programming 99, 2004).
    """
    y = np.where(np.isfinite(duals), duals, 0.0)
    y = np.where((y > 0) & ~np.isfinite(milp.row_lower), 0.0, y)
    y = np.where((y < 0) & ~np.isfinite(milp.row_upper), 0.0, y)
    side = np.where(y > 0, milp.row_lower, np.where(y < 0, milp.row_upper, 0.0))
    reduced = milp.objective - milp.matrix.T @ y
    best = np.where(reduced > 0, milp.lower, milp.upper)
    return float(side @ y + reduced @ best + milp.constant)
