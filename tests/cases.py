"""Small models for the tests, and what it takes to compare two trainings of one bit by bit.

Batches are wide and parameters few, so that activations dominate and a budget bites.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from tensorflow.python.framework import ops

import checkmate_tf
from checkmate_tf.costs import op_costs
from checkmate_tf.keras.batches.spec import data_spec
from checkmate_tf.keras.built.building import build_training
from checkmate_tf.trace.program import Program, build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

__all__ = [
    "CASES",
    "DENSE",
    "LARGE_DENSE",
    "Case",
    "assert_same_after",
    "assert_same_state",
    "compile_quickly",
    "dense_model",
    "images",
    "legacy_tagger",
    "make",
    "program_of",
    "program_of_case",
    "state",
    "tokens",
    "train",
    "vectors",
]

_new = inspect.unwrap(ops._create_c_op)
if list(inspect.signature(_new).parameters)[-1] == "extract_traceback":
    _new.__defaults__ = (*_new.__defaults__[:-1], False)  # for each operation pytest's stack is a long one to keep

BATCH = 16
CROSSENTROPY = "sparse_categorical_crossentropy"


@dataclass(frozen=True)
class Case:
    """A model with its data.

    Attributes
    ----------
    build : callable
        Makes the compiled model; the random seed is set before.
    data : callable (n) -> (x, y)
    budget : float
        Fraction of the plain peak at which something must be recomputed, and so far above the least that a schedule is
        found at once: no test hangs on how fast the machine searches.
    batch : int
    by_data : bool
        The model does not declare its inputs, so `compile` must see a batch.
    missing : int
        Samples that the last batch is short of. (Keras weighs the loss metrics of several outputs by the batch size if
        all batches are full, else by 1.)
    """

    build: Callable[[], keras.Model]
    data: Callable[[int], tuple[Any, Any]]
    budget: float = 0.6
    batch: int = BATCH
    by_data: bool = False
    missing: int = 0


def make(case: Case, seed: int = 7) -> keras.Model:
    """The case's model; equal seeds give equal weights and random streams."""
    keras.utils.set_random_seed(seed)
    return case.build()


def compile_quickly(model: keras.Model, case: Case, **options: Any) -> keras.Model:
    """`checkmate_tf.compile` with the first schedule that fits, and no profiling."""
    x, y = case.data(case.batch)
    given = {"data": (x, y)} if case.by_data else {"batch_size": case.batch}
    settings = {
        "budget": case.budget,
        "costs": "flops",
        "gap": 1.0,
        "time_limit": 10,
        "progress": False,
        "verify": False,
    }
    return checkmate_tf.compile(model, **given | settings | options)


