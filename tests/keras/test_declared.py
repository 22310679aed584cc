"""Integers of another width than a model declares need no other plan, and give the same numbers."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, make

from checkmate_tf.keras.batches.declared import Casts, casts_of

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

L = keras.layers
WORDS, LENGTH, BATCH = 50, 24, 16
SPARSE = "sparse_categorical_crossentropy"


def _ids(n, dtype="int64", targets="int32", classes=4):
    r = np.random.default_rng(n)
    return r.integers(0, WORDS, (n, LENGTH)).astype(dtype), r.integers(0, classes, n).astype(targets)


def _body(x):
    for _ in range(3):
        x = L.Dense(64, activation="gelu")(x)
    return L.GlobalAveragePooling1D()(x)


def _functional(loss=SPARSE, units=4, metrics=("accuracy",), kind=keras.Model):
    words = keras.Input((LENGTH,), dtype="int32")
    x = _body(L.Embedding(WORDS, 64)(words))
    model = kind(words, L.Dense(units, activation="softmax" if units > 1 else "sigmoid")(x))
    model.compile("adam", loss, metrics=list(metrics))
    return model


def _sequential():
    model = keras.Sequential([keras.Input((LENGTH,), dtype="int32"), L.Embedding(WORDS, 64), L.Dense(64, "gelu")])
    for layer in (L.Dense(64, "gelu"), L.GlobalAveragePooling1D(), L.Dense(4, activation="softmax")):
        model.add(layer)
    model.compile("adam", SPARSE)
    return model


def _two_inputs():
    given = {name: keras.Input((LENGTH,), dtype=kind, name=name) for name, kind in (("a", "int64"), ("b", "int32"))}
    x = _body(L.Concatenate()([L.Embedding(WORDS, 32)(given["a"]), L.Embedding(WORDS, 32)(given["b"])]))
    model = keras.Model(given, L.Dense(4, activation="softmax")(x))
    model.compile("adam", SPARSE)
    return model


def _of_two(n):
    (a, y), (b, _) = _ids(n), _ids(n + 1)
    return {"a": a.astype("int32"), "b": b[:n]}, y


def _binary(n):
    x, y = _ids(n, classes=2, targets="int64")
    return x, y[:, None]


def _by_fit(model, data):
    x, y = data(3 * BATCH - 5)
    return model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history


def _by_pipeline(model, data):
    return model.fit(tf.data.Dataset.from_tensor_slices(data(3 * BATCH - 5)).batch(BATCH), verbose=0).history


def _one_by_one(model, data):
    return [model.train_on_batch(*data(n)) for n in (BATCH, BATCH, 7)]


CASES = {
    "functional": (_functional, _ids),
    "narrow ids": (_functional, lambda n: _ids(n, "uint8", "uint8")),
    "sequential": (_sequential, _ids),
    "two inputs": (_two_inputs, _of_two),
    "labels of two classes": (
        lambda: _functional("binary_crossentropy", 1, ["accuracy", "AUC", keras.metrics.Precision(name="precision")]),
        _binary,
    ),
    "a loss and metrics as objects": (
        lambda: _functional(
            keras.losses.SparseCategoricalCrossentropy(), 4, [keras.metrics.sparse_top_k_categorical_accuracy]
        ),
        _ids,
    ),
}
SHOWN_BY_OTHERS = ("functional", "two inputs", "labels of two classes")


@pytest.mark.feature("Training", "integers of another width than declared", note="no other plan with `batch_size=`")
@pytest.mark.parametrize(
    ("name", "action"),
    [
        *((name, _by_fit) for name in CASES if name not in SHOWN_BY_OTHERS),
        ("two inputs", _one_by_one),
        *(pytest.param(name, _by_fit, marks=pytest.mark.long) for name in SHOWN_BY_OTHERS),
        *(pytest.param(name, _one_by_one, marks=pytest.mark.long) for name in CASES if name != "two inputs"),
        *(pytest.param(name, _by_pipeline, marks=pytest.mark.long) for name in CASES),
    ],
)
def test_one_plan_and_plain_numbers(name, action, caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")
    build, data = CASES[name]
    case = Case(build, data, budget=0.8, batch=BATCH)
    model = compile_quickly(make(case), case)
    assert_same_after(lambda one: action(one, data), model, make(case))
    assert len(model._checkmate_controller.earlier) == 1 and "planning again" not in caplog.text
    assert model.checkmate.recomputations > 0


class _Looks(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, **rest):
        assert y.dtype == tf.int32
        return super().compute_loss(x=x, y=y, y_pred=y_pred, **rest)


class _OwnCall(keras.Model):
    def call(self, x, training=None):
        return super().call(x, training=training)


def _looking(y, y_pred):
    return keras.losses.sparse_categorical_crossentropy(tf.ensure_shape(y, y.shape), y_pred)


@pytest.mark.parametrize(
    ("build", "inputs", "targets"),
    [
        (lambda: _functional(_looking), True, False),
        (lambda: _functional(metrics=[_looking]), True, False),
        (lambda: _functional(metrics=[keras.metrics.MeanMetricWrapper(_looking)]), True, False),
        (lambda: _functional(metrics=[keras.metrics.SparseCategoricalAccuracy(), "accuracy"]), True, True),
        (lambda: _functional(metrics=[keras.metrics.SparseCategoricalAccuracy(dtype="float64")]), True, False),
        (lambda: _functional(kind=_Looks), False, False),
        (lambda: _functional(kind=_OwnCall), False, False),
    ],
)
def test_what_may_look_at_types_gets_what_came(build, inputs, targets):
    model = build()
    spec = tf.TensorSpec([None, LENGTH], tf.int32), tf.TensorSpec([None], tf.int64)
    casts = casts_of(model, spec, model.train_step)
    assert (casts is not None) == inputs
    assert (casts is not None and casts.targets is not None) == targets
    assert casts_of(model, spec, lambda data: {}) is None


def test_a_model_that_is_compiled_again_may_look_at_types():
    case = Case(_functional, _ids, budget=0.8, batch=BATCH)

    class Looking(keras.losses.Loss):
        def __call__(self, y, y_pred, sample_weight=None):
            assert y.dtype == tf.int32
            return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, y_pred))

    def action(model):
        first = model.train_on_batch(*_ids(BATCH))
        model.compile("sgd", Looking())
        return first, model.train_on_batch(*_ids(BATCH))

    assert_same_after(action, compile_quickly(make(case), case), make(case))


def test_what_is_cast():
    casts = Casts({"a": tf.int32, "b": tf.float32}, [tf.float32, None])
    x = {"a": np.ones(3, "int64"), "b": np.ones(3, "int64")}
    (given, y, weights) = casts.apply((x, [tf.ones(3, tf.int32), tf.ones(3, tf.int32)], np.ones(3)))
    assert [given["a"].dtype, given["b"].dtype] == ["int32", "int64"]
    assert [t.dtype for t in y] == [tf.float32, tf.int32] and weights.dtype == "float64"
    for other in (np.ones(3, "int64"), [np.ones(3)] * 4, {"a": None, "b": np.ones(3)}, tf.TensorSpec([3], tf.int64)):
        same = casts.apply((other,))
        assert tf.nest.flatten(same)[0] is tf.nest.flatten(other)[0]
    specs = Casts(tf.int32, None).apply((tf.TensorSpec([None], tf.int64), tf.TensorSpec([None], tf.int32)))
    assert specs == (tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int32))
    unsigned = np.ones(3, "uint64")
    assert Casts(tf.int32, None).apply((unsigned,)) is unsigned
