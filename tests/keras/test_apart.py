"""Inputs whose first axis is not the batch: graphs, two batches at once, a table beside a batch. Numbers stay plain."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, make

import checkmate_tf
from checkmate_tf.device.measure import find_device
from checkmate_tf.errors import BatchSizeError
from checkmate_tf.fit.subjects.tracing import of_size
from checkmate_tf.keras import api
from checkmate_tf.keras.batches.apart import apart_in, open_but, samples_of, told_sizes, with_apart

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:.*ran out of data"),
]

L = keras.layers
CROSSENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Graph(keras.Model):
    """Classes of some of the nodes of a graph."""

    def __init__(self):
        super().__init__()
        self.blocks = [L.Dense(48, activation="gelu") for _ in range(4)]
        self.out = L.Dense(4)

    def call(self, x):
        h, edges, ids = x
        for block in self.blocks:
            sent = tf.gather(block(h), edges[:, 0])
            h = tf.math.unsorted_segment_sum(sent, edges[:, 1], tf.shape(h)[0]) + block(h)
        return tf.gather(self.out(h), ids)


def _graph(nodes=400, edges=900, ids=50, seed=0):
    r = np.random.default_rng(seed)
    x = r.normal(size=(nodes, 16)).astype("float32"), r.integers(0, nodes, (edges, 2)), r.integers(0, nodes, ids)
    return x, r.integers(0, 4, ids)


class TwoBatches(keras.Model):
    """Learns of an unlabelled batch, and of a labelled one of another size."""

    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([L.Dense(64, activation="gelu") for _ in range(3)])
        self.head, self.noise = L.Dense(4), L.Dropout(0.2, seed=4)

    def call(self, x):
        return self.head(self.body(x))

    def train_step(self, data):
        unlabelled, (x, y) = data
        with tf.GradientTape() as tape:
            one, other = (self.body(self.noise(unlabelled, training=True)) for _ in range(2))
            loss = tf.reduce_mean((one - other) ** 2) + self.compute_loss(y=y, y_pred=self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def _two(unlabelled=200, labelled=20, seed=0):
    r = np.random.default_rng(seed)
    rows = lambda n: r.normal(size=(n, 32)).astype("float32")  # noqa: E731 - a short helper
    return rows(unlabelled), (rows(labelled), r.integers(0, 4, labelled))


class Anchors(keras.Model):
    """Compares each sample of a batch with anchors that come beside it."""

    def __init__(self):
        super().__init__()
        self.body = keras.Sequential([L.Dense(64, activation="gelu") for _ in range(3)])
        self.out = L.Dense(4)

    def call(self, x):
        samples, anchors = x
        known = self.body(anchors)
        return self.out(tf.matmul(tf.nn.softmax(tf.matmul(self.body(samples), known, transpose_b=True)), known))


def _anchored(n=64, anchors=100, seed=0):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 32)).astype("float32"), r.normal(size=(anchors, 32)).astype("float32")
    return x, r.integers(0, 4, n)


def _case(kind, first):
    def build():
        model = kind()
        batch = first()
        model(batch[1][0] if kind is TwoBatches else batch[0])
        model.compile("adam", CROSSENTROPY)
        return model

    return Case(build, lambda n: first())


GRAPH, TWO, ANCHORS = _case(Graph, _graph), _case(TwoBatches, _two), _case(Anchors, _anchored)


def _attached(case, **options):
    return compile_quickly(make(case), case, **{"batch_size": None, "budget": 0.7} | options)


def _same(case, action, plans=1, **options):
    model = _attached(case, **options)
    assert_same_after(action, model, make(case))
    assert len(model._checkmate_controller.plans) == plans
    assert any(planned.report.recomputations for planned in model._checkmate_controller.plans.values())
    return model


def _open(batches):
    """A pipeline that leaves all first axes open."""
    batches = list(batches)
    spec = tf.nest.map_structure(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), batches[0])
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))


def _fit(*datasets, **options):
    return lambda model: [model.fit(d() if callable(d) else d, verbose=0, **options).history for d in datasets]


def _whole_graph():
    return tf.data.Dataset.from_tensors(_graph()).repeat(3)


@pytest.mark.feature("Training", "a whole graph a step: nodes, edges, ids", note="a plan for each size of graph")
def test_a_whole_graph(caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")
    model = _same(GRAPH, _fit(_whole_graph, epochs=2))
    assert model.checkmate.batch_size == 50 and "50 is taken for the batch" in caplog.text
    (key,) = model._checkmate_controller.plans
    assert [t.shape[0] for t in key[1]] == [400, 900, None, None]


@pytest.mark.parametrize(
    ("given", "plans"),
    [
        pytest.param(  # fewer ids are a smaller batch
            [_graph(), _graph(seed=1), _graph(ids=30), _graph()], 1, marks=pytest.mark.long
        ),
        ([_graph(), _graph(300, 700), _graph(), _graph(300, 700, 20)], 2),
        pytest.param([_graph(), _graph(200, 200), _graph()], 2, marks=pytest.mark.long),  # as frequent as the batch now
    ],
)
def test_graphs_in_a_pipeline(given, plans):
    _same(GRAPH, _fit(_open(given), epochs=2), plans)


@pytest.mark.long
def test_graphs_one_by_one():
    batches = [_graph(), _graph(300, 700), _graph(seed=2), _graph(300, 700, seed=3)]
    _same(GRAPH, lambda model: [model.train_on_batch(x, y) for x, y in batches], plans=2)


@pytest.mark.long
def test_more_graphs_than_plans_are_kept(caplog):
    batches = [_graph(400 + 10 * k) for k in (0, 1, 2, 0)]
    _same(GRAPH, _fit(_open(batches)), plans=2, max_plans=2)
    assert caplog.text.count("in more than 2 combinations of sizes") == 1


def _zipped(unlabelled=500, labelled=60, sizes=(200, 20)):
    one, (x, y) = _two(unlabelled, labelled)
    parts = tf.data.Dataset.from_tensor_slices(one), tf.data.Dataset.from_tensor_slices((x, y))
    return tf.data.Dataset.zip(tuple(part.batch(n) for part, n in zip(parts, sizes, strict=True)))


@pytest.mark.feature("Training", "two batches of different sizes, zipped")
@pytest.mark.parametrize(
    ("rows", "plans"),
    [
        ((400, 40), 1),
        pytest.param((500, 60), 2, marks=pytest.mark.long),  # the last unlabelled batch is smaller
        pytest.param((400, 27), 1, marks=pytest.mark.long),  # the last labelled one is
        pytest.param((450, 47), 2, marks=pytest.mark.long),
    ],
)
def test_two_batches_zipped(rows, plans):
    _same(TWO, _fit(lambda: _zipped(*rows), epochs=2), plans)


def test_equal_sizes_are_one_batch_and_a_smaller_one_of_them_is_served():
    given = (160, 160, (80, 80)), (130, 160, (80, 80)), (80, 80, (9, 80))
    _same(TWO, _fit(*(lambda one=one: _zipped(*one) for one in given)))


@pytest.mark.long
def test_sizes_that_were_apart_may_be_equal_later():
    given = (400, 40, (200, 20)), (160, 160, (80, 80)), (400, 40, (200, 20))
    _same(TWO, _fit(*(lambda one=one: _zipped(*one) for one in given)), plans=2)


@pytest.mark.feature("Training", "a table beside a batch")
@pytest.mark.parametrize("anchors_known", [pytest.param(True, marks=pytest.mark.long), False])
def test_anchors_beside_a_batch(anchors_known):
    (x, anchors), y = _anchored(160)

    def data():
        rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
        if anchors_known:
            return rows.map(lambda a, b: ((a, anchors), b))
        return _open([((a, anchors), b) for a, b in rows.as_numpy_iterator()])

    model = _same(ANCHORS, _fit(data, epochs=2))
    assert model.checkmate.batch_size == 64


def test_a_larger_batch_is_planned_for():
    batches = [_anchored(32), _anchored(64), _anchored(20)]
    model = _same(ANCHORS, lambda model: [model.train_on_batch(x, y) for x, y in batches])
    assert list(model._checkmate_controller.batches.values()) == [64]


@pytest.mark.parametrize("options", [pytest.param({}, marks=pytest.mark.long), {"batch_size": 64}])
def test_data_is_planned_for_at_once(options):
    model = _attached(ANCHORS, data=_anchored(), **options)
    report = model.checkmate
    assert report.batch_size == 64
    action = lambda model: [model.train_on_batch(*_anchored(n)) for n in (64, 64)]  # noqa: E731 - a short one
    assert_same_after(action, model, make(ANCHORS))
    assert model.checkmate.schedule == report.schedule and len(model._checkmate_controller.earlier) == 1


@pytest.mark.long
def test_a_dataset_is_planned_for_at_once():
    model = _attached(TWO, data=_zipped())
    assert model.checkmate.batch_size == 20
    assert_same_after(_fit(_zipped, epochs=2), model, make(TWO))
    assert len(model._checkmate_controller.plans) == 2  # the last unlabelled batch is smaller


@pytest.mark.parametrize("first", [pytest.param(64, marks=pytest.mark.long), None])
def test_specs_with_a_table(first):
    rows = lambda n, dtype="float32", *shape: tf.TensorSpec([n, *shape], dtype)  # noqa: E731
    spec = (rows(first, "float32", 32), rows(100, "float32", 32)), rows(first, "int64")
    model = _attached(ANCHORS, input_spec=spec, batch_size=None if first else 64)
    data = lambda: tf.data.Dataset.from_tensors(_anchored()).repeat(2)  # noqa: E731
    assert_same_after(_fit(data), model, make(ANCHORS))
    assert len(model._checkmate_controller.earlier) == 1 and model.checkmate.batch_size == 64


def test_a_smaller_table_with_an_open_spec_and_a_batch_size():
    spec = (tf.TensorSpec([None, 32]), tf.TensorSpec([None, 32])), tf.TensorSpec([None], tf.int64)
    model = _attached(ANCHORS, input_spec=spec, batch_size=64)
    data = lambda: _open([_anchored(64, 9), _anchored(20, 9)])  # noqa: E731
    assert_same_after(_fit(data), model, make(ANCHORS))
    assert len(model._checkmate_controller.earlier) == 1


def test_a_gradient_function():
    models = make(ANCHORS), make(ANCHORS)
    settings = {"costs": "flops", "gap": 1.0, "time_limit": 10, "progress": False, "verify": False}
    for given in ({}, {"data": _anchored()}):
        ours = checkmate_tf.gradient_function(models[1], CROSSENTROPY, 0.7, **settings, **given)

        @tf.function(autograph=False)
        def plainly(x, y):
            with tf.GradientTape() as tape:
                value = tf.reduce_mean(CROSSENTROPY(y, models[0](x, training=True)))
            return value, tape.gradient(value, models[0].trainable_variables)

        x, y = _anchored()
        for a, b in zip(tf.nest.flatten(plainly(x, y)), tf.nest.flatten(ours(x, y)), strict=True):
            np.testing.assert_array_equal(a, b)
    assert ours.checkmate.batch_size == 64


def test_the_graph_of_operations_counts_both_sizes():
    graphs = [checkmate_tf.op_graph(make(ANCHORS), costs="flops", data=_anchored(64, n)) for n in (100, 200)]
    less, more = (graph.sizes.sum() for graph in graphs)
    assert less < more < 2 * less


def test_the_peak_is_within_the_budget():
    probe = _attached(GRAPH, budget=0.9)
    _fit(_whole_graph)(probe)
    budget = find_device().current_bytes() + int(0.9 * probe.checkmate.plain_peak_bytes)
    checkmate_tf.restore(probe)
    model = _attached(GRAPH, budget=budget, verify=True)
    _fit(_whole_graph)(model)
    report = model.checkmate
    assert report.replanned == 0 and max(report.measured_peak_bytes, report.training_peak_bytes) <= budget


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"data": _graph(), "batch_size": 77}, r"disagree.*\[50, 400, 900\].*batch_size=77 is none of them"),
        ({"data": (_graph()[0], np.zeros(7))}, r"disagree.*\[7, 50, 400, 900\].*400 was taken for it"),
        (
            {"input_spec": (tf.TensorSpec([None, 3]), tf.TensorSpec([4]), tf.TensorSpec([5]))},
            r"disagree.*\[4, 5\], and some leave it open.*give batch_size=",
        ),
    ],
)
def test_what_cannot_be_known(options, says):
    model = make(GRAPH)
    with pytest.raises(BatchSizeError, match=says):
        compile_quickly(model, GRAPH, **{"batch_size": None} | options)
    assert not hasattr(model, "checkmate")


def test_a_first_batch_whose_parts_do_not_belong_together():
    model, (x, y) = _attached(GRAPH), _graph()
    with pytest.raises(BatchSizeError, match=r"disagree.*400 was taken") as found:
        model.train_on_batch(x, y[:7])
    assert "was restored" in found.value.__notes__[0]


def test_replicas_share_one_batch(monkeypatch):
    monkeypatch.setattr(api, "distribution_of", lambda model: SimpleNamespace(replicas=2))
    model = make(ANCHORS)
    for call in (checkmate_tf.op_graph, partial(compile_quickly, case=ANCHORS, batch_size=None)):
        with pytest.raises(BatchSizeError, match=r"disagree.*\[64, 100\]. Under tf.distribute"):
            call(model, data=_anchored())


def test_ragged_inputs_are_the_batch():
    rows = tf.RaggedTensorSpec([7, None]), tf.TensorSpec([5, 3]), tf.TensorSpec([5])
    with pytest.raises(BatchSizeError, match="a ragged or sparse input has 7"):
        open_but(rows, samples_of(rows))
    opened = open_but(rows, 7)
    assert opened == (tf.RaggedTensorSpec([None, None]), *rows[1:])


def test_specs_of_what_is_apart():
    four = tf.TensorSpec([4])
    given = {"a": tf.TensorSpec([5, 3]), "b": None, "c": tf.TensorSpec([]), "d": four, "e": four}
    assert samples_of(given) == 4 and told_sizes(given) == [4, 5]
    assert samples_of({"a": given["a"], "d": given["d"]}) == 5  # the first of two that are as frequent
    assert samples_of(given["c"]) is None
    opened = open_but(given, 4)
    assert apart_in(opened) == (5, None, None, None) and apart_in(open_but(given["d"], 4)) == ()
    assert of_size(opened, 4) == given
    whole = {k: t if t is None or not t.shape.rank else tf.TensorSpec([None, *t.shape[1:]]) for k, t in given.items()}
    assert with_apart(whole, opened) == opened
