"""A compiled model that is compiled by Keras again, or trains on other data: it goes on as the plain one does."""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from allocators import crowd, measures
from cases import BATCH, DENSE, Case, assert_same_after, assert_same_state, compile_quickly, make, train
from keras import layers
from tensorflow.python.framework import config

import checkmate_tf
from checkmate_tf.device.measure import Device
from checkmate_tf.errors import JitCompileError, ModelError, OperatorsError

pytestmark = pytest.mark.usefixtures("fresh_keras")


class Weighted(keras.Model):
    """A loss of its own, weighed by an argument of `compile`; Keras is given none."""

    def compile(self, optimizer, weight):
        super().compile(optimizer)
        self.weight = weight

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.weight * tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def _weighted():
    x = inputs = keras.Input((64, 8))
    for _ in range(4):
        x = layers.Dense(32, activation="relu")(x)
    model = Weighted(inputs, layers.GlobalAveragePooling1D()(layers.Dense(4, activation="softmax")(x)))
    model.compile(keras.optimizers.Adam(0.01), 0.1)
    return model


def _with_losses():
    x = inputs = keras.Input((64, 8))
    for _ in range(4):
        x = layers.Dense(32, activation="relu", activity_regularizer=keras.regularizers.L2(0.01))(x)
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    model.compile(keras.optimizers.Adam(0.01))
    return model


@pytest.mark.long
def test_the_same_optimizer_with_another_argument():
    case = Case(_weighted, DENSE.data, budget=0.8)
    plain, model = make(case), make(case)
    compile_quickly(model, case, data=DENSE.data(BATCH), batch_size=None)
    for each in (plain, model):
        train(each, case)
        each.compile(each.optimizer, 0.5)
    assert train(plain, case) == train(model, case)
    assert_same_state(plain, model)


@pytest.mark.long(but=("told",))
@pytest.mark.parametrize("told", [{}, {"batch_size": None}], ids=["told", "late"])
def test_a_train_function_made_by_force_reads_python_anew(told):
    def action(model):
        found = [train(model, DENSE, 2)]
        model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
        model.make_train_function(force=True)
        return [*found, train(model, DENSE, 2)]

    plain, model = make(DENSE), compile_quickly(make(DENSE), DENSE, **told)
    assert_same_after(action, model, plain)
    assert model.checkmate.recomputations > 0


@pytest.mark.long
def test_the_same_optimizer_where_layers_have_the_losses():
    case = Case(_with_losses, lambda samples: (DENSE.data(samples)[0], None), budget=0.8)
    plain, model = make(case), make(case)
    compile_quickly(model, case, data=(DENSE.data(BATCH)[0],), batch_size=None)
    for each in (plain, model):
        train(each, case)
        each.compile(each.optimizer)
    histories = train(plain, case), train(model, case)
    assert histories[0] == histories[1] and histories[0]["loss"][0] > 0
    assert_same_state(plain, model)


class SumOfThree(layers.Layer):
    """Terms whose sum depends on their order, which is not that of their names."""

    def call(self, x):
        return tf.add_n([1e4 * tf.tanh(x), 1e-3 * tf.cos(x), tf.exp(x)]) / 1e4


def _sums_of_three():
    x = inputs = keras.Input((64, 8))
    for _ in range(4):
        x = SumOfThree()(layers.Dense(32)(x))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(layers.Dense(4, activation="softmax")(x)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


@pytest.mark.long
def test_terms_are_added_in_the_order_of_the_plain_step_when_grappler_was_set_off(request):
    case = Case(_sums_of_three, DENSE.data, budget=0.8)
    plain, model = make(case), compile_quickly(make(case), case)
    request.getfixturevalue("no_grappler")
    assert train(plain, case) == train(model, case)
    assert_same_state(plain, model)


@pytest.mark.long
def test_grappler_may_be_set_on_and_off_while_the_model_trains(request):
    """The train function that was traced for one order gives way, and the report is that of the plan that runs."""
    case = Case(_sums_of_three, DENSE.data, budget=0.8)
    request.getfixturevalue("no_grappler")
    plain, model = make(case), compile_quickly(make(case), case)
    controller = model._checkmate_controller
    x, y = case.data(2 * BATCH)
    for off in (False, True, True, False):
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": off})
        for more in ({}, {"sample_weight": np.ones(len(x), "float32")}):
            for each in (plain, model):
                each.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **more)
            assert_same_state(plain, model)
            assert controller.key[-1][0] is not off and model.checkmate is controller.plans[controller.key].report
    assert len(controller.plans) == 4


