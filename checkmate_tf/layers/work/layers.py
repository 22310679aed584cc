"""Work of Keras's layers: one rule a layer.

**What this does badly.** It knows a layer by the Keras class that it derives from. A subclass that computes something
else is miscounted. A layer of the user's own counts 0 (logged at level INFO for each call).
"""

from __future__ import annotations

import logging
import math
from typing import Any

from ...costs.counts import CUBIC, LINEAR, RANDOM, SOFTMAX, words
from ...costs.counts import TRANSCENDENTAL as T
from ...errors import CheckmateError
from ..calls import layer_calls
from .operations import OPERATIONS
from .shared import (
    DROPOUT,
    Rule,
    Shapes,
    Work,
    activation,
    adds_keys,
    attended,
    channels,
    each_input,
    each_output,
    einsum_macs,
    epilogue,
    free,
    nearest,
    relu,
    scores,
    size,
)

__all__ = ["layer_work"]

log = logging.getLogger(__name__)


def layer_work(layer: Any, input_shapes: Shapes, output_shapes: Shapes) -> Work:
    """Work of the forward pass of one call of a layer, or of an operation of keras.ops.

    Parameters
    ----------
    layer : keras.Layer or keras.Operation
        Built, if it has weights.
    input_shapes, output_shapes : sequences of tuples of int
        Batch included, as for `flops.layer_flops`.

    Returns
    -------
    Work
        Zero for a layer that is not known.
    """
    rule = _rule(layer)
    work = rule(layer, input_shapes, output_shapes) if rule is not None else None
    if work is None:
        log.info("the FLOPs of %s (%s) are not known and count as 0", layer.name, type(layer).__name__)
        return Work()
    return work


def _rule(layer: Any) -> Rule | None:
    """The rule of a layer, or of an operation of keras.ops."""
    if kind := nearest(layer, _LAYERS):
        return _LAYERS[kind]
    kind = nearest(layer, OPERATIONS, layers=False)
    return OPERATIONS[kind] if kind else None


# Dense and convolutional layers -----------------------------------------------------------------------------------


