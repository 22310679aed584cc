"""Models of many kinds, as people train them, each small: losses, steps and data of their own, sizes that data decides.

The tests train them, and `many_models.py` measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from benchmarks.lib.kinds_by_data import (
    decides,
    features,
    few,
    looped,
    mapped,
    ragged_sentences,
    ranged,
    repeated,
    routed,
    shortened,
    words,
)

__all__ = ["BATCH", "KINDS", "Kind", "random_arrays"]

CROSSENTROPY = "sparse_categorical_crossentropy"
BATCH = 16
IMAGE = (16, 16, 3)


@dataclass(frozen=True)
class Kind:
    """A kind of models.

    Attributes
    ----------
    title : str
    build : callable
        Makes the compiled model.
    data : callable (n) -> (x, y)
        So many samples.
    batch : int
        Samples of a batch, if there is to be something to save.
    """

    title: str
    build: Callable[[], keras.Model]
    data: Callable[[int], tuple[Any, Any]]
    batch: int = 64


def random_arrays(*shapes: tuple[int, ...], classes: int = 4) -> Callable[[int], tuple[Any, Any]]:
    """Random inputs of the given shapes (without the batch), and a class each."""

    def data(n: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(3)
        x = tuple(rng.normal(size=(n, *shape)).astype("float32") for shape in shapes)
        return x if len(x) > 1 else x[0], rng.integers(0, classes, n)

    return data


def blocks(x: Any, n: int = 3, width: int = 8) -> Any:
    for _ in range(n):
        x = layers.Conv2D(width, 3, padding="same", activation="gelu")(x)
    return x


def classifier(inputs: Any, x: Any, **options: Any) -> keras.Model:
    if len(x.shape) > 2:
        x = ops.mean(x, axis=tuple(range(1, len(x.shape) - 1)))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile(**{"optimizer": "adam", "loss": CROSSENTROPY} | options)
    return model


class Penalized(keras.Model):
    """A GAN whose critic has a gradient penalty (Gulrajani et al., 2017), with an optimizer for each network."""

    def __init__(self) -> None:
        super().__init__()
        noise = keras.Input((16,))
        x = layers.Reshape((8, 8, 4))(layers.Dense(8 * 8 * 4)(noise))
        x = blocks(layers.UpSampling2D()(x))
        self.generator = keras.Model(noise, layers.Conv2D(3, 3, padding="same", activation="tanh")(x))
        image = keras.Input(IMAGE)
        self.critic = keras.Model(image, layers.Dense(1)(layers.Flatten()(blocks(image))))
        self.seeds = keras.random.SeedGenerator(11)
        self.other = keras.optimizers.Adam(1e-3)
        self.other.build(self.critic.trainable_variables)

    def call(self, x: Any) -> Any:
        return self.critic(x)

    def train_step(self, data: Any) -> Any:
        real = data[0]
        count = tf.shape(real)[0]
        fake = self.generator(keras.random.normal((count, 16), seed=self.seeds), training=True)
        mix = keras.random.uniform((count, 1, 1, 1), seed=self.seeds)
        with tf.GradientTape() as tape:
            between = mix * real + (1 - mix) * fake
            with tf.GradientTape() as inner:
                inner.watch(between)
                judged = self.critic(between, training=True)
            norm = tf.sqrt(tf.reduce_sum(inner.gradient(judged, between) ** 2, axis=(1, 2, 3)) + 1e-12)
            lost = tf.reduce_mean(self.critic(fake, training=True)) - tf.reduce_mean(self.critic(real, training=True))
            lost += 10.0 * tf.reduce_mean((norm - 1.0) ** 2)
        self.other.apply(tape.gradient(lost, self.critic.trainable_variables), self.critic.trainable_variables)
        with tf.GradientTape() as tape:
            made = self.generator(keras.random.normal((count, 16), seed=self.seeds), training=True)
            fooled = -tf.reduce_mean(self.critic(made, training=True))
        variables = self.generator.trainable_variables
        self.optimizer.apply(tape.gradient(fooled, variables), variables)
        return {"critic": lost, "generator": fooled}


def gan() -> keras.Model:
    model = Penalized()
    model.build((None, *IMAGE))
    model.compile("adam")
    model.optimizer.build(model.generator.trainable_variables)
    return model


class Denoiser(keras.Model):
    """A diffusion U-Net: noise and its level are drawn within the step."""

    def __init__(self) -> None:
        super().__init__()
        image, level = keras.Input(IMAGE), keras.Input((1,))
        told = layers.Dense(8, activation="swish")(level)
        top = blocks(image) + ops.expand_dims(ops.expand_dims(told, 1), 1)
        low = blocks(layers.AveragePooling2D(2)(top), width=16)
        x = layers.Concatenate()([top, layers.UpSampling2D(interpolation="bilinear")(low)])
        self.network = keras.Model([image, level], layers.Conv2D(3, 3, padding="same")(blocks(x)))
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        return self.network([x, ops.ones((ops.shape(x)[0], 1))])

    def train_step(self, data: Any) -> Any:
        images = data[0]
        level = keras.random.uniform((ops.shape(images)[0], 1), seed=self.seeds)
        noise = keras.random.normal(ops.shape(images), seed=self.seeds)
        share = ops.reshape(level, (-1, 1, 1, 1))
        with tf.GradientTape() as tape:
            found = self.network([ops.sqrt(1 - share) * images + ops.sqrt(share) * noise, level], training=True)
            loss = ops.mean((found - noise) ** 2)
        variables = self.network.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def diffusion() -> keras.Model:
    model = Denoiser()
    model.build((None, *IMAGE))
    model.compile("adam")
    return model


class Sample(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, given: Any) -> Any:
        mean, log = given
        self.add_loss(-0.001 * ops.mean(1 + log - mean**2 - ops.exp(log)))
        return mean + ops.exp(0.5 * log) * keras.random.normal(ops.shape(mean), seed=self.seeds)


def vae() -> keras.Model:
    image = keras.Input(IMAGE)
    x = layers.Flatten()(blocks(image))
    x = Sample()([layers.Dense(8)(x), layers.Dense(8)(x)])
    x = blocks(layers.Reshape((16, 16, 2))(layers.Dense(512, activation="gelu")(x)))
    model = keras.Model(image, layers.Conv2D(3, 3, padding="same")(x))
    model.compile("adam", "mse")
    return model


def itself(n: int) -> tuple[Any, Any]:
    x, _ = random_arrays(IMAGE)(n)
    return x, x


class Experts(layers.Layer):
    """Each token goes to the two experts that score highest; what they say is weighed by their scores."""

    def build(self, shape: Any) -> None:
        self.router = self.add_weight(shape=(shape[-1], 4))
        self.into = self.add_weight(shape=(4, shape[-1], 64))
        self.out = self.add_weight(shape=(4, 64, shape[-1]))

    def call(self, x: Any) -> Any:
        scores, chosen = ops.top_k(ops.softmax(x @ self.router), 2)
        weights = ops.sum(ops.one_hot(chosen, 4) * scores[..., None], axis=-2)
        hidden = ops.gelu(ops.einsum("btd,edh->beth", x, self.into))
        return x + ops.einsum("beth,ehd,bte->btd", hidden, self.out, weights)


def experts() -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(3):
        x = Experts()(layers.LayerNormalization()(x))
    return classifier(inputs, x)


class Towers(keras.Model):
    """Two towers: of all pairs in a batch, those that came together are to score highest."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (
            keras.Sequential([layers.Dense(64, activation="gelu") for _ in range(4)]) for _ in range(2)
        )

    def call(self, x: Any) -> Any:
        return self.left(x[0]) @ ops.transpose(self.right(x[1]))

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        pairs = ops.arange(ops.shape(y_pred)[0])
        return ops.mean(keras.losses.sparse_categorical_crossentropy(pairs, y_pred, from_logits=True))


