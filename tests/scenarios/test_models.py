"""Every kind of model trains as before: some steps of a rematerialized step equal the plain ones, bit by bit.

`tests/test_emit.py` has convolutions, normalisations, attention, recurrent layers, regularizers, several inputs and
outputs; here are the kinds of models and layers that it leaves out, one small model each.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CROSSENTROPY, Case, assert_same_state, compile_quickly, images, make, tokens, train
from keras import layers, ops

from benchmarks.lib.kinds import random_arrays
from checkmate_tf.trace.sizes.loops import function_graph, trip_count
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:Layer .* was passed non-serializable", "ignore:The structure of `inputs`"),
]

BATCH = 16


def finish(inputs: Any, x: Any, optimizer: Any = "sgd", **options: Any) -> keras.Model:
    """Pool what is left, classify it, compile."""
    if len(x.shape) > 2:
        x = layers.Lambda(lambda t: ops.mean(t, axis=tuple(range(1, len(t.shape) - 1))))(x)
    model = keras.Model(inputs, layers.Dense(4, activation="softmax", dtype="float32")(x))
    model.compile(optimizer=optimizer, **({"loss": CROSSENTROPY} | options))
    return model


def convolutions(x: Any, n: int = 3, width: int = 8) -> Any:
    for _ in range(n):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    return x


def stack(*between: Any, shape: tuple[int, ...] = (16, 16, 3), repeat: int = 2, **options: Any) -> keras.Model:
    """A chain of the given layers (or what makes them), a few times over."""
    inputs = x = keras.Input(shape)
    for _ in range(repeat):
        for layer in between:
            x = layer(x) if isinstance(layer, layers.Layer) else layer()(x)
    return finish(inputs, x, **options)


# Models


def shared_layers() -> keras.Model:
    """One encoder for two inputs, and one layer called three times in it."""
    a, b = keras.Input((16, 16, 3)), keras.Input((16, 16, 3))
    again = layers.Conv2D(8, 3, padding="same", activation="tanh")
    norm = layers.BatchNormalization()
    image = x = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 1)(x)
    for _ in range(3):
        x = norm(again(x))
    encoder = keras.Model(image, x)
    return finish([a, b], layers.Subtract()([encoder(a), encoder(b)]))


class Block(keras.Model):
    """A subclassed model with a functional one and a Sequential inside."""

    def __init__(self) -> None:
        super().__init__()
        inputs = keras.Input((16, 16, 8))
        self.inner = keras.Model(inputs, layers.BatchNormalization()(convolutions(inputs, 2)))
        self.outer = keras.Sequential([layers.Conv2D(8, 3, padding="same"), layers.Dropout(0.2), layers.ReLU()])

    def call(self, x: Any, training: bool = False) -> Any:
        return x + self.outer(self.inner(x, training=training), training=training)


def nested() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 1),
            Block(),
            keras.Sequential([Block(), layers.AveragePooling2D(2)]),
            layers.Flatten(),
            layers.Dense(4, activation="softmax"),
        ]
    )
    model.compile("sgd", CROSSENTROPY)
    return model


def heads() -> keras.Model:
    """A list of outputs, of which one has no loss, one two metrics and one weights."""
    inputs = keras.Input((16, 16, 3))
    x = layers.GlobalAveragePooling2D()(convolutions(inputs))
    outputs = [layers.Dense(4, name="a")(x), layers.Dense(2, name="b")(x), layers.Dense(1, name="c")(x)]
    model = keras.Model(inputs, outputs)
    losses = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None, keras.losses.Huber()]
    model.compile("sgd", losses, metrics=[["accuracy"], None, ["mae", "mse"]], loss_weights=[1.0, None, 0.3])
    return model


def heads_data(n: int) -> tuple[Any, Any]:
    x, y = images(16)(n)
    rng = np.random.default_rng(1)
    return x, [y, rng.normal(size=(n, 2)).astype("float32"), rng.uniform(size=(n, 1)).astype("float32")]


class Sampling(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs: Any) -> Any:
        mean, log_variance = inputs
        self.add_loss(-0.5e-2 * ops.mean(1 + log_variance - ops.square(mean) - ops.exp(log_variance)))
        return mean + ops.exp(0.5 * log_variance) * keras.random.normal(ops.shape(mean), seed=self.seeds)


def autoencoder() -> keras.Model:
    """Its own `compute_loss` without targets, and a layer that samples and adds a loss."""

    class Autoencoder(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.square(x - y_pred)) + sum(self.losses)

    inputs = keras.Input((16, 16, 3))
    x = convolutions(inputs, 2)
    x = Sampling()([layers.Conv2D(8, 1)(x), layers.Conv2D(8, 1)(x)])
    model = Autoencoder(inputs, layers.Conv2D(3, 3, padding="same")(convolutions(x, 2)))
    model.compile("adam")
    return model


def only_images(n: int) -> tuple[Any, Any]:
    return images(16)(n)[0], None


class Adversarial(keras.Model):
    """Two networks and two optimizers, each trained on what the other makes."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.judge = keras.Sequential(
            [keras.Input((16, 16, 3)), *(layers.Conv2D(8, 3, activation="leaky_relu") for _ in range(3))]
            + [layers.GlobalMaxPooling2D(), layers.Dense(1)]
        )
        self.maker = keras.Sequential(
            [keras.Input((16,)), layers.Dense(4 * 4 * 8), layers.Reshape((4, 4, 8))]
            + [layers.Conv2DTranspose(8, 4, strides=2, padding="same", activation="relu") for _ in range(2)]
            + [layers.Conv2D(3, 3, padding="same", activation="tanh")]
        )
        self.built = True

    def compile(self, judge_optimizer: Any, maker_optimizer: Any, loss: Any) -> None:
        super().compile()
        self.judge_optimizer, self.maker_optimizer, self.criterion = judge_optimizer, maker_optimizer, loss
        self.judge_loss = keras.metrics.Mean(name="judge_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.judge_loss]

    def train_step(self, data: Any) -> Any:
        real = data[0] if isinstance(data, tuple) else data
        n = tf.shape(real)[0]
        made = self.maker(keras.random.normal((n, 16), seed=self.seeds))
        labels = tf.concat([tf.zeros((n, 1)), tf.ones((n, 1))], axis=0)
        with tf.GradientTape() as tape:
            loss = self.criterion(labels, self.judge(tf.concat([real, made], axis=0)))
        weights = self.judge.trainable_weights
        self.judge_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            fooled = self.criterion(
                tf.zeros((n, 1)), self.judge(self.maker(keras.random.normal((n, 16), seed=self.seeds)))
            )
        weights = self.maker.trainable_weights
        self.maker_optimizer.apply_gradients(zip(tape.gradient(fooled, weights), weights, strict=True))
        self.judge_loss.update_state(loss)
        return {"judge_loss": self.judge_loss.result(), "fooled": fooled}


def adversarial() -> keras.Model:
    model = Adversarial()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-2, momentum=0.5), keras.optimizers.SGD(1e-2), loss)
    return model


