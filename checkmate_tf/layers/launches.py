"""Which kernels a layer launches, forward and backward, from the shapes that it reads and writes.

A rule gives the kernels of a layer's forward pass, and of the gradients that it may be asked for. Layers are put
together from parts:

- convolutions by window and stride (`conv1x1`, `conv1x1_s2`, `conv3x3_s1`, `conv_other`, `dwconv2d`, and
  `conv_firstlayer` for an image of up to 4 channels), a kernel each for the gradients of inputs and of weights;
- matrix products (`gemm`), and two of the same size for the gradients;
- `relu`, `batchnorm`, `maxpool`; and `traffic` for all that only waits for memory: each value read once, written once.

Biases and activations within a layer are kernels of their own. An elementwise layer reads its inputs and writes its
outputs; its gradient reads that of the outputs and the saved inputs, and writes that of the inputs. The gradient of a
linear layer (padding, concatenation, average pooling) needs no saved values. The gradient of a sum is the gradient that
it is given, and launches nothing. Views (Reshape, Flatten) launch nothing.

**What this does badly.** A framework may launch more (an activation as five products and sums) or fewer (fused) than
are counted here, and copies between layouts are not counted at all. Recurrent layers launch a product a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, TypeAlias

from ..costs.counts import words
from ..errors import CheckmateError
from .calls import layer_calls
from .kernels import (
    WIDTH,
    Kernel,
    Launches,
    add_bias,
    convolution,
    elementwise,
    fp32_bytes,
    paired,
    product,
    product_of_values,
    traffic,
)
from .reads import LINEAR_LAYERS, MAX_POOLINGS, VIEW_LAYERS
from .work.layers import layer_work
from .work.shared import Shape, Shapes, adds_keys, attended, channels, nearest, size

__all__ = ["conv_kind", "launches"]

Rule: TypeAlias = Callable[[Any, Shapes, Shapes], Launches]


def launches(layer: Any, input_shapes: Shapes, output_shapes: Shapes) -> Launches:
    """Kernels of one call of a layer, or of an operation of keras.ops.

    Parameters as for `flops.layer_flops`. A layer that is not known moves its inputs and outputs, and computes the
    multiply-adds that `layer_work` knows of, if any.
    """
    if kind := nearest(layer, _LAYERS):
        return _LAYERS[kind](layer, input_shapes, output_shapes)
    kind = nearest(layer, _OPERATIONS, layers=False)
    return (_OPERATIONS[kind] if kind else _other)(layer, input_shapes, output_shapes)


# Parts of several layers ----------------------------------------------------------------------------------------


def _activation(function: Any, outs: Shapes) -> Launches:
    """What a layer holds as its activation: a function, a layer or None."""
    if hasattr(function, "compute_output_spec"):
        return launches(function, outs[:1], outs[:1])
    name = "linear" if function is None else str(getattr(function, "__name__", ""))  # a functools.partial has none
    if name == "linear":
        return Launches()
    moved = fp32_bytes(outs[:1])
    return paired("relu", 2 * moved) if name in _RELUS else elementwise(moved, moved)


def _finish(layer: Any, core: Launches, outs: Shapes, bias: bool | None = None) -> Launches:
    """Bias and activation on what a layer computed."""
    if bias if bias is not None else getattr(layer, "use_bias", False):
        core = core.then(add_bias(outs))
    return core.then(_activation(getattr(layer, "activation", None), outs))


def _weights(layer: Any) -> int:
    return sum(math.prod(w.shape) for w in getattr(layer, "weights", ()))


def _owned(layer: Any, made: Launches) -> Launches:
    """One kernel for all gradients, needed for the layer's own weights alone, too."""
    return Launches().then(made) if getattr(layer, "trainable_weights", ()) else made


# Convolutions and products ----------------------------------------------------------------------------------------


def conv_kind(window: Shape, strides: Shape, dilation: Shape, depth: int, groups: int) -> str:
    """Class of a convolution of so many input channels in so many groups."""
    if groups > 1:
        return "dwconv2d" if groups == depth else "conv_other"
    if depth <= 4:
        return "conv_firstlayer"
    if max(window) == 1:
        return "conv1x1" if max(strides) == 1 else "conv1x1_s2"
    return "conv3x3_s1" if window == (3, 3) and max(strides) == max(dilation) == 1 else "conv_other"


