"""Floating-point operations of what networks are made of: products, normalizations, poolings, means and sums."""

from __future__ import annotations

import math
from typing import Any

from ..counts import words
from ..sizes import dims, elements, output_elements
from .rule import Rule

__all__ = ["NETWORKS"]


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


#: FLOPs of an operation, by its type; None where a shape is unknown.
NETWORKS: dict[str, Rule] = {
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
NETWORKS |= dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), _batch_norm)
NETWORKS |= dict.fromkeys(("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), _batch_norm_grad)
NETWORKS |= dict.fromkeys(("MaxPool", "AvgPool", "MaxPool3D", "AvgPool3D", "MaxPoolWithArgmax"), _pool)
NETWORKS |= dict.fromkeys(
    ("MaxPoolGrad", "MaxPoolGradGrad", "MaxPool3DGrad", "AvgPoolGrad", "AvgPool3DGrad"), _pool_grad
)
NETWORKS |= dict.fromkeys(words("CudnnRNN CudnnRNNV2 CudnnRNNV3"), _rnn)
NETWORKS |= dict.fromkeys(words("CudnnRNNBackprop CudnnRNNBackpropV2 CudnnRNNBackpropV3"), _rnn)
