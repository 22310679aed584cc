"""Floating-point operations of a Keras layer (or keras.ops operation), from the shapes that it reads and writes.

Three conventions:

- `multiply-adds`: what the Checkmate papers plot. Convolutions, matrix products, attention and recurrences count their
  multiply-adds; everything else (pooling, normalisation, activations, additions, padding, lookups) is free.
- `artifact`: multiply-adds, and the elementwise layers that Checkmate's artifact counts as well: 4 an element of a
  normalisation, 1 of an activation, 1 of each input of an addition, 1 of an upsampled output (5 if bilinear), and a
  transposed convolution without its kernel's area. Little, but decisive: where these layers are free, recomputing them
  is too, and ResNet50 at half its peak costs 0 instead of 0.28% (`benchmarks/models.py`).
- `true`: two for each multiply-add, and the elementwise work besides: biases, activations, normalisation, pooling,
  softmax, merges, dropout. `TRANSCENDENTAL` for exp, tanh and their kind, as in `flops.py`. Moving data stays free.

One rule a layer counts its `Work`, and a convention weighs it. Shapes include the batch, so work scales with it.

**What this does badly.** It knows a layer by the Keras class that it derives from: a subclass that computes something
else is miscounted, and a layer of the user's own counts 0 (said once for each call, at level INFO). Nor does work say
time: see `flops.py`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import CostError
from .flops import TRANSCENDENTAL as T
from .flops import words

__all__ = ["CONVENTIONS", "Work", "layer_flops", "layer_work"]

log = logging.getLogger(__name__)

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Sequence[Shape]


@dataclass(frozen=True)
class Work:
    """What a layer computes.

    Attributes
    ----------
    macs : float
        Multiply-adds of products and convolutions.
    other : float
        Other floating-point operations.
    """

    macs: float = 0.0
    other: float = 0.0

    def __add__(self, more: Work) -> Work:
        return Work(self.macs + more.macs, self.other + more.other)

    def __mul__(self, times: float) -> Work:
        return Work(self.macs * times, self.other * times)


Rule: TypeAlias = Callable[[Any, Shapes, Shapes], Work | None]

CONVENTIONS = ("multiply-adds", "artifact", "true")


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
    if convention == "artifact" and (kind := _nearest(layer, _ARTIFACT)):
        return float(_ARTIFACT[kind](layer, input_shapes, output_shapes))
    work = layer_work(layer, input_shapes, output_shapes)
    return 2.0 * work.macs + work.other if convention == "true" else float(work.macs)


def layer_work(layer: Any, input_shapes: Shapes, output_shapes: Shapes) -> Work:
    """Work of the forward pass of one call of a layer; parameters as for `layer_flops`."""
    rule = _rule(layer)
    work = rule(layer, input_shapes, output_shapes) if rule is not None else None
    if work is None:
        log.info("the FLOPs of %s (%s) are not known and count as 0", layer.name, type(layer).__name__)
        return Work()
    return work


def _rule(layer: Any) -> Rule | None:
    """The rule of a layer, or of an operation of keras.ops."""
    if kind := _nearest(layer, _LAYERS):
        return _LAYERS[kind]
    kind = _nearest(layer, _OPERATIONS, layers=False)
    return _OPERATIONS[kind] if kind else None


def _nearest(layer: Any, table: Collection[str], layers: bool = True) -> str | None:
    """Name of the nearest of Keras's own classes that the layer derives from and that is in the table.

    Layers and operations share names (Add): which one it is follows from the module.
    """
    for kind in type(layer).__mro__:
        module = kind.__module__
        here = module.startswith("keras.") and (".layers." in module or ".models." in module) == layers
        if here and kind.__name__ in table:
            return kind.__name__
    return None


# Counting ---------------------------------------------------------------------------------------------------------

# FLOPs for each element of an activation.
_ACTIVATIONS: dict[str, float] = {"linear": 0, "relu": 1, "relu6": 2, "leaky_relu": 2, "threshold": 1, "softsign": 3}
_ACTIVATIONS |= dict.fromkeys(words("sigmoid tanh exponential elu celu selu softplus log_sigmoid squareplus"), T)
_ACTIVATIONS |= dict.fromkeys(words("softmax log_softmax sparsemax"), T + 4)  # max, subtract, exp, sum, divide
_ACTIVATIONS |= dict.fromkeys(words("hard_sigmoid hard_tanh hard_shrink soft_shrink sparse_plus sparse_sigmoid"), 3)
_ACTIVATIONS |= {"silu": T + 1, "swish": T + 1, "hard_silu": 4, "gelu": T + 4, "glu": T + 1, "mish": 2 * T + 1}
_ACTIVATIONS |= {"tanh_shrink": T + 1}

_RANDOM = 10  # FLOPs of a uniform random number, as in flops.py
_DROPOUT = _RANDOM + 2.0  # draw, compare, scale


def _size(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _activation(function: Any) -> float:
    """FLOPs an element of what a layer holds as its activation: a function, a layer or None."""
    if function is None:
        return 0.0
    name = getattr(function, "__name__", None) or getattr(function, "name", "")
    return _ACTIVATIONS.get(str(name), 1.0)


def _epilogue(layer: Any, elements: float) -> float:
    """FLOPs of the bias and the activation on so many outputs."""
    return elements * (bool(getattr(layer, "use_bias", False)) + _activation(getattr(layer, "activation", None)))


def _channels(layer: Any, shape: Shape) -> int:
    return shape[1] if getattr(layer, "data_format", None) == "channels_first" else shape[-1]


def _free(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work()


def _each_output(flops: float) -> Rule:
    return lambda layer, ins, outs: Work(other=flops * _size(outs[:1]))


def _each_input(flops: float) -> Rule:
    return lambda layer, ins, outs: Work(other=flops * _size(ins[:1]))


# Dense and convolutional layers -----------------------------------------------------------------------------------


def _dense(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(_size(ins[:1]) * outs[0][-1], _epilogue(layer, _size(outs[:1])))


def _einsum_macs(equation: str, shapes: Shapes) -> int:
    """Points of the iteration space of a contraction: the product of the sizes of its labels."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(equation.replace(" ", "").split("->")[0].split(","), shapes, strict=True):
        head, dots, tail = labels.partition("...")
        axes = [*zip(head, shape, strict=False)]
        if dots:
            middle = shape[len(head) : len(shape) - len(tail)]
            axes += [(f".{len(middle) - k}", size) for k, size in enumerate(middle)]  # aligned at the right
            axes += [*zip(tail, shape[len(shape) - len(tail) :], strict=True)]
        for label, size in axes:
            sizes[label] = max(size, sizes.get(label, 1))
    return math.prod(sizes.values())


