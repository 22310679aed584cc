"""Batches in several sizes, as buckets of sequence lengths: each has a plan, and the numbers are plain ones."""

from __future__ import annotations

import itertools
import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, legacy_tagger, make

import checkmate_tf
from checkmate_tf.device.measure import find_device
from checkmate_tf.errors import BatchSizeError, DynamicShapeError
from checkmate_tf.keras.batches.sizes import (
    Functions,
    as_given,
    have_open_sizes,
    is_wider,
    open_where_they_differ,
    opened_batch,
    sizes_of,
)

pytestmark = [pytest.mark.usefixtures("fresh_keras", "no_grappler")]

L = keras.layers
WORDS, WIDTH = 50, 32
LENGTHS = (12, 24, 36, 48)
BATCHES = {12: 64, 24: 32, 36: 32, 48: 16}


def _tagger():
    """A class for each word of a sentence of any length."""
    inputs = keras.Input((None,), dtype="int32")
    x = L.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(3):
        x = L.Add()([x, L.Dropout(0.1, seed=3)(L.Dense(WIDTH, activation="gelu")(L.LayerNormalization()(x)))])
    x = L.Add()([x, L.MultiHeadAttention(2, 8)(x, x)])  # multiplies in another way where sizes are known
    x = L.Conv1D(WIDTH, 3, padding="same")(x)
    model = keras.Model(inputs, L.Dense(5, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _sentences(count, length, seed=0):
    random = np.random.default_rng(seed)
    return random.integers(0, WORDS, (count, length)).astype("int32"), random.integers(0, 5, (count, length))


TAGGER = Case(_tagger, lambda n: _sentences(n, LENGTHS[-1]))


def _attached(**options):
    return compile_quickly(make(TAGGER), TAGGER, **{"batch_size": None, "budget": 0.7} | options)


def _batches(lengths=LENGTHS, rounds=1):
    """A short last batch of each round, too."""
    for k in range(rounds):
        for length in lengths:
            yield _sentences(BATCHES[length], length, seed=100 * k + length)
        yield _sentences(9, lengths[0], seed=100 * k)


SPEC = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.int64)


def _pipeline(model, lengths=LENGTHS, epochs=2):
    data = tf.data.Dataset.from_generator(lambda: _batches(lengths), output_signature=SPEC)
    return model.fit(_counted(data).prefetch(2), epochs=epochs, verbose=0).history


def _counted(data):
    """Data that tells its length: to find the end, plain Keras begins a step, which counts seeds up."""
    return data.apply(tf.data.experimental.assert_cardinality(sum(1 for _ in data)))


def _buckets(model):
    """Of TensorFlow's own, which pads to the longest of a batch unless it is told to pad to the bucket's bound."""
    random = np.random.default_rng(2)
    lengths = random.integers(3, 49, 300)
    words, tags = _sentences(300, 48)
    data = tf.data.Dataset.from_generator(
        lambda: ((w[:n], t[:n]) for w, t, n in zip(words, tags, lengths, strict=True)),
        output_signature=(tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.int64)),
    )
    data = data.bucket_by_sequence_length(
        lambda x, y: tf.shape(x)[0],
        bucket_boundaries=[13, 25, 37, 49],
        bucket_batch_sizes=[64, 32, 32, 16, 16],
        pad_to_bucket_boundary=True,
    )
    return model.fit(_counted(data), epochs=2, verbose=0).history


def _one_by_one(model):
    """Whole batches: plain Keras traces a smaller one anew, with the sizes open, and the first one with known sizes."""
    return [model.train_on_batch(x, y) for x, y in _batches(rounds=2) if len(x) > 9]


def _generator(model):
    return model.fit(_batches(rounds=2), verbose=0, steps_per_epoch=10, epochs=1).history


def _same(action, **options):
    plain, model = make(TAGGER), _attached(**options)
    assert_same_after(action, model, plain)
    return model


