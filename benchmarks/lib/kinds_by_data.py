"""Models with sizes that data decides, and with ragged or sparse inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

__all__ = [
    "decides",
    "few",
    "features",
    "looped",
    "mapped",
    "ragged_sentences",
    "ranged",
    "repeated",
    "routed",
    "shortened",
    "words",
]

CROSSENTROPY = "sparse_categorical_crossentropy"


class Decides(layers.Layer):
    """A layer with a square of weights, whose `way` has sizes that its input decides."""

    def __init__(self, way: Callable[[tf.Variable, tf.Tensor], tf.Tensor]) -> None:
        super().__init__()
        self.way = way

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x: Any) -> Any:
        return self.way(self.kernel, x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def ranged(kernel: Any, x: Any) -> Any:
    """As many steps as the values add up to."""
    count = tf.cast(tf.reduce_sum(tf.nn.relu(x[:, 0, 0])) * 40, tf.int32) + 1
    steps = tf.cast(tf.range(count), tf.float32)[:, None] * kernel[0] * 1e-3
    return x + tf.reduce_mean(tf.tanh(steps @ kernel), axis=0)


def routed(kernel: Any, x: Any) -> Any:
    """Each row goes to one of four experts, and comes back to its place."""
    rows = tf.reshape(x, (-1, x.shape[-1]))
    chosen = tf.argmax(rows[:, :4], axis=1, output_type=tf.int32)
    parts = tf.dynamic_partition(rows, chosen, 4)
    places = tf.dynamic_partition(tf.range(tf.shape(rows)[0]), chosen, 4)
    said = [tf.nn.gelu(part @ kernel * (1 + 0.1 * k)) for k, part in enumerate(parts)]
    return x + tf.reshape(tf.dynamic_stitch(places, said), tf.shape(x))


def looped(kernel: Any, x: Any) -> Any:
    """As many rounds as the largest value says."""
    rounds = tf.cast(tf.reduce_max(tf.abs(x)) * 2, tf.int32) + 1
    _, y = tf.while_loop(lambda k, h: k < rounds, lambda k, h: (k + 1, tf.tanh(h @ kernel)), (0, x))
    return x + y


def repeated(kernel: Any, x: Any) -> Any:
    """Rows that count twice come twice."""
    rows = tf.reshape(x, (-1, x.shape[-1]))
    twice = tf.repeat(rows, tf.cast(rows[:, 0] > 0, tf.int32) + 1, axis=0)
    return x + tf.reduce_mean(tf.tanh(twice @ kernel), axis=0)


def shortened(kernel: Any, x: Any) -> Any:
    """Of each sample only so many rows: a ragged tensor within the model."""
    lengths = tf.reduce_sum(tf.cast(x[:, :, 0] > 0, tf.int32), axis=1) + 1
    rows = tf.RaggedTensor.from_tensor(x, lengths=lengths)
    y = tf.ragged.map_flat_values(lambda v: tf.nn.gelu(v @ kernel), rows).to_tensor()
    return x + tf.reduce_mean(y, axis=1, keepdims=True)


def mapped(kernel: Any, x: Any) -> Any:
    """Sample by sample: sizes that data decides within a loop."""

    def one(rows: Any) -> Any:
        return tf.reduce_sum(tf.tanh(tf.boolean_mask(rows, rows[:, 0] > 0) @ kernel), axis=0)

    return x + tf.map_fn(one, x)[:, None, :]


def decides(way: Callable[..., Any], blocks: int = 3) -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(blocks):
        x = Decides(way)(layers.Dense(32, activation="gelu")(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(ops.mean(x, axis=1)))
    model.compile("adam", CROSSENTROPY)
    return model


class Words(keras.Model):
    """Sentences of any length, padded within the model. It declares nothing, and is not built."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(200, 64)
        self.wide = [layers.Dense(128, activation="gelu") for _ in range(3)]
        self.head = layers.Dense(4, activation="softmax")

    def call(self, x: Any) -> Any:
        x = tf.ragged.map_flat_values(self.table, x).to_tensor()
        for layer in self.wide:
            x = layer(x)
        return self.head(tf.reduce_mean(x, axis=1))


def words() -> keras.Model:
    model = Words()
    model.compile("adam", CROSSENTROPY)
    return model


def ragged_sentences(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 40, n)
    flat = rng.integers(0, 200, lengths.sum()).astype("int32")
    return tf.RaggedTensor.from_row_lengths(flat, lengths), rng.integers(0, 4, n)


def features(blocks: int = 4) -> keras.Model:
    """Few of many features are there."""
    inputs = x = keras.Input((500,), sparse=True)
    for _ in range(blocks):
        x = layers.Dense(256, activation="gelu")(x)
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile("adam", CROSSENTROPY)
    return model


def few(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((n, 500)) < 0.01, rng.random((n, 500)), 0).astype("float32")
    return tf.sparse.from_dense(dense), rng.integers(0, 4, n)
