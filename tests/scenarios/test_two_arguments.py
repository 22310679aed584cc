"""`compile(model, budget)` and nothing else, on models as people train them: the numbers are plain ones, bit by bit.

Each plan is made at the first batch. Where a model, its losses or its data need more than Keras's own step, the plan
has to find that by itself.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CROSSENTROPY, Case, arrays, assert_same_state, compile_quickly, make, train
from keras import layers, ops

pytestmark = [pytest.mark.usefixtures("fresh_keras", "no_grappler")]

BATCH = 16
IMAGE = (16, 16, 3)


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
    x, _ = arrays(IMAGE)(n)
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


def fourier() -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(3):
        x = Waves()(layers.Dense(32)(x))
    return classifier(inputs, x)


def _clipped(x: Any) -> Any:
    return np.clip(x, -1.0, 1.0)


def _tanh(x: Any) -> Any:
    return tf.tanh(x)  # eagerly, and its gradient is taken eagerly, too


class Foreign(layers.Layer):
    """Python within the step, whose result has a shape that is told."""

    def __init__(self, way: Any, function: Any) -> None:
        super().__init__()
        self.way, self.function = way, function

    def call(self, x: Any) -> Any:
        given = x if self.function is _tanh else tf.stop_gradient(x)
        found = self.way(self.function, [given], tf.float32)
        found.set_shape(x.shape)
        return x + found

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def foreign(way: Any, function: Any) -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(3):
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


def picked(way: str) -> keras.Model:
    inputs = x = keras.Input((24, 32))
    for _ in range(3):
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


def scanned() -> keras.Model:
    inputs = x = keras.Input((12, 16))
    for _ in range(2):
        x = Scanned()(layers.Dense(16)(x))
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


def masked_state() -> keras.Model:
    """Recurrent layers that keep their state from batch to batch, over sentences with padding."""
    inputs = keras.Input((20,), batch_size=BATCH, dtype="int32")
    x = layers.Embedding(30, 32, mask_zero=True)(inputs)
    x = layers.LSTM(32, return_sequences=True, stateful=True)(x)
    x = layers.GRU(16, stateful=True)(x)
    return classifier(inputs, x)


def sentences(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    x = rng.integers(1, 30, (n, 20)).astype("int32")
    x[:, 15:] = 0
    return x, rng.integers(0, 4, n)


CASES = {
    "gradient penalty": Case(gan, arrays(IMAGE), budget=0.5),
    "diffusion": Case(diffusion, arrays(IMAGE), budget=0.7),
    "vae": Case(vae, itself, budget=0.8),
    "experts": Case(experts, arrays((24, 32)), budget=0.75),
    "towers": Case(towers, arrays((32,), (32,)), budget=1.0),
    "distilled": Case(distilled, arrays(IMAGE), budget=0.7),
    "ctc": Case(ctc, labels, budget=0.97),
    "detector": Case(detector, targets, budget=0.7, missing=5),
    "fourier": Case(fourier, arrays((24, 32)), budget=0.7),
    "py_function": Case(lambda: foreign(tf.py_function, _tanh), arrays((24, 32)), budget=0.9),
    "numpy_function": Case(lambda: foreign(tf.numpy_function, _clipped), arrays((24, 32)), budget=0.85),
    **{way: Case(lambda way=way: picked(way), arrays((24, 32)), budget=0.85) for way in ("mask", "unique")},
    "tensor array": Case(scanned, arrays((12, 16)), budget=0.99),
    "convnext": Case(convnext, arrays(IMAGE), budget=0.7),
    "masked state": Case(masked_state, sentences, budget=0.9),
}


ORDERED = ("gradient penalty", "towers", "tensor array")  # nothing has to be computed again


@pytest.mark.long(but=("detector", "numpy_function", "tensor array", "mask", "unique"))
@pytest.mark.feature("Models", "GAN with a gradient penalty", name="gradient penalty")
@pytest.mark.feature("Models", "diffusion: noise drawn in the step", name="diffusion")
@pytest.mark.feature("Models", "variational autoencoder", name="vae")
@pytest.mark.feature("Models", "mixture of experts, routed by scores", name="experts")
@pytest.mark.feature("Models", "two towers, negatives in the batch", name="towers")
@pytest.mark.feature("Models", "distillation", name="distilled")
@pytest.mark.feature("Models", "CTC: targets of another shape than the output", name="ctc")
@pytest.mark.feature("Models", "targets in a dict", name="detector")
@pytest.mark.feature("Models", "Fourier transforms", name="fourier")
@pytest.mark.feature(
    "Models", "py_function, numpy_function", name=["py_function", "numpy_function"], note="`set_shape` tells the size"
)
@pytest.mark.feature(
    "Models", "boolean_mask, unique", name=["mask", "unique"], note="planned for the most that can come"
)
@pytest.mark.feature("Models", "TensorArray in a loop of one's own", name="tensor array")
@pytest.mark.feature("Models", "ConvNeXt blocks, stochastic depth", name="convnext")
@pytest.mark.feature("Models", "stateful recurrent layers with masks", name="masked state")
@pytest.mark.parametrize("name", CASES)
def test_training_is_equal(name):
    case = CASES[name]
    plain, model = make(case), make(case)
    compile_quickly(model, case, batch_size=None, data=None, time_limit=60)
    assert train(model, case, 2) == train(plain, case, 2)
    assert_same_state(plain, model)
    assert model.checkmate.recomputations > 0 or name in ORDERED