def _dense(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(size(ins[:1]) * outs[0][-1], epilogue(layer, size(outs[:1])))


def _einsum_dense(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    macs = einsum_macs(layer.equation, [ins[0], tuple(layer.kernel.shape)])
    bias = layer.bias_axes is not None
    return Work(macs, size(outs[:1]) * (bias + activation(layer.activation)))


def _conv(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    each = math.prod(layer.kernel_size) * channels(layer, ins[0]) // layer.groups
    return Work(each * size(outs[:1]), epilogue(layer, size(outs[:1])))


def _conv_transpose(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(size(ins[:1]) * math.prod(layer.kernel_size) * layer.filters, epilogue(layer, size(outs[:1])))


def _depthwise(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(size(outs[:1]) * math.prod(layer.kernel_size), epilogue(layer, size(outs[:1])))


def _separable(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    middle = size(outs[:1]) // layer.filters * channels(layer, ins[0]) * layer.depth_multiplier
    macs = middle * (math.prod(layer.kernel_size) + layer.filters)
    return Work(macs, epilogue(layer, size(outs[:1])))


def _dot(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    axis = layer.axes if isinstance(layer.axes, int) else layer.axes[0]
    return Work(size(outs[:1]) * ins[0][axis])


def _lookup(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    # a ReversibleEmbedding that is called with reverse=True multiplies by its transposed table
    reverse = len(outs[0]) == len(ins[0]) and outs[0][-1] == layer.input_dim
    return Work(size(ins[:1]) * layer.input_dim if reverse else 0)


# Attention --------------------------------------------------------------------------------------------------------


def _multi_head(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    """Four projections and two products, of each head."""
    query, value, key = ins[0], ins[1], ins[2] if len(ins) > 2 else ins[1]
    batch, length, source = attended(layer, query, value)
    heads = layer._num_heads
    qk, v, width = heads * layer._key_dim, heads * layer._value_dim, outs[0][-1]
    projections = length * query[-1] * qk + source * (key[-1] * qk + value[-1] * v) + length * v * width
    pairs = batch * heads * length * source
    biases = batch * (length * (qk + width) + source * (qk + v)) if layer._use_bias else 0
    macs = batch * projections + pairs * (layer._key_dim + layer._value_dim)
    return Work(macs, biases + batch * length * qk + scores(pairs, layer._dropout))  # the query is scaled


def _grouped_query(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    query, value, key = ins[0], ins[1], ins[2] if len(ins) > 2 else ins[1]
    batch, length, source = query[0], query[1], value[1]
    wide, narrow = layer.num_query_heads * layer.head_dim, layer.num_key_value_heads * layer.head_dim
    width = outs[0][-1]
    projections = length * (query[-1] * wide + wide * width) + source * (key[-1] + value[-1]) * narrow
    pairs = batch * layer.num_query_heads * length * source
    biases = batch * (length * (wide + width) + source * 2 * narrow) if layer.use_bias else 0
    return Work(batch * projections + 2 * pairs * layer.head_dim, biases + pairs + scores(pairs, layer.dropout))


def _attention(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    """Luong's dot products or scores of sums; no projections of its own."""
    query, value = ins[0], ins[1]
    pairs = math.prod(query[:-1]) * value[-2]
    work = Work(pairs * (query[-1] + value[-1]), scores(pairs, getattr(layer, "dropout", 0)))
    return work + Work(other=pairs * query[-1] * (T + 1)) if adds_keys(layer) else work


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
    act, gate = activation(getattr(cell, "activation", None)), activation(getattr(cell, "recurrent_activation", None))
    known = {"LSTMCell": (4, 3 * gate + 2 * act + 4), "GRUCell": (3, 2 * gate + act + 5), "SimpleRNNCell": (1, act)}
    if kind not in known:
        return None
    gates, other = known[kind]
    return Work(gates * cell.units * (features + cell.units), cell.units * (2 * gates + other))


def _one_step(layer: Any, ins: Shapes, outs: Shapes) -> Work | None:
    """A cell that is called by itself."""
    work = _cell(layer, ins[0][-1])
    return None if work is None else work * ins[0][0]


def _recurrent(layer: Any, ins: Shapes, outs: Shapes) -> Work | None:
    batch, steps, *features = ins[0]
    work = _cell(layer.cell, *features) if len(features) == 1 else None  # a cell of the user's may read images
    return None if work is None else work * (batch * steps)


def _conv_lstm(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    cell, sequence = layer.cell, ins[0]
    first = cell.data_format == "channels_first"
    spatial = outs[0][2 if layer.return_sequences else 1 :]
    positions = math.prod(spatial[1:] if first else spatial[:-1])
    units = sequence[0] * sequence[1] * positions * cell.filters
    gate, act = activation(cell.recurrent_activation), activation(cell.activation)
    macs = units * 4 * math.prod(cell.kernel_size) * (sequence[2 if first else -1] + cell.filters)
    return Work(macs, units * (8 + 3 * gate + 2 * act + 4))


def _bidirectional(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    merge = 0 if layer.merge_mode in (None, "concat") else size(outs[:1])
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
    try:
        calls = layer_calls(layer, ins[0][0]).calls
    except CheckmateError:
        return None
    return sum((layer_work(c.operation, c.argument_shapes, c.output_shapes) for c in calls), Work())


# Everything else is elementwise -----------------------------------------------------------------------------------


def _activate(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * activation(layer.activation))


def _merge(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * max(len(ins) - 1, 1))


def _average(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * len(ins))


def _pool(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * math.prod(layer.pool_size))


def _upsample(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    each = {"nearest": 0, "bilinear": LINEAR}.get(getattr(layer, "interpolation", "nearest"), CUBIC)
    return Work(other=size(outs[:1]) * each)


def _dropout(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * (DROPOUT if layer.rate else 0))


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
    "ReLU": relu,
    "LeakyReLU": each_output(2),
    "PReLU": each_output(2),
    "ELU": each_output(T),
    "Softmax": each_output(SOFTMAX),
    "BatchNormalization": each_output(6),  # mean 1, variance 3, scale and shift 2
    "LayerNormalization": each_output(6),
    "GroupNormalization": each_output(6),
    "RMSNormalization": each_output(4),
    "UnitNormalization": each_output(3),
    "BasePooling": _pool,
    "BaseGlobalPooling": each_input(1),
    "BaseAdaptivePooling": each_input(1),
    "Average": _average,
    "UpSampling2D": _upsample,
    "Dropout": _dropout,
    "AlphaDropout": _dropout,
    "SpatialDropout1D": each_input(1),  # one draw a channel, one product an element
    "SpatialDropout2D": each_input(1),
    "SpatialDropout3D": each_input(1),
    "GaussianDropout": each_output(RANDOM + 2 * T + 1),
    "GaussianNoise": each_output(RANDOM + 2 * T + 1),
    "ActivityRegularization": each_input(2),
    "Rescaling": each_output(2),
    "Normalization": each_output(2),
}
_LAYERS |= dict.fromkeys(words("LSTMCell GRUCell SimpleRNNCell StackedRNNCells"), _one_step)
_LAYERS |= dict.fromkeys(words("Add Subtract Multiply Maximum Minimum"), _merge)
_LAYERS |= dict.fromkeys(
    words(
        "InputLayer Identity Masking Concatenate Flatten Reshape Permute RepeatVector Cropping1D Cropping2D Cropping3D "
        "UpSampling1D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D CategoryEncoding Discretization Hashing "
        "HashedCrossing StringLookup IntegerLookup TextVectorization"
    ),
    free,
)
