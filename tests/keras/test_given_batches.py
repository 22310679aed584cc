"""Batches that a caller holds until the step ends: plans that do not fit so are made again before the step."""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, assert_same_state, compile_quickly, make

import checkmate_tf
from checkmate_tf.check.networks import unet
from checkmate_tf.device.measure import find_device
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.fit import run
from checkmate_tf.fit.pipeline import placed_bytes
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.keras.batches.feeding import given_as, held_by_caller
from checkmate_tf.keras.training import watched

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

X, Y = DENSE.data(DENSE.batch)


def _planned():
    return compile_quickly(make(DENSE), DENSE, verify=True, budget="1GB")


def test_how_a_batch_is_held():
    arrays, tensors = (X, Y), (tf.constant(X), tf.constant(Y))
    for batch in (arrays, {"x": X}, (X, None), (tensors[0], Y)):
        assert given_as(batch) == "arrays"
    for batch in (tensors, {"x": tensors[0]}, (tensors[0], None)):
        assert given_as(batch) == "tensors"
    data, given = held_by_caller(iter([tensors, arrays]))
    assert given == "tensors" and [batch[0] is tensors[0] for batch in data] == [True, False]
    pipeline = iter(tf.data.Dataset.from_tensors(arrays))
    assert held_by_caller(pipeline) == (pipeline, "")


def test_the_way_of_the_last_step_is_known():
    model = _planned()
    controller = model._checkmate_controller
    assert not controller.options.given
    found = []
    for train in (
        lambda: model.train_on_batch(X, Y),
        lambda: model.train_on_batch(tf.constant(X), tf.constant(Y)),
        lambda: model.fit(X, Y, batch_size=DENSE.batch, verbose=0),
        lambda: model.train_step((tf.constant(X), tf.constant(Y))),
    ):
        train()
        found.append(controller.options.given)
    assert found == ["arrays", "tensors", "", "tensors"]
    assert not model.checkmate.replanned


@pytest.mark.parametrize("told", [{"prefetch": 2}, {"verify": False}])
def test_where_the_way_does_not_matter_nothing_changes(told):
    model = compile_quickly(make(DENSE), DENSE, **{"verify": True, "budget": "1GB", **told})
    model.train_on_batch(X, Y)
    assert not model._checkmate_controller.options.given


@pytest.mark.parametrize("given", ["arrays", pytest.param("tensors", marks=pytest.mark.long)])
def test_a_plan_that_does_not_fit_is_made_again_before_the_step(monkeypatch, given):
    plain, model = make(DENSE), _planned()
    over = model.checkmate.budget_bytes + 1
    asked, fed = [], []
    monkeypatch.setattr(watched, "placed_bytes", lambda planned, options: asked.append(options.given) or over)
    real = run.fed_by_caller
    monkeypatch.setattr(
        run, "fed_by_caller", lambda *args, **more: fed.append(more["are_there"]) or real(*args, **more)
    )
    x, y = (X, Y) if given == "arrays" else (tf.constant(X), tf.constant(Y))
    for _ in range(3):
        assert model.train_on_batch(x, y) == plain.train_on_batch(x, y)
    assert asked == [given] and fed == [given == "tensors"] * len(fed) and fed
    assert model.checkmate.expected_bytes == (over,) and not model.checkmate.exceeded_bytes
    assert_same_state(plain, model)


def test_where_no_plan_fits_it_trains_with_the_one_there_is(monkeypatch, caplog):
    def refuse(*_, **__):
        raise InfeasibleBudgetError("nothing fits", 1, 2, proven=False)

    plain, model = make(DENSE), _planned()
    monkeypatch.setattr(watched, "placed_bytes", lambda *_: model.checkmate.budget_bytes + 1)
    monkeypatch.setattr(watched, "plan_again", refuse)
    for _ in range(2):
        assert model.train_on_batch(X, Y) == plain.train_on_batch(X, Y)
    said = f"{model.name}: no plan fits where batches are given so: nothing fits"
    assert [r.message for r in caplog.records].count(said) == 1
    assert not model.checkmate.replanned


@pytest.mark.long
def test_a_batch_that_is_held_keeps_a_tight_budget(monkeypatch):
    """Values of a step lie elsewhere beside it: a U-Net's took 3 to 8% more than in `fit`.

    What else comes to the device moves them, too. So a first step may take more than was expected, and a further plan
    follows.
    """
    random = np.random.default_rng(0)
    x = tf.constant(random.random((16, 96, 96, 3), np.float32))
    y = tf.constant(random.integers(0, 5, (16, 96, 96)))
    keras.utils.set_random_seed(1)
    model = unet()
    model.compile("adam", "sparse_categorical_crossentropy")
    gc.collect()  # or what other tests left would go while it trains
    before = find_device().current_bytes()
    checkmate_tf.compile(
        model, before + 80_000_000, batch_size=16, data=(x, y), time_limit=10, progress=False, cache=False
    )
    model.fit(x, y, batch_size=16, verbose=0)
    report = model.checkmate
    assert report.exceeded_bytes or report.training_peak_bytes <= report.budget_bytes  # over it, another plan follows
    looked = []
    monkeypatch.setattr(watched, "placed_bytes", lambda *given: looked.append(placed_bytes(*given)) or looked[-1])
    for _ in range(4):
        model.train_on_batch(x, y)
    fits = [p is None or POLICY.still_fits(p, report.sure_bytes, report.budget_bytes) for p in looked]
    report = model.checkmate
    assert report.training_peak_bytes <= report.budget_bytes
    assert fits and len(report.expected_bytes) == fits.count(False)