def float64() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = inputs
    for _ in range(3):
        x = layers.BatchNormalization(dtype="float64")(
            layers.Conv2D(8, 3, padding="same", dtype="float64", activation="tanh")(x)
        )
    return finish(inputs, x)


def mixed_float16() -> keras.Model:
    """Keras wraps the optimizer in a LossScaleOptimizer by itself."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        return stack(lambda: layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization, layers.ReLU, repeat=3)
    finally:
        keras.config.set_dtype_policy("float32")


def frozen() -> keras.Model:
    """The lower half is frozen, a batch normalisation within it, too."""
    model = stack(
        lambda: layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization, lambda: layers.Activation("tanh")
    )
    for layer in model.layers[:4]:
        layer.trainable = False
    model.compile("sgd", CROSSENTROPY)
    return model


# Custom layers


@tf.custom_gradient
def clipped(x: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(upstream, -1e-3, 1e-3) * tf.cast(x > 0, x.dtype)

    return tf.nn.relu(x), gradient


@ops.custom_gradient
def swish(x: Any) -> Any:
    gate = ops.sigmoid(x)

    def gradient(*_: Any, upstream: Any = None) -> Any:
        upstream = _[0] if upstream is None else upstream
        return upstream * (gate + x * gate * (1 - gate))

    return x * gate, gradient


class OwnGradients(layers.Layer):
    """Gradients of its own, one of which TensorFlow recomputes by itself."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 3, shape[-1], 8))

    def call(self, x: Any) -> Any:
        again = tf.recompute_grad(lambda t: tf.tanh(tf.nn.conv2d(t, self.kernel, 1, "SAME")))
        return swish(clipped(again(x)))


