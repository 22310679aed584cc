"""Batches of one size: a step with loops, or with gradients of gradients, is traced for it, as a plain one is.

When other sizes come, it is traced again.
"""

from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, dense_model, make, vectors
from keras import layers

from benchmarks.lib.kinds import random_arrays
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.units import parse_budget

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

BATCH = 16


def _loops(**options) -> keras.Model:
    inputs = keras.Input((12, 8))
    x = layers.Dense(32, activation="tanh")(layers.SimpleRNN(16, return_sequences=True)(inputs))
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(layers.SimpleRNN(16)(x)))
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", **options)
    return model


LOOPS = Case(_loops, random_arrays((12, 8)), budget=0.9, batch=BATCH)
ALL = 3 * BATCH
X, Y = LOOPS.data(ALL)


def _attached(case=LOOPS):
    return compile_quickly(make(case), case, batch_size=None, data=None)


def _fit(model, samples=ALL, **options):
    return model.fit(X[:samples], Y[:samples], batch_size=BATCH, shuffle=False, verbose=0, **options).history


def _plan(model):
    (planned,) = model._checkmate_controller.plans.values()
    return planned


def _rounds_kept(model):
    """Lists in which loops keep something of each round for the backward pass."""
    return sum(
        op.type == "TensorListReserve" or op.type == "EmptyTensorList" for op in _plan(model).program.step.operations
    )


def test_full_batches_are_planned_with_their_size_known():
    plain, model, open_sized = make(LOOPS), _attached(), _attached()
    assert_same_after(lambda m: _fit(m, epochs=2), model, plain)
    assert _plan(model).same_size
    _fit(open_sized, ALL - 5)
    assert not _plan(open_sized).same_size
    assert _rounds_kept(model) < _rounds_kept(open_sized)


@pytest.mark.long
def test_a_pipeline_that_drops_the_rest_has_one_size():
    data = tf.data.Dataset.from_tensor_slices((X[:-5], Y[:-5]))
    model = _attached()
    model.fit(data.batch(BATCH, drop_remainder=True), verbose=0)
    assert _plan(model).same_size


def test_a_step_without_loops_is_planned_for_smaller_batches_too():
    case = Case(dense_model, vectors, budget=0.9, batch=BATCH)
    model, (x, y) = _attached(case), vectors(2 * BATCH)
    model.fit(x, y, batch_size=BATCH, verbose=0)
    planned = _plan(model)
    assert not planned.same_size
    model.fit(x[:5], y[:5], batch_size=5, verbose=0)
    assert _plan(model) is planned or _plan(model).schedule is planned.schedule


OTHERS = {
    "a batch is left over": lambda m: _fit(m, ALL - 5),
    "a smaller batch": lambda m: m.fit(X[:7], Y[:7], batch_size=7, verbose=0),
    "a step of one's own": lambda m: _step_with_open_batch(m)((tf.constant(X[:7]), tf.constant(Y[:7]))),
}


def _step_with_open_batch(model):
    spec = (tf.TensorSpec([None, 12, 8]), tf.TensorSpec([None], tf.int64))
    return tf.function(lambda data: model.train_step(data), autograph=False, input_signature=[spec])


@pytest.mark.long
@pytest.mark.parametrize("how", OTHERS)
def test_other_sizes_are_planned_for_once(how, caplog):
    plain, model = make(LOOPS), _attached()
    assert_same_after(_fit, model, plain)
    OTHERS[how](model)
    planned = _plan(model)
    assert not planned.same_size and planned.batch_size == BATCH
    assert "may come in several sizes" in caplog.text
    for samples in (ALL, ALL - 5, 7, ALL):
        assert np.isfinite(_fit(model, samples)["loss"]).all()
    assert _plan(model).schedule is planned.schedule


@pytest.mark.long
def test_numbers_stay_plain_when_a_batch_is_left_over():
    plain, model = make(LOOPS), _attached()
    assert_same_after(lambda m: [_fit(m), _fit(m, ALL - 5), _fit(m)], model, plain)
    assert not _plan(model).same_size


LARGER = ALL // 2


@pytest.mark.long
@pytest.mark.parametrize("samples", [ALL, ALL - 5])
def test_larger_batches_are_planned_for_in_any_size(samples):
    model = _attached()
    _fit(model, samples)
    model.fit(X, Y, batch_size=LARGER, verbose=0)
    planned = _plan(model)
    assert planned.batch_size == LARGER and not planned.same_size
    _fit(model)
    assert _plan(model).schedule is planned.schedule


