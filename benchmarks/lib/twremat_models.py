"""The networks of the TWRemat paper (section 4), and their graphs with a node for every operation.

Sizes that the paper does not give are chosen here: batches of 32 images (the default of the implementation that it
names), feed-forward nets of 1,024 units with batches of 1,024, and for the transformer its 4,096 tokens as 64 pairs of
sentences of 64 tokens.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from checkmate_tf.graph import BACKWARD, FORWARD, Graph
from checkmate_tf.keras.batches.spec import data_spec
from checkmate_tf.keras.built.building import build_training
from checkmate_tf.trace.ops import inputs_of, is_read_only, is_source, is_stateful, view_of, writes_resource
from checkmate_tf.trace.order import is_gradient
from checkmate_tf.trace.sizes.static import StaticStep, with_static_batch
from checkmate_tf.trace.step import trace_step

__all__ = ["BLOCKS", "feed_forward", "operation_graph", "resnet", "transformer"]

L = keras.layers

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
    290: (3, 24, 66, 3),
}
"""Residual blocks of the four widths, by the number of layers; bottleneck blocks from 50 on. 290 is ours: as many
operations as the paper's graph of ResNet200."""


def resnet(layers: int, size: int = 224, classes: int = 1000) -> tuple[keras.Model, int]:
    """A residual network for ImageNet (version 1) and its batch size."""

    def convolved(x, filters: int, kernel: int, strides: int = 1):
        return L.BatchNormalization()(L.Conv2D(filters, kernel, strides, padding="same", use_bias=False)(x))

    image = keras.Input((size, size, 3))
    x = L.MaxPool2D(3, 2, padding="same")(L.ReLU()(convolved(image, 64, 7, 2)))
    for stage, count in enumerate(BLOCKS[layers]):
        filters = 64 << stage
        wide = 4 * filters if layers >= 50 else filters
        for block in range(count):
            strides = 2 if stage and not block else 1
            shortcut = convolved(x, wide, 1, strides) if not block and (stage or layers >= 50) else x
            if layers >= 50:
                y = L.ReLU()(convolved(x, filters, 1))
                y = convolved(L.ReLU()(convolved(y, filters, 3, strides)), wide, 1)
            else:
                y = convolved(L.ReLU()(convolved(x, filters, 3, strides)), wide, 3)
            x = L.ReLU()(L.Add()([y, shortcut]))
    outputs = L.Dense(classes, activation="softmax")(L.GlobalAveragePooling2D()(x))
    model = keras.Model(image, outputs, name=f"resnet{layers}")
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    return model, 32


def feed_forward(layers: int, width: int = 1024) -> tuple[keras.Model, int]:
    """A feed-forward network and its batch size."""
    x = inputs = keras.Input((width,))
    for _ in range(layers):
        x = L.Dense(width, activation="relu")(x)
    model = keras.Model(inputs, L.Dense(width)(x), name=f"ffn{layers}")
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model, 1024


def transformer(big: bool = False, length: int = 64, words: int = 33_708) -> tuple[keras.Model, int]:
    """Encoder and decoder of six layers each, base or big, and the batch size."""
    width, heads, hidden, rate = (1024, 16, 4096, 0.1) if big else (512, 8, 2048, 0.1)

    def added(x, y):
        return L.LayerNormalization()(L.Add()([x, L.Dropout(rate)(y)]))

    def attended(x, to, **options: object):
        return added(x, L.MultiHeadAttention(heads, width // heads, dropout=rate)(x, to, **options))

    def mapped(x):
        return added(x, L.Dense(width)(L.Dropout(rate)(L.Dense(hidden, activation="relu")(x))))

    embed = L.Embedding(words, width)
    source, target = keras.Input((length,), dtype="int32"), keras.Input((length,), dtype="int32")
    x, y = L.Dropout(rate)(embed(source)), L.Dropout(rate)(embed(target))
    for _ in range(6):
        x = mapped(attended(x, x))
    for _ in range(6):
        y = mapped(attended(attended(y, y, use_causal_mask=True), x))
    model = keras.Model([source, target], L.Dense(words)(y), name="transformer-big" if big else "transformer-base")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(), loss)
    return model, 64


def operation_graph(model: keras.Model, batch_size: int) -> Graph:
    """A node for every operation of the training step, of unit cost, with the bytes of its outputs.

    As in the paper, no operation computes in place and none is merged with another. Views are part of what they look
    at; inputs, variables and constants are always in memory, and not counted. Operations with effects run once.
    """
    spec, _ = data_spec(model, batch_size, None, None)
    build_training(model, spec, model.train_step)
    step = trace_step(model.train_step, spec, as_written=True)
    shapes = [tf.TensorShape([batch_size if d is None else d for d in t.shape]) for t in step.inputs]
    static = with_static_batch(step, shapes)

    def owner(t: tf.Tensor) -> tf.Operation:
        """Who made the memory of t, seen through views."""
        while (source := _viewed(t, static)) is not None:
            t = inputs_of(t.op)[source]
        return t.op

    operations = [op for op in step.operations if not _is_resident(op, static)]
    index = {op: k for k, op in enumerate(operations)}
    inputs = [sorted({index[s] for t in inputs_of(op) if (s := owner(t)) in index}) for op in operations]
    backward = np.zeros(len(operations), dtype=bool)
    for k, op in enumerate(operations):
        backward[k] = is_gradient(op) or backward[inputs[k]].any()
    return Graph(
        name=model.name,
        names=[op.name for op in operations],
        kinds=np.where(backward, BACKWARD, FORWARD),
        costs=np.ones(len(operations)),
        sizes=np.array([sum(static.bytes_of(t) or 0 for t in op.outputs if t.consumers()) for op in operations]),
        inputs=inputs,
        recompute_until=_recompute_until(operations),
        cost_unit="operations",
    )


def _viewed(t: tf.Tensor, static: StaticStep) -> int | None:
    """The input of its operation whose memory t shares."""
    copy = static.operations[t.op]
    return view_of(copy, t.value_index) if copy.type == t.op.type else None


def _is_resident(op: tf.Operation, static: StaticStep) -> bool:
    """True for inputs, variables, constants, what shapes alone decide, and views."""
    if is_source(op) or static.operations[op].type == "Const":
        return True
    return bool(op.outputs) and all(_viewed(t, static) is not None for t in op.outputs)


def _recompute_until(operations: list[tf.Operation]) -> np.ndarray:
    """0 for operations with effects; for a reader of variables (an embedding) the first assignment to one after it."""
    until = np.full(len(operations), len(operations))
    written: dict[int, int] = {}
    for k in range(len(operations) - 1, -1, -1):
        op = operations[k]
        handles = [id(t) for t in op.inputs if t.dtype == tf.resource]
        if is_stateful(op):
            until[k] = 0
        elif is_read_only(op):
            until[k] = min([written[h] for h in handles if h in written], default=len(operations))
        if writes_resource(op):
            written.update(dict.fromkeys(handles, k))
    return until