class RawOps(layers.Layer):
    """TensorFlow's own functions: slices, gathers, sorts, norms, images and Fourier transforms."""

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        n = tf.shape(x)[0]
        a, b = tf.split(x * self.scale, 2, axis=-1)
        a = tf.nn.l2_normalize(tf.image.resize(a, (16, 16), method="bicubic"), axis=-1)
        b = tf.cumsum(tf.sort(b, axis=1), axis=2) * 0.1
        c = tf.einsum("bhwc,bhwd->bhcd", a, b)
        c = tf.reshape(c, [n, 16, 1, -1]) + tf.reduce_logsumexp(a, axis=-1, keepdims=True)
        spectrum = tf.math.real(tf.signal.fft2d(tf.complex(x[..., 0], x[..., 1])))
        best, _ = tf.math.top_k(tf.reshape(x, [n, -1]), 16)
        taken = tf.gather(x, [3, 1, 0], axis=-1)
        moved = tf.tensor_scatter_nd_add(taken, [[0, 0, 0]], taken[:1, 0, 1])
        y = tf.concat([a, b, moved, spectrum[..., None] * 1e-2], axis=-1)
        y = tf.where(y > 0, y, tf.stop_gradient(y) * 0.5 + tf.pad(y, [[0, 0], [1, 0], [0, 0], [0, 0]])[:, :-1])
        y = tf.transpose(tf.transpose(y, [0, 3, 1, 2]), [0, 2, 3, 1])
        return tf.nn.space_to_depth(y, 2) + tf.reduce_mean(best) + tf.reduce_mean(c)


def lambdas() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = RawOps()(layers.Lambda(lambda t: tf.nn.silu(t) * 0.5)(x))
    x = layers.Conv2D(16, 3, padding="same")(x)
    x = ops.concatenate([ops.tanh(x), ops.flip(x, axis=1)], axis=-1)[:, 1:]
    return finish(inputs, ops.max(x, axis=2, keepdims=True) * x)


class Chooses(layers.Layer):
    """Conditionals on data and on a counter that it advances, and a loop with a number of rounds."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        even = tf.equal(self.calls.value % 2, 0)
        x = tf.cond(even, lambda: tf.tanh(x @ self.kernel), lambda: tf.nn.relu(x) * 2.0)
        x = ops.cond(ops.mean(x) > 0.1, lambda: ops.sin(x), lambda: x * x)
        x = tf.switch_case(self.calls.value % 3, [lambda: x, lambda: tf.exp(-x * x), lambda: x @ self.kernel])
        body = lambda k, t: (k + 1, tf.tanh(t @ self.kernel))  # noqa: E731
        return tf.while_loop(lambda k, _: k < 3, body, (tf.constant(0), x), maximum_iterations=3)[1]


class Loops(layers.Layer):
    """Keras's own loops: over time, over a range, over the samples."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

    def call(self, x: Any) -> Any:
        def step(carry: Any, t: Any) -> Any:
            carry = ops.tanh(t + ops.matmul(carry, self.kernel))
            return carry, carry

        _, y = ops.scan(step, ops.zeros_like(x[:, 0]), ops.transpose(x, (1, 0, 2)))
        y = ops.transpose(y, (1, 0, 2))
        y = ops.fori_loop(0, 2, lambda _, t: ops.sin(t) + x, y)
        return ops.vectorized_map(lambda t: ops.matmul(t, self.kernel), y)


# Sequences, masks, preprocessing


def masked() -> keras.Model:
    """The mask of an embedding through recurrent layers, a normalisation and a mean."""
    inputs = keras.Input((20,), dtype="int32")
    x = layers.Embedding(50, 32, mask_zero=True)(inputs)
    x = layers.Bidirectional(layers.GRU(16, return_sequences=True))(x)
    x = layers.BatchNormalization()(x)
    x = layers.TimeDistributed(layers.Dense(32, activation="tanh"))(x)
    return finish(inputs, layers.GlobalAveragePooling1D()(layers.Dense(32, activation="tanh")(x)))


def masked_vectors(n: int) -> tuple[Any, Any]:
    x, y = random_arrays((20, 32))(n)
    x[:, 12:] *= np.arange(n)[:, None, None] % 2 == 0
    return x, y