def towers() -> keras.Model:
    model = Towers()
    model((np.zeros((2, 32), "float32"), np.zeros((2, 32), "float32")))
    model.compile("adam")
    return model


class Distilled(keras.Model):
    """A student learns what a teacher says, which learns nothing."""

    def __init__(self) -> None:
        super().__init__()
        image = keras.Input(IMAGE)
        self.teacher = classifier(image, blocks(image, 2, 16))
        self.teacher.trainable = False
        image = keras.Input(IMAGE)
        self.student = classifier(image, blocks(image, 4))

    def call(self, x: Any, training: bool = False) -> Any:
        return self.student(x, training=training)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        said = self.teacher(x, training=False)
        return super().compute_loss(x, y, y_pred) + ops.mean(keras.losses.kl_divergence(said, y_pred))


def distilled() -> keras.Model:
    model = Distilled()
    model.build((None, *IMAGE))
    model.compile("adam", CROSSENTROPY)
    return model


def ctc() -> keras.Model:
    """Labels are shorter than what is said: targets do not have the output's shape."""
    inputs = x = keras.Input((32, 16))
    for _ in range(3):
        x = layers.TimeDistributed(layers.Dense(32, activation="gelu"))(x)
    model = keras.Model(inputs, layers.Dense(9)(x))
    model.compile("adam", keras.losses.CTC())
    return model