def _einsum_dense(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    macs = _einsum_macs(layer.equation, [ins[0], tuple(layer.kernel.shape)])
    bias = layer.bias_axes is not None
    return Work(macs, _size(outs[:1]) * (bias + _activation(layer.activation)))


def _conv(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    each = math.prod(layer.kernel_size) * _channels(layer, ins[0]) // layer.groups
    return Work(each * _size(outs[:1]), _epilogue(layer, _size(outs[:1])))


def _conv_transpose(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(_size(ins[:1]) * math.prod(layer.kernel_size) * layer.filters, _epilogue(layer, _size(outs[:1])))


def _depthwise(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(_size(outs[:1]) * math.prod(layer.kernel_size), _epilogue(layer, _size(outs[:1])))


def _separable(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    middle = _size(outs[:1]) // layer.filters * _channels(layer, ins[0]) * layer.depth_multiplier
    macs = middle * (math.prod(layer.kernel_size) + layer.filters)
    return Work(macs, _epilogue(layer, _size(outs[:1])))


def _dot(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    axis = layer.axes if isinstance(layer.axes, int) else layer.axes[0]
    return Work(_size(outs[:1]) * ins[0][axis])


def _lookup(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    # a ReversibleEmbedding that is called with reverse=True multiplies by its transposed table
    reverse = len(outs[0]) == len(ins[0]) and outs[0][-1] == layer.input_dim
    return Work(_size(ins[:1]) * layer.input_dim if reverse else 0)


# Attention --------------------------------------------------------------------------------------------------------


def _scores(pairs: float, dropout: Any) -> float:
    """FLOPs of softmax and dropout on so many scores."""
    return pairs * (T + 4 + (_DROPOUT if dropout else 0))


def _multi_head(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    """Four projections and two products, of each head."""
    query, value, key = ins[0], ins[1], ins[2] if len(ins) > 2 else ins[1]
    axes = layer._attention_axes  # along which positions attend to each other; the axes before them are batch
    axes = range(1, len(query) - 1) if axes is None else [a % len(query) for a in axes]
    length, source = (math.prod(shape[a] for a in axes) for shape in (query, value))
    batch = math.prod(query[:-1]) // length
    heads = layer._num_heads
    qk, v, width = heads * layer._key_dim, heads * layer._value_dim, outs[0][-1]
    projections = length * query[-1] * qk + source * (key[-1] * qk + value[-1] * v) + length * v * width
    pairs = batch * heads * length * source
    biases = batch * (length * (qk + width) + source * (qk + v)) if layer._use_bias else 0
    macs = batch * projections + pairs * (layer._key_dim + layer._value_dim)
    return Work(macs, biases + batch * length * qk + _scores(pairs, layer._dropout))  # the query is scaled


def _grouped_query(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    query, value, key = ins[0], ins[1], ins[2] if len(ins) > 2 else ins[1]
    batch, length, source = query[0], query[1], value[1]
    wide, narrow = layer.num_query_heads * layer.head_dim, layer.num_key_value_heads * layer.head_dim
    width = outs[0][-1]
    projections = length * (query[-1] * wide + wide * width) + source * (key[-1] + value[-1]) * narrow
    pairs = batch * layer.num_query_heads * length * source
    biases = batch * (length * (wide + width) + source * 2 * narrow) if layer.use_bias else 0
    return Work(batch * projections + 2 * pairs * layer.head_dim, biases + pairs + _scores(pairs, layer.dropout))


def _attention(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    """Luong's dot products or scores of sums; no projections of its own."""
    query, value = ins[0], ins[1]
    pairs = math.prod(query[:-1]) * value[-2]
    added = getattr(layer, "score_mode", "concat") != "dot"  # tanh(query + key), summed with weights
    work = Work(pairs * (query[-1] + value[-1]), _scores(pairs, getattr(layer, "dropout", 0)))
    return work + Work(other=pairs * query[-1] * (T + 1)) if added else work


# Recurrences ------------------------------------------------------------------------------------------------------


def _cell(cell: Any, features: int) -> Work | None:
    """Work of one sample in one step; None for a cell that is not Keras's."""
    kind = next((k.__name__ for k in type(cell).__mro__ if k.__module__.startswith("keras.")), "")
    if kind == "StackedRNNCells":
        total = Work()
        for inner in cell.cells:
            work = _cell(inner, features)
            if work is None:
                return None
            total, features = total + work, inner.units
        return total
    act, gate = _activation(getattr(cell, "activation", None)), _activation(getattr(cell, "recurrent_activation", None))
    known = {"LSTMCell": (4, 3 * gate + 2 * act + 4), "GRUCell": (3, 2 * gate + act + 5), "SimpleRNNCell": (1, act)}
    if kind not in known:
        return None
    gates, other = known[kind]
    return Work(gates * cell.units * (features + cell.units), cell.units * (2 * gates + other))


def _recurrent(layer: Any, ins: Shapes, outs: Shapes) -> Work | None:
    batch, steps, features = ins[0]
    work = _cell(layer.cell, features)
    return None if work is None else work * (batch * steps)


def _conv_lstm(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    cell, sequence = layer.cell, ins[0]
    first = cell.data_format == "channels_first"
    spatial = outs[0][2 if layer.return_sequences else 1 :]
    positions = math.prod(spatial[1:] if first else spatial[:-1])
    units = sequence[0] * sequence[1] * positions * cell.filters
    gate, act = _activation(cell.recurrent_activation), _activation(cell.activation)
    macs = units * 4 * math.prod(cell.kernel_size) * (sequence[2 if first else -1] + cell.filters)
    return Work(macs, units * (8 + 3 * gate + 2 * act + 4))


def _bidirectional(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    merge = 0 if layer.merge_mode in (None, "concat") else _size(outs[:1])
    both = layer_work(layer.forward_layer, ins, outs) + layer_work(layer.backward_layer, ins, outs)
    return both + Work(other=merge)


# Wrappers and models ----------------------------------------------------------------------------------------------


def _time_distributed(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    flat = [[(shape[0] * shape[1], *shape[2:]) for shape in shapes] for shapes in (ins[:1], outs[:1])]
    return layer_work(layer.layer, *flat)


def _spectral(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    kernel = math.prod(layer.kernel.shape)
    # each iteration multiplies by the kernel and by its transpose; one product more and a quotient normalise it
    return layer_work(layer.layer, ins, outs) + Work(kernel * (2 * layer.power_iterations + 1), kernel)


def _wrapper(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return layer_work(layer.layer, ins, outs)


def _model(layer: Any, ins: Shapes, outs: Shapes) -> Work | None:
    """A functional model inside a wrapper: the sum of its layers."""
    from ..errors import CheckmateError
    from ..trace.layers import layer_calls

    try:
        calls = layer_calls(layer, ins[0][0]).calls
    except CheckmateError:
        return None
    return sum((layer_work(c.operation, c.argument_shapes, c.output_shapes) for c in calls), Work())


# Everything else is elementwise -----------------------------------------------------------------------------------


def _activate(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]) * _activation(layer.activation))


def _relu(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]) * (1 + bool(layer.negative_slope) + (layer.max_value is not None)))


def _merge(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]) * max(len(ins) - 1, 1))


def _average(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]) * len(ins))


def _pool(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]) * math.prod(layer.pool_size))


def _upsample(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    each = {"nearest": 0, "bilinear": 7}.get(getattr(layer, "interpolation", "nearest"), 30)  # as in flops.py
    return Work(other=_size(outs[:1]) * each)


def _dropout(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]) * (_DROPOUT if layer.rate else 0))


_LAYERS: dict[str, Rule] = {
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    "BaseConv": _conv,
    "BaseConvTranspose": _conv_transpose,
    "BaseDepthwiseConv": _depthwise,
    "BaseSeparableConv": _separable,
    "Dot": _dot,
    "Embedding": _lookup,
    "MultiHeadAttention": _multi_head,
    "GroupedQueryAttention": _grouped_query,
    "Attention": _attention,
    "AdditiveAttention": _attention,
    "ConvLSTM": _conv_lstm,
    "RNN": _recurrent,
    "Bidirectional": _bidirectional,
    "TimeDistributed": _time_distributed,
    "SpectralNormalization": _spectral,
    "Wrapper": _wrapper,
    "Functional": _model,
    "Sequential": _model,
    "Activation": _activate,
    "ReLU": _relu,
    "LeakyReLU": _each_output(2),
    "PReLU": _each_output(2),
    "ELU": _each_output(T),
    "Softmax": _each_output(T + 4),
    "BatchNormalization": _each_output(6),  # mean 1, variance 3, scale and shift 2
    "LayerNormalization": _each_output(6),
    "GroupNormalization": _each_output(6),
    "RMSNormalization": _each_output(4),
    "UnitNormalization": _each_output(3),
    "BasePooling": _pool,
    "BaseGlobalPooling": _each_input(1),
    "BaseAdaptivePooling": _each_input(1),
    "Average": _average,
    "UpSampling2D": _upsample,
    "Dropout": _dropout,
    "AlphaDropout": _dropout,
    "SpatialDropout1D": _each_input(1),  # one draw a channel, one product an element
    "SpatialDropout2D": _each_input(1),
    "SpatialDropout3D": _each_input(1),
    "GaussianDropout": _each_output(_RANDOM + 2 * T + 1),
    "GaussianNoise": _each_output(_RANDOM + 2 * T + 1),
    "ActivityRegularization": _each_input(2),
    "Rescaling": _each_output(2),
    "Normalization": _each_output(2),
}
_LAYERS |= dict.fromkeys(words("Add Subtract Multiply Maximum Minimum"), _merge)
_LAYERS |= dict.fromkeys(
    words(
        "InputLayer Identity Masking Concatenate Flatten Reshape Permute RepeatVector Cropping1D Cropping2D Cropping3D "
        "UpSampling1D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D CategoryEncoding Discretization Hashing "
        "HashedCrossing StringLookup IntegerLookup TextVectorization"
    ),
    _free,
)


# What the artifact counts beyond multiply-adds.
_ARTIFACT: dict[str, Callable[[Any, Shapes, Shapes], float]] = {
    "BatchNormalization": lambda layer, ins, outs: 4 * _size(ins[:1]),
    "LayerNormalization": lambda layer, ins, outs: 4 * _size(ins[:1]),
    "Activation": lambda layer, ins, outs: _size(ins[:1]),
    "ReLU": lambda layer, ins, outs: _size(ins[:1]),
    "Add": lambda layer, ins, outs: _size(ins),
    "UpSampling2D": lambda layer, ins, outs: (5 if layer.interpolation == "bilinear" else 1) * _size(outs[:1]),
    "BaseConvTranspose": lambda layer, ins, outs: _channels(layer, ins[0]) * _size(outs[:1]),
}


# Operations of keras.ops; the shapes of constant operands are among the inputs. -----------------------------------


def _op_matmul(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(_size(outs[:1]) * ins[0][-1]) if ins and ins[0] else None


def _op_vdot(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(_size(ins[:1]))


def _op_outer(op: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=_size(outs[:1]))


def _op_einsum(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    if len(ins) != op.subscripts.count(",") + 1:
        return None
    points = _einsum_macs(op.subscripts, ins)
    return Work(points) if len(ins) > 1 else Work(other=points)


def _op_tensordot(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    if len(ins) != 2:
        return None
    # every axis that is summed over is in both inputs, every other in one: |a| |b| = |out| |summed|^2
    summed = math.isqrt(_size(ins[:1]) * _size(ins[1:]) // max(_size(outs[:1]), 1))
    return Work(_size(outs[:1]) * summed)


def _op_conv(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(_size(outs[:1]) * math.prod(ins[1][:-1])) if len(ins) > 1 else None


def _op_conv_transpose(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(_size(ins[:1]) * math.prod(ins[1][:-1])) if len(ins) > 1 else None  # kernel (space..., out, in)


def _op_depthwise(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    return Work(_size(outs[:1]) * math.prod(ins[1][:-2])) if len(ins) > 1 else None


def _op_separable(op: Any, ins: Shapes, outs: Shapes) -> Work | None:
    if len(ins) != 3:
        return None
    middle, filters = ins[2][-2:]  # the pointwise kernel is (1..., channels x multiplier, filters)
    return Work(_size(outs[:1]) // filters * middle * (math.prod(ins[1][:-2]) + filters))


def _op_attention(op: Any, ins: Shapes, outs: Shapes) -> Work:
    (batch, length, heads, width), source = ins[0], ins[1][1]
    pairs = batch * heads * length * source
    return Work(2 * pairs * width, pairs + _scores(pairs, 0))


def _op_pool(op: Any, ins: Shapes, outs: Shapes) -> Work:
    size = op.pool_size
    spatial = len(ins[0]) - 2
    return Work(other=_size(outs[:1]) * (size**spatial if isinstance(size, int) else math.prod(size)))


_OPERATIONS: dict[str, Rule] = {
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
    "MaxPool": _op_pool,
    "AveragePool": _op_pool,
    "LayerNorm": _each_output(6),
    "RMSNorm": _each_output(4),
    "BatchNorm": _each_output(2),  # its statistics are given
    "Normalize": _each_output(3),
    "Logsumexp": _each_input(T + 3),
    "Softmax": _each_output(T + 4),
    "LogSoftmax": _each_output(T + 4),
    "ReLU": _relu,  # keras.activations.relu with a slope or a bound
    "Silu": _each_output(T + 1),
    "Gelu": _each_output(T + 4),
    "LeakyRelu": _each_output(2),
    "Relu6": _each_output(2),
    "Softsign": _each_output(3),
    "HardSigmoid": _each_output(3),
    "HardSilu": _each_output(4),
    "Var": _each_input(3),
    "Std": _each_input(3),
    "Moments": _each_input(4),
}
_OPERATIONS |= dict.fromkeys(
    words(
        "Exp Exp2 Expm1 Log Log1p Log2 Log10 Tanh Sigmoid LogSigmoid Softplus Elu Selu Celu Erf Erfc Erfinv Sin Cos "
        "Tan Sinh Cosh Arcsin Arccos Arctan Arctan2 Arcsinh Arccosh Arctanh Power Logaddexp Sinc"
    ),
    _each_output(T),
)
_OPERATIONS |= dict.fromkeys(
    words(
        "Add Subtract Multiply Divide DivideNoNan TrueDivide FloorDivide Mod Negative Absolute Square Sqrt Rsqrt "
        "Reciprocal Maximum Minimum Clip Sign Floor Ceil Round Relu Equal NotEqual Greater GreaterEqual Less LessEqual "
        "LogicalAnd LogicalOr LogicalNot LogicalXor Where Average"
    ),
    _each_output(1),
)
_OPERATIONS |= dict.fromkeys(
    words(
        "Sum Mean Max Min Amax Amin Prod Any All Argmax Argmin Cumsum Cumprod CountNonzero SegmentReduction Norm "
        "AdaptiveMaxPool AdaptiveAveragePool"
    ),
    _each_input(1),
)
_OPERATIONS |= dict.fromkeys(
    words(
        "Reshape Transpose Swapaxes Moveaxis ExpandDims Squeeze Ravel Concatenate Stack Split Unstack GetItem Slice "
        "Take TakeAlongAxis Pad Tile Repeat Roll Flip BroadcastTo Cast SaturateCast StopGradient OneHot MultiHot "
        "OnesLike ZerosLike FullLike Copy View Tril Triu Diagonal Hstack Vstack Scatter ScatterUpdate SliceUpdate "
        "DepthToSpace SpaceToDepth Rearrange ConvertToTensor PadImages CropImages ExtractPatches"
    ),
    _free,
)