def _conv(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    window, depth = tuple(layer.kernel_size), channels(layer, ins[0])
    kind = conv_kind(window, tuple(layer.strides), tuple(layer.dilation_rate), depth, layer.groups)
    macs = layer_work(layer, ins, outs).macs
    weights = math.prod(window) * depth // layer.groups * layer.filters
    return _finish(layer, convolution(kind, 2 * macs, fp32_bytes(ins[:1]) + fp32_bytes(outs[:1]), weights), outs)


def _conv_transpose(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    macs = layer_work(layer, ins, outs).macs
    weights = math.prod(layer.kernel_size) * channels(layer, ins[0]) * layer.filters
    return _finish(layer, product(macs, fp32_bytes(ins[:1]) + fp32_bytes(outs[:1]), weights, "traffic"), outs)


def _depthwise(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    macs = layer_work(layer, ins, outs).macs
    weights = math.prod(layer.kernel_size) * channels(layer, outs[0])
    return _finish(layer, convolution("dwconv2d", 2 * macs, fp32_bytes(ins[:1]) + fp32_bytes(outs[:1]), weights), outs)


def _separable(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    depth, window = channels(layer, ins[0]) * layer.depth_multiplier, math.prod(layer.kernel_size)
    middle = size(outs[:1]) // layer.filters * depth
    first = convolution("dwconv2d", 2 * middle * window, fp32_bytes(ins[:1]) + WIDTH * middle, window * depth)
    moved, weights = WIDTH * middle + fp32_bytes(outs[:1]), depth * layer.filters
    return _finish(layer, first.then(convolution("conv1x1", 2 * middle * layer.filters, moved, weights)), outs)


def _dense(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    macs, moved = layer_work(layer, ins, outs).macs, fp32_bytes(ins[:1]) + fp32_bytes(outs[:1])
    bias = layer.bias is not None
    return _finish(layer, product(macs, moved, math.prod(layer.kernel.shape)), outs, bias)


def _embedding(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    if layer_work(layer, ins, outs).macs:  # the transposed table, as an output layer
        return _other(layer, ins, outs)
    rows = traffic(fp32_bytes(ins[:1]) + 2 * fp32_bytes(outs[:1]))
    return Launches(rows, weight_gradient=rows)


def _recurrent(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    steps, moved = ins[0][1], fp32_bytes(ins[:1]) + fp32_bytes(outs)
    step = product(layer_work(layer, ins, outs).macs, moved, _weights(layer), times=steps)
    gates = Kernel("traffic", moved_bytes=moved / steps, times=steps)
    return step.then(Launches((gates,), input_gradient=(gates,)))


# Attention --------------------------------------------------------------------------------------------------------


def _scored(pairs: float, dropout: Any) -> Launches:
    """Softmax on the scores of so many pairs, and dropout."""
    one = elementwise(WIDTH * pairs, WIDTH * pairs)
    return one.then(one) if dropout else one


def _projection(positions: float, inner: int, outer: int, bias: bool) -> Launches:
    made = product(positions * inner * outer, WIDTH * positions * (inner + outer), inner * outer)
    return made.then(add_bias([(int(positions * outer),)])) if bias else made


def _multi_head(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    """Projections, the scaled query, scores, softmax, the weighted values, and the output's projection."""
    query, value, key = ins[0], ins[1], ins[2] if len(ins) > 2 else ins[1]
    batch, length, source = attended(layer, query, value)
    if hasattr(layer, "num_key_value_heads"):  # grouped queries
        heads, narrow, wide_key, wide_value = layer.num_query_heads, layer.num_key_value_heads, *[layer.head_dim] * 2
        bias, dropout = layer.use_bias, layer.dropout
    else:
        heads = narrow = layer._num_heads
        wide_key, wide_value = layer._key_dim, layer._value_dim
        bias, dropout = layer._use_bias, layer._dropout
    q, k, v = heads * wide_key, narrow * wide_key, narrow * wide_value
    pairs = batch * heads * length * source
    query_bytes, made_bytes = WIDTH * batch * length * q, WIDTH * batch * length * heads * wide_value
    key_bytes, value_bytes = WIDTH * batch * source * k, WIDTH * batch * source * v
    made = _projection(batch * length, query[-1], q, bias) + _projection(batch * source, key[-1], k, bias)
    made += _projection(batch * source, value[-1], v, bias)
    made = made.then(elementwise(query_bytes, query_bytes))
    made = made.then(product_of_values(pairs * wide_key, query_bytes + key_bytes + WIDTH * pairs))
    made = made.then(_scored(pairs, dropout))
    made = made.then(product_of_values(pairs * wide_value, WIDTH * pairs + value_bytes + made_bytes))
    return made.then(_projection(batch * length, heads * wide_value, outs[0][-1], bias))


def _attention(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    """Luong's dot products, or scores of sums."""
    query, value = ins[0], ins[1]
    pairs = math.prod(query[:-1]) * value[-2]
    macs = pairs * query[-1]
    if adds_keys(layer):  # every sum of a query and a key is written, and read
        moved = fp32_bytes(ins[:2]) + WIDTH * (2 * macs + pairs)
        scores = _owned(layer, product_of_values(macs, moved, "traffic"))
    else:
        scores = _owned(layer, product_of_values(macs, fp32_bytes(ins[:2]) + WIDTH * pairs))
    made = scores.then(_scored(pairs, getattr(layer, "dropout", 0)))
    return made.then(product_of_values(pairs * value[-1], WIDTH * pairs + fp32_bytes([value]) + fp32_bytes(outs[:1])))


# Layers that wait for memory --------------------------------------------------------------------------------------


def _view(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return Launches()


def _each(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return _owned(layer, elementwise(fp32_bytes(ins), fp32_bytes(outs)))


def _linear(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    moved = traffic(fp32_bytes(ins) + fp32_bytes(outs))
    return Launches(moved, input_gradient=moved)


def _sum(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    """The gradient of a sum is passed on as it is; where an operand was broadcast, summed."""
    moved = traffic(fp32_bytes(ins) + fp32_bytes(outs))
    alike = all(shape == outs[0] for shape in ins)
    return Launches(moved, input_gradient=() if alike else moved)


def _relu(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return _owned(layer, paired("relu", fp32_bytes(ins[:1]) + fp32_bytes(outs[:1])))


def _activate(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return _activation(layer.activation, outs)


def _batch_norm(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return _owned(layer, paired("batchnorm", fp32_bytes(ins[:1]) + fp32_bytes(outs[:1])))


def _max_pool(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return paired("maxpool", fp32_bytes(ins[:1]) + fp32_bytes(outs[:1]))


def _dropout(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return _each(layer, ins, outs) if layer.rate else Launches()


def _other(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    """A product, if it has multiply-adds; else elementwise."""
    macs, weights = layer_work(layer, ins, outs).macs, _weights(layer)
    if not macs:
        return _each(layer, ins, outs)
    moved = fp32_bytes(ins) + fp32_bytes(outs)
    return product(macs, moved, weights) if weights else product_of_values(macs, moved)


# Wrappers and models ----------------------------------------------------------------------------------------------


def _wrapper(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    return launches(layer.layer, ins, outs)


def _time_distributed(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    flat = [[(shape[0] * shape[1], *shape[2:]) for shape in shapes] for shapes in (ins[:1], outs[:1])]
    return launches(layer.layer, *flat)


def _spectral(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    weights, products = math.prod(layer.kernel.shape), 2 * layer.power_iterations + 1
    iterate = Kernel("traffic", 2.0 * weights * products, weight_bytes=WIDTH * weights * products)
    scale = traffic(2 * WIDTH * weights)
    normalise = Launches((iterate, *scale), weight_gradient=scale)
    return normalise + launches(layer.layer, ins, outs)


def _bidirectional(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    both = launches(layer.forward_layer, ins, outs) + launches(layer.backward_layer, ins, outs)
    return both.then(_linear(layer, outs[:1], outs[:1]))


def _model(layer: Any, ins: Shapes, outs: Shapes) -> Launches:
    """A functional model inside a wrapper: its layers one after the other."""
    try:
        calls = layer_calls(layer, ins[0][0]).calls
    except CheckmateError:
        return _other(layer, ins, outs)
    made = (launches(call.operation, call.argument_shapes, call.output_shapes) for call in calls)
    return reduce(Launches.then, made, Launches())


_RELUS = words("relu relu6 leaky_relu")

_LAYERS: dict[str, Rule] = {
    "BaseConv": _conv,
    "BaseConvTranspose": _conv_transpose,
    "BaseDepthwiseConv": _depthwise,
    "BaseSeparableConv": _separable,
    "Dense": _dense,
    "EinsumDense": _dense,
    "Embedding": _embedding,
    "RNN": _recurrent,
    "Bidirectional": _bidirectional,
    "MultiHeadAttention": _multi_head,
    "GroupedQueryAttention": _multi_head,
    "Attention": _attention,
    "AdditiveAttention": _attention,
    "TimeDistributed": _time_distributed,
    "SpectralNormalization": _spectral,
    "Wrapper": _wrapper,
    "Functional": _model,
    "Sequential": _model,
    "Activation": _activate,
    "ReLU": _relu,
    "LeakyReLU": _relu,
    "PReLU": _relu,
    "BatchNormalization": _batch_norm,
    "Add": _sum,
    "Dropout": _dropout,
    "AlphaDropout": _dropout,
}
_LAYERS |= dict.fromkeys(MAX_POOLINGS, _max_pool) | dict.fromkeys(VIEW_LAYERS, _view)
_LAYERS |= dict.fromkeys(LINEAR_LAYERS, _linear)

_OPERATIONS: dict[str, Rule] = {"Add": _sum, "MaxPool": _max_pool}
_OPERATIONS |= dict.fromkeys(words("Relu ReLU Relu6 LeakyRelu"), _relu)
_OPERATIONS |= dict.fromkeys(words("Reshape ExpandDims Squeeze Ravel StopGradient View Identity"), _view)
_OPERATIONS |= dict.fromkeys(
    words(
        "AveragePool Subtract Negative Sum Mean Average Transpose Swapaxes Moveaxis Concatenate Stack Split Unstack "
        "GetItem Slice Take TakeAlongAxis Pad Tile Repeat Roll Flip BroadcastTo Cast Hstack Vstack DepthToSpace "
        "SpaceToDepth Rearrange PadImages CropImages Resize ExtractPatches"
    ),
    _linear,
)
