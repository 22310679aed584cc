"""Thirty small models of many kinds, each with data, whose steps take a fraction of a second.

Their activations are most of what they take, so that a budget has something to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import keras
import tensorflow as tf

from benchmarks.lib.unseen_networks import experts, fourier, recurrent, vae
from checkmate_tf.check.networks import Network, lstm, transformer, unet

__all__ = ["MODELS", "dropout", "gru", "in_space"]

L = keras.layers
IMAGE, SERIES, NUMBERS, WORDS = (24, 24, 3), (32, 16), (64,), (48,)
BATCH = 32

Layers = Callable[[], Sequence[L.Layer]]


def chain(shape: tuple[int, ...], layers: Layers) -> keras.Model:
    """Layers one after the other, and a classifier."""
    return keras.Sequential([keras.Input(shape), *layers(), L.Dense(10, activation="softmax")])


def images(layers: Layers) -> Callable[[], keras.Model]:
    """Layers on images, and a classifier on the mean over all points."""
    return partial(chain, IMAGE, lambda: [*layers(), L.GlobalAveragePooling2D()])


def conv(filters: int = 32, **options: object) -> L.Layer:
    return L.Conv2D(filters, 3, padding="same", **options)


def normalized() -> list[L.Layer]:
    """Three times convolution, normalization, activation."""
    return [layer for _ in range(3) for layer in (conv(use_bias=False), L.BatchNormalization(), L.ReLU())]


def dense() -> list[L.Layer]:
    return [L.Dense(256, activation="relu") for _ in range(4)]


def dropout(blocks: int = 3) -> list[L.Layer]:
    return [layer for _ in range(blocks) for layer in (L.Dense(256, activation="relu"), L.Dropout(0.3))]


def convolutions() -> list[L.Layer]:
    return [conv(activation="relu") for _ in range(4)]


def in_groups() -> list[L.Layer]:
    return [layer for _ in range(3) for layer in (conv(), L.GroupNormalization(8), L.ReLU())]


def pooled() -> list[L.Layer]:
    return [layer for k in range(3) for layer in (conv(16 << k, activation="relu"), L.MaxPool2D())]


def dilated() -> list[L.Layer]:
    return [conv(activation="elu", dilation_rate=2) for _ in range(3)]


def penalized() -> list[L.Layer]:
    """Losses of weights and of activations beside that of the targets."""
    first = conv(activation="relu", kernel_regularizer="l2")
    return [first, conv(activity_regularizer="l2"), L.SpatialDropout2D(0.2), L.GlobalMaxPooling2D()]


def in_time() -> list[L.Layer]:
    return [*(L.Conv1D(32, 5, activation="relu") for _ in range(3)), L.GlobalMaxPooling1D()]


def in_space(blocks: int = 3) -> list[L.Layer]:
    return [*(L.Conv3D(16, 3, padding="same", activation="relu") for _ in range(blocks)), L.Flatten()]


def gru(count: int = 2) -> list[L.Layer]:
    return [*(L.GRU(32, return_sequences=True) for _ in range(count - 1)), L.GRU(32)]


def words() -> list[L.Layer]:
    return [L.Embedding(500, 128), L.Dense(128, activation="relu"), L.LayerNormalization(), L.GlobalAveragePooling1D()]


def separable() -> list[L.Layer]:
    return [L.SeparableConv2D(32, 3, padding="same", activation="relu") for _ in range(4)]


def depthwise() -> list[L.Layer]:
    kinds = (lambda: L.DepthwiseConv2D(3, padding="same"), lambda: L.Conv2D(32, 1), lambda: L.ReLU(max_value=6.0))
    return [conv(), *(kind() for _ in range(3) for kind in kinds)]


def residual(blocks: int = 3) -> keras.Model:
    x = inputs = keras.Input(IMAGE)
    x = conv()(x)
    for _ in range(blocks):
        x = x + conv()(L.ReLU()(L.BatchNormalization()(conv()(x))))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def dense_blocks(count: int = 5) -> keras.Model:
    """Each convolution reads all before it."""
    x = inputs = keras.Input(IMAGE)
    for _ in range(count):
        x = L.Concatenate()([x, conv(16, activation="relu")(x)])
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def squeeze_excite(blocks: int = 3) -> keras.Model:
    """Channels are weighted by what the whole image says."""
    x = inputs = keras.Input(IMAGE)
    for _ in range(blocks):
        x = conv(activation="swish")(x)
        gate = L.Dense(32, activation="sigmoid")(L.Dense(8, activation="relu")(L.GlobalAveragePooling2D()(x)))
        x = x * L.Reshape((1, 1, 32))(gate)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)))


def autoencoder() -> keras.Model:
    x = inputs = keras.Input(IMAGE)
    for filters in (32, 64):
        x = conv(filters, activation="relu", strides=2)(conv(filters, activation="relu")(x))
    for filters in (64, 32):
        x = L.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, conv(3)(x))


def mixer(blocks: int = 3) -> keras.Model:
    """Dense layers over points and over channels in turn."""
    x = inputs = keras.Input((*WORDS, 64))
    for _ in range(blocks):
        y = L.Permute((2, 1))(L.LayerNormalization()(x))
        x = x + L.Permute((2, 1))(L.Dense(WORDS[0])(L.Dense(96, activation="gelu")(y)))
        x = x + L.Dense(64)(L.Dense(128, activation="gelu")(L.LayerNormalization()(x)))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling1D()(x)))


def siamese() -> keras.Model:
    """Two halves of an image through the same tower, and their difference."""
    inputs = keras.Input(IMAGE)
    tower = keras.Sequential([conv(activation="relu"), conv(activation="relu"), L.GlobalAveragePooling2D()])
    left, right = tower(inputs[:, :, : IMAGE[1] // 2]), tower(inputs[:, :, IMAGE[1] // 2 :])
    return keras.Model(inputs, L.Dense(10, activation="softmax")(keras.ops.abs(left - right)))


def shared_weights(times: int = 4) -> keras.Model:
    """One layer again and again."""
    x = inputs = keras.Input(NUMBERS)
    x, layer = L.Dense(256)(x), L.Dense(256, activation="tanh")
    for _ in range(times):
        x = layer(x)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


def stateful() -> keras.Model:
    """A recurrent layer that keeps its state from batch to batch."""
    inputs = keras.Input(batch_shape=(BATCH, *SERIES))
    x = L.LSTM(32, stateful=True)(L.LSTM(32, return_sequences=True)(inputs))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x))


class Adversaries(keras.Model):
    """A generator and a critic, with a loss each, in a training step of its own."""

    def __init__(self) -> None:
        super().__init__(name="adversaries")
        self.seeds = keras.random.SeedGenerator(0)
        up = [L.Conv2DTranspose(filters, 4, strides=2, padding="same", activation="relu") for filters in (32, 16)]
        self.generator = keras.Sequential(
            [keras.Input((16,)), L.Dense(6 * 6 * 32, activation="relu"), L.Reshape((6, 6, 32)), *up, conv(3)]
        )
        down = [conv(filters, strides=2, activation="leaky_relu") for filters in (32, 64)]
        self.critic = keras.Sequential([keras.Input(IMAGE), *down, L.Flatten(), L.Dense(1)])
        self.built = True

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.critic(x)

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        x, _ = data
        with tf.GradientTape(persistent=True) as tape:
            made = self.generator(keras.random.normal((tf.shape(x)[0], 16), seed=self.seeds), training=True)
            real, false = self.critic(x, training=True), self.critic(made, training=True)
            critic_loss = tf.reduce_mean(tf.nn.softplus(-real) + tf.nn.softplus(false))
            generator_loss = tf.reduce_mean(tf.nn.softplus(-false))
        wanted = [
            *tape.gradient(critic_loss, self.critic.trainable_variables),
            *tape.gradient(generator_loss, self.generator.trainable_variables),
        ]
        self.optimizer.apply(wanted, [*self.critic.trainable_variables, *self.generator.trainable_variables])
        return {"loss": critic_loss, "generator_loss": generator_loss}


MODELS = {
    "dense": Network("dense layers", partial(chain, NUMBERS, dense), NUMBERS, batch_size=256),
    "dropout": Network("dense layers, dropout", partial(chain, NUMBERS, dropout), NUMBERS, batch_size=256),
    "shared": Network("one dense layer four times", shared_weights, NUMBERS, batch_size=256),
    "conv": Network("convolutions", images(convolutions), IMAGE),
    "batchnorm": Network("convolutions, BatchNormalization", images(normalized), IMAGE),
    "groupnorm": Network("convolutions, GroupNormalization", images(in_groups), IMAGE),
    "pooling": Network("convolutions, max-pooling", images(pooled), IMAGE),
    "separable": Network("separable convolutions", images(separable), IMAGE),
    "depthwise": Network("depthwise convolutions, ReLU6", images(depthwise), IMAGE),
    "dilated": Network("dilated convolutions", images(dilated), IMAGE),
    "residual": Network("residual blocks", residual, IMAGE),
    "densenet": Network("dense blocks", dense_blocks, IMAGE),
    "squeeze": Network("squeeze and excitation", squeeze_excite, IMAGE),
    "autoencoder": Network("autoencoder", autoencoder, IMAGE, classes=0, loss="mse"),
    "penalized": Network("penalties, dropout of channels", partial(chain, IMAGE, penalized), IMAGE),
    "unet": Network("U-Net", partial(unet, 32, 8), (32, 32, 3), target_shape=(32, 32), classes=5),
    "siamese": Network("two towers with the same weights", siamese, IMAGE),
    "adversaries": Network("two towers against each other", Adversaries, IMAGE, classes=0, loss="mse"),
    "conv1d": Network("convolutions of a series", partial(chain, (128, 8), in_time), (128, 8)),
    "conv3d": Network("convolutions of a volume", partial(chain, (8, 8, 8, 3), in_space), (8, 8, 8, 3)),
    "lstm": Network("LSTM, 4 layers", partial(lstm, 32, 32), (32, 32)),
    "stateful": Network("LSTM that keeps its state", stateful, SERIES, batch_size=BATCH),
    "gru": Network("GRU", partial(chain, SERIES, gru), SERIES),
    "bidirectional": Network("GRU, both directions", partial(recurrent, 24, 24, 2), (24, 32)),
    "words": Network("words and their mean", partial(chain, WORDS, words), WORDS, vocabulary=500),
    "attention": Network("attention", partial(transformer, 2, 48, 64), WORDS, vocabulary=1000),
    "mixer": Network("dense layers over points and channels", mixer, (*WORDS, 64)),
    "fourier": Network("Fourier filters", partial(fourier, 16, 32, 2), (16, 16, 3)),
    "vae": Network("variational autoencoder", partial(vae, 24, 16, 16), IMAGE, classes=0, loss="mse"),
    "experts": Network("mixture of experts", partial(experts, 32, 32, 2, 4), (32,), vocabulary=1000),
}
"""By the name that scripts take."""
