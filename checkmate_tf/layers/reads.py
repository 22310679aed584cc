"""What the gradient of a layer reads of the forward pass, as the kernels of a framework do.

Checkmate's drawing (`graph.py`) has each gradient read every value around its layer. A kernel reads less, and MONeT
(Shah et al., ICLR 2021, appendix D) begins there: the gradient of a convolution's weights reads its input, that of a
ReLU its output, that of an addition nothing. A layer is one of these kinds:

| kind | layers | its gradient reads |
| --- | --- | --- |
| product | dense layers and convolutions | the input, for the weights only |
| relu, leaky | ReLU and its kind; with a slope below 0 | the output |
| output | softmax, sigmoid, tanh | the output |
| input | SiLU, GELU and other smooth functions | the input |
| norm | batch normalisation | the input |
| pool | max-pooling | input and output |
| dropout | dropout | the mask |
| linear | padding, concatenation, average pooling, upsampling | nothing |
| sum | addition of values of one shape | nothing: the gradient is passed on as it is |
| view | flatten, reshape | nothing: likewise |
| other | everything else | inputs and output |

**What this does badly.** A subclass of a known layer that computes something else is taken for that layer.
"""

from __future__ import annotations

from typing import Any

from ..costs.counts import words
from .work.shared import nearest

__all__ = ["IN_PLACE", "LINEAR_LAYERS", "MAX_POOLINGS", "READS", "VIEW_LAYERS", "activation_kind", "gradient_kind"]

READS: dict[str, tuple[bool, bool]] = {
    "product": (True, False), "relu": (False, True), "leaky": (False, True), "output": (False, True),
    "input": (True, False), "norm": (True, False), "pool": (True, True), "dropout": (False, False),
    "linear": (False, False), "sum": (False, False), "view": (False, False), "other": (True, True),
}  # fmt: skip
"""By kind: does the gradient read the inputs, does it read the output."""

IN_PLACE = frozenset(words("relu leaky output input sum view dropout"))
"""Kinds whose kernels compute into an input of the same size that nobody else reads, as TensorFlow's do."""

MAX_POOLINGS = words("MaxPooling1D MaxPooling2D MaxPooling3D")
VIEW_LAYERS = words("InputLayer Identity Reshape Flatten ActivityRegularization")
"""Layers whose value is their input, in another shape."""

LINEAR_LAYERS = words(
    "AveragePooling1D AveragePooling2D AveragePooling3D GlobalAveragePooling1D GlobalAveragePooling2D "
    "GlobalAveragePooling3D Average Concatenate Permute RepeatVector Cropping1D Cropping2D Cropping3D UpSampling1D "
    "UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D Rescaling Normalization Resizing Subtract"
)
"""Layers whose gradient needs no saved values, and is computed all the same."""

_FUNCTIONS = dict.fromkeys(words("relu relu6"), "relu") | {"leaky_relu": "leaky", "linear": "view"}
_FUNCTIONS |= dict.fromkeys(words("softmax sigmoid tanh"), "output")
_FUNCTIONS |= dict.fromkeys(words("silu swish gelu hard_silu hard_sigmoid softplus softsign mish"), "input")

_LAYERS = dict.fromkeys(words("BaseConv BaseConvTranspose BaseDepthwiseConv Dense EinsumDense"), "product")
_LAYERS |= {"LeakyReLU": "leaky", "Softmax": "output", "BatchNormalization": "norm", "Dropout": "dropout", "Add": "sum"}
_LAYERS |= dict.fromkeys(MAX_POOLINGS, "pool") | dict.fromkeys(VIEW_LAYERS, "view")
_LAYERS |= dict.fromkeys(LINEAR_LAYERS, "linear")

_OPERATIONS = {"Add": "sum", "MaxPool": "pool", "LeakyRelu": "leaky"}
_OPERATIONS |= dict.fromkeys(words("Relu Relu6"), "relu") | dict.fromkeys(words("Softmax Sigmoid Tanh"), "output")
_OPERATIONS |= dict.fromkeys(words("Silu Gelu"), "input")
_OPERATIONS |= dict.fromkeys(words("Reshape ExpandDims Squeeze Ravel View Identity"), "view")
_OPERATIONS |= dict.fromkeys(
    words("AveragePool Subtract Negative Sum Mean Average Transpose Concatenate Pad Tile Flip BroadcastTo"), "linear"
)


def gradient_kind(operation: Any, input_shapes: Any = ()) -> str:
    """Kind of a layer, or of an operation of keras.ops; an activation within it is not part of that.

    Parameters
    ----------
    operation : keras.Operation
    input_shapes : sequence of tuples of int
        Batch included: an addition that broadcasts is no "sum".
    """
    of_layer = nearest(operation, {*_LAYERS, "Activation", "ReLU"})
    if of_layer == "Activation":
        return activation_kind(operation.activation)
    if of_layer == "ReLU":
        return "leaky" if operation.negative_slope else "relu"
    if of_layer == "Dropout" and not operation.rate:
        return "view"
    of_operation = nearest(operation, _OPERATIONS, layers=False)
    kind = _LAYERS[of_layer] if of_layer else _OPERATIONS[of_operation] if of_operation else "other"
    return "linear" if kind == "sum" and len(set(input_shapes)) > 1 else kind


def activation_kind(function: Any) -> str:
    """Kind of a function that a layer has as its activation; "view" for none at all."""
    if function is None:
        return "view"
    if hasattr(function, "compute_output_spec"):  # a layer
        return gradient_kind(function)
    return _FUNCTIONS.get(str(getattr(function, "__name__", "")), "other")
