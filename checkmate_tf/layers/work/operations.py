"""Work of operations of keras.ops, which a functional model calls beside layers: one rule an operation.

The shapes of constant operands are among the inputs.
"""

from __future__ import annotations

import math
from typing import Any

from ...costs.counts import SOFTMAX, words
from ...costs.counts import TRANSCENDENTAL as T
from ...costs.rules.linear_algebra import EIGENVECTORS, SYMMETRIC_EIGENVECTORS, qr_flops, svd_flops
from .shared import Rule, Shapes, Work, each_input, each_output, einsum_macs, free, pool_window, relu, scores, size

__all__ = ["OPERATIONS"]


def _op_matmul(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(size(outs[:1]) * ins[0][-1]) if ins and ins[0] else None


def _op_vdot(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(size(ins[:1]))


def _op_outer(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]))


def _op_einsum(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    if len(ins) != op.subscripts.count(",") + 1:
        return None
    points = einsum_macs(op.subscripts, ins)
    return Work(points) if len(ins) > 1 else Work(other=points)


def _op_tensordot(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    if len(ins) != 2:
        return None
    # every axis that is summed over is in both inputs, every other in one: |a| |b| = |out| |summed|^2
    summed = math.isqrt(size(ins[:1]) * size(ins[1:]) // max(size(outs[:1]), 1))
    return Work(size(outs[:1]) * summed)


def _op_conv(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(size(outs[:1]) * math.prod(ins[1][:-1])) if len(ins) > 1 else None


def _op_conv_transpose(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(size(ins[:1]) * math.prod(ins[1][:-1])) if len(ins) > 1 else None  # kernel (space..., out, in)


def _op_depthwise(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(size(outs[:1]) * math.prod(ins[1][:-2])) if len(ins) > 1 else None


def _op_separable(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    if len(ins) != 3:
        return None
    middle, filters = ins[2][-2:]  # the pointwise kernel is (1..., channels x multiplier, filters)
    return Work(size(outs[:1]) // filters * middle * (math.prod(ins[1][:-2]) + filters))


def _op_attention(op: Any, ins: Shapes, outs: Shapes) -> Work:
    (batch, length, heads, width), source = ins[0], ins[1][1]
    pairs = batch * heads * length * source
    return Work(2 * pairs * width, pairs + scores(pairs, 0))


def _op_pool(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * pool_window(op, len(ins[0])))


# Factorisations count the multiply-adds of the usual algorithms, for each matrix of n rows: n^3 times a share.


def _factorisation(share: float) -> Rule:
    return lambda op, ins, outs: Work(size(ins[:1]) * ins[0][-1] * share)


def _op_solve(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work((size(ins[:1]) / 3 + size(outs[:1])) * ins[0][-1])  # a factorisation, and two triangular solutions


def _op_qr(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(qr_flops(ins[0], op.mode == "complete") / 2)


def _op_svd(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(svd_flops(ins[0], op.compute_uv, op.full_matrices) / 2)


def _op_rank(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(svd_flops(ins[0], False, False) / 2)


def _op_pinv(op: Any, ins: Shapes, outs: Shapes) -> Work:
    # the vectors of both sides are multiplied
    return Work(svd_flops(ins[0], True, False) / 2 + size(outs[:1]) * min(ins[0][-2:]))


def _op_solve_triangular(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(size(outs[:1]) * ins[0][-1] / 2)


# Fourier transforms: 5 N log2 N for N complex numbers, and half for real ones.


def _fourier(points: int, length: int) -> Work:
    return Work(other=5 * points * math.log2(max(length, 2)))


def _op_fft(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return _fourier(size(outs[:1]), outs[0][-1])


def _op_fft2(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return _fourier(size(outs[:1]), math.prod(outs[0][-2:]))


def _op_real_fft(op: Any, ins: Shapes, outs: Shapes) -> Work:
    """Of RFFT and STFT, whose rows of spectra are written, and of their inverses, which read them."""
    spectra = outs[0] if type(op).__name__ in ("RFFT", "STFT") else ins[0]
    length = op.fft_length or 2 * (spectra[-1] - 1)
    return _fourier(math.prod(spectra[:-1]) * length, length) * 0.5


OPERATIONS: dict[str, Rule] = {
    "Matmul": _op_matmul,
    "Dot": _op_matmul,
    "Inner": _op_matmul,
    "Vdot": _op_vdot,
    "Outer": _op_outer,
    "Einsum": _op_einsum,
    "Tensordot": _op_tensordot,
    "Conv": _op_conv,
    "ConvTranspose": _op_conv_transpose,
    "DepthwiseConv": _op_depthwise,
    "SeparableConv": _op_separable,
    "DotProductAttention": _op_attention,
    "Cholesky": _factorisation(1 / 6),
    "CholeskyInverse": _factorisation(1 / 3),
    "Inv": _factorisation(1),
    "LuFactor": _factorisation(1 / 3),
    "Det": _factorisation(1 / 3),
    "Logdet": _factorisation(1 / 3),
    "Eig": _factorisation(EIGENVECTORS / 2),
    "Eigh": _factorisation(SYMMETRIC_EIGENVECTORS / 2),
    "Qr": _op_qr,
    "SVD": _op_svd,
    "MatrixRank": _op_rank,
    "Pinv": _op_pinv,
    "Solve": _op_solve,
    "SolveTriangular": _op_solve_triangular,
    "FFT": _op_fft,
    "FFT2": _op_fft2,
    "IFFT2": _op_fft2,
    "MaxPool": _op_pool,
    "AveragePool": _op_pool,
    "LayerNorm": each_output(6),
    "RMSNorm": each_output(4),
    "BatchNorm": each_output(2),  # its statistics are given
    "Normalize": each_output(3),
    "Logsumexp": each_input(T + 3),
    "Softmax": each_output(SOFTMAX),
    "LogSoftmax": each_output(SOFTMAX),
    "ReLU": relu,  # keras.activations.relu with a slope or a bound
    "Silu": each_output(T + 1),
    "Gelu": each_output(T + 4),
    "LeakyRelu": each_output(2),
    "Relu6": each_output(2),
    "Softsign": each_output(3),
    "HardSigmoid": each_output(3),
    "HardSilu": each_output(4),
    "Var": each_input(3),
    "Std": each_input(3),
    "Moments": each_input(4),
}
OPERATIONS |= dict.fromkeys(words("RFFT IRFFT STFT ISTFT"), _op_real_fft)
OPERATIONS |= dict.fromkeys(
    words(
        "Exp Exp2 Expm1 Log Log1p Log2 Log10 Tanh Sigmoid LogSigmoid Softplus Elu Selu Celu Erf Erfc Erfinv Sin Cos "
        "Tan Sinh Cosh Arcsin Arccos Arctan Arctan2 Arcsinh Arccosh Arctanh Power Logaddexp Sinc"
    ),
    each_output(T),
)
OPERATIONS |= dict.fromkeys(
    words(
        "Add Subtract Multiply Divide DivideNoNan TrueDivide FloorDivide Mod Negative Absolute Square Sqrt Rsqrt "
        "Reciprocal Maximum Minimum Clip Sign Floor Ceil Round Relu Equal NotEqual Greater GreaterEqual Less LessEqual "
        "LogicalAnd LogicalOr LogicalNot LogicalXor Where Average"
    ),
    each_output(1),
)
OPERATIONS |= dict.fromkeys(
    words(
        "Sum Mean Max Min Amax Amin Prod Any All Argmax Argmin Cumsum Cumprod CountNonzero SegmentReduction Norm "
        "AdaptiveMaxPool AdaptiveAveragePool"
    ),
    each_input(1),
)
OPERATIONS |= dict.fromkeys(
    words(
        "Reshape Transpose Swapaxes Moveaxis ExpandDims Squeeze Ravel Concatenate Stack Split Unstack GetItem Slice "
        "Take TakeAlongAxis Pad Tile Repeat Roll Flip BroadcastTo Cast SaturateCast StopGradient OneHot MultiHot "
        "OnesLike ZerosLike FullLike Copy View Tril Triu Diagonal Hstack Vstack Scatter ScatterUpdate SliceUpdate "
        "DepthToSpace SpaceToDepth Rearrange ConvertToTensor PadImages CropImages ExtractPatches"
    ),
    free,
)