@pytest.mark.feature("Training", "sequences in buckets of several lengths", note="a plan for each length")
@pytest.mark.long
@pytest.mark.parametrize("action", [_pipeline, _buckets, _one_by_one, _generator])
def test_each_size_has_a_plan_and_the_numbers_are_plain_ones(action, caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")
    model = _same(action)
    controller = model._checkmate_controller
    assert len(controller.plans) == 4
    assert caplog.text.count("planning for") == 4 and "planning again" not in caplog.text
    assert any(planned.report.recomputations for planned in controller.plans.values())
    assert all(plan.report.batch_size == controller.batches[key] for key, plan in controller.plans.items())


@pytest.mark.long
def test_several_steps_per_execution():
    def action(model):
        model.steps_per_execution = 3
        return _pipeline(model, epochs=1)

    assert len(_same(action)._checkmate_controller.plans) == 4


@pytest.mark.long
def test_a_larger_batch_of_one_size_is_planned_for_and_the_others_stay(caplog):
    def action(model):
        given = [_sentences(n, length) for n, length in ((32, 12), (32, 24), (64, 12), (9, 24), (64, 12))]
        return [model.train_on_batch(x, y) for x, y in given]

    model = _same(action)
    assert caplog.text.count("a batch of 64 samples came, memory was planned for 32: planning again") == 1
    controller = model._checkmate_controller
    assert sorted((key[1][0].shape[1], size) for key, size in controller.batches.items()) == [(12, 64), (24, 32)]


@pytest.mark.long
def test_a_larger_batch_of_one_size_in_a_pipeline():
    def action(model):
        lost = []
        for n in (32, 64):
            parts = [tf.data.Dataset.from_tensor_slices(_sentences(64, length)).batch(n) for length in (12, 24)]
            spec = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None, None], tf.int64)
            data = tf.data.Dataset.from_generator(lambda parts=parts: itertools.chain(*parts), output_signature=spec)
            lost.append(model.fit(_counted(data), verbose=0).history)
        return lost

    controller = _same(action)._checkmate_controller
    assert sorted(controller.batches.values()) == [64, 64] and len(controller.earlier) == 4


@pytest.mark.long
def test_keras_2():
    legacy = pytest.importorskip("tf_keras")

    plain, model = legacy_tagger(legacy), compile_quickly(legacy_tagger(legacy), TAGGER, batch_size=None, budget=0.7)
    assert _pipeline(model) == _pipeline(plain)
    for a, b in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(model._checkmate_controller.plans) == 4


@pytest.mark.long
def test_the_plan_that_was_not_used_for_the_longest_time_goes(caplog):
    def action(model):
        given = [_sentences(32, length) for length in (12, 24, 12, 36, 12, 24)]
        return [model.train_on_batch(x, y) for x, y in given]

    model = _same(action, max_plans=2)
    controller = model._checkmate_controller
    assert sorted(key[1][0].shape[1] for key in controller.plans) == [12, 36]
    assert len(controller.earlier) == 3  # 24 trains under the plan for 36, which took the place of its own
    assert caplog.text.count("in more than 2 combinations of sizes") == 1


@pytest.mark.long
def test_a_share_is_one_of_the_largest_so_far():
    model = _attached(budget=0.7)
    budgets = []
    for length in (24, 12, 48, 36):
        model.train_on_batch(*_sentences(32, length))
        budgets.append(model.checkmate.budget_bytes)
        if length in (24, 48):
            assert budgets[-1] == int(0.7 * model.checkmate.plain_peak_bytes)
    assert budgets[0] == budgets[1] < budgets[2] == budgets[3]


@pytest.mark.long
def test_the_peak_is_within_one_budget_at_each_size():
    found = find_device().current_bytes()
    probe = _attached(budget=0.9)
    probe.train_on_batch(*_sentences(256, 48))
    budget = found + probe.checkmate.budget_bytes
    checkmate_tf.restore(probe)
    model = _attached(budget=budget, verify=True)
    for _ in range(2):
        for length in LENGTHS:
            model.train_on_batch(*_sentences(256, length))
            report = model.checkmate
            assert report.budget_bytes == budget >= report.training_peak_bytes
    peaks = {key[1][0].shape[1]: p.report.training_peak_bytes for key, p in model._checkmate_controller.plans.items()}
    assert peaks[12] < peaks[24] < min(peaks[36], peaks[48])


@pytest.mark.long
def test_fixed_pipelines_of_two_sizes_one_after_the_other():
    def action(model):
        lost = []
        for length in (12, 24, 12):
            data = tf.data.Dataset.from_tensor_slices(_sentences(64, length)).batch(32, drop_remainder=True)
            lost.append(model.fit(data, verbose=0).history)
        return lost

    assert len(_same(action)._checkmate_controller.plans) == 2


