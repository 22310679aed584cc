"""More sizes of batches than plans are kept: plans serve several of them, and the numbers are plain ones."""

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
from checkmate_tf.errors import DynamicShapeError
from checkmate_tf.keras.batches.sharing import Room, as_packed, cheapest_to_join, joined, least_that_serves, sized

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:.*ran out of data"),
]

L = keras.layers
LENGTHS = (20, 34, 9, 27, 40, 12, 33, 5, 31, 21)


def _sentences(length, count=24, seed=0):
    random = np.random.default_rng(seed + length)
    return random.integers(0, 50, (count, length)).astype("int32"), random.integers(0, 5, (count, length))


def _tagger(recurrent=False):
    inputs = keras.Input((None,), dtype="int32")
    x = L.Embedding(50, 32)(inputs)
    for _ in range(3):
        x = L.Add()([x, L.Dropout(0.1, seed=3)(L.Dense(32, activation="gelu")(L.LayerNormalization()(x)))])
    x = L.LSTM(16, return_sequences=True)(x) if recurrent else L.Add()([x, L.MultiHeadAttention(2, 8)(x, x)])
    model = keras.Model(inputs, L.Dense(5, activation="softmax")(L.Conv1D(32, 3, padding="same")(x)))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


TAGGER = Case(_tagger, lambda n: _sentences(40, n))
RECURRENT = Case(lambda: _tagger(recurrent=True), lambda n: _sentences(40, n))


def _pairs():
    """Attends from one sequence to another: two lengths that have nothing to do with each other."""
    asked, told = keras.Input((None, 16)), keras.Input((None, 16))
    a, b = (L.Dense(32, activation="gelu")(L.Dense(32, activation="gelu")(x)) for x in (asked, told))
    x = L.Add()([a, L.MultiHeadAttention(2, 8)(a, b)])
    model = keras.Model([asked, told], L.Dense(1)(L.GlobalAveragePooling1D()(L.Dense(32, activation="gelu")(x))))
    model.compile("sgd", "mse")
    return model


def _pair(asked, told, count=16):
    random = np.random.default_rng(asked + told)
    x = tuple(random.normal(size=(count, n, 16)).astype("float32") for n in (asked, told))
    return x, random.normal(size=(count, 1)).astype("float32")


PAIRS = Case(_pairs, lambda n: _pair(30, 30, n))


class Sends(keras.Model):
    """Sums what the edges of a graph send to its nodes."""

    def __init__(self):
        super().__init__()
        self.blocks, self.out = [L.Dense(48, activation="gelu") for _ in range(3)], L.Dense(4)

    def call(self, x):
        h, edges = x
        for block in self.blocks:
            sent = tf.gather(block(h), edges[:, 0])
            h = tf.math.unsorted_segment_sum(sent, edges[:, 1], tf.shape(h)[0]) + block(h)
        return self.out(h)


def _graph(nodes, edges):
    r = np.random.default_rng(nodes + edges)
    x = r.normal(size=(nodes, 16)).astype("float32"), r.integers(0, nodes, (edges, 2))
    return x, r.integers(0, 4, nodes)


def _sends():
    model = Sends()
    model(_graph(30, 50)[0])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


GRAPHS = Case(_sends, lambda n: _graph(300, 500))


def _open(batches):
    """A pipeline that leaves open in which sizes its batches differ, and tells their number."""

    def common(*each):
        sizes = [set(of_axis) for of_axis in zip(*(array.shape for array in each), strict=True)]
        shape = [None if k == 0 or len(found) > 1 else found.pop() for k, found in enumerate(sizes)]
        return tf.TensorSpec(shape, each[0].dtype)

    spec = tf.nest.map_structure(common, *batches)
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))


def _fit(batches, epochs=2):
    return lambda model: model.fit(_open(batches), epochs=epochs, shuffle=False, verbose=0).history


def _one_by_one(batches, epochs=2):
    """The first batch is of sizes that do not come again: for these, plain Keras multiplies in another way."""
    first, *others = batches

    def by_one(model):
        return [model.train_on_batch(*batch) for batch in [first, *others * epochs]]

    return by_one


def _same(case, action, **options):
    settings = {"batch_size": None, "budget": 0.7, "max_plans": 2} | options
    plain, model = make(case), compile_quickly(make(case), case, **settings)
    assert_same_after(action, model, plain)
    controller = model._checkmate_controller
    assert len(controller.plans) <= settings["max_plans"]
    assert any(known.report.recomputations for known in controller.earlier)
    return controller


