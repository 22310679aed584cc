"""Ten networks that no model of memory was built on: what holds for them was not made to. With random data, and small.

Six are of keras.applications, with random weights. The others have what those lack: loops in both directions, Fourier
transforms, random numbers in the middle, and experts that are all computed and weighted.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from checkmate_tf.check.networks import Network, application

__all__ = ["UNSEEN", "Experts", "FourierFilter", "Sampling", "experts", "fourier", "recurrent", "vae"]

L = keras.layers


class FourierFilter(L.Layer):
    """A product with learned numbers in the frequency domain, over both axes of an image."""

    def build(self, shape: tuple[int | None, ...]) -> None:
        _, height, width, channels = shape
        shape = channels, height, width // 2 + 1
        self.real = self.add_weight(shape=shape, initializer="ones", name="real")
        self.imaginary = self.add_weight(shape=shape, initializer="zeros", name="imaginary")

    def call(self, x: tf.Tensor) -> tf.Tensor:
        spectrum = tf.signal.rfft2d(tf.transpose(x, [0, 3, 1, 2]))
        factors = tf.complex(tf.convert_to_tensor(self.real), tf.convert_to_tensor(self.imaginary))
        return tf.transpose(tf.signal.irfft2d(spectrum * factors, x.shape[1:3]), [0, 2, 3, 1])


class Sampling(L.Layer):
    """A draw from a normal distribution with a given mean and logarithm of variance; its divergence is a loss."""

    def __init__(self, weight: float = 1e-3, **options: object) -> None:
        super().__init__(**options)
        self.weight = weight
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, inputs: list[tf.Tensor]) -> tf.Tensor:
        mean, log_variance = inputs
        divergence = 1 + log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance)
        self.add_loss(-0.5 * self.weight * keras.ops.mean(divergence))
        noise = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


class Experts(L.Layer):
    """Dense layers side by side, all computed; a softmax of the input says how much of each is taken."""

    def __init__(self, count: int, width: int, **options: object) -> None:
        super().__init__(**options)
        self.gate = L.Dense(count, activation="softmax")
        self.hidden = [L.Dense(2 * width, activation="gelu") for _ in range(count)]
        self.last = [L.Dense(width) for _ in range(count)]

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.gate.build(shape)
        for hidden, last in zip(self.hidden, self.last, strict=True):
            hidden.build(shape)
            last.build((*shape[:-1], hidden.units))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        outputs = [last(hidden(x)) for hidden, last in zip(self.hidden, self.last, strict=True)]
        return keras.ops.sum(keras.ops.stack(outputs, -1) * keras.ops.expand_dims(self.gate(x), -2), -1)


def recurrent(length: int = 64, width: int = 64, layers: int = 3) -> keras.Model:
    """Gated recurrent units in both directions."""
    x = inputs = keras.Input((length, 32))
    for k in range(layers):
        x = L.Bidirectional(L.GRU(width, return_sequences=k < layers - 1))(x)
    return keras.Model(inputs, L.Dense(10, activation="softmax")(x), name="recurrent")


def fourier(size: int = 32, width: int = 64, blocks: int = 4) -> keras.Model:
    """Filters in the frequency domain, each followed by two dense layers at every point."""
    x = inputs = keras.Input((size, size, 3))
    x = L.Conv2D(width, 3, padding="same")(x)
    for _ in range(blocks):
        x = x + FourierFilter()(L.LayerNormalization()(x))
        x = x + L.Dense(width)(L.Dense(2 * width, activation="gelu")(L.LayerNormalization()(x)))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(x)), name="fourier")


def vae(size: int = 64, width: int = 32, latent: int = 64) -> keras.Model:
    """A variational autoencoder of convolutions."""
    x = inputs = keras.Input((size, size, 3))
    for k in range(3):
        x = L.Conv2D(width << k, 3, padding="same", activation="relu")(x)
        x = L.Conv2D(width << k, 3, strides=2, padding="same", activation="relu")(x)
    x = L.Flatten()(x)
    x = Sampling()([L.Dense(latent)(x), L.Dense(latent)(x)])
    x = L.Reshape((size // 8, size // 8, 4 * width))(L.Dense((size // 8) ** 2 * 4 * width, activation="relu")(x))
    for k in (2, 1, 0):
        x = L.Conv2DTranspose(width << k, 3, strides=2, padding="same", activation="relu")(x)
        x = L.Conv2D(width << k, 3, padding="same", activation="relu")(x)
    return keras.Model(inputs, L.Conv2D(3, 3, padding="same")(x), name="vae")


def experts(length: int = 64, width: int = 64, layers: int = 3, count: int = 6) -> keras.Model:
    """Attention and experts in turn."""
    inputs = keras.Input((length,), dtype="int32")
    x = L.Embedding(1000, width)(inputs)
    for _ in range(layers):
        normalized = L.LayerNormalization()(x)
        x = x + L.MultiHeadAttention(4, width // 4)(normalized, normalized)
        x = x + Experts(count, width)(L.LayerNormalization()(x))
    return keras.Model(inputs, L.Dense(10, activation="softmax")(L.GlobalAveragePooling1D()(x)), name="experts")


UNSEEN = {
    "densenet121": Network("DenseNet121, 64 px", application("DenseNet121", 64), (64, 64, 3), batch_size=16),
    "efficientnet": Network("EfficientNetB0, 64 px", application("EfficientNetB0", 64), (64, 64, 3), batch_size=16),
    "inception": Network("InceptionV3, 96 px", application("InceptionV3", 96), (96, 96, 3), batch_size=16),
    "xception": Network("Xception, 96 px", application("Xception", 96), (96, 96, 3), batch_size=8),
    "nasnet": Network("NASNetMobile, 64 px", application("NASNetMobile", 64), (64, 64, 3), batch_size=16),
    "convnext": Network("ConvNeXtTiny, 64 px", application("ConvNeXtTiny", 64), (64, 64, 3), batch_size=4),
    "recurrent": Network("GRU, both directions, 3 layers", recurrent, (64, 32), batch_size=64),
    "fourier": Network("Fourier filters, 32 px", fourier, (32, 32, 3), batch_size=16),
    "vae": Network("variational autoencoder, 64 px", vae, (64, 64, 3), classes=0, loss="mse"),
    "experts": Network("mixture of experts, 3 layers", experts, (64,), vocabulary=1000),
}
"""By the name that scripts take."""