def test_a_gradient_function_has_a_plan_for_each_size():
    models = make(TAGGER), make(TAGGER)
    loss = keras.losses.sparse_categorical_crossentropy
    settings = {"costs": "flops", "gap": 1.0, "time_limit": 10, "progress": False, "verify": False}
    ours = checkmate_tf.gradient_function(models[1], "sparse_categorical_crossentropy", 0.7, **settings)

    @tf.function(autograph=False, reduce_retracing=True)
    def plainly(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, models[0](x, training=True)))
        return value, tape.gradient(value, models[0].trainable_variables)

    for n, length in ((32, 12), (32, 24), (32, 12), (9, 24)):
        x, y = _sentences(n, length)
        for a, b in zip(tf.nest.flatten(plainly(x, y)), tf.nest.flatten(ours(x, y)), strict=True):
            np.testing.assert_array_equal(tf.convert_to_tensor(a), tf.convert_to_tensor(b))
        assert ours.checkmate.batch_size == 32


def test_what_is_told_where_a_batch_size_is_given():
    with pytest.raises(DynamicShapeError, match="open dimension.*neither batch_size= nor data="):
        _attached(batch_size=8)


@pytest.mark.parametrize("plans", [0, -1, 1.5, True, "8"])
def test_no_number_of_plans(plans):
    with pytest.raises(BatchSizeError, match="max_plans"):
        _attached(max_plans=plans)


def test_sizes_of_a_batch():
    assert sizes_of((np.ones((2, 3)), None, {"a": tf.TensorSpec([None, None, 4]), "b": np.float32(1)})) == (
        (3,),
        (None, 4),
        (),
    )  # what is not given has none
    spec = {"x": tf.TensorSpec([None, None, 2]), "y": tf.TensorSpec(None, tf.int32)}, tf.TensorSpec([])
    assert have_open_sizes(spec) and not have_open_sizes(tf.TensorSpec([None, 3])) and have_open_sizes(spec[0]["y"])
    batch = {"x": np.ones((5, 7, 2)), "y": np.ones((5, 3), int)}, np.float32(0)
    x, y = tf.TensorSpec([None, 7, 2]), tf.TensorSpec([None, 3], tf.int32)
    assert as_given(spec, batch) == ({"x": x, "y": y}, tf.TensorSpec([]))


def test_where_sizes_differ_they_are_open():
    spec = {"x": tf.TensorSpec([None, 12, 4]), "y": tf.TensorSpec([None, 12], tf.int64), "z": None}
    others = [
        [tf.TensorSpec([None, 24, 4]), tf.TensorSpec([None, 24], tf.int64), None],
        [tf.TensorSpec([None, 12, 4]), tf.TensorSpec([None, 24], tf.int64), None],
    ]
    found = {"x": tf.TensorSpec([None, None, 4]), "y": tf.TensorSpec([None, None], tf.int64), "z": None}
    assert open_where_they_differ(spec, others) == found
    assert open_where_they_differ(spec, []) == spec
    given = tf.TensorSpec([8, None]), tf.TensorSpec([]), None, tf.TensorSpec([9, 2]), tf.TensorSpec([None, 2])
    opened = tf.TensorSpec([None, 3]), tf.TensorSpec([]), None, tf.TensorSpec([9, 2]), tf.TensorSpec([4, 2])
    assert opened_batch(given, opened) == (tf.TensorSpec([None, None]), *given[1:])


def test_what_is_open_where_the_plan_is_for_one_size_is_wider():
    opened = tf.TensorSpec([None, 3]), tf.TensorSpec([9, 2]), None
    for spec, wider in ((opened, False), ((opened[0], tf.TensorSpec([None, 2]), None), True)):
        assert is_wider(spec, opened) == wider
    assert is_wider((tf.TensorSpec([None, None]), *opened[1:]), opened)


def test_functions_are_made_once_for_each_size():
    functions, made = Functions(), []

    def make_one():
        made.append(object())
        functions.begin(made[-1])

    functions.begin("first")
    assert [functions.get(size, make_one) for size in (1, 2, 1, 2)] == ["first", made[0], "first", made[0]]
    functions.forget(1)
    assert functions.get(1, make_one) is made[1] and functions.get(2, make_one) is made[0]
    functions.begin("anew")
    assert functions.get(2, make_one) == "anew" and len(made) == 2
    functions.forget(2)  # also where it was the only one
    assert functions.get(2, make_one) is made[2]
