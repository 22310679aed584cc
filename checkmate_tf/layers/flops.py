"""Floating-point operations of a Keras layer (or keras.ops operation), from the shapes that it reads and writes.

Three conventions:

- `multiply-adds`: what the Checkmate papers plot. Convolutions, matrix products, attention and recurrences count their
  multiply-adds; everything else (pooling, normalisation, activations, additions, padding, lookups) is free.
- `artifact`: multiply-adds, and the elementwise layers that Checkmate's artifact counts as well: 4 an element of a
  normalisation, 1 of an activation, 1 of each input of an addition, 1 of an upsampled output (5 if bilinear), and a
  transposed convolution without its kernel's area. Little, but decisive: where these layers are free, recomputing them
  is too, and ResNet50 at half its peak costs 0 instead of 0.28% (`benchmarks/lib/models.py`).
- `true`: two for each multiply-add, and the elementwise work besides: biases, activations, normalisation, pooling,
  softmax, merges, dropout. Exp, tanh and their kind count `TRANSCENDENTAL` (`costs/counts.py`). Moving data is free.

A convention weighs the `Work` of a layer (`work/`). Shapes include the batch, so work scales with it. FLOPs do not say
time: see `costs/flops.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CostError
from .calls import LayerCalls
from .work.layers import layer_work
from .work.shared import Shapes, channels, nearest, size

__all__ = ["CONVENTIONS", "layer_flops", "step_flops", "with_gradients"]

CONVENTIONS = ("multiply-adds", "artifact", "true")
_GRADIENT_COST = 2.0  # in forward passes


def layer_flops(layer: Any, input_shapes: Shapes, output_shapes: Shapes, convention: str = "multiply-adds") -> float:
    """Operations of the forward pass of one call of a layer.

    Parameters
    ----------
    layer : keras.Layer or keras.Operation
        Built, if it has weights.
    input_shapes : sequence of tuples of int
        Batch included; the tensors of the call in the order of its signature (for MultiHeadAttention: query, value,
        key), without masks and initial states.
    output_shapes : sequence of tuples of int
    convention : {"multiply-adds", "artifact", "true"}

    Returns
    -------
    float
        Multiply-adds, or floating-point operations. 0 for a layer that is not known.

    Raises
    ------
    CostError
        If there is no such convention.
    """
    if convention not in CONVENTIONS:
        raise CostError(
            f"convention={convention!r} is not a way to count FLOPs; there are {', '.join(map(repr, CONVENTIONS))}"
        )
    if convention == "artifact" and (kind := nearest(layer, _ARTIFACT)):
        return float(_ARTIFACT[kind](layer, input_shapes, output_shapes))
    work = layer_work(layer, input_shapes, output_shapes)
    return 2.0 * work.macs + work.other if convention == "true" else float(work.macs)


def step_flops(known: LayerCalls, gradients: Sequence[int], convention: str) -> NDArray[np.float64]:
    """FLOPs of all nodes of a layer-level graph, by a convention of `layer_flops`.

    Parameters
    ----------
    known : LayerCalls
    gradients : sequence of int
        Calls that have a gradient node, in the order of these nodes.
    convention : {"multiply-adds", "artifact", "true"}

    Returns
    -------
    (n,) float
        Of the calls, the loss, the gradients; as `with_gradients`.
    """
    forward = [layer_flops(c.operation, c.argument_shapes, c.output_shapes, convention) for c in known.calls]
    return with_gradients(forward, gradients)


def with_gradients(forward: Sequence[float], gradients: Sequence[int]) -> NDArray[np.float64]:
    """Costs of calls, the loss and gradients from those of the forward pass: the loss is free.

    A gradient costs two forward passes: one for the gradients of inputs, one for those of weights.
    """
    return np.array([*forward, 0.0, *(_GRADIENT_COST * forward[i] for i in gradients)])


# What the artifact counts beyond multiply-adds.
_ARTIFACT: dict[str, Callable[[Any, Shapes, Shapes], float]] = {
    "BatchNormalization": lambda layer, ins, outs: 4 * size(ins[:1]),
    "LayerNormalization": lambda layer, ins, outs: 4 * size(ins[:1]),
    "Activation": lambda layer, ins, outs: size(ins[:1]),
    "ReLU": lambda layer, ins, outs: size(ins[:1]),
    "Add": lambda layer, ins, outs: size(ins),
    "UpSampling2D": lambda layer, ins, outs: (5 if layer.interpolation == "bilinear" else 1) * size(outs[:1]),
    "BaseConvTranspose": lambda layer, ins, outs: channels(layer, ins[0]) * size(outs[:1]),
}