def legacy_tagger(legacy: Any) -> Any:
    """A class for each of 50 words of a sentence of any length, in Keras 2."""
    legacy.utils.set_random_seed(3)
    words = legacy.Input((None,), dtype="int32")
    x = legacy.layers.Embedding(50, 32)(words)  # whose gradient has as many rows as there are words
    for _ in range(3):
        x = legacy.layers.Dense(32, activation="gelu")(x)
    model = legacy.Model(words, legacy.layers.Dense(5, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def assert_same_after(action: Callable[[keras.Model], Any], model: keras.Model, plain: keras.Model) -> None:
    """Do the same with a compiled and a plain model: equal results, and every variable equal bit by bit."""
    results = []
    for each in (model, plain):
        keras.utils.set_random_seed(5)
        results.append(repr(action(each)))
    assert results[0] == results[1]
    assert_same_state(plain, model)


def train(model: keras.Model, case: Case, steps: int = 3, **options: Any) -> dict[str, list[float]]:
    """Losses and metrics of `steps` batches."""
    x, y = case.data(steps * case.batch - case.missing)
    settings = {"batch_size": case.batch, "epochs": 1, "shuffle": False, "verbose": 0}
    return model.fit(x, y, **settings | options).history


def state(model: keras.Model) -> dict[str, np.ndarray]:
    """Every variable that training changes: weights, statistics, seeds, optimizer slots, metrics."""
    variables = {f"model/{k}/{v.path}": v for k, v in enumerate(model.variables)}
    if model.optimizer is not None:
        variables |= {f"optimizer/{k}/{v.path}": v for k, v in enumerate(model.optimizer.variables)}
    variables |= {f"metrics/{k}/{v.path}": v for k, v in enumerate(model.metrics_variables)}
    return {name: np.array(v) for name, v in variables.items()}


def assert_same_state(model: keras.Model, other: keras.Model, rtol: float = 0.0) -> None:
    """Every variable of both models equal: bit by bit, or within `rtol` of the largest entry."""
    mine, theirs = state(model), state(other)
    assert len(mine) == len(theirs)
    for (name, a), (_, b) in zip(mine.items(), theirs.items(), strict=True):
        if rtol:
            a, b = a.astype(np.float64), b.astype(np.float64)
            assert np.abs(a - b).max(initial=0) <= rtol * max(1e-30, np.abs(b).max(initial=0)), name
        else:
            assert a.tobytes() == b.tobytes(), name


@functools.cache
def trained_plainly(name: str) -> tuple[dict[str, list[float]], list[bytes]]:
    """History and state after `train` of the plain model of one of `CASES`, with Grappler off; no test changes them."""
    model = make(CASES[name])
    history = train(model, CASES[name])
    return history, [value.tobytes() for value in state(model).values()]


def program_of(model: keras.Model, case: Case, batch: int | None = None) -> Program:
    """The model's step, traced for a batch, with FLOPs for costs."""
    spec, found = data_spec(model, None, None, case.data(batch or case.batch))
    build_training(model, spec, model.train_step)
    traced = trace_step(model.train_step, spec)
    shapes = [tf.TensorShape([found if d is None else d for d in t.shape]) for t in traced.inputs]
    program = build_program(traced, with_static_batch(traced, shapes), model.name)
    operations = list(program.node_of)
    costs = op_costs([program.static.operations[op] for op in operations], "flops")
    return replace(program, graph=program.graph.with_costs(program.node_costs(operations, costs), "flop"))


@functools.cache
def program_of_case(name: str) -> Program:
    """The program of one of `CASES`, made once: it is a value that no test changes."""
    return program_of(make(CASES[name]), CASES[name])


def images(size: int, classes: int = 4) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    def data(n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(3)
        return rng.normal(size=(n, size, size, 3)).astype("float32"), rng.integers(0, classes, n)

    return data


def tokens(length: int, words: int = 50, classes: int = 4) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    def data(n: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(4)
        return rng.integers(0, words, (n, length)), rng.integers(0, classes, n)

    return data


def _compiled(model: keras.Model, optimizer: Any = "adam", loss: Any = CROSSENTROPY, **options: Any) -> keras.Model:
    model.compile(optimizer=optimizer, loss=loss, **({"metrics": ["accuracy"]} | options))
    return model


def _block(x: Any, width: int) -> Any:
    y = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
    y = layers.BatchNormalization()(y)
    y = layers.ReLU()(y)
    y = layers.Conv2D(width, 3, padding="same")(y)
    y = layers.BatchNormalization()(y)
    return layers.ReLU()(layers.Add()([x, y]))


def residual(dropout: float = 0.3) -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    for _ in range(3):
        x = layers.Dropout(dropout)(_block(x, 8))
    x = layers.GlobalAveragePooling2D()(x)
    return _compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="residual"))


def sums() -> keras.Model:
    """Sums of three and more, forwards and backwards, and counts that are no powers of two: order shows in the bits."""
    inputs = keras.Input((9, 9, 3))
    x = layers.Conv2D(11, 3, padding="same")(inputs)
    for _ in range(3):
        wide = layers.Conv2D(11, 3, padding="same", activation="relu")(x)
        narrow = layers.BatchNormalization()(layers.Conv2D(11, 1)(x))
        gated = layers.Multiply()([x, layers.Activation("tanh")(x)])
        x = layers.LayerNormalization()(layers.Add()([wide, narrow, gated, x]))
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(5, activation="softmax")(x), name="sums")
    return _compiled(model, keras.optimizers.SGD(0.1, momentum=0.9))


def unet() -> keras.Model:
    inputs = x = keras.Input((16, 16, 3))
    skips = []
    for width in (8, 16):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(x)
    for width, skip in zip((16, 8), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.UpSampling2D(interpolation="bilinear")(x), skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.Conv2DTranspose(width, 3, padding="same", activation="relu")(x)
    return _compiled(keras.Model(inputs, layers.Conv2D(4, 1, activation="softmax")(x), name="unet"), "sgd")


def _masks(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(n, 16, 16, 3)).astype("float32"), rng.integers(0, 4, (n, 16, 16))


def transformer() -> keras.Model:
    inputs = keras.Input((24,), dtype="int32")
    x = layers.Embedding(50, 32)(inputs)
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(4, 8, dropout=0.1)(y, y)
    x = layers.Add()([x, layers.Dropout(0.1)(y)])
    y = layers.Dense(64, activation="gelu")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(32)(y))])
    x = layers.GlobalAveragePooling1D()(x)
    return _compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="transformer"), "adamw")