def labels(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(4)
    return rng.normal(size=(n, 32, 16)).astype("float32"), rng.integers(1, 9, (n, 6)).astype("int32")


def detector() -> keras.Model:
    """Targets in a dict, one of them with another loss."""
    image = keras.Input(IMAGE)
    x = layers.Flatten()(layers.MaxPooling2D(4)(blocks(image, 4)))
    boxes = layers.Reshape((5, 4), name="boxes")(layers.Dense(20)(x))
    kinds = layers.Softmax(name="kinds")(layers.Reshape((5, 7))(layers.Dense(35)(x)))
    model = keras.Model(image, {"boxes": boxes, "kinds": kinds})
    model.compile(
        "adam", {"boxes": keras.losses.Huber(), "kinds": CROSSENTROPY}, loss_weights={"boxes": 2.0, "kinds": 1.0}
    )
    return model


def targets(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(n, *IMAGE)).astype("float32")
    return x, {"boxes": rng.normal(size=(n, 5, 4)).astype("float32"), "kinds": rng.integers(0, 7, (n, 5))}


class Waves(layers.Layer):
    def call(self, x: Any) -> Any:
        real, imaginary = ops.fft2((x, ops.zeros_like(x)))
        return x + 0.01 * ops.tanh(real + imaginary)


def fourier(blocks: int = 3) -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(blocks):
        x = Waves()(layers.Dense(32)(x))
    return classifier(inputs, x)


def clipped(x: Any) -> Any:
    return np.clip(x, -1.0, 1.0)


def tanh_eagerly(x: Any) -> Any:
    return tf.tanh(x)  # eagerly, and its gradient is taken eagerly, too


class Foreign(layers.Layer):
    """Python within the step, whose result has a shape that is told."""

    def __init__(self, way: Any, function: Any) -> None:
        super().__init__()
        self.way, self.function = way, function

    def call(self, x: Any) -> Any:
        given = x if self.function is tanh_eagerly else tf.stop_gradient(x)
        found = self.way(self.function, [given], tf.float32)
        found.set_shape(x.shape)
        return x + found

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def foreign(way: Any, function: Any, blocks: int = 3) -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(blocks):
        x = Foreign(way, function)(layers.Dense(64, activation="gelu")(x))
    return classifier(inputs, x)


class Picked(layers.Layer):
    """As many rows go on as data decides: those above a bound, or those that differ."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x: Any) -> Any:
        rows = tf.reshape(x, (-1, x.shape[-1]))
        if self.way == "mask":
            kept = tf.tanh(tf.boolean_mask(rows, rows[:, 0] > 0) @ self.kernel)
            return x + tf.reduce_mean(kept, axis=0)
        kinds = tf.cast(tf.clip_by_value(rows[:, 0] * 2, -2, 2), tf.int32)
        found, place = tf.unique(kinds)
        seen = tf.tanh(tf.cast(found, tf.float32)[:, None] * self.kernel[0])
        return x + tf.reshape(tf.gather(seen, place), tf.shape(x))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def picked(way: str, blocks: int = 3) -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(blocks):
        x = Picked(way)(layers.Dense(32, activation="gelu")(x))
    return classifier(inputs, x)


class Scanned(layers.Layer):
    """A recurrence of one's own: a loop over the time that writes what it finds into a TensorArray."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x: Any) -> Any:
        steps = tf.shape(x)[1]
        found = tf.TensorArray(tf.float32, size=steps, element_shape=(None, x.shape[-1]))
        state = tf.zeros_like(x[:, 0])
        _, _, found = tf.while_loop(
            lambda k, *_: k < steps,
            lambda k, h, a: (k + 1, (n := tf.tanh(x[:, k] + h @ self.kernel)), a.write(k, n)),
            (0, state, found),
        )
        y = tf.transpose(found.stack(), (1, 0, 2))
        y.set_shape(x.shape)
        return y


def scanned(blocks: int = 2, width: int = 16) -> keras.Model:
    inputs = x = keras.Input((12, 16))
    for _ in range(blocks):
        x = Scanned()(layers.Dense(width)(x))
    return classifier(inputs, x)


class Dropped(layers.Layer):
    """Stochastic depth (Huang et al., 2016): whole samples skip a block."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(seed)

    def call(self, x: Any, training: bool = False) -> Any:
        if not training:
            return x
        drawn = keras.random.uniform((ops.shape(x)[0], 1, 1, 1), seed=self.seeds)
        return x * ops.cast(drawn > 0.2, x.dtype) / 0.8


def convnext() -> keras.Model:
    """Blocks of ConvNeXt (Liu et al., 2022)."""
    inputs = keras.Input(IMAGE)
    x = layers.Conv2D(16, 2, strides=2)(inputs)
    for k in range(3):
        y = layers.LayerNormalization()(layers.DepthwiseConv2D(7, padding="same")(x))
        y = layers.Dense(16)(layers.Dense(64, activation="gelu")(y))
        x = x + Dropped(k)(y)
    return classifier(inputs, x)


def masked_state(lstms: int = 1, batch: int = BATCH) -> keras.Model:
    """Recurrent layers that keep their state from batch to batch, over sentences with padding."""
    inputs = keras.Input((20,), batch_size=batch, dtype="int32")
    x = layers.Embedding(30, 32, mask_zero=True)(inputs)
    for _ in range(lstms):
        x = layers.LSTM(32, return_sequences=True, stateful=True)(x)
    x = layers.GRU(16, stateful=True)(x)
    return classifier(inputs, x)


def padded_sentences(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.integers(1, 30, (n, 20)).astype("int32")
    x[:, 15:] = 0
    return x, rng.integers(0, 4, n)


ROWS = random_arrays((24, 32))
PICTURES = random_arrays(IMAGE)

KINDS = {
    "gradient penalty": Kind("GAN with a gradient penalty", gan, PICTURES),
    "diffusion": Kind("diffusion, noise drawn in the step", diffusion, PICTURES),
    "vae": Kind("variational autoencoder", vae, itself),
    "experts": Kind("mixture of experts, weighed", experts, ROWS),
    "towers": Kind("two towers, negatives in the batch", towers, random_arrays((32,), (32,)), 512),
    "distilled": Kind("distillation", distilled, PICTURES),
    "ctc": Kind("CTC", ctc, labels),
    "detector": Kind("targets in a dict", detector, targets),
    "fourier": Kind("Fourier transforms", fourier, ROWS),
    "py_function": Kind("py_function", partial(foreign, tf.py_function, tanh_eagerly), ROWS),
    "numpy_function": Kind("numpy_function", partial(foreign, tf.numpy_function, clipped), ROWS),
    "mask": Kind("boolean_mask", partial(picked, "mask"), ROWS),
    "unique": Kind("unique", partial(picked, "unique"), ROWS),
    "tensor array": Kind("TensorArray in a loop", scanned, random_arrays((12, 16)), 256),
    "convnext": Kind("ConvNeXt blocks, stochastic depth", convnext, PICTURES),
    "masked state": Kind("stateful recurrent layers, masks", masked_state, padded_sentences, BATCH),
    **{
        way.__name__: Kind(title, partial(decides, way), ROWS)
        for way, title in (
            (ranged, "tf.range of data"),
            (routed, "rows routed to experts, stitched together"),
            (looped, "a loop that data ends"),
            (repeated, "tf.repeat of data"),
            (shortened, "ragged tensors within the model"),
            (mapped, "boolean_mask in map_fn"),
        )
    },
    "ragged": Kind("ragged inputs, not built", words, ragged_sentences),
    "sparse": Kind("sparse inputs", features, few, 512),
}
"""By name."""
