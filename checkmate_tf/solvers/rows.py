"""Rows of a sparse program, gathered in blocks."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["Ids", "Rows"]

Ids = NDArray[np.int64]


class Rows:
    """Rows of a sparse matrix, in blocks."""

    def __init__(self) -> None:
        self.count = 0
        self.entries: list[tuple[Ids, Ids, NDArray[np.float64]]] = []
        self.lower: list[NDArray[np.float64]] = []
        self.upper: list[NDArray[np.float64]] = []

    def add(self, count: int, lower: object, upper: object) -> Ids:
        """New rows with these sides (scalars or one a row); their indices."""
        self.lower.append(np.broadcast_to(np.asarray(lower, dtype=float), count))
        self.upper.append(np.broadcast_to(np.asarray(upper, dtype=float), count))
        self.count += count
        return np.arange(self.count - count, self.count)

    def put(self, rows: Ids, columns: Ids, values: object) -> None:
        """Add terms; columns of -1 are 0."""
        use = columns >= 0
        amount = np.broadcast_to(np.asarray(values, dtype=float), columns.shape)
        self.entries.append((rows[use], columns[use], amount[use]))

    def matrix(self, columns: int) -> sp.csr_matrix:
        row, column, value = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        matrix = sp.csr_matrix((value, (row, column)), shape=(self.count, columns))
        matrix.sum_duplicates()  # SciPy 1.13 does not when it makes one
        matrix.eliminate_zeros()
        return matrix