@pytest.mark.feature("Training", "sequences of any length", note="under plans for longer ones")
@pytest.mark.parametrize(
    ("case", "action"),
    [
        (TAGGER, _fit([_sentences(n) for n in LENGTHS])),
        pytest.param(TAGGER, _one_by_one([_sentences(n) for n in (16, *LENGTHS)]), marks=pytest.mark.long),
        pytest.param(RECURRENT, _fit([_sentences(n) for n in LENGTHS]), marks=pytest.mark.long),
    ],
    ids=["pipeline", "one by one", "recurrent"],
)
def test_a_length_trains_under_the_plan_of_a_larger_one(case, action, caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")
    controller = _same(case, action)
    lengths = sorted(key[1][0].shape[1] for key in controller.plans)
    assert lengths[-1] == max(LENGTHS)
    assert len(controller.earlier) == 3 + (action.__name__ == "by_one")  # 20, 34, and 40 in place of one of them
    assert caplog.text.count("in more than 2 combinations of sizes") == 1
    assert caplog.text.count("planning for") == len(controller.earlier)


@pytest.mark.long
def test_a_generator_and_several_steps_per_execution():
    batches = [_sentences(n) for n in LENGTHS]

    def action(model):
        model.steps_per_execution = 3
        lost = model.fit(_open(batches), verbose=0).history
        return lost, model.fit((batch for batch in batches), steps_per_epoch=len(batches), verbose=0).history

    assert len(_same(TAGGER, action).earlier) == 3


@pytest.mark.long
def test_one_plan_for_all_lengths():
    controller = _same(TAGGER, _fit([_sentences(n) for n in LENGTHS]), max_plans=1)
    assert [known.report.batch_size for known in controller.earlier] == [24] * 3  # 20, 34, 40


@pytest.mark.long
def test_keras_2():
    legacy = pytest.importorskip("tf_keras")

    action = _fit([_sentences(n) for n in LENGTHS])
    plain, model = (
        legacy_tagger(legacy),
        compile_quickly(legacy_tagger(legacy), TAGGER, batch_size=None, budget=0.7, max_plans=2),
    )
    assert action(model) == action(plain)
    for a, b in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(model._checkmate_controller.earlier) == 3


@pytest.mark.long
@pytest.mark.parametrize("action", [_fit, _one_by_one])
def test_sizes_apart_from_each_other_are_joined(action, caplog):
    """Then nothing is planned in the second epoch."""
    caplog.set_level(logging.INFO, "checkmate_tf")
    sizes = (11, 31), (12, 30), (30, 12), (14, 28), (32, 10), (10, 33), (26, 14), (13, 29)
    controller = _same(PAIRS, action([_pair(*n) for n in sizes]))
    assert len(controller.earlier) <= 7 and "came: planning for up to" in caplog.text
    kept = [tuple(t.shape[1] for t in key[1][:2]) for key in controller.plans]
    assert all(any(a <= x and b <= y for x, y in kept) for a, b in sizes[1:])
    came = [int(0.7 * known.report.plain_peak_bytes) for known in controller.earlier[:2]]
    assert all(plan.report.budget_bytes <= max(came) * 1.2 for plan in controller.plans.values())


@pytest.mark.long
def test_where_joined_sizes_do_not_fit_they_are_planned_for_alone(caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")
    batches = [_sentences(length, count) for length, count in ((8, 96), (48, 16), (12, 64), (46, 17), (8, 96))]
    probe = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=0.75)
    probe.train_on_batch(*batches[1])
    budget = probe.checkmate.budget_bytes
    checkmate_tf.restore(probe)
    controller = _same(TAGGER, _fit(batches, epochs=1), budget=budget, max_plans=1)
    assert "no plan for up to (96, 48)" in caplog.text
    assert all(plan.report.budget_bytes == budget for plan in controller.plans.values())


@pytest.mark.long
@pytest.mark.parametrize("action", [_fit, _one_by_one], ids=["pipeline", "one by one"])
def test_graphs_of_any_size(action):
    sizes = (230, 490), (240, 500), (300, 420), (200, 300), (290, 410), (310, 510), (220, 480), (100, 100)
    controller = _same(GRAPHS, action([_graph(*n) for n in sizes]))
    assert len(controller.earlier) <= 6
    assert any(key[1][1].shape[0] == 510 for key in controller.plans)


@pytest.mark.long
def test_the_peak_is_within_the_budget_under_a_larger_plan():
    found = find_device().current_bytes()
    probe = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=0.8)
    probe.train_on_batch(*_sentences(40, 128))
    budget = found + probe.checkmate.budget_bytes
    checkmate_tf.restore(probe)
    model = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=budget, max_plans=1, verify=True)
    for length in (20, 40, 34, 27, 39, 8):
        model.train_on_batch(*_sentences(length, 128))
        report = model.checkmate
        assert report.budget_bytes == budget >= report.training_peak_bytes
    assert len(model._checkmate_controller.earlier) == 2 and report.replanned == 0