@pytest.mark.long
def test_operations_may_become_deterministic_while_the_model_trains(request):
    """TensorFlow has other operations for some losses then, in the plain step, too."""
    request.getfixturevalue("no_grappler")
    request.addfinalizer(config.disable_op_determinism)
    plain, model = make(DENSE), compile_quickly(make(DENSE), DENSE)
    for each in (plain, model):
        train(each, DENSE)
    config.enable_op_determinism()
    plain.train_function = None  # Keras goes on with the trace that it has
    for each in (plain, model):
        train(each, DENSE)
    assert_same_state(plain, model)
    assert len(model._checkmate_controller.plans) == 2 and model.checkmate.recomputations > 0


@pytest.mark.long
def test_a_gradient_function_follows_grappler_and_reports_the_plan_that_ran(request):
    case = Case(_sums_of_three, DENSE.data, budget=0.8)
    model, loss = make(case), "sparse_categorical_crossentropy"
    settings = {"costs": "flops", "gap": 1.0, "verify": False, "progress": False}
    ours = checkmate_tf.gradient_function(model, loss, budget=0.8, batch_size=BATCH, **settings)
    x, y = map(tf.constant, case.data(BATCH))

    @tf.function(autograph=False)
    def plainly(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
        return value, tape.gradient(value, model.trainable_variables)

    reports = []
    for labels in (tf.cast(y, tf.int32), tf.cast(y, tf.int64), tf.cast(y, tf.int32)):
        ours(x, labels)
        reports.append(ours.checkmate)
    assert reports[0] is reports[2] is not reports[1]
    request.getfixturevalue("no_grappler")
    expected, found = plainly(x, y), ours(x, y)
    bits = lambda values: [t.numpy().tobytes() for t in tf.nest.flatten(values)]  # noqa: E731 - a short callback
    assert bits(found) == bits(expected)


@pytest.mark.long
def test_an_optimizer_that_was_replaced_is_let_go():
    model = compile_quickly(make(DENSE), DENSE)
    train(model, DENSE)
    optimizer, before = weakref.ref(model.optimizer), model.checkmate
    model.compile("adam", "sparse_categorical_crossentropy")
    train(model, DENSE)
    gc.collect()
    assert optimizer() is None
    assert model.checkmate.attempts == before.attempts and len(model._checkmate_controller.plans) == 1


@pytest.mark.long(only=("labels",))
@pytest.mark.parametrize("given", ["weights", "labels"])
def test_unseeded_noise_is_the_plain_models_where_fit_plans(no_grappler, given):
    """Keras draws it from a generator of the thread."""

    class Noise(layers.Layer):
        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x))

    def build():
        x = inputs = keras.Input((64, 8))
        for _ in range(4):
            x = Noise()(layers.Dense(32, activation="relu")(x))
        model = keras.Model(inputs, layers.GlobalAveragePooling1D()(layers.Dense(4, activation="softmax")(x)))
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    x, y = DENSE.data(3 * BATCH)
    y = y[:, 0] if y.ndim > 1 else y
    more = {"sample_weight": np.ones(len(x), "float32")} if given == "weights" else {}
    labels = y.astype("int32") if given == "labels" else y
    results, streams = [], []
    for compiled in (False, True):
        keras.backend.clear_session()
        keras.utils.set_random_seed(3)
        model = build()
        if compiled:
            compile_quickly(model, Case(build, DENSE.data, budget=0.8))
        history = model.fit(x, labels, batch_size=BATCH, shuffle=False, verbose=0, **more).history
        results.append((history, [np.array(v).tobytes() for v in model.variables]))
        streams.append(np.array(keras.random.normal((4,))).tolist())
    assert results[0] == results[1] and streams[0] == streams[1]
    kept = 1 if given == "labels" else 2  # losses are built for labels of one type: the plan for the other went
    assert len(model._checkmate_controller.plans) == kept