def masking() -> keras.Model:
    inputs = keras.Input((20, 32))
    x = layers.Masking()(inputs)
    cells = layers.StackedRNNCells([layers.LSTMCell(16, recurrent_dropout=0.2), layers.GRUCell(16)])
    x = layers.RNN(cells, return_sequences=True)(x)
    x = layers.Dense(32, activation="gelu")(layers.Dense(32, activation="tanh")(x))
    return finish(inputs, layers.SimpleRNN(16, go_backwards=True)(x))


def stateful_recurrent() -> keras.Model:
    """Its state goes on from batch to batch, so the batch is fixed."""
    inputs = keras.Input(batch_shape=(BATCH, 20, 32))
    x = layers.LSTM(16, stateful=True, return_sequences=True)(inputs)
    for _ in range(2):
        x = layers.Dense(64, activation="tanh")(x)
    return finish(inputs, x)


def tied_embeddings() -> keras.Model:
    """Rows of one table are gathered twice and the table multiplied once: sparse and dense gradients meet."""
    inputs = keras.Input((24,), dtype="int32")
    table = layers.ReversibleEmbedding(50, 32)
    x = table(inputs) + layers.Embedding(50, 32)(inputs) + table(inputs[:, ::-1])
    for _ in range(2):
        x = layers.LayerNormalization()(layers.Dense(32, activation="gelu")(x) + x)
    model = keras.Model(inputs, table(x, reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def next_tokens(n: int) -> tuple[Any, Any]:
    x, _ = tokens(24)(n)
    return x, np.roll(x, -1, axis=1)


def attention() -> keras.Model:
    inputs = keras.Input((24, 32))
    x = layers.RMSNormalization()(inputs)
    x = layers.GroupQueryAttention(8, 4, 2, dropout=0.1)(x, x)
    x = layers.Attention(use_scale=True)([x, layers.Dense(32)(x)], use_causal_mask=True)
    x = layers.UnitNormalization()(layers.EinsumDense("abc,cd->abd", output_shape=(None, 32))(x))
    return finish(inputs, layers.AdditiveAttention()([x, x]), keras.optimizers.AdamW())


def augmentation() -> keras.Model:
    return stack(
        layers.Rescaling(0.5, 0.1),
        layers.RandomFlip(seed=1),
        layers.RandomRotation(0.2, seed=2),
        layers.RandomZoom(0.2, seed=3),
        layers.RandomTranslation(0.1, 0.1, seed=4),
        layers.RandomContrast(0.3, value_range=(-1, 1), seed=5),
        layers.RandomBrightness(0.2, value_range=(-1, 1), seed=6),
        layers.RandomCrop(14, 14, seed=7),
        layers.Resizing(16, 16),
        layers.CenterCrop(12, 12),
        layers.GaussianNoise(0.1, seed=8),
        *(layers.Conv2D(8, 3, padding="same", activation="relu") for _ in range(3)),
        layers.AlphaDropout(0.1, seed=9),
        layers.GaussianDropout(0.1, seed=10),
        repeat=1,
    )


def preprocessing() -> keras.Model:
    """Tables and statistics inside of the model."""
    numbers, kinds = keras.Input((24,)), keras.Input((24,), dtype="int64")
    normal, bins = layers.Normalization(), layers.Discretization(num_bins=8)
    sample = np.random.default_rng(0).normal(size=(64, 24)).astype("float32")
    normal.adapt(sample)
    bins.adapt(sample)
    lookup = layers.IntegerLookup(vocabulary=[3, 5, 7, 11])
    x = layers.Embedding(10, 32)(bins(numbers)) * layers.Reshape((24, 1))(normal(numbers))
    x += layers.Embedding(8, 32)(lookup(kinds)) + layers.Embedding(16, 32)(layers.Hashing(16)(kinds))
    coded = layers.CategoryEncoding(4, output_mode="multi_hot")(kinds % 4)
    x = layers.Dense(32, activation="tanh")(layers.Dense(32, activation="tanh")(x))
    return finish([numbers, kinds], layers.Concatenate()([layers.GlobalMaxPooling1D()(x), coded]))


def preprocessing_data(n: int) -> tuple[Any, Any]:
    numbers, y = random_arrays((24,))(n)
    return (numbers, np.random.default_rng(2).integers(0, 12, (n, 24))), y


def strings() -> keras.Model:
    """Words come as strings and become numbers within the model."""
    inputs = keras.Input((24,), dtype="string")
    x = layers.StringLookup(vocabulary=["a", "b", "c"])(inputs)
    x = layers.Embedding(5, 32)(x)
    for _ in range(3):
        x = layers.Dense(32, activation="tanh")(x)
    return finish(inputs, x)


def words(n: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    return tf.constant(rng.choice(["a", "b", "c", "d"], (n, 24))), rng.integers(0, 4, n)


VOLUME = (8, 8, 8, 4)
CASES = {
    "shared_layers": Case(shared_layers, random_arrays((16, 16, 3), (16, 16, 3))),
    "nested": Case(nested, images(16)),
    "heads": Case(heads, heads_data, budget=0.85, missing=5),
    "autoencoder": Case(autoencoder, only_images, budget=0.7),
    "adversarial": Case(adversarial, only_images, by_data=True, budget=0.8),
    "float64": Case(float64, images(16)),
    "mixed_float16": Case(mixed_float16, images(16), budget=0.7),
    "frozen": Case(frozen, images(16), budget=0.9),
    "own_gradients": Case(lambda: stack(lambda: layers.Conv2D(8, 3, padding="same"), OwnGradients), images(16)),
    "lambdas": Case(lambdas, images(16), budget=0.8),
    "conditions": Case(lambda: stack(lambda: layers.Dense(32), Chooses, shape=(24, 8)), random_arrays((24, 8))),
    "loops": Case(lambda: stack(lambda: layers.Dense(32), Loops, shape=(24, 32)), random_arrays((24, 32)), budget=0.7),
    "masked": Case(masked, tokens(20), budget=0.8),
    "masking": Case(masking, masked_vectors, budget=0.92),
    "stateful_recurrent": Case(stateful_recurrent, random_arrays((20, 32)), budget=0.88),
    "conv_lstm": Case(
        lambda: stack(lambda: layers.ConvLSTM2D(4, 3, padding="same", return_sequences=True), shape=(4, 8, 8, 3)),
        random_arrays((4, 8, 8, 3)),
        budget=0.7,
    ),
    "tied_embeddings": Case(tied_embeddings, next_tokens),
    "attention": Case(attention, random_arrays((24, 32)), budget=0.85),
    "augmentation": Case(augmentation, images(16), budget=0.7),
    "preprocessing": Case(preprocessing, preprocessing_data, budget=0.85),
    "strings": Case(strings, words, budget=0.75),
    "spectral": Case(
        lambda: stack(lambda: layers.SpectralNormalization(layers.Conv2D(8, 3, padding="same")), layers.PReLU),
        images(16),
        budget=0.7,
    ),
    "volumes": Case(
        lambda: stack(
            lambda: layers.Conv3D(4, 3, padding="same", activation="elu"),
            lambda: layers.MaxPooling3D(2),
            lambda: layers.Conv3DTranspose(4, 3, strides=2, padding="same"),
            lambda: layers.GroupNormalization(2),
            shape=VOLUME,
        ),
        random_arrays(VOLUME),
    ),
    "convolutions": Case(
        lambda: stack(
            lambda: layers.SeparableConv2D(8, 3, padding="same", activation="hard_sigmoid"),
            lambda: layers.Conv2DTranspose(8, 3, strides=2, padding="same", activation="mish"),
            lambda: layers.Conv2D(8, 3, dilation_rate=2, activation="selu"),
            lambda: layers.DepthwiseConv2D(3, strides=2, depth_multiplier=2),
            lambda: layers.LayerNormalization(axis=[1, 2]),
        ),
        images(16),
    ),
    "waves": Case(
        lambda: stack(
            lambda: layers.Conv1D(16, 3, padding="causal", activation="softplus"),
            lambda: layers.Conv1DTranspose(16, 3, strides=2, padding="same"),
            lambda: layers.SeparableConv1D(16, 3),
            lambda: layers.DepthwiseConv1D(3),
            lambda: layers.MaxPooling1D(2),
            lambda: layers.UnitNormalization(),
            shape=(64, 4),
        ),
        random_arrays((64, 4)),
    ),
}


@pytest.mark.long(but=("mixed_float16", "stateful_recurrent", "frozen"))
@pytest.mark.feature("Models", "shared layers", name="shared_layers")
@pytest.mark.feature("Models", "nested models", name="nested")
@pytest.mark.feature("Models", "several inputs, outputs and losses", name="heads")
@pytest.mark.feature("Models", "compute_loss of its own, layers that sample", name="autoencoder")
@pytest.mark.feature("Models", "several networks and optimizers", name="adversarial")
@pytest.mark.feature("Models", "float64", name="float64")
@pytest.mark.feature("Training", "mixed_float16", name="mixed_float16")
@pytest.mark.feature("Models", "frozen layers", name="frozen")
@pytest.mark.feature("Models", "custom layers and custom gradients", name="own_gradients")
@pytest.mark.feature("Models", "Lambda and raw TensorFlow operations", name="lambdas")
@pytest.mark.feature("Models", "tf.cond, tf.switch_case, tf.while_loop", name="conditions")
@pytest.mark.feature("Models", "keras.ops loops: scan, fori_loop, vectorized_map", name="loops")
@pytest.mark.feature("Models", "masks", name=["masked", "masking"])
@pytest.mark.feature("Models", "stateful and convolutional recurrent layers", name=["stateful_recurrent", "conv_lstm"])
@pytest.mark.feature("Models", "embeddings with sparse gradients, tied embeddings", name="tied_embeddings")
@pytest.mark.feature("Models", "Attention, AdditiveAttention, GroupQueryAttention, RMSNormalization", name="attention")
@pytest.mark.feature("Models", "augmentation layers", name="augmentation")
@pytest.mark.feature("Models", "preprocessing layers, strings", name=["preprocessing", "strings"])
@pytest.mark.feature("Models", "SpectralNormalization", name="spectral")
@pytest.mark.feature("Models", "Conv1D and Conv3D layers", name=["volumes", "waves"])
@pytest.mark.feature("Models", "transposed, separable, depthwise and dilated convolutions", name="convolutions")
@pytest.mark.parametrize("name", CASES)
def test_training_is_equal(name):
    case = CASES[name]
    plain, compiled = make(case), make(case)
    compile_quickly(compiled, case, time_limit=60)
    assert compiled.checkmate.recomputations > 0
    assert train(compiled, case, 2) == train(plain, case, 2)
    assert_same_state(plain, compiled)


COUNTED = {
    "below": (0, lambda i: i < 7, 2),
    "up to": (1, lambda i: i <= 7, 2),
    "above": (9, lambda i: i > 0, -3),
    "down to": (9, lambda i: i >= 0, -3),
    "never": (7, lambda i: i < 7, 1),
    "without an end": (0, lambda i: i > -1, 1),
    "on data": (0, lambda i: i * i < 7, 1),
}


@pytest.mark.parametrize("name", COUNTED)
def test_rounds_of_a_loop_that_counts(name):
    start, goes_on, by = COUNTED[name]
    rounds, k = 0, start
    while goes_on(k) and rounds < 100:
        rounds, k = rounds + 1, k + by

    def step(x):
        return tf.while_loop(lambda i, _: goes_on(i), lambda i, h: (i + by, tf.sin(h)), (tf.constant(start), x))[1]

    traced = trace_step(step, tf.TensorSpec([None, 3]))
    loop = next(op for op in traced.operations if "While" in op.type)
    condition, body = (function_graph(loop.graph, loop.get_attr(key).name) for key in ("cond", "body"))
    known = [np.asarray(v) if (v := tf.get_static_value(t)) is not None else None for t in loop.inputs]
    expected = None if name in ("without an end", "on data") else rounds
    assert trip_count(condition, body, known) == expected


def test_what_a_conditional_keeps_for_its_gradient():
    """One branch keeps its exponential and the other nothing: an optional of that size, and an empty one."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.exp(x), lambda: x * 2.0)
        return tape.gradient(y, x)

    traced = trace_step(step, tf.TensorSpec([None, 3]))
    static = with_static_batch(traced, [tf.TensorShape([BATCH, 3])])
    forward = next(op for op in traced.operations if "If" in op.type and "gradient_tape" not in op.name)
    sizes = [static.bytes_of(t) for t in forward.outputs if t.dtype == tf.variant]
    assert max(sizes) == BATCH * 3 * 4
    backward = next(op for op in traced.operations if "If" in op.type and "gradient_tape" in op.name)
    assert [static.bytes_of(t) for t in backward.outputs if t.dtype.is_floating] == [BATCH * 3 * 4]
