"""Floating-point operations of a tf.Operation, from its static shapes.

A multiply-add is two. Counted exactly: convolutions, matrix products, contractions, reductions, pooling. Factorizations
and Fourier transforms count their leading terms. Elementwise operations count one an element, a quotient or root
included. Exp, tanh, erf and their kind count `TRANSCENDENTAL`. Operations that only move data (transpose, pad, gather,
tile, cast) count one for each element written. Views and shape arithmetic count nothing. An unknown operation counts
one for each element of its outputs.

**What this does badly.** It says that an elementwise operation costs almost nothing beside a convolution. In truth both
wait for memory: on a CPU, a batch normalisation of 0.1% of the FLOPs may take a third of the step. Prefer `profile`, or
`roofline` where nothing can be run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counts import CALLS, CUBIC, LINEAR, RANDOM, SOFTMAX, TRANSCENDENTAL, VIEWS, words
from .linear_algebra import LINEAR_ALGEBRA
from .sizes import OPAQUE, dims, elements, output_elements

__all__ = ["op_cost_flops", "op_flops"]

_SHAPE_OPS = words(
    "Shape ShapeN Size Rank VariableShape BroadcastGradientArgs BroadcastArgs InvertPermutation ConcatOffset "
    "StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg StatelessRandomGetAlg EmptyTensorList Assert "
    "TensorListReserve TensorListFromTensor TensorListGetItem TensorListSetItem TensorListPushBack "
    "TensorListPopBack TensorListLength TensorListElementShape"
)

# FLOPs for each element of the (first) output.
_PER_OUTPUT: dict[str, float] = dict.fromkeys(
    words(
        "Exp Expm1 Log Log1p Tanh Sigmoid Erf Erfc Erfinv Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Asinh Acosh "
        "Atanh Pow Softplus Elu Selu Lgamma Digamma Xlogy Xlog1py Ndtri"
    ),
    TRANSCENDENTAL,
)
_PER_OUTPUT |= {"SquaredDifference": 2, "DivNoNan": 1, "Relu6": 2, "LeakyRelu": 2, "FloorMod": 2}
_PER_OUTPUT |= {"SigmoidGrad": 3, "TanhGrad": 3, "SqrtGrad": 2, "RsqrtGrad": 4, "InvGrad": 3, "ReciprocalGrad": 3}
_PER_OUTPUT |= {"ReluGrad": 1, "Relu6Grad": 2, "LeakyReluGrad": 2, "EluGrad": 3, "SeluGrad": 3}
_PER_OUTPUT |= {"SoftplusGrad": TRANSCENDENTAL + 2, "SoftsignGrad": 4, "Softsign": 3}
_PER_OUTPUT |= {"Softmax": SOFTMAX, "LogSoftmax": SOFTMAX}
_PER_OUTPUT |= dict.fromkeys(
    words(
        "RandomUniform RandomUniformInt StatelessRandomUniform StatelessRandomUniformV2 StatelessRandomUniformInt "
        "StatelessRandomUniformIntV2"
    ),
    RANDOM,
)
_PER_OUTPUT |= dict.fromkeys(
    words(
        "RandomStandardNormal TruncatedNormal StatelessRandomNormal StatelessRandomNormalV2 StatelessTruncatedNormal "
        "StatelessTruncatedNormalV2"
    ),
    RANDOM + 2 * TRANSCENDENTAL,
)
_PER_OUTPUT |= {"ResizeBilinear": LINEAR, "ResizeBicubic": CUBIC}

# FLOPs for each element of one input: (which input, how many).
_PER_INPUT: dict[str, tuple[int, float]] = dict.fromkeys(
    words(
        "Sum Prod Max Min Any All ArgMax ArgMin EuclideanNorm BiasAddGrad Cumsum Cumprod L2Loss UnsortedSegmentSum "
        "UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd SegmentSum SparseSegmentSum"
    ),
    (0, 1),
)
_PER_INPUT |= dict.fromkeys(["SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"], (0, SOFTMAX + 2))
_PER_INPUT |= dict.fromkeys(["AssignAddVariableOp", "AssignSubVariableOp"], (1, 1))
_PER_INPUT |= dict.fromkeys(words("ResourceScatterAdd ResourceScatterSub ResourceScatterUpdate"), (-1, 1))
_PER_INPUT |= dict.fromkeys(["TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub"], (2, 1))
_PER_INPUT |= {"ScatterNd": (1, 1), "ResizeBilinearGrad": (0, LINEAR), "MaxPoolGradWithArgmax": (1, 1)}

_APPLY = 8  # FLOPs an element of a fused optimizer update, between 2 (gradient descent) and 12 (Adam)


def op_flops(op: Any, unknown_dim: int | None = None) -> float:
    """FLOPs of running an operation once.

    Loops count the body and the condition times the number of iterations. Where that does not follow from a constant
    bound (`maximum_iterations`), they count once. Branches count the dearest branch.

    Parameters
    ----------
    op : tf.Operation
    unknown_dim : int, optional
        The size that an unknown dimension counts as (see `sizes.py`).

    Returns
    -------
    float
        Finite and not negative.
    """
    kind = op.type
    if kind in VIEWS or kind in _SHAPE_OPS:
        return 0.0
    if kind.startswith("ResourceApply"):
        return float(_APPLY * max(output_elements(t, unknown_dim) for t in op.inputs))
    if kind in CALLS:
        from .calls import call_total

        return call_total(op, op_flops, unknown_dim)
    if kind in _RULES:
        flops = _RULES[kind](op, unknown_dim)
        if flops is not None:
            return float(flops)
    if kind in _PER_INPUT:
        index, each = _PER_INPUT[kind]
        return float(each * output_elements(op.inputs[index], unknown_dim))
    if kind in _PER_OUTPUT:
        return float(_PER_OUTPUT[kind] * output_elements(op.outputs[0], unknown_dim))
    return float(sum(output_elements(t, unknown_dim) for t in op.outputs if t.dtype.name not in OPAQUE))


def op_cost_flops(ops: Iterable[Any]) -> NDArray[np.float64]:
    """(len(ops),) FLOPs of each operation."""
    return np.array([op_flops(op) for op in ops], dtype=np.float64)


# Rules that need more than a count: each returns None where a shape that it needs is unknown. ---------------------


def _conv(op: Any, unknown: int | None) -> float | None:
    kernel = dims(op.inputs[1], unknown)  # (spatial..., channels of a group, out channels)
    return None if kernel is None else 2 * output_elements(op.outputs[0], unknown) * math.prod(kernel[:-1])


def _conv_input(op: Any, unknown: int | None) -> float | None:
    kernel, grad = dims(op.inputs[1], unknown), elements(op.inputs[2], unknown)
    return None if kernel is None or grad is None else 2 * grad * math.prod(kernel[:-1])


def _conv_filter(op: Any, unknown: int | None) -> float | None:
    kernel, grad = dims(op.outputs[0], unknown), elements(op.inputs[2], unknown)
    return None if kernel is None or grad is None else 2 * grad * math.prod(kernel[:-1])


def _depthwise(op: Any, unknown: int | None) -> float | None:
    kernel = dims(op.inputs[1], unknown)  # (height, width, channels, multiplier)
    return None if kernel is None else 2 * output_elements(op.outputs[0], unknown) * math.prod(kernel[:2])


def _depthwise_input(op: Any, unknown: int | None) -> float | None:
    kernel, grad = dims(op.inputs[1], unknown), elements(op.inputs[2], unknown)
    return None if kernel is None or grad is None else 2 * grad * math.prod(kernel[:2])


def _depthwise_filter(op: Any, unknown: int | None) -> float | None:
    kernel, grad = dims(op.outputs[0], unknown), elements(op.inputs[2], unknown)
    return None if kernel is None or grad is None else 2 * grad * math.prod(kernel[:2])


def _matmul(op: Any, unknown: int | None) -> float | None:
    left = dims(op.inputs[0], unknown)
    if left is None:
        return None
    flag = "transpose_a" if op.type == "MatMul" else "adj_x"
    return 2 * output_elements(op.outputs[0], unknown) * left[-2 if op.get_attr(flag) else -1]


def _rnn(op: Any, unknown: int | None) -> float | None:
    # of cuDNN: each step of each sequence multiplies by all weights, which lie in one vector
    given = dims(op.inputs[0], unknown)
    each = 4 if "Backprop" in op.type else 2  # gradients of inputs and of weights
    return None if given is None else each * math.prod(given[:2]) * output_elements(op.inputs[3], unknown)


def _einsum(op: Any, unknown: int | None) -> float | None:
    equation = op.get_attr("equation")
    text = equation.decode() if isinstance(equation, bytes) else equation
    sizes: dict[str, int] = {}
    broadcast: tuple[int, ...] = ()
    for labels, tensor in zip(text.split("->")[0].split(","), op.inputs, strict=True):
        shape = dims(tensor, unknown)
        if shape is None:
            return None
        before, dots, after = labels.strip().partition("...")
        covered = len(shape) - len(before) - len(after)
        middle = shape[len(before) : len(before) + covered] if dots else ()
        width = max(len(middle), len(broadcast))
        pad = lambda s: (1,) * (width - len(s)) + tuple(s)  # noqa: E731, B023 - used at once
        broadcast = tuple(map(max, pad(middle), pad(broadcast)))
        named = list(zip(before, shape, strict=False)) + list(zip(after[::-1], shape[::-1], strict=False))
        for label, size in named:
            sizes[label] = max(size, sizes.get(label, 1))
    points = math.prod(sizes.values()) * math.prod(broadcast)
    return (2 if len(op.inputs) > 1 else 1) * points


def _batch_norm(op: Any, unknown: int | None) -> float:
    # mean 1, variance 3, scale and shift 2
    return (6 if op.get_attr("is_training") else 2) * output_elements(op.outputs[0], unknown)


def _batch_norm_grad(op: Any, unknown: int | None) -> float:
    # d_offset 1, normalised input 2, d_scale 2; then d_input 4, or 1 with fixed statistics
    return (9 if op.get_attr("is_training") else 6) * output_elements(op.outputs[0], unknown)


def _pool(op: Any, unknown: int | None) -> float:
    return math.prod(op.get_attr("ksize")) * output_elements(op.outputs[0], unknown)


def _pool_grad(op: Any, unknown: int | None) -> float:
    # one comparison (max) or addition (average) for each place of the window of each incoming gradient
    grad = op.inputs[2 if op.type.startswith("MaxPool") else 1]
    return math.prod(op.get_attr("ksize")) * output_elements(grad, unknown)


def _mean(op: Any, unknown: int | None) -> float:
    return output_elements(op.inputs[0], unknown) + output_elements(op.outputs[0], unknown)


def _add_n(op: Any, unknown: int | None) -> float:
    return (len(op.inputs) - 1) * output_elements(op.outputs[0], unknown)


def _fft(op: Any, unknown: int | None) -> float | None:
    # of a batch over the last axes, two or three where the type says so; of real numbers the longer side counts
    axes = next((k for k in (3, 2) if op.type.endswith(f"{k}D")), 1)
    given, found = dims(op.inputs[0], unknown), dims(op.outputs[0], unknown)
    if given is None or found is None:
        return None
    points, transformed = (max(math.prod(given[k:]), math.prod(found[k:])) for k in (0, -axes))
    return 5 * points * math.log2(max(transformed, 2))


_RULES: dict[str, Callable[[Any, int | None], float | None]] = {
    "Conv2D": _conv,
    "Conv3D": _conv,
    "Conv2DBackpropInput": _conv_input,
    "Conv3DBackpropInputV2": _conv_input,
    "Conv2DBackpropFilter": _conv_filter,
    "Conv3DBackpropFilterV2": _conv_filter,
    "DepthwiseConv2dNative": _depthwise,
    "DepthwiseConv2dNativeBackpropInput": _depthwise_input,
    "DepthwiseConv2dNativeBackpropFilter": _depthwise_filter,
    "MatMul": _matmul,
    "BatchMatMul": _matmul,
    "BatchMatMulV2": _matmul,
    "BatchMatMulV3": _matmul,
    "Einsum": _einsum,
    "Mean": _mean,
    "AddN": _add_n,
}
_RULES |= dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm)
_RULES |= dict.fromkeys(("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _batch_norm_grad)
_RULES |= dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax"), _pool)
_RULES |= dict.fromkeys(("MaxPoolGrad", "MaxPoolGradGrad", "MaxPool3DGrad", "AvgPoolGrad", "AvgPool3DGrad"), _pool_grad)
_RULES |= dict.fromkeys(words("CudnnRNN CudnnRNNV2 CudnnRNNV3"), _rnn)
_RULES |= dict.fromkeys(words("CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3"), _rnn)
_RULES |= dict.fromkeys((f"{kind}{axes}" for kind in words("FFT IFFT RFFT IRFFT") for axes in ("", "2D", "3D")), _fft)
_RULES |= LINEAR_ALGEBRA