def test_the_report_is_that_of_the_plan_that_trains(monkeypatch):
    measures(monkeypatch, 0)
    crowd(monkeypatch, [])
    model = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.95)
    x, y = DENSE.data(2 * BATCH)
    first = model.checkmate
    train(model, DENSE)
    model.fit(x, y, batch_size=BATCH, sample_weight=np.ones(len(x), "float32"), verbose=0)
    second = model.checkmate
    assert second is not first and second.input_bytes > first.input_bytes
    over = first.budget_bytes + first.budget_bytes // 25
    crowd(monkeypatch, [over])
    train(model, DENSE)
    assert model.checkmate.exceeded_bytes == (over,) and model.checkmate.input_bytes == first.input_bytes
    assert [p.report.exceeded_bytes for p in model._checkmate_controller.plans.values()] == [(over,), ()]


def _compiled_again_beside_others(monkeypatch, share):
    """A model that was planned, and is compiled again where `share` of the budget is needed with what came since."""
    measures(monkeypatch, 0)
    crowd(monkeypatch, [])
    model = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.95)
    first = model.checkmate
    come = max(0, int(share * first.budget_bytes) - first.measured_peak_bytes)
    monkeypatch.setattr(Device, "foreign_bytes", lambda device, variable_bytes: come + first.input_bytes)
    measures(monkeypatch, come)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), model.loss, metrics=["accuracy"])
    return model, first


def test_an_earlier_plan_is_made_anew_where_more_is_on_the_device_now(monkeypatch, no_grappler):
    model, first = _compiled_again_beside_others(monkeypatch, 1.02)
    train(model, DENSE)
    report = model.checkmate
    assert report.attempts[0] not in first.attempts and not report.replanned
    assert report.predicted_peak_bytes < first.predicted_peak_bytes
    assert report.measured_peak_bytes <= report.budget_bytes == first.budget_bytes


@pytest.mark.long
def test_an_earlier_plan_goes_on_where_what_came_leaves_room(monkeypatch, no_grappler):
    model, first = _compiled_again_beside_others(monkeypatch, 0.985)
    train(model, DENSE)
    assert model.checkmate.attempts == first.attempts


@pytest.mark.long
def test_an_earlier_plan_goes_on_where_no_other_leaves_room_and_no_limit_is_near(monkeypatch, no_grappler, caplog):
    model, first = _compiled_again_beside_others(monkeypatch, 3.8)
    train(model, DENSE)
    assert model.checkmate.attempts == first.attempts and "no plan leaves room" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize("first", [True, False])
def test_another_jit_compile(first):
    model = make(DENSE)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=first)
    compile_quickly(model, DENSE)
    train(model, DENSE)
    controller = model._checkmate_controller
    assert controller.options.jit_compile is first
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=not first)
    train(model, DENSE)
    assert controller.options.jit_compile is not first
    assert [p.jit_compile for p in controller.plans.values()] == [not first]
    checkmate_tf.restore(model)
    assert model.jit_compile is not first  # as the user said last


def test_xla_is_refused_where_operators_are_chosen():
    model = compile_quickly(make(DENSE), DENSE, operators="choose")
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    with pytest.raises(OperatorsError, match="XLA"):
        train(model, DENSE)
    assert issubclass(JitCompileError, checkmate_tf.errors.CheckmateError)


def test_functions_that_run_eagerly_are_refused():
    model = compile_quickly(make(DENSE), DENSE)
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(ModelError, match="run_functions_eagerly.*restore"):
            train(model, DENSE)
        checkmate_tf.restore(model)
        train(model, DENSE)
    finally:
        tf.config.run_functions_eagerly(False)


@pytest.mark.long
@pytest.mark.parametrize("told", [{}, {"batch_size": None, "data": None}])
def test_a_share_is_one_of_the_step_that_trains(told):
    """Layers that are no longer frozen keep more for their gradients."""
    plain, model = make(DENSE), make(DENSE)
    for each in (plain, model):
        for layer in each.layers[:4]:
            layer.trainable = False
        each.compile("sgd", "sparse_categorical_crossentropy")
    compile_quickly(model, DENSE, budget=0.9, **told)
    peaks = []
    for frozen in (True, False):
        for each in (plain, model):
            if not frozen:
                for layer in each.layers:
                    layer.trainable = True
                each.compile("sgd", "sparse_categorical_crossentropy")
            keras.utils.set_random_seed(5)
            train(each, DENSE)
        assert_same_state(plain, model)
        report = model.checkmate
        assert report.budget_bytes == int(0.9 * report.plain_peak_bytes)
        peaks.append(report.plain_peak_bytes)
    assert peaks[1] > 1.3 * peaks[0]
