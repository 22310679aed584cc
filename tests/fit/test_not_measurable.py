"""Steps that cannot be run on made-up data, or must not be: they are planned by prediction, and the report says why."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from allocators import crowd, measures
from cases import BATCH, DENSE, Case, assert_same_state, compile_quickly, make, train
from keras import layers

from checkmate_tf.fit import run

pytestmark = pytest.mark.usefixtures("fresh_keras")


def _from_one(y, y_pred):
    """Labels begin with 1: the zeros of made-up data are none."""
    return keras.losses.sparse_categorical_crossentropy(y - 1, y_pred)


def _asserted(y, y_pred):
    with tf.control_dependencies([tf.debugging.assert_positive(y)]):
        return keras.losses.sparse_categorical_crossentropy(y - 1, y_pred)


def _model(loss):
    x = inputs = keras.Input((64, 8))
    for _ in range(4):
        x = layers.Dense(32, activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile("adam", loss)
    return model


def _labels(samples):
    rng = np.random.default_rng(0)
    return rng.random((samples, 64, 8), np.float32), rng.integers(1, 5, (samples, 64))


@pytest.mark.long
@pytest.mark.parametrize("loss", [_from_one, _asserted])
def test_data_that_the_model_refuses(caplog, loss, no_grappler):
    case = Case(lambda: _model(loss), _labels, budget=0.95)
    plain, model = make(case), make(case)
    spec = tf.TensorSpec([BATCH, 64, 8]), tf.TensorSpec([BATCH, 64], tf.int64)
    compile_quickly(model, case, verify=True, input_spec=spec, batch_size=None)
    report = model.checkmate
    assert "fails on made-up data" in report.not_measured and report.not_measured in report.table()
    assert report.measured_peak_bytes is None and not report.attempts
    assert "predicted, not measured" in caplog.text
    assert train(model, case) == train(plain, case)
    assert_same_state(plain, model)


@pytest.mark.parametrize("kind", ["a batch", "a shorter batch"])
def test_given_data_is_measured_with(kind):
    x, y = _labels(BATCH)
    data, size = ((x, y), None) if kind == "a batch" else ((x[:5], y[:5]), BATCH)
    model = compile_quickly(_model(_from_one), DENSE, budget="50MB", verify=True, data=data, batch_size=size)
    assert model.checkmate.measured_peak_bytes and not model.checkmate.not_measured


class UntilSmall(layers.Layer):
    """Halves its input until it is small; NaN is not, and made-up data might have one."""

    def call(self, x):
        small = lambda y: tf.reduce_max(tf.abs(y)) >= 1.0  # noqa: E731 - a short callback
        return x + tf.stop_gradient(tf.while_loop(small, lambda y: y * 0.5, [tf.stop_gradient(x)])[0])


@pytest.mark.parametrize("given", [False, True])
def test_loops_that_data_ends_are_run_on_given_data_only(given):
    x, y = _labels(BATCH)
    inputs = keras.Input((64, 8))
    hidden = UntilSmall()(layers.Dense(32, activation="relu")(inputs))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.Dense(32, activation="relu")(hidden)))
    model.compile("adam", "sparse_categorical_crossentropy")
    how = {"data": (x, y - 1), "batch_size": None} if given else {"batch_size": BATCH}
    report = compile_quickly(model, DENSE, budget="50MB", verify=True, **how).checkmate
    assert bool(report.measured_peak_bytes) == given
    assert ("on made-up data it may never end" in report.not_measured) != given


class Iterated(keras.Model):
    """Takes a second batch from an iterator of its own."""

    def train_step(self, data):
        x, y = data
        return super().train_step((x + next(self.more), y))


@pytest.mark.long
def test_iterators_are_not_moved_by_measuring():
    more = tf.data.Dataset.range(3).map(lambda k: tf.fill([64, 8], tf.cast(k, tf.float32)))

    def build():
        x = inputs = keras.Input((64, 8))
        for _ in range(4):
            x = layers.Dense(32, activation="relu")(x)
        model = Iterated(inputs, layers.Dense(4, activation="softmax")(x))
        model.more = iter(more)
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    case = Case(build, lambda samples: (_labels(samples)[0], _labels(samples)[1] - 1), budget=0.95, by_data=True)
    plain, model = make(case), make(case)
    compile_quickly(model, case, verify=True)
    assert "IteratorGetNext" in model.checkmate.not_measured
    assert train(model, case) == train(plain, case)  # three steps: all that there are


@pytest.mark.long
def test_a_peak_over_the_budget_is_planned_for_though_no_plan_is_measured(monkeypatch):
    def refuse(*_):
        raise run.NotMeasurable("it fails")

    monkeypatch.setattr(run, "measure", refuse)
    model = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.95)
    first = model.checkmate
    assert first.not_measured == "it fails"
    crowd(monkeypatch, [first.budget_bytes + first.budget_bytes // 25])
    train(model, DENSE)
    assert model.checkmate.predicted_peak_bytes < first.predicted_peak_bytes
    assert model.checkmate.exceeded_bytes


def test_a_device_that_measures_needs_no_excuse(monkeypatch):
    measures(monkeypatch, 0)
    model = compile_quickly(make(DENSE), DENSE, verify=True)
    assert model.checkmate.not_measured == "" and model.checkmate.attempts
