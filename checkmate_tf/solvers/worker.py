"""The process that `solve_milp` starts: `python -m checkmate_tf.solvers.worker PROBLEM.npz`.

Messages: {"bound": b} and {"x": "file.npy", "bound": b} on the way, then {"status": s, "x": ..., "bound": b}, or
{"unavailable": why} if the solver cannot serve this program here, or {"failed": why}.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from .json_process import begin, limit_memory, say
from .program import Milp, Products
from .registry import SolverFunction

_PAUSE = 0.2  # seconds between two reports of a bound


class _Teller:
    """Tells of better points and bounds, not more often than anyone reads."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0
        self.bound, self.told = -np.inf, 0.0

    def __call__(self, x: NDArray[np.float64] | None, bound: float) -> None:
        if x is not None:
            self.bound = max(self.bound, bound)
            say(x=self.save(x), bound=self.bound)
        elif bound > self.bound and time.monotonic() - self.told > _PAUSE:
            self.bound, self.told = bound, time.monotonic()
            say(bound=bound)

    def save(self, x: NDArray[np.float64]) -> str:
        """Write a point; the name of its file, which exists once it is whole."""
        self.count += 1
        name = f"x{self.count}.npy"
        part = self.folder / "part.npy"
        np.save(part, x)
        part.rename(self.folder / name)
        return name


def run(path: Path) -> None:
    """Solve and tell."""
    with np.load(path, allow_pickle=False) as file:
        fields = {key: file[key] for key in file.files}
    limit_memory(int(fields["memory_limit"]))
    matrix = sp.csr_matrix((fields["data"], fields["indices"], fields["indptr"]), shape=tuple(fields["shape"]))
    columns = ("objective", "row_lower", "row_upper", "lower", "upper")
    c, row_lower, row_upper, lower, upper = (fields[key] for key in columns)
    integer = fields["integer"] if fields["integer"].any() else None
    products = None
    if "factor" in fields:
        cells = fields["product_values"], (fields["product_rows"], fields["product_columns"])
        products = Products(int(fields["factor"]), sp.csr_matrix(cells, shape=matrix.shape))
    milp = Milp(c, matrix, row_lower, row_upper, lower, upper, float(fields["constant"]), integer, products)
    start = fields["start"] if fields["start"].size else None
    tell = _Teller(path.parent)
    gap = float(fields["gap"])
    left = float(fields["until"]) - time.time()
    if left > 0:
        try:
            solution = _load(str(fields["where"]), fields["path"].tolist())(milp, left, gap, start, tell)
        except ModuleNotFoundError as error:  # one that is installed may lack memory to load
            say(unavailable=f"it is not installed ({error})")
            return
        except ValueError as error:
            say(unavailable=str(error))
            return
        say(status=solution.status, bound=solution.bound, x=None if solution.x is None else tell.save(solution.x))


def _load(where: str, path: list[str]) -> SolverFunction:
    """The function of a solver, by its loader's "module:name" and the folders that the parent imports from."""
    sys.path += [folder for folder in path if folder not in sys.path]
    module, _, name = where.partition(":")
    load: Callable[[], SolverFunction] = getattr(import_module(module), name)
    return load()


def main(path: str) -> None:
    """Solve, and tell the parent of failures, too."""
    begin(path)
    try:
        run(Path(path))
    except MemoryError:
        say(failed="it ran out of memory")
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in a solver is the parent's to know
        say(failed=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(sys.argv[1])
