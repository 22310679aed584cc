"""The callback: `fit` trains within a budget, with the plain numbers, and the logs say what it takes."""

from __future__ import annotations

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, DENSE, assert_same_state, compile_quickly, make

import checkmate_tf
from checkmate_tf.callbacks import MemoryBudget
from checkmate_tf.errors import BudgetError, InfeasibleBudgetError, ModelError, StrategyError

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

QUICK = {"costs": "flops", "gap": 1.0, "time_limit": 10, "progress": False, "verify": False}
MIB = 2**20
LOGGED = {"memory_budget", "memory_peak"}


def fit(model, *callbacks, case=DENSE, epochs=2, **more):
    x, y = case.data(2 * case.batch + 3)
    settings = {"batch_size": case.batch, "epochs": epochs, "shuffle": False, "verbose": 0}
    return model.fit(x, y, callbacks=list(callbacks), **settings | more).history


def bare(history):
    return {name: values for name, values in history.items() if name not in LOGGED}


@pytest.mark.long(only=("residual",))
@pytest.mark.feature("Training", "the callback `MemoryBudget`")
@pytest.mark.parametrize("name", ["residual", "dense"])
def test_training_is_equal_bit_by_bit(name):
    case = DENSE if name == "dense" else CASES[name]
    plain, ours = make(case), make(case)
    validation = case.data(case.batch)
    expected = fit(plain, case=case, validation_data=validation)
    found = fit(ours, MemoryBudget(case.budget, **QUICK), case=case, validation_data=validation)
    assert bare(found) == expected
    assert_same_state(plain, ours)
    report = ours.checkmate
    assert report.recomputations > 0 and report.batch_size == case.batch
    assert found["memory_budget"] == [report.budget_bytes] * 2


def test_a_batch_size_plans_before_the_first_batch():
    model, seen = make(DENSE), []
    begun = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: seen.append(model.checkmate))
    fit(model, MemoryBudget(DENSE.budget, batch_size=2 * DENSE.batch, **QUICK), begun)
    assert seen[0].batch_size == 2 * DENSE.batch


def test_a_second_fit_does_not_plan_again():
    model, ours = make(DENSE), MemoryBudget(DENSE.budget, **QUICK)
    fit(model, ours)
    report = model.checkmate
    fit(model, ours)
    assert model.checkmate is report
    fit(model)  # without it: the model stays compiled for the budget
    assert model.checkmate is report
    fit(model, MemoryBudget("1GB", **QUICK))
    assert model.checkmate.budget_bytes == 10**9


@pytest.mark.long
def test_a_copy_of_one_that_has_trained_trains_its_own_model():
    """Searches for hyperparameters copy callbacks."""
    ours = MemoryBudget(DENSE.budget, **QUICK)
    fit(make(DENSE), ours, epochs=1)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        model = make(DENSE)
        fit(model, other, epochs=1)
        assert model.checkmate.recomputations > 0 and other.model is model is not ours.model


@pytest.mark.long
def test_after_restore_it_plans_again():
    model, ours = make(DENSE), MemoryBudget(DENSE.budget, **QUICK)
    fit(model, ours)
    checkmate_tf.restore(model)
    assert not hasattr(model, "checkmate")
    fit(model, ours)
    assert model.checkmate.recomputations > 0


@pytest.mark.long
def test_it_replaces_an_earlier_budget():
    model = compile_quickly(make(DENSE), DENSE, budget="2GB")
    history = fit(model, MemoryBudget("1GB", **QUICK))
    assert history["memory_budget"] == [10**9] * 2


def test_peaks_are_those_of_each_epoch_and_others_see_them():
    class Takes(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if not self.params.get("taken"):
                self.params["taken"] = True
                tf.raw_ops.Empty(shape=[64 * MIB], dtype=tf.uint8)

    seen = []
    sees = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(LOGGED & set(logs)))
    history = fit(make(DENSE), MemoryBudget("1GB", **QUICK), Takes(), sees, epochs=3)
    first, second, third = history["memory_peak"]
    assert first > 64 * MIB and first - second > 32 * MIB and abs(second - third) < 32 * MIB
    assert seen == [LOGGED] * 3


@pytest.mark.long
def test_the_peak_of_an_epoch_is_kept_when_a_batch_of_other_sizes_is_planned_for():
    inputs = keras.Input((None, 8))
    hidden = keras.layers.Dense(16, activation="gelu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.GlobalAveragePooling1D()(hidden)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    long, short = (np.zeros((64, length, 8), "float32") for length in (512, 4))
    spec = tf.TensorSpec((None, None, 8)), tf.TensorSpec((None,), tf.int64)
    data = tf.data.Dataset.from_generator(lambda: ((x, np.zeros(64)) for x in (long, short)), output_signature=spec)
    steps = []
    sees = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(model.checkmate))
    ours = MemoryBudget("1GB", **QUICK | {"verify": True})
    history = model.fit(data, shuffle=False, verbose=0, callbacks=[ours, sees]).history
    long, short = (report.training_peak_bytes for report in steps)
    assert history["memory_peak"][0] >= long > short + 4 * MIB  # what other tests left lies in both


def test_where_nothing_is_measured_there_is_no_peak(monkeypatch):
    from checkmate_tf.keras.training.controller import Controller

    monkeypatch.setattr(Controller, "peak_bytes", lambda self: None)
    assert "memory_peak" not in fit(make(DENSE), MemoryBudget("1GB", **QUICK))


@pytest.mark.parametrize(("options", "error"), [
    ({"budget": "4 apples"}, BudgetError), ({"strategy": "best"}, StrategyError), ({"gpu": True}, TypeError),
])  # fmt: skip
def test_bad_arguments_are_refused_at_once(options, error):
    with pytest.raises(error):
        MemoryBudget(**options)


@pytest.mark.long
@pytest.mark.parametrize("batch_size", [None, DENSE.batch])
def test_a_budget_that_is_too_small_leaves_the_model_as_it_was(batch_size):
    plain, model = make(DENSE), make(DENSE)
    with pytest.raises(InfeasibleBudgetError):
        fit(model, MemoryBudget("10kB", batch_size=batch_size, **QUICK))
    assert not hasattr(model, "checkmate")
    assert fit(model) == fit(plain)
    assert_same_state(plain, model)


def test_it_is_for_keras_3():
    with pytest.raises(ModelError, match=r"no Keras 3 model.*checkmate_tf.compile"):
        MemoryBudget("1GB").set_model(type("Other", (), {"name": "other"})())


@pytest.mark.long
def test_one_callback_serves_several_models():
    ours = MemoryBudget(DENSE.budget, **QUICK)
    models = [make(DENSE), make(DENSE)]
    histories = [fit(model, ours) for model in models]
    assert np.array_equal(bare(histories[0])["loss"], bare(histories[1])["loss"])
    assert all(model.checkmate.recomputations > 0 for model in models)
