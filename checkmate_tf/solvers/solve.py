"""One interface to all solvers: `solve_milp`. Every solve is in a process of its own.

OR-Tools crashes in a process that has loaded TensorFlow. Also, only a process can be given a limit of memory, or be
ended when its time is over, without harm to its caller.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ..errors import StrategyError
from .gurobi import LIMIT, gurobi_licence
from .json_process import JsonProcess
from .program import Milp, Solution
from .registry import SOLVERS
from .tolerances import EXACT

__all__ = ["SolverProgress", "check_solver", "solve_milp"]

log = logging.getLogger(__name__)

SolverProgress = Callable[[float, float, float], None]

_GRACE = 2.0  # seconds past the time limit until a solver is ended
_LARGE = 200_000  # terms from which the first-order PDLP beats simplex
_TICK = 0.5


def check_solver(solver: str) -> None:
    """Raise a StrategyError, with the names there are, unless this is one of them."""
    if solver != "auto" and solver not in SOLVERS:
        raise StrategyError(f"solver {solver!r} is unknown; choose one of auto, {', '.join(SOLVERS)}")


def solve_milp(
    milp: Milp,
    solver: str = "auto",
    time_limit: float = 60.0,
    gap: float = 0.0,
    memory_limit: int | None = None,
    start: NDArray[np.float64] | None = None,
    progress: SolverProgress | None = None,
) -> Solution:
    """Solve a linear or integer program.

    Parameters
    ----------
    milp : Milp
    solver : str
        One of `SOLVERS`, or "auto": Gurobi if it is installed and its licence allows the size, else HiGHS for integer
        programs, GLOP for linear ones and PDLP for large linear ones.
    time_limit : float
        Seconds.
    gap : float
        Stop when (objective - bound) / objective is at most this. For linear programs it is PDLP's relative error of
        objective and rows (0: 1e-6); the others solve them exactly.
    memory_limit : int, optional
        Bytes of address space that the solver's process may have.
    start : (variables,) float, optional
        A feasible point; the answer is never worse.
    progress : callable, optional
        Called with (seconds, best objective, bound) about twice a second.

    Returns
    -------
    Solution
        The best point and bound at the end, whatever ended it: a proof, a limit, a crash, or Ctrl-C (with a point).
        `status` is "optimal" for an integer program if the gap is closed to 1e-9.

    Raises
    ------
    StrategyError
        If the solver does not exist, is not installed or licensed, or does not solve this kind of program.
    KeyboardInterrupt
        On Ctrl-C with nothing to return.
    """
    begun = time.perf_counter()
    mixed = milp.integer is not None and bool(milp.integer.any())
    candidates = _choose(milp, mixed, solver)
    for method in candidates:
        left = time_limit - (time.perf_counter() - begun)
        answer = _Answer(milp, mixed, method, start)
        why = answer.run(left, gap, memory_limit, progress)
        if why is None:
            return answer.solution()
        if method == candidates[-1]:
            raise StrategyError(f'solver {method!r} cannot solve this program: {why}; use another, or solver="auto"')
        log.info("%s cannot solve this program (%s), trying the next", method, why)
    raise AssertionError("there is always a candidate")


def _choose(milp: Milp, mixed: bool, solver: str) -> list[str]:
    """What to try, in order."""
    kind = "integer" if mixed else "linear"
    check_solver(solver)
    if milp.products is not None:
        able = [name for name, other in SOLVERS.items() if other.products]
        if solver not in ("auto", *able):
            raise StrategyError(
                f"solver {solver!r} does not solve programs with products of variables; {' and '.join(able)} does"
            )
        solver = "gurobi" if solver == "auto" else solver
    if solver != "auto":
        package = SOLVERS[solver].package
        others = [name for name, other in SOLVERS.items() if (other.integer if mixed else other.linear)]
        if solver not in others:
            raise StrategyError(f"solver {solver!r} does not solve {kind} programs; choose one of {', '.join(others)}")
        if find_spec(package) is None:
            raise StrategyError(f'solver {solver!r} needs {package}: pip install {package}, or use solver="auto"')
        return [solver]
    found = []
    if find_spec("gurobipy") is not None:
        small = max(milp.matrix.shape) <= LIMIT
        if small or gurobi_licence() == "full":
            found.append("gurobi")
    if find_spec("ortools") is not None:
        found.append("highs" if mixed else "glop" if milp.matrix.nnz <= _LARGE else "pdlp")
    if not found:
        raise StrategyError(f"there is no solver for {kind} programs here: pip install ortools")
    return found


class _Answer:
    """The best point and bound so far."""

    def __init__(self, milp: Milp, mixed: bool, method: str, start: NDArray[np.float64] | None) -> None:
        self.milp, self.mixed, self.method = milp, mixed, method
        self.x, self.objective, self.bound = start, np.inf, -np.inf
        self.status, self.detail = "unknown", ""
        if start is not None:
            self.objective = float(milp.objective @ start) + milp.constant

    def run(
        self, time_limit: float, gap: float, memory_limit: int | None, progress: SolverProgress | None
    ) -> str | None:
        """Solve. Returns None, or the reason if the solver cannot solve this program."""
        begun = time.perf_counter()
        with JsonProcess(f"{__package__}.worker", self._arrays(time_limit, gap, memory_limit)) as process:
            try:
                while process.running and not self.detail:
                    for message in process.news(_TICK):
                        if "unavailable" in message:
                            return str(message["unavailable"])
                        self._take(message, process)
                    now = time.perf_counter() - begun
                    if progress is not None:
                        progress(now, self.objective, min(self.bound, self.objective))
                    if now > time_limit + _GRACE:
                        self.detail = "the solver did not stop at the time limit and was ended"
                for message in process.news():
                    if "unavailable" in message:
                        return str(message["unavailable"])
                    self._take(message, process)
                self.detail = self.detail or process.ending
            except KeyboardInterrupt:
                if self.x is None:
                    raise
                self.detail = "interrupted"
        if self.detail:
            log.warning("%s: %s; going on with what was found before", self.method, self.detail)
        return None

    def _arrays(self, time_limit: float, gap: float, memory_limit: int | None) -> dict[str, Any]:
        milp, matrix = self.milp, sp.csr_matrix(self.milp.matrix, copy=True)
        matrix.sum_duplicates()  # solvers refuse a cell that comes twice
        integer = np.zeros(0, dtype=bool) if milp.integer is None else milp.integer
        products = {}
        if milp.products is not None:
            terms = sp.coo_matrix(milp.products.matrix)
            products = {
                "factor": milp.products.factor, "product_rows": terms.row, "product_columns": terms.col,
                "product_values": terms.data,
            }  # fmt: skip
        path = [entry for entry in sys.path if isinstance(entry, str)]  # Python looks at no others
        return {
            "data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": np.array(matrix.shape),
            "objective": milp.objective, "row_lower": milp.row_lower, "row_upper": milp.row_upper,
            "lower": milp.lower, "upper": milp.upper, "constant": milp.constant, "integer": integer,
            "start": np.zeros(0) if self.x is None else self.x, "gap": gap,
            "until": time.time() + time_limit, "memory_limit": memory_limit or 0,
            "where": SOLVERS[self.method].where, "path": np.array(path, dtype=np.str_),
            **products,
        }  # fmt: skip

    def _take(self, message: dict[str, Any], process: JsonProcess) -> None:
        if "failed" in message:
            self.detail = str(message["failed"])
            return
        if "bound" in message:
            self.bound = max(self.bound, float(message["bound"]))
        if message.get("x"):
            file = process.folder / str(message["x"])
            x = np.load(file, allow_pickle=False)
            file.unlink()
            objective = float(self.milp.objective @ x) + self.milp.constant
            if self.x is None or objective < self.objective:
                self.x, self.objective = x, objective
        self.status = str(message.get("status", self.status))

    def solution(self) -> Solution:
        status = self.status
        if status == "infeasible" and self.x is None:
            return Solution(status, None, np.inf, np.inf, self.method, self.detail)
        bound = self.bound if status != "infeasible" else -np.inf  # contradicted by the start
        if self.x is None:
            return Solution("unknown", None, np.inf, bound, self.method, self.detail)
        if self.mixed:
            closed = self.objective - bound <= EXACT * max(1.0, abs(self.objective))
            status = "optimal" if closed else "feasible"
        elif status != "optimal":
            status = "feasible"
        return Solution(status, self.x, self.objective, min(bound, self.objective), self.method, self.detail)
