"""Linear and integer programs behind one small interface: `(Milp, options) -> Solution`.

Matrices are SciPy sparse, built once by the strategies. Solvers are imported when first used.
"""

from .problem import Milp, Solution, safe_bound

__all__ = ["Milp", "Solution", "safe_bound"]