def recurrent() -> keras.Model:
    inputs = keras.Input((20,), dtype="int32")
    x = layers.Embedding(50, 16)(inputs)
    x = layers.LSTM(16, return_sequences=True, dropout=0.2)(x)
    x = layers.GRU(16, return_sequences=True)(x)
    x = layers.Bidirectional(layers.LSTM(8))(x)
    return _compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="recurrent"), "rmsprop")


def separable() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    for width, stride in ((16, 1), (16, 2), (24, 1)):
        if stride == 2:
            x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
        x = layers.DepthwiseConv2D(3, strides=stride, padding="valid" if stride == 2 else "same", use_bias=False)(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
        x = layers.Conv2D(width, 1, use_bias=False)(x)
        x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Flatten()(layers.Conv2D(4, 1)(layers.Dropout(0.1)(x)))
    return _compiled(keras.Model(inputs, layers.Softmax()(x), name="separable"))


class Subclassed(keras.Model):
    """A model that declares neither inputs nor outputs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.wide = [layers.Dense(64, activation="tanh") for _ in range(4)]
        self.norm = layers.BatchNormalization()
        self.drop = layers.Dropout(0.2)
        self.head = layers.Dense(4)

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.wide:
            x = layer(x)
        return self.head(self.drop(self.norm(x), training=training))


def subclassed() -> keras.Model:
    model = Subclassed(name="subclassed")
    model(np.zeros((2, 32, 8), "float32"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return _compiled(model, keras.optimizers.SGD(0.1, momentum=0.9), loss)


def _sequences(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(6)
    return rng.normal(size=(n, 32, 8)).astype("float32"), rng.integers(0, 4, (n, 32))


class OwnStep(keras.Model):
    """A train_step of its own: a penalty on the input's gradient, and clipped gradients."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y_pred = self(x, training=True)
                loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
            penalty = tf.reduce_mean(tf.square(inner.gradient(loss, x)))
            total = loss + 10.0 * penalty
        gradients = tape.gradient(total, self.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss, "penalty": penalty, "norm": norm}


def own_step() -> keras.Model:
    inputs = x = keras.Input((16, 16, 3))
    for _ in range(3):
        x = layers.Conv2D(8, 3, padding="same", activation="tanh")(x)
        x = layers.BatchNormalization()(x)
    x = layers.GlobalAveragePooling2D()(layers.Dropout(0.2)(x))
    return _compiled(OwnStep(inputs, layers.Dense(4, activation="softmax")(x), name="own_step"), metrics=None)


def sequential() -> keras.Model:
    stack: list[Any] = [keras.Input((16, 16, 3))]
    for _ in range(4):
        stack += [layers.Conv2D(8, 3, padding="same"), layers.LeakyReLU(), layers.SpatialDropout2D(0.1)]
    stack += [layers.AveragePooling2D(2), layers.Flatten(), layers.Dense(4, activation="softmax")]
    return _compiled(
        keras.Sequential(stack, name="sequential"), keras.optimizers.Adam(1e-2, clipnorm=1.0, use_ema=True)
    )


def branches() -> keras.Model:
    image, text = keras.Input((16, 16, 3), name="image"), keras.Input((24,), dtype="int32", name="text")
    x = image
    for _ in range(3):
        x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    z = layers.Embedding(50, 16)(text)
    for _ in range(2):
        z = layers.Dense(32, activation="gelu")(z)
    joined = layers.Concatenate()([layers.GlobalAveragePooling2D()(x), layers.GlobalAveragePooling1D()(z)])
    kind = layers.Dense(4, activation="softmax", name="kind")(joined)
    score = layers.Dense(1, name="score")(joined)
    model = keras.Model({"image": image, "text": text}, {"kind": kind, "score": score}, name="branches")
    loss = {"kind": CROSSENTROPY, "score": "mse"}
    return _compiled(model, "adam", loss, metrics={"kind": ["accuracy"]}, loss_weights={"kind": 1.0, "score": 0.5})


def _branches_data(n: int) -> tuple[Any, Any]:
    (image, kind), (text, _) = images(16)(n), tokens(24)(n)
    score = np.random.default_rng(8).normal(size=(n, 1)).astype("float32")
    return {"image": image, "text": text}, {"kind": kind, "score": score}


class Activity(layers.Layer):
    """Adds a loss that depends on the activations."""

    def call(self, x: Any) -> Any:
        self.add_loss(1e-2 * keras.ops.mean(keras.ops.square(x)))
        return x


def regularized() -> keras.Model:
    inputs = x = keras.Input((16, 16, 3))
    for _ in range(3):
        x = layers.Conv2D(8, 3, padding="same", kernel_regularizer="l2", activity_regularizer="l1")(x)
        x = Activity()(layers.ReLU()(layers.GroupNormalization(4)(x)))
    x = layers.GlobalAveragePooling2D()(x)
    return _compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="regularized"))


