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

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .counts import CALLS, CUBIC, LINEAR, RANDOM, SOFTMAX, TRANSCENDENTAL, VIEWS, words
from .rules import RULES
from .sizes import OPAQUE, output_elements

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
    if kind in RULES:
        flops = RULES[kind](op, unknown_dim)
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
