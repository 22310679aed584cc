"""Linear and integer programs behind one small interface: `solve_milp(milp, solver, limits) -> Solution`.

The strategies build the matrices once, as SciPy sparse. `SOLVERS` is the registry. Solvers are imported when they are
first used, and each runs in a process of its own.
"""

from .gurobi import gurobi_licence
from .program import Milp, Products, Report, Solution, safe_bound
from .registry import SOLVERS, Solver, SolverFunction, register
from .rows import Rows
from .solve import check_solver, solve_milp

__all__ = [
    "SOLVERS",
    "Milp",
    "Products",
    "Report",
    "Rows",
    "Solution",
    "Solver",
    "SolverFunction",
    "check_solver",
    "gurobi_licence",
    "register",
    "safe_bound",
    "solve_milp",
]