def mixed() -> keras.Model:
    keras.config.set_dtype_policy("mixed_bfloat16")
    inputs = x = keras.Input((16, 16, 3))
    for _ in range(4):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x)))
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax", dtype="float32")(x), name="mixed")
    keras.config.set_dtype_policy("float32")
    return _compiled(model)


def dense_model(**options: Any) -> keras.Model:
    """A few wide layers: fast to plan, for tests of everything around the plan."""
    inputs = x = keras.Input((64, 8))
    for _ in range(4):
        x = layers.Dense(32, activation="tanh")(x)
    x = layers.GlobalAveragePooling1D()(layers.Dropout(0.1)(layers.BatchNormalization()(x)))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="dense")
    return _compiled(model, keras.optimizers.SGD(0.05, momentum=0.9), **options)


def vectors(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    return rng.normal(size=(n, 64, 8)).astype("float32"), rng.integers(0, 4, n)


DENSE = Case(dense_model, vectors, budget=0.7)


def large_dense_layers() -> keras.Model:
    """Filters with large activations, below dense layers with large weights: those are best updated late."""
    x = inputs = keras.Input((64, 64, 3))
    for k in range(4):
        x = layers.Conv2D(8, 3, padding="same", activation="relu", name=f"filter_{k}")(x)
    x = layers.Flatten()(layers.MaxPooling2D(8)(x))
    for width in (512, 1024):
        x = layers.Dense(width, activation="relu", name=f"wide_{width}")(x)
    return _compiled(keras.Model(inputs, layers.Dense(4, activation="softmax")(x), name="large_dense_layers"))


LARGE_DENSE = Case(large_dense_layers, images(64), budget=0.75)

CASES = {
    "residual": Case(residual, images(16)),
    "sums": Case(sums, images(9, classes=5), budget=0.5, batch=7),
    "unet": Case(unet, _masks),
    "transformer": Case(transformer, tokens(24)),
    "recurrent": Case(recurrent, tokens(20), budget=0.65, batch=32),
    "separable": Case(separable, images(16)),
    "subclassed": Case(subclassed, _sequences, budget=0.8, by_data=True),
    "own_step": Case(own_step, images(16), budget=0.85),
    "sequential": Case(sequential, images(16)),
    "branches": Case(branches, _branches_data, budget=0.7, missing=5),
    "regularized": Case(regularized, images(16), budget=0.6),
    "mixed": Case(mixed, images(16)),
    "dense": DENSE,
}
