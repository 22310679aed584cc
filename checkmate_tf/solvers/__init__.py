"""Linear and integer programs behind one small interface: `solve_milp(milp, solver, limits) -> Solution`.

Matrices are SciPy sparse, built once by the strategies. Solvers are imported when first used, each in a process of its
own.
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