def test_a_share_does_not_become_less_where_larger_inputs_need_less():
    model = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=0.7)
    budgets = []
    for length, count in ((60, 10), (6, 101)):
        model.train_on_batch(*_sentences(length, count))
        budgets.append(model.checkmate.budget_bytes)
        if count == 10:
            assert budgets[-1] == int(0.7 * model.checkmate.plain_peak_bytes)
        else:
            assert int(0.7 * model.checkmate.plain_peak_bytes) < budgets[-1]
    assert budgets[0] == budgets[1]


@pytest.mark.long
@pytest.mark.parametrize("plans", [1, 3])
def test_graphs_with_as_many_edges_as_nodes(plans):
    """All their first axes are one batch, until others come. Two in a row do not tell that no others come."""
    sizes = (300, 300), (200, 400), (100, 350), (300, 300), (50, 50), (280, 290), (100, 390)
    _same(GRAPHS, _fit([_graph(*n) for n in sizes]), budget=0.8, max_plans=plans)


@pytest.mark.long
def test_what_is_traced_in_another_way_is_planned_anew():
    batches = [_sentences(n) for n in (20, 34, 9)]
    model = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=0.7, max_plans=1)
    _fit(batches)(model)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    try:
        model.fit(_open(batches[2:]), verbose=0)
        assert [key[1][0].shape[1] for key in model._checkmate_controller.plans] == [9]
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def _joins():
    """Its targets are as long as both of its inputs together."""
    a, b = keras.Input((None, 16)), keras.Input((None, 16))
    parts = [L.Dense(32, activation="gelu")(L.Dense(32, activation="gelu")(x)) for x in (a, b)]
    model = keras.Model([a, b], L.Dense(1)(L.Concatenate(axis=1)(parts)))
    model.compile("sgd", "mse")
    return model


