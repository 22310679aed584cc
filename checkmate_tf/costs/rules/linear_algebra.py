"""Floating-point operations of factorizations, of solving with them, of eigenvalues, and of Fourier transforms.

`qr_flops`, `svd_flops` and the two numbers of eigenvectors are for operations of layer-level graphs, too.

Leading terms of dense algorithms on m x n matrices, m >= n, each of a batch: of LAPACK's and Golub and Van Loan,
"Matrix Computations", 4th edition (2013), sections 3.2, 4.2, 5.2, 7.5, 8.3 and 8.6. Complex ones count as real ones.
Singular values and eigenvalues are found by iterations, whose number these terms take for the usual one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..counts import words
from ..sizes import dims
from .rule import Rule

__all__ = ["EIGENVECTORS", "LINEAR_ALGEBRA", "SYMMETRIC_EIGENVECTORS", "qr_flops", "svd_flops"]

EIGENVECTORS, SYMMETRIC_EIGENVECTORS = 25.0, 9.0  # n^3, with the values


def qr_flops(shape: Sequence[int], full_matrices: bool) -> float:
    """Of QR factorizations of matrices in the last two axes: all m columns of Q, or the first n."""
    # reflections give R, and are multiplied out to the columns of Q
    batch, (m, n) = math.prod(shape[:-2]), shape[-2:]
    if m <= n:  # Q is square
        return batch * (2 * m**2 * (n - m / 3) + 4 / 3 * m**3)
    thin = 2 * n**2 * (m - n / 3)
    return batch * (thin + (4 * (m**2 * n - m * n**2 + n**3 / 3) if full_matrices else thin))


def svd_flops(shape: Sequence[int], vectors: bool, full_matrices: bool) -> float:
    """Of singular values of matrices in the last two axes, alone or with their vectors: all of them, or the first."""
    batch, m, n = math.prod(shape[:-2]), max(shape[-2:]), min(shape[-2:])
    if not vectors:
        return batch * (4 * m * n**2 - 4 * n**3 / 3)
    if full_matrices:
        return batch * (4 * m**2 * n + 8 * m * n**2 + 9 * n**3)
    return batch * (14 * m * n**2 + 8 * n**3)


def _square(cubed: float) -> Rule:
    """A rule for n x n matrices: so many n^3."""

    def flops(op: Any, unknown: int | None) -> float | None:
        shape = dims(op.inputs[0], unknown)
        return None if shape is None else cubed * math.prod(shape[:-2]) * shape[-1] ** 3

    return flops


def _vectors_asked(attribute: str, values: float, vectors: float) -> Rule:
    """A rule for n x n matrices: so many n^3 for eigenvalues alone, and for vectors, too."""

    def flops(op: Any, unknown: int | None) -> float | None:
        return _square(vectors if op.get_attr(attribute) else values)(op, unknown)

    return flops


def _solved(cubed: float, squared: float) -> Rule:
    """A rule for n x n matrices and n x k right sides: so many n^3, and n^2 k."""

    def flops(op: Any, unknown: int | None) -> float | None:
        found = dims(op.outputs[0], unknown)  # batches of either side may be broadcast
        if found is None:
            return None
        *batch, size, sides = found
        return math.prod(batch) * size**2 * (cubed * size + squared * sides)

    return flops


def _qr(op: Any, unknown: int | None) -> float | None:
    shape = dims(op.inputs[0], unknown)
    return None if shape is None else qr_flops(shape, op.get_attr("full_matrices"))


def _svd(op: Any, unknown: int | None) -> float | None:
    shape = dims(op.inputs[0], unknown)
    return None if shape is None else svd_flops(shape, op.get_attr("compute_uv"), op.get_attr("full_matrices"))


def _fft(op: Any, unknown: int | None) -> float | None:
    # of a batch over the last axes, two or three where the type says so; of real numbers half of it
    axes = next((k for k in (3, 2) if op.type.endswith(f"{k}D")), 1)
    found = dims(op.outputs[0], unknown)
    if found is None:
        return None
    if op.type.startswith("RFFT"):  # half of the frequencies are the others' mirror images
        found = (*found[:-1], max(1, 2 * (found[-1] - 1)))
    return (2.5 if "RFFT" in op.type else 5.0) * math.prod(found) * math.log2(max(math.prod(found[-axes:]), 2))


#: FLOPs of an operation, by its type; None where a shape is unknown.
LINEAR_ALGEBRA: dict[str, Rule] = {
    "Cholesky": _square(1 / 3),
    "Lu": _square(2 / 3),
    "MatrixDeterminant": _square(2 / 3),  # by LU
    "LogMatrixDeterminant": _square(2 / 3),
    "MatrixInverse": _square(2),
    "MatrixSolve": _solved(2 / 3, 2),
    "MatrixTriangularSolve": _solved(0, 1),
    "SelfAdjointEigV2": _vectors_asked("compute_v", 4 / 3, SYMMETRIC_EIGENVECTORS),
    "Eig": _vectors_asked("compute_v", 10, EIGENVECTORS),
    "Qr": _qr,
    "Svd": _svd,
}
LINEAR_ALGEBRA |= dict.fromkeys(
    (f"{kind}{axes}" for kind in words("FFT IFFT RFFT IRFFT") for axes in ("", "2D", "3D")), _fft
)
