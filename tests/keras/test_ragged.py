"""Ragged and sparse batches: planned for when they come, and again when more values come."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CROSSENTROPY, Case, assert_same_after, assert_same_state, compile_quickly, make

import checkmate_tf
from benchmarks.lib.kinds import KINDS
from checkmate_tf.errors import BatchSizeError, ModelError
from checkmate_tf.fit import run as measured_plans
from checkmate_tf.keras.batches.ragged import (
    are_more,
    enlarged,
    have_ragged,
    is_ragged,
    opened_ragged,
    rows_of,
    shapes_of,
)
from checkmate_tf.keras.training import controller as controllers

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

BATCH = 16
NESTED = tf.ragged.constant([[[1, 2], [3]], [], [[4, 5, 6, 7]]], tf.int32)
FLAT = tf.ragged.constant([[1, 2, 3, 4], [], [5]], tf.int32)
SPARSE = tf.sparse.from_dense([[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 5.0]])
DENSE = tf.ones((3, 5))


class Padded(keras.Model):
    def __init__(self):
        super().__init__()
        self.table = keras.layers.Embedding(50, 32)
        self.wide = [keras.layers.Dense(64, activation="gelu") for _ in range(3)]
        self.head = keras.layers.Dense(4, activation="softmax")

    def call(self, x):
        x = tf.ragged.map_flat_values(self.table, x).to_tensor()
        for layer in self.wide:
            x = layer(x)
        return self.head(tf.reduce_mean(x, axis=1))


def _padded():
    model = Padded()
    model.compile("adam", CROSSENTROPY)
    return model


def _sentences(n, least=10, most=12, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(least, most, n)
    words = rng.integers(0, 50, lengths.sum()).astype("int32")
    return tf.RaggedTensor.from_row_lengths(words, lengths), rng.integers(0, 4, n)


PADDED = Case(_padded, _sentences, budget=0.8)


def _attached(model=None):
    return compile_quickly(model or make(PADDED), PADDED, batch_size=None)


def _data():
    """Sentences that become longer in the middle, and a smaller last batch."""
    parts = [_sentences(n, least, least + 3, seed=n) for n, least in ((32, 10), (32, 16), (25, 8))]
    x, y = tf.concat([x for x, _ in parts], axis=0), np.concatenate([y for _, y in parts])
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)


def test_what_is_ragged():
    assert [is_ragged(t) for t in (FLAT, SPARSE, opened_ragged(FLAT), opened_ragged(SPARSE), DENSE, None)] == [
        True, True, True, True, False, False
    ]  # fmt: skip
    assert have_ragged({"x": FLAT, "y": DENSE}) and not have_ragged((DENSE, None))
    assert opened_ragged(NESTED) == tf.RaggedTensorSpec([None, None, None], tf.int32, 2)
    assert opened_ragged(SPARSE) == tf.SparseTensorSpec([None, 4], tf.float32)
    assert [int(rows_of(t)) for t in (NESTED, FLAT, SPARSE)] == [3, 3, 2]


def test_shapes_are_those_of_the_parts():
    parts = [(7,), (4,), (4,)]  # values, and the ends of rows, the outer ones first or last as tf.nest has them
    assert sorted(shapes_of(NESTED)) == sorted(parts)
    assert shapes_of((FLAT, DENSE, None, SPARSE)) == [(5,), (4,), (None, 5), (3, 2), (3,), (2,)]


@pytest.mark.parametrize("given, more", [((5, 4), False), ((6, 4), True), ((None, 4), False), ((0, 0), False)])
def test_more_values_than_planned(given, more):
    assert are_more([given], [(5, 4)]) is more


@pytest.mark.parametrize("share", [0.0, 0.125, 1.0])
@pytest.mark.parametrize("t", [FLAT, NESTED, SPARSE], ids=["flat", "nested", "sparse"])
def test_a_batch_with_more_values_is_one_of_the_same_kind(t, share):
    larger = enlarged(t, share)
    assert opened_ragged(larger) == opened_ragged(t) and int(rows_of(larger)) == int(rows_of(t))
    before, after = (shapes_of(one) for one in (t, larger))
    assert all(b >= a for one, other in zip(before, after, strict=True) for a, b in zip(one, other, strict=True))
    if isinstance(t, tf.SparseTensor):
        assert np.isin(larger.values, t.values).all() and len(larger.values.numpy()) == np.ceil(3 * (1 + share))
        known = tf.sparse.to_dense(larger).numpy()  # which refuses places out of order, or twice
        assert (known[tf.sparse.to_dense(t).numpy() != 0] == t.values.numpy()).all()
    else:
        lengths = [one.nested_row_lengths()[-1].numpy() for one in (t, larger)]
        assert (lengths[1] == np.ceil(lengths[0] * (1 + share))).all()
        for row, longer in zip(t.to_list(), larger.to_list(), strict=True):
            pairs = [(row, longer)] if t.ragged_rank == 1 else list(zip(row, longer, strict=True))
            assert all((b * 2)[: len(a)] == a and b[: len(a)] == a for a, b in pairs)


def test_nothing_becomes_nothing():
    empty = tf.sparse.from_dense(tf.zeros((2, 3)))
    assert enlarged(empty).values.shape == 0 and enlarged(DENSE) is DENSE
    full = tf.sparse.from_dense(tf.ones((2, 3)))
    assert enlarged(full).values.shape == 6
    almost = tf.sparse.from_dense(1 - np.eye(400, dtype=np.float32))  # to draw the last free places would take ages
    assert enlarged(almost).values.shape == 400 * 400


@pytest.mark.long
def test_ends_of_rows_may_be_small_numbers():
    x, y = _sentences(BATCH)
    plain, model = make(PADDED), _attached()
    for each in (plain, model):
        each.train_on_batch(x.with_row_splits_dtype(tf.int32), y)
    assert_same_state(plain, model)


@pytest.mark.long(but=("one by one",))
@pytest.mark.parametrize("way", ["pipeline", "arrays", "one by one"])
def test_more_values_are_planned_for_when_they_come(way, caplog):
    def trained(model):
        if way == "pipeline":
            return model.fit(_data(), epochs=2, verbose=0).history
        if way == "arrays":
            return model.fit(*_sentences(3 * BATCH + 5), batch_size=BATCH, epochs=2, verbose=0).history
        return [model.train_on_batch(x, y) for x, y in _data()]

    caplog.set_level(logging.WARNING, "checkmate_tf")
    plain, model = make(PADDED), _attached()
    assert_same_after(trained, model, plain)
    assert model.checkmate.recomputations > 0
    controller = model._checkmate_controller
    assert len(controller.plans) == 1 and len(controller.earlier) == (1 if way == "arrays" else 2)
    assert ("more values came than memory was planned for" in caplog.text) is (way != "arrays")


@pytest.mark.long
@pytest.mark.parametrize("kind, again", [("looped", False), ("ranged", True)])
def test_a_plan_that_was_outgrown_is_made_for_the_batch_that_took_more(kind, again, monkeypatch):
    """Unless that batch is as the one before: then its data is not why."""
    case = Case(KINDS[kind].build, KINDS[kind].data)
    model = compile_quickly(make(case), case, batch_size=None, budget="1GB")
    x, y = case.data(BATCH)
    model.train_on_batch(x, y)
    controller, room = model._checkmate_controller, []
    monkeypatch.setattr(controllers.Controller, "_plan_again", lambda self, key, peak: room.append(peak))
    if again:
        x[:, 0] = 5.0
        model.train_on_batch(x, y)
    assert len(controller.earlier) == 1
    controller._outgrown(controller.key, 10**9)
    assert len(controller.earlier) == 2 and len(controller.plans) == 1
    assert room == ([] if again else [10**9])


def _fit(model, x, y):
    model.fit(x, y, batch_size=BATCH, verbose=0)


def _train_on_batch(model, x, y):
    model.train_on_batch(x, y)


@pytest.mark.long
@pytest.mark.parametrize(
    "trained, feeding, batches",
    [
        (_fit, "fed_as_by_fit", lambda function, batch, *rest: [batch, *rest[-1]]),
        (_train_on_batch, "fed_by_caller", lambda function, batches, shapes: batches),
    ],
)
def test_steps_are_measured_with_as_many_values_as_came_too(monkeypatch, trained, feeding, batches):
    fed, real = [], getattr(measured_plans, feeding)

    def recorded(*given, **options):
        fed.append(batches(*given))
        return real(*given, **options)

    monkeypatch.setattr(measured_plans, feeding, recorded)
    model = compile_quickly(make(PADDED), PADDED, batch_size=None, verify=True, budget="1GB")
    x, y = _sentences(BATCH)
    trained(model, x, y)
    assert fed and model.checkmate.attempts
    for planned, (came, *others) in fed:
        assert len(came) == len(x.flat_values) < len(planned[0])
        assert [a.dtype for a in (came, *others)] == [a.dtype for a in planned]


def test_gradients_of_ragged_batches():
    plain, model = make(PADDED), make(PADDED)
    x, y = _sentences(BATCH)
    for each in (plain, model):
        each(x)
    step = checkmate_tf.gradient_function(
        model, CROSSENTROPY, 0.9, costs="flops", verify=False, time_limit=5, progress=False
    )
    loss_function = keras.losses.get(CROSSENTROPY)
    for given in (_sentences(BATCH), _sentences(BATCH, 20, 22)):
        with tf.GradientTape() as tape:
            expected = tf.reduce_mean(loss_function(given[1], plain(given[0], training=True)))
        loss, gradients = step(*given)
        np.testing.assert_allclose(loss, expected, rtol=1e-6)
        for mine, other in zip(gradients, tape.gradient(expected, plain.trainable_variables), strict=True):
            np.testing.assert_allclose(mine, tf.convert_to_tensor(other), rtol=1e-4, atol=1e-6)
    assert step.checkmate.batch_size == BATCH


@pytest.mark.parametrize("options", [{"batch_size": BATCH, "data": _sentences(BATCH)}, {"data": _data()}])
def test_a_batch_that_is_told_is_refused_where_values_are_not(options):
    model = make(PADDED)
    model(_sentences(2)[0])
    with pytest.raises(ModelError, match="leave batch_size=, input_spec= and data= out"):
        compile_quickly(model, PADDED, **{"batch_size": None} | options)


def test_a_batch_that_comes_in_a_graph():
    model = _attached()
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    with pytest.raises(BatchSizeError, match="comes in a graph that leaves its size open.*from Python once"):
        step.get_concrete_function(opened_ragged(_sentences(2)[0]), tf.TensorSpec([None], tf.int64))


@pytest.mark.long
def test_a_model_that_is_not_built_is_planned_when_it_is():
    def build():
        model = keras.Sequential([keras.layers.Dense(64, activation="gelu") for _ in range(4)])
        model.compile("adam", "mse")
        return model

    x = np.random.default_rng(0).normal(size=(3 * BATCH, 24, 64)).astype("float32")
    plain, model = (make(Case(build, _sentences)) for _ in range(2))
    compile_quickly(model, PADDED, batch_size=None)
    assert model.checkmate is None
    for each in (plain, model):
        keras.utils.set_random_seed(3)
        each.fit(x, x, batch_size=BATCH, verbose=0)
    assert_same_state(plain, model)
    assert model.checkmate.recomputations > 0