@pytest.mark.long
def test_sizes_that_depend_on_each_other_are_not_joined(caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")

    def batch(a, b, count=16):
        (x, _), random = _pair(a, b, count), np.random.default_rng(a)
        return x, random.normal(size=(count, a + b, 1)).astype("float32")

    sizes = (11, 31), (31, 12), (20, 20), (12, 32), (33, 10)
    _same(Case(_joins, lambda n: batch(30, 30, n)), _fit([batch(*n) for n in sizes]))
    assert caplog.text.count("no plan for up to") == 1


@pytest.mark.long
def test_what_was_open_stays_open():
    """Images that are wide and images that are high, in turn, with one plan: it is made for both."""

    def build():
        inputs = keras.Input((None, None, 3))
        x = inputs
        for _ in range(3):
            x = L.Conv2D(8, 3, padding="same", activation="gelu")(x)
        model = keras.Model(inputs, L.Dense(1)(L.GlobalAveragePooling2D()(x)))
        model.compile("sgd", "mse")
        return model

    def images(height, width, count=8):
        random = np.random.default_rng(height)
        x = random.normal(size=(count, height, width, 3)).astype("float32")
        return x, random.normal(size=(count, 1)).astype("float32")

    case = Case(build, lambda n: images(20, 16, n))
    model = compile_quickly(make(case), case, batch_size=None, budget=0.7, max_plans=1)
    for _ in range(3):
        for size in ((20, 16), (10, 16), (20, 12)):
            model.train_on_batch(*images(*size))
    assert len(model._checkmate_controller.earlier) == 3


@pytest.mark.long
def test_another_length_between_the_steps_of_one():
    """A callback trains on it, and takes the only plan."""
    fixed = tf.data.Dataset.from_tensor_slices(_sentences(15, 72)).batch(24, drop_remainder=True)

    class Between(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.train_on_batch(*_sentences(60, 20))

    model = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=0.7, max_plans=1)
    model.fit(_open([_sentences(n) for n in (20, 34, 9)]), verbose=0)
    history = model.fit(fixed, verbose=0, callbacks=[Between()], epochs=2).history
    assert np.isfinite(history["loss"]).all() and len(model._checkmate_controller.plans) == 1


@pytest.mark.long
def test_a_function_of_the_users_is_told_that_its_length_is_open():
    model = compile_quickly(make(TAGGER), TAGGER, batch_size=None, budget=0.7, max_plans=1)
    for length in (16, 20, 30, 9):
        model.train_on_batch(*_sentences(length))
    step = tf.function(lambda x, y: model.train_step((x, y)), reduce_retracing=True, autograph=False)
    with pytest.raises(DynamicShapeError, match="open dimension"):
        for length in (12, 60, 70):
            step(*map(tf.constant, _sentences(length)))


# What a plan has room for ---------------------------------------------------------------------------------------------


def _spec(*shape, dtype=tf.float32):
    return tf.TensorSpec(shape, dtype)


ROOM = Room((_spec(None, 12, 3), _spec(7)), 8, (tf.TensorShape([None, None, 3]), tf.TensorShape([None])))


@pytest.mark.parametrize(
    ("given", "serves"),
    [
        ((_spec(8, 12, 3), _spec(7)), True),
        ((_spec(2, 5, 3), _spec(1)), True),
        ((_spec(None, None, 3), _spec(None)), True),  # in a graph that leaves open what the plan does
        ((_spec(9, 5, 3), _spec(1)), False),
        ((_spec(2, 13, 3), _spec(1)), False),
        ((_spec(2, 5, 3), _spec(8)), False),
        ((_spec(2, 5, 2), _spec(1)), False),  # smaller, where the step knows the size
        ((_spec(2, 5, None), _spec(1)), False),
        ((_spec(2, 5, 3), _spec(1, dtype=tf.int32)), False),
        ((_spec(2, 5), _spec(1)), False),
        ((_spec(2, 5, 3),), False),
    ],
)
def test_what_a_plan_serves(given, serves):
    assert ROOM.serves(given) == serves
    assert ROOM.size_bytes == 4 * (8 * 12 * 3 + 7)


def _one(batch, length):
    return Room((_spec(None, length),), batch, (tf.TensorShape([None, None]),))


def test_the_least_that_serves_and_the_least_that_is_made_larger():
    rooms = {"short": _one(64, 8), "long": _one(16, 48), "both": _one(32, 24)}
    assert least_that_serves(rooms, [_spec(30, 20)]) == "both"
    assert least_that_serves(rooms, [_spec(16, 48)]) == "long" and least_that_serves(rooms, [_spec(17, 48)]) is None
    assert cheapest_to_join(rooms, [_spec(None, 26)], 32) == "both"
    assert cheapest_to_join(rooms, [_spec(None, 9)], 64) == "short"
    assert cheapest_to_join(rooms, [_spec(None, 90)], 90) == "short"  # all are smaller, so the first one
    assert cheapest_to_join({}, [_spec(None, 9)], 64) is None
    assert cheapest_to_join(rooms, [_spec(9, 9)], 64) is None


def test_what_is_joined_has_room_for_both():
    sizes = list(itertools.product((1, 4, 9), (2, 6, 7)))
    for (a, b), (c, d) in itertools.product(sizes, sizes):
        specs, batch = joined(_one(a, b), [_spec(None, d)], c)
        both = Room(specs, batch, (tf.TensorShape([None, None]),))
        for n, length in sizes:
            if _one(a, b).serves([_spec(n, length)]) or _one(c, d).serves([_spec(n, length)]):
                assert both.serves([_spec(n, length)])
        assert both == _one(max(a, c), max(b, d))


@pytest.mark.parametrize(
    "specs", [(), (_spec(None, 5), _spec(3)), (_spec(None, 5, dtype=tf.int32),), (_spec(None),), (_spec(3, 5),)]
)
def test_what_cannot_be_joined(specs):
    assert joined(_one(8, 12), specs, 4) is None


def test_specs_in_the_structure_of_a_batch():
    given = {"a": None, "b": _spec(2, 5), "c": tf.OptionalSpec(_spec(3))}
    specs = (_spec(None, 6),)
    assert as_packed(specs, given) == {**given, "b": specs[0]}
    assert sized(specs, 4, given)["b"] == _spec(4, 6)
