"""Linear and integer programs behind one small interface: `solve_milp(milp, solver, limits) -> Solution`.

The strategies build the matrices once, as SciPy sparse. Solvers are imported when they are first used, and each runs in
a process of its own.
"""

from .gurobi import gurobi_licence
from .program import Milp, Products, Solution, safe_bound
from .rows import Rows
from .solve import SOLVERS, check_solver, solve_milp

__all__ = [
    "SOLVERS",
    "Milp",
    "Products",
    "Rows",
    "Solution",
    "check_solver",
    "gurobi_licence",
    "safe_bound",
    "solve_milp",
]