@pytest.mark.long
def test_a_model_that_is_compiled_again_is_planned_as_at_first(caplog):
    plain, model = make(LOOPS), _attached()

    def again(m, samples=ALL, batch=BATCH):
        m.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
        return m.fit(X[:samples], Y[:samples], batch_size=batch, shuffle=False, verbose=0).history

    assert_same_after(lambda m: [_fit(m), again(m)], model, plain)
    assert _plan(model).same_size and _plan(model).batch_size == BATCH
    again(model, batch=LARGER)
    assert _plan(model).same_size and _plan(model).batch_size == LARGER
    again(model, ALL - 5)
    assert not _plan(model).same_size
    assert "more values" not in caplog.text


@pytest.mark.long
def test_a_share_is_one_of_the_plain_step_that_is_planned():
    """Loops with an open batch dimension take more."""
    model = _attached()
    _fit(model)
    known = model.checkmate
    _fit(model, ALL - 5)
    opened = model.checkmate
    assert opened.plain_peak_bytes > known.plain_peak_bytes
    assert opened.budget_bytes > known.budget_bytes


@pytest.mark.long
def test_a_plan_that_cannot_be_made_leaves_the_one_before():
    model = _attached()
    _fit(model)
    planned = _plan(model)
    model._checkmate_controller.options = dataclasses.replace(
        model._checkmate_controller.options, budget=parse_budget("1kB")
    )
    with pytest.raises(InfeasibleBudgetError):
        _fit(model, ALL - 5)
    assert _plan(model) is planned and np.isfinite(_fit(model)["loss"]).all()


@pytest.mark.long
def test_several_steps_per_execution():
    case = dataclasses.replace(LOOPS, build=lambda: _loops(steps_per_execution=3))
    plain, model = make(case), _attached(case)
    assert_same_after(lambda m: [_fit(m, epochs=2), _fit(m, ALL - 5)], model, plain)
    assert not _plan(model).same_size


@pytest.mark.long
def test_inputs_that_leave_a_size_open_are_planned_for_in_any_size():
    spec = (tf.TensorSpec([BATCH, 12, 8]), tf.TensorSpec([None], tf.int64))
    data = tf.data.Dataset.from_generator(lambda: iter([(X[:BATCH], Y[:BATCH])] * 2), output_signature=spec)
    model = _attached()
    model.fit(data, verbose=0)
    assert not _plan(model).same_size


@pytest.mark.long
def test_batches_of_another_structure_are_planned_for_in_any_size():
    model = _attached()
    _fit(model)
    for n in (7, BATCH):
        assert np.isfinite(model.train_on_batch(X[:n], Y[:n], sample_weight=np.ones(n)))
    first, second = model._checkmate_controller.plans.values()
    assert first.same_size and not second.same_size


class Penalized(keras.Model):
    """What its output owes to the input is to be 1, as in a critic of WGAN-GP."""

    def train_step(self, data):
        x = data[0] if isinstance(data, tuple) else data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = self(x, training=True)
            slopes = tf.sqrt(tf.reduce_sum(inner.gradient(y, x) ** 2, (1, 2)) + 1e-8)
            loss = tf.reduce_mean(y) + tf.reduce_mean((slopes - 1) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def _penalized():
    inputs = keras.Input((64, 16))
    x = layers.LayerNormalization()(layers.Dense(24, activation="tanh")(inputs))
    x = layers.Dense(1, use_bias=False)(layers.Flatten()(layers.Dense(48, activation="tanh")(x)))
    model = Penalized(inputs, x)
    model.compile(keras.optimizers.SGD(0.01))
    return model


PENALIZED = Case(_penalized, lambda n: (random_arrays((64, 16))(n)[0], None), budget=0.9, batch=BATCH)


DIFFERS = "last bits may differ"


def test_gradients_of_gradients_are_added_as_in_the_plain_step(caplog):
    """Where a size is open, some of their sums are others."""
    x, _ = PENALIZED.data(ALL)
    plain, model = make(PENALIZED), _attached(PENALIZED)

    def fit(m, samples=ALL):
        return m.fit(x[:samples], batch_size=BATCH, shuffle=False, verbose=0).history

    assert_same_after(fit, model, plain)
    assert _plan(model).same_size
    fit(model, ALL - 5)
    assert not _plan(model).same_size and DIFFERS not in caplog.text


def test_where_they_may_be_added_otherwise_a_warning_says_so(caplog):
    x, _ = PENALIZED.data(ALL)
    for first, warnings in ((ALL - 5, 0), (ALL, 1)):  # what was traced in any size is not traced again
        model = compile_quickly(make(PENALIZED), PENALIZED)
        for samples in (first, ALL, ALL):
            model.fit(x[:samples], batch_size=BATCH, verbose=0)
        assert not _plan(model).same_size and caplog.text.count(DIFFERS) == warnings


def test_gradients_of_a_loops_body_are_not_taken_for_gradients_of_gradients():
    model = _attached()
    _fit(model, ALL - 5)
    assert _rounds_kept(model) and not _plan(model).program.step.has_second_order
