"""Without a batch size the plan is made at the first batch. No batch is lost, and the numbers are those of before."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, DENSE, Case, assert_same_after, assert_same_state, compile_quickly, dense_model, make, train
from keras import layers

import checkmate_tf
from checkmate_tf.device.measure import find_device
from checkmate_tf.errors import (
    BatchSizeError,
    InfeasibleBudgetError,
    ModelError,
    PlanError,
    StrategyError,
    TraceError,
)
from checkmate_tf.keras.training import controller as controllers
from checkmate_tf.keras.training import plans as planning

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Skipping variable loading for optimizer"),
]

BATCH = DENSE.batch
X, Y = DENSE.data(3 * BATCH + 5)
WEIGHTS = np.linspace(0.1, 2, len(X)).astype("float32")
SEVERAL = Case(lambda: dense_model(steps_per_execution=3), DENSE.data, DENSE.budget)


def _attached(case=DENSE, model=None, **options):
    """A model that will be planned when a batch comes."""
    return compile_quickly(model or make(case), case, **{"batch_size": None, "data": None} | options)


def _same(action, case=DENSE, batch=BATCH, plans=1):
    """Do the same with a plain and a compiled model: equal results, equal states."""
    plain, model = make(case), _attached(case)
    assert model.checkmate is None
    assert_same_after(action, model, plain)
    report = model.checkmate
    assert report.batch_size == batch and report.recomputations > 0
    assert len(model._checkmate_controller.plans) == plans
    return model


class Batches(keras.utils.PyDataset):
    def __init__(self):
        super().__init__(workers=2, use_multiprocessing=False)

    def __len__(self):
        return 4

    def __getitem__(self, k):
        return X[k * BATCH : (k + 1) * BATCH], Y[k * BATCH : (k + 1) * BATCH]


def _generator():
    for n in (BATCH, 7, BATCH, 3):
        yield X[:n], Y[:n]


def _dataset(**options):
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(64, seed=4).batch(BATCH, **options).prefetch(2)


def _with_callbacks(model):
    seen = []
    call = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append((batch, logs["loss"])),
        on_epoch_begin=lambda epoch, logs: seen.append(epoch),
    )
    given = {"validation_split": 0.3, "callbacks": [call], "class_weight": {0: 1.0, 1: 0.5, 2: 2.0, 3: 0.1}}
    return model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0, **given).history, seen


FITS = {
    "arrays": lambda model: model.fit(X, Y, batch_size=BATCH, epochs=2, verbose=0).history,
    "validation, callbacks, class weights": _with_callbacks,
    "sample weights": lambda m: m.fit(X, Y, sample_weight=WEIGHTS, batch_size=BATCH, verbose=0).history,
    "tf.data": lambda model: model.fit(_dataset(), epochs=2, verbose=0).history,
    "tf.data of full batches": lambda m: m.fit(_dataset(drop_remainder=True), epochs=2, verbose=0).history,
    "endless": lambda m: m.fit(_dataset().repeat(), steps_per_epoch=3, epochs=3, initial_epoch=1, verbose=0).history,
    "generator": lambda model: model.fit(_generator(), steps_per_epoch=4, verbose=0).history,
    "PyDataset": lambda model: model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history,
    "one by one": lambda model: [model.train_on_batch(X[:n], Y[:n]) for n in (BATCH, BATCH, 5)],
    "one by one, weighted": lambda m: m.train_on_batch(X[:BATCH], Y[:BATCH], sample_weight=WEIGHTS[:BATCH]),
}


@pytest.mark.long(but=("arrays",))
@pytest.mark.feature("Training", "compile without a batch size", note="plans at the first batch")
@pytest.mark.parametrize("name", FITS)
def test_the_numbers_are_those_of_plain_training(name):
    _same(FITS[name])


@pytest.mark.long(but=("arrays",))
@pytest.mark.feature("Training", "compile without a batch size", note="plans at the first batch")
@pytest.mark.parametrize("name", ["arrays", "tf.data", "tf.data of full batches", "endless", "one by one"])
def test_several_steps_per_execution(name):
    _same(FITS[name], SEVERAL)


@pytest.mark.long
@pytest.mark.parametrize("name", ["subclassed", "branches", "own_step", "residual", "transformer"])
def test_models(name):
    case = CASES[name]
    _same(lambda model: train(model, case, 2, epochs=2, shuffle=True), case, case.batch)


@pytest.mark.long
def test_data_of_fewer_samples_than_a_batch():
    model = _same(lambda m: m.fit(X[:9], Y[:9], batch_size=BATCH, epochs=2, verbose=0).history, batch=9)
    assert model.checkmate.budget_bytes == int(DENSE.budget * model.checkmate.plain_peak_bytes)


def test_the_train_function_is_traced_once(monkeypatch):
    """The first batch is given to it by an iterator of the same type as the one that it came from."""
    traced, real = [], controllers.Controller._emit
    monkeypatch.setattr(controllers.Controller, "_emit", lambda self, data: traced.append(1) or real(self, data))
    _attached().fit(X, Y, batch_size=BATCH, epochs=2, verbose=0)
    assert len(traced) == 1


@pytest.mark.long
def test_a_plan_is_measured_with_the_values_of_the_first_batch():
    model = _attached(verify=True, budget="1GB")
    model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    (x, y), report = model._checkmate_controller.options.sample, model.checkmate
    np.testing.assert_array_equal(x, X[:BATCH])
    np.testing.assert_array_equal(y, Y[:BATCH])
    assert report.measured_peak_bytes is not None and report.training_peak_bytes <= report.budget_bytes
    plain = make(DENSE)
    plain.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same_state(plain, model)


def test_what_can_be_checked_without_data_is_refused_at_once(tmp_path):
    model = make(DENSE)
    for error, options in ((StrategyError, {"strategy": "none"}), (PlanError, {"schedule": tmp_path / "none.json"})):
        with pytest.raises(error):
            _attached(model=model, **options)
        assert not hasattr(model, "checkmate")
    with pytest.raises(ModelError, match="not compiled"):
        checkmate_tf.compile(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]), "1GB")


@pytest.mark.parametrize("other", [keras.Model, keras.layers.Dense(4), "model.keras"])
def test_what_is_no_model_is_refused_at_once(other):
    with pytest.raises(ModelError, match="a Keras 3 model is needed"):
        checkmate_tf.compile(other, "50%")


def _fails(model, error, fit=FITS["arrays"]):
    """`fit` raises, and the model trains plainly from then on."""
    plain, attributes = make(DENSE), set(vars(model)) - {"checkmate", "train_step", "make_train_function"}
    with pytest.raises(error) as caught:
        fit(model)
    assert "was restored: it trains plainly" in caught.value.__notes__[0]
    assert not hasattr(model, "checkmate") and set(vars(model)) >= attributes - {"_checkmate_controller"}
    for each in (plain, model):
        keras.utils.set_random_seed(5)
        FITS["arrays"](each)
    assert_same_state(plain, model)


def test_a_budget_that_nothing_fits_restores_the_model():
    model = _attached(budget="100kB", time_limit=1)
    _fails(model, InfeasibleBudgetError)
    train(_attached(model=model), DENSE)
    assert model.checkmate.recomputations > 0


@pytest.mark.long
def test_whoever_trains_again_while_a_refusal_is_handled_does_not_get_it_again():
    """The end of the data is an exception, too, and its context is what is handled."""
    quickly = {"costs": "flops", "verify": False, "progress": False, "cache": False}
    data = tf.data.Dataset.from_generator(
        _generator, output_signature=(tf.TensorSpec([None, *X.shape[1:]]), tf.TensorSpec([None], Y.dtype))
    )
    plain, model = make(DENSE), make(DENSE)
    try:
        _attached(model=model, budget="100kB", time_limit=1).fit(data, verbose=0)
    except InfeasibleBudgetError as error:
        checkmate_tf.compile(model, 2 * error.minimum_bytes, **quickly)
        losses = [each.fit(data, verbose=0).history for each in (plain, model)]
    assert model.checkmate is not None and losses[0] == losses[1]


@pytest.mark.long
def test_a_refusal_says_what_data_takes():
    data = tuple(np.concatenate([a] * 400) for a in (X, Y))
    model = _attached(verify=True, budget=find_device().current_bytes() + 5_000_000, time_limit=1)
    with pytest.raises(InfeasibleBudgetError) as caught:
        model.fit(*data, batch_size=BATCH, verbose=0)
    assert "MB came to the device since it was called, such as arrays" in caught.value.__notes__[0]


def test_a_refusal_does_not_take_slots_for_data():
    """Keras makes them when training begins."""
    model = keras.Sequential([keras.Input((64,)), *[layers.Dense(1000) for _ in range(2)], layers.Dense(1)])
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_generator(
        lambda: iter([(np.zeros((8, 64), "float32"), np.zeros((8, 1), "float32"))] * 3),
        output_signature=(tf.TensorSpec((8, 64)), tf.TensorSpec((8, 1))),
    )
    checkmate_tf.compile(model, 1_000_000, costs="flops", time_limit=1, progress=False)
    with pytest.raises(InfeasibleBudgetError) as caught:
        model.fit(data, verbose=0)
    assert find_device().measurable and "came to the device" not in caught.value.__notes__[0]


@pytest.mark.long
def test_batches_that_the_model_cannot_take_restore_it():
    x = tf.RaggedTensor.from_tensor(tf.ones((BATCH, 64)))
    _fails(_attached(), TraceError, lambda m: m.fit(tf.data.Dataset.from_tensors((x, Y[:BATCH])), verbose=0))


@pytest.mark.long
def test_planning_that_is_interrupted_begins_anew_at_the_next_batch(monkeypatch):
    plain, model = make(DENSE), _attached()

    def interrupt(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(planning, "plan_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            FITS["arrays"](model)
    assert model.checkmate is None
    for each in (model, plain):
        keras.utils.set_random_seed(5)
        FITS["arrays"](each)
    assert_same_state(plain, model)
    assert model.checkmate.batch_size == BATCH


@pytest.mark.long
def test_a_model_that_is_restored_before_the_first_batch():
    model = make(DENSE)
    attributes = set(vars(model))
    checkmate_tf.restore(_attached(model=model))
    assert set(vars(model)) == attributes and model.train_function is None
    plain = make(DENSE)
    assert train(model, DENSE) == train(plain, DENSE)


@pytest.mark.long
@pytest.mark.parametrize("ours", [False, True])
def test_a_model_that_is_compiled_again_before_the_first_batch(ours):
    def action(model):
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        if ours and hasattr(model, "checkmate"):
            _attached(model=model, budget=0.8)
        return FITS["arrays"](model)

    model = _same(action)
    assert model.checkmate.asked.startswith("80%" if ours else "70%")


@pytest.mark.long
def test_a_model_that_is_compiled_again_after_the_first_batch():
    def action(model):
        first = FITS["arrays"](model)
        model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
        return first, FITS["tf.data"](model)

    _same(action)


def test_a_model_that_is_saved_before_the_first_batch(tmp_path):
    model = _attached()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not hasattr(loaded, "checkmate")
    for mine, theirs in zip(loaded.weights, model.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.long(only=("one by one",))
@pytest.mark.parametrize("name", ["fit", "one by one"])
def test_a_larger_batch_is_planned_for_when_it_comes(name, caplog):
    def action(model):
        if name == "fit":
            return [model.fit(X, Y, batch_size=n, epochs=2, verbose=0).history for n in (8, BATCH, 3)]
        return [model.train_on_batch(X[:n], Y[:n]) for n in (8, BATCH, 3, BATCH)]

    model = _same(action)
    assert caplog.text.count("a batch of 16 samples came, memory was planned for 8: planning again") == 1
    report = model.checkmate
    assert report.budget_bytes == int(DENSE.budget * report.plain_peak_bytes)  # a share of the larger step


@pytest.mark.long
def test_a_larger_batch_that_fits_no_budget_leaves_the_plan():
    small = _attached()
    small.train_on_batch(X[:4], Y[:4])
    model = _attached(budget=small.checkmate.budget_bytes, time_limit=1)
    model.train_on_batch(X[:4], Y[:4])
    report = model.checkmate
    with pytest.raises(InfeasibleBudgetError):
        model.train_on_batch(X, Y)
    model.train_on_batch(X[:4], Y[:4])
    assert model.checkmate is report and len(model._checkmate_controller.plans) == 1


@pytest.mark.long
def test_a_larger_batch_inside_of_a_graph_is_refused():
    data = tf.data.Dataset.from_generator(
        lambda: ((X[:n], Y[:n]) for n in (4, 4, BATCH)),
        output_signature=(tf.TensorSpec([None, 64, 8]), tf.TensorSpec([None], tf.int64)),
    )
    model = _attached()
    with pytest.raises(BatchSizeError, match="planned for 4.*batch_size"):
        model.fit(data, verbose=0)
    assert model.checkmate.batch_size == 4


def test_a_loop_of_the_users():
    """Its batches tell their size where they are tensors, or where the function is traced for one size."""
    plain, model, static, opened = make(DENSE), _attached(), _attached(), _attached()
    x, y = tf.constant(X[:BATCH]), tf.constant(Y[:BATCH])
    plain.train_on_batch(X[:BATCH], Y[:BATCH])
    model.train_step((x, y))
    tf.function(static.train_step, autograph=False)((x, y))
    for one in (model, static):
        assert one.checkmate.batch_size == BATCH
        assert_same_state(plain, one)
    spec = [(tf.TensorSpec([None, *t.shape[1:]], t.dtype) for t in (x, y))]
    with pytest.raises(BatchSizeError, match="size open.*batch_size="):
        tf.function(opened.train_step, autograph=False).get_concrete_function(tuple(*spec))
    assert opened.checkmate is None and opened.train_on_batch(X, Y)


def _gradients(model, budget=0.7, time_limit=10):
    settings = {"costs": "flops", "gap": 1.0, "time_limit": time_limit, "progress": False, "verify": False}
    return checkmate_tf.gradient_function(model, "sparse_categorical_crossentropy", budget, **settings)


def test_a_gradient_function_plans_at_the_first_call(caplog):
    models = make(DENSE), make(DENSE)
    loss = keras.losses.sparse_categorical_crossentropy

    @tf.function(autograph=False, reduce_retracing=True)
    def plainly(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, models[0](x, training=True)))
        return value, tape.gradient(value, models[0].trainable_variables)

    ours = _gradients(models[1])
    assert ours.checkmate is None
    for n, planned in ((8, 8), (3, 8), (BATCH, BATCH), (5, BATCH)):
        expected, found = plainly(X[:n], Y[:n]), ours(X[:n], Y[:n])
        for a, b in zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True):
            np.testing.assert_array_equal(a, b)
        assert ours.checkmate.batch_size == planned and ours.checkmate.recomputations > 0
    assert caplog.text.count("planning again") == 1


@pytest.mark.long
def test_a_gradient_function_that_is_refused_is_asked_again():
    ours = _gradients(make(DENSE), "50kB", 1)
    for _ in range(2):
        with pytest.raises(InfeasibleBudgetError):
            ours(X[:BATCH], Y[:BATCH])
    assert ours.checkmate is None


def test_a_gradient_function_within_another_function():
    ours = _gradients(make(DENSE))
    loss = tf.function(lambda x, y: ours(x, y)[0], autograph=False)
    assert float(loss(tf.constant(X[:BATCH]), tf.constant(Y[:BATCH]))) > 0
    assert ours.checkmate.batch_size == BATCH


def test_the_log_and_the_bars_tell_that_planning_begins(caplog):
    caplog.set_level(logging.INFO, "checkmate_tf")
    stages = []
    model = _attached(progress=lambda stage, *more: stages.append(stage))
    assert not stages
    FITS["arrays"](model)
    assert stages and "the first batch has 16 samples: planning for that" in caplog.text


@pytest.mark.long
def test_arrays_are_held_to_one_batch_ahead_and_pipelines_are_not():
    for fit, told in (("arrays", False), ("tf.data", True)):
        model = _attached(verify=True, budget=find_device().current_bytes() + 10**8)
        FITS[fit](model)
        controller = model._checkmate_controller
        assert controller.told is told and (controller.options.prefetch is None) is told
        assert not model.checkmate.replanned
