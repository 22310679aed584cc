"""What a solver is, and all of them by name.

A solver is a function (Milp, limits) -> Solution: `SolverFunction`. It runs in a process of its own. So an entry of
`SOLVERS` holds a small loader, which that process imports by its name and calls. The loader's return type is the
protocol, so the type checker compares every solver with it. `register` adds a solver of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import StrategyError
from .program import Milp, Report, Solution

__all__ = ["SOLVERS", "Solver", "SolverFunction", "register"]


class SolverFunction(Protocol):
    """What every solver implements."""

    def __call__(
        self,
        milp: Milp,
        time_limit: float,
        gap: float = 0.0,
        start: NDArray[np.float64] | None = None,
        report: Report | None = None,
    ) -> Solution:
        """The best point and bound of `milp` in `time_limit` seconds.

        Parameters
        ----------
        milp : Milp
        time_limit : float
            Seconds. A solver that goes on for longer is ended, and only what it reported is kept.
        gap : float
            Stop when (objective - bound) / objective is at most this.
        start : (variables,) float, optional
            A feasible point. A solver may ignore it.
        report : callable, optional
            To be called with better points and bounds on the way. A solver may leave that out.

        Raises
        ------
        ModuleNotFoundError
            If its package is not installed.
        ValueError
            If it cannot serve this program: its licence is too small, say. "auto" tries the next solver then.
        """


@dataclass(frozen=True)
class Solver:
    """A solver and its features.

    Attributes
    ----------
    load : callable () -> SolverFunction
        Gives the function. It must be a function of a module, so that another process can import it.
    package : str
        The package that has to be installed, as it is imported.
    integer, linear : bool
        Whether it serves integer programs, and linear ones. Its bound of a linear program must be `safe_bound`, or
        as safe.
    products : bool
        Whether it serves programs whose rows have products of variables (`Products`).
    """

    load: Callable[[], SolverFunction]
    package: str
    integer: bool
    linear: bool
    products: bool = False

    @property
    def where(self) -> str:
        """Module and name of the loader, "package.module:name"."""
        return f"{getattr(self.load, '__module__', '')}:{getattr(self.load, '__qualname__', '')}"


def _gurobi() -> SolverFunction:
    from .gurobi import solve

    return solve


def _highs() -> SolverFunction:
    from .mathopt import highs

    return highs


def _scip() -> SolverFunction:
    from .mathopt import scip

    return scip


def _cp_sat() -> SolverFunction:
    from .cpsat import solve

    return solve


def _glop() -> SolverFunction:
    from .ortools import glop

    return glop


def _pdlp() -> SolverFunction:
    from .ortools import pdlp

    return pdlp


SOLVERS: dict[str, Solver] = {
    "gurobi": Solver(_gurobi, "gurobipy", integer=True, linear=True, products=True),
    "highs": Solver(_highs, "ortools", integer=True, linear=True),
    "scip": Solver(_scip, "ortools", integer=True, linear=True),
    "cp-sat": Solver(_cp_sat, "ortools", integer=True, linear=False),
    "glop": Solver(_glop, "ortools", integer=False, linear=True),
    "pdlp": Solver(_pdlp, "ortools", integer=False, linear=True),
}
"""Every solver by its name. `register` adds one."""


def register(name: str, solver: Solver) -> None:
    """Add a solver of one's own, for as long as this process lives. It is used when asked for by name, not by "auto".

    Parameters
    ----------
    name : str
        What `solve_milp` and `SolveOptions(solver=)` are asked with.
    solver : Solver

    Raises
    ------
    StrategyError
        If the name is empty or taken, this is no `Solver`, it serves no kind of program, or no other process can
        import its loader.
    """
    if not isinstance(solver, Solver):
        raise StrategyError(f"solver {name!r} is given as {type(solver).__name__}; give a Solver")
    if not name:
        raise StrategyError("a solver needs a name that is not empty")
    if name == "auto" or name in SOLVERS:
        raise StrategyError(f"solver {name!r} is there already; choose another name")
    if not (solver.integer or solver.linear):
        raise StrategyError(f"solver {name!r} serves neither integer nor linear programs; say which it serves")
    module, _, function = solver.where.partition(":")
    if module in ("", "__main__") or not function.isidentifier():
        raise StrategyError(
            f"solver {name!r} runs in a process of its own, which cannot import its loader ({solver.where}); define "
            "the loader with `def` at the top of a module that can be imported"
        )
    SOLVERS[name] = solver
