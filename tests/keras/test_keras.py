"""Keras goes on working: everything but the training step's memory is as before."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CASES, DENSE, LARGE_DENSE, Case, assert_same_state, compile_quickly, dense_model, make, state, train

import checkmate_tf

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed", "ignore:Skipping variable loading for optimizer"),
]

BATCH = DENSE.batch


def _pair(case=DENSE, **options):
    """The same model twice, the second one compiled for a budget."""
    return make(case), compile_quickly(make(case), case, **options)


def _both(action, case=DENSE):
    """Do the same with a plain and a compiled model: equal results, equal states."""
    plain, compiled = _pair(case)
    assert compiled.checkmate.recomputations > 0
    assert repr(action(compiled)) == repr(action(plain))
    assert_same_state(plain, compiled)
    return compiled


def test_validation_evaluate_and_predict():
    x, y = DENSE.data(4 * BATCH)

    def action(model):
        fitted = model.fit(x, y, batch_size=BATCH, epochs=2, validation_split=0.25, shuffle=False, verbose=0)
        return fitted.history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0).tobytes()

    _both(action)


@pytest.mark.long
def test_shuffling_is_the_same():
    x, y = DENSE.data(3 * BATCH)

    def action(model):
        keras.utils.set_random_seed(5)
        return model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history

    _both(action)


@pytest.mark.long
@pytest.mark.feature("Training", "checkpoints, early stopping, CSV log, TensorBoard")
def test_callbacks(tmp_path):
    x, y = DENSE.data(3 * BATCH)

    def action(model):
        seen = []
        path = tmp_path / f"best-{len(list(tmp_path.iterdir()))}.keras"
        callbacks = [
            keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True),
            keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1),
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1)),
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, logs["loss"]))),
        ]
        fitted = model.fit(x, y, batch_size=BATCH, epochs=5, shuffle=False, callbacks=callbacks, verbose=0)
        assert path.exists() and len(fitted.epoch) == 2
        return seen, fitted.history

    _both(action)


@pytest.mark.long(only=("sample_weight",))
@pytest.mark.feature("Training", "class and sample weights", note="plans again")
@pytest.mark.parametrize("given", ["sample_weight", "class_weight"])
def test_weights_plan_again_by_themselves(given):
    x, y = DENSE.data(3 * BATCH)
    weights = {
        "sample_weight": np.linspace(0.1, 2, len(x)).astype("float32"),
        "class_weight": {0: 1.0, 1: 0.5, 2: 2.0, 3: 0.1},
    }

    def action(model):
        plain = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0).history
        weighted = model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **{given: weights[given]}).history
        return plain, weighted

    compiled = _both(action)
    assert len(compiled._checkmate_controller.plans) == 2


@pytest.mark.long
def test_weighted_data_planned_from_the_start():
    x, y = DENSE.data(2 * BATCH)
    w = np.linspace(0.1, 2, len(x)).astype("float32")
    plain, compiled = make(DENSE), make(DENSE)
    compile_quickly(compiled, DENSE, data=(x[:BATCH], y[:BATCH], w[:BATCH]), batch_size=None)
    for model in (plain, compiled):
        model.fit(x, y, sample_weight=w, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same_state(plain, compiled)
    assert len(compiled._checkmate_controller.plans) == 1


@pytest.mark.long
@pytest.mark.feature("Training", "steps_per_execution")
def test_several_steps_per_execution():
    case = Case(lambda: dense_model(steps_per_execution=2), DENSE.data)
    _both(lambda model: train(model, case, steps=4, epochs=2), case)


@pytest.mark.feature("Training", "tf.data with a smaller last batch")
def test_dataset_with_a_smaller_last_batch():
    data = tf.data.Dataset.from_tensor_slices(DENSE.data(2 * BATCH + 5)).batch(BATCH)
    compiled = _both(lambda model: model.fit(data, epochs=2, verbose=0).history)
    assert len(compiled._checkmate_controller.plans) == 1


def test_dataset_tells_the_batch_size():
    data = tf.data.Dataset.from_tensor_slices(DENSE.data(2 * BATCH + 5)).batch(BATCH)
    model = compile_quickly(make(DENSE), DENSE, data=data, batch_size=None)
    assert model.checkmate.batch_size == BATCH


def test_input_spec_tells_the_batch_size():
    spec = (tf.TensorSpec([BATCH, 64, 8]), tf.TensorSpec([BATCH], tf.int64))
    model = compile_quickly(make(DENSE), DENSE, input_spec=spec, batch_size=None)
    assert model.checkmate.batch_size == BATCH
    train(model, DENSE)
    assert len(model._checkmate_controller.plans) == 1


@pytest.mark.long
@pytest.mark.feature("Training", "train_on_batch, test_on_batch, predict_on_batch")
def test_train_on_batch():
    x, y = DENSE.data(BATCH)
    _both(lambda model: [model.train_on_batch(x[:n], y[:n]) for n in (BATCH, BATCH, 5, 3)])


@pytest.mark.long
def test_generator_data():
    x, y = DENSE.data(BATCH)

    def batches():
        for n in (BATCH, 7, BATCH):
            yield x[:n], y[:n]

    # Without steps_per_epoch Keras asks once more than there are batches, and the plain step's counter and seeds, which
    # wait for no data, may advance before the iterator tells that it is at its end.
    _both(lambda model: model.fit(batches(), steps_per_epoch=3, verbose=0).history)


@pytest.mark.long
def test_running_eagerly_is_left_alone():
    case = Case(lambda: dense_model(run_eagerly=True), DENSE.data)
    _, compiled = _pair(case)
    train(compiled, case)
    assert compiled.run_eagerly


@pytest.mark.feature("Training", "save, load, compile again")
def test_save_and_load(tmp_path):
    plain, compiled = _pair()
    for model in (plain, compiled):
        train(model, DENSE)
    plain.save(tmp_path / "plain.keras")
    compiled.save(tmp_path / "model.keras")
    compiled.save_weights(tmp_path / "model.weights.h5")

    keras.utils.set_random_seed(2)  # dropout layers take new seeds when they are loaded
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert not hasattr(loaded, "checkmate")
    compile_quickly(loaded, DENSE)
    keras.utils.set_random_seed(2)
    reference = keras.models.load_model(tmp_path / "plain.keras")
    assert train(loaded, DENSE) == train(reference, DENSE)
    assert_same_state(reference, loaded)

    other = make(DENSE, seed=1)
    other.load_weights(tmp_path / "model.weights.h5")
    for mine, theirs in zip(other.weights, compiled.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_same_object_comes_back():
    model = make(DENSE)
    assert compile_quickly(model, DENSE) is model
    assert isinstance(model.checkmate, checkmate_tf.Report)
    assert checkmate_tf.restore(model) is model


@pytest.mark.long
def test_compiling_changes_no_variable():
    plain, compiled = make(DENSE), make(DENSE)
    for model in (plain, compiled):  # so that optimizer slots and metrics exist
        train(model, DENSE)
    before = state(compiled)
    compile_quickly(compiled, DENSE, verify=True, budget="1GB")
    assert compiled.checkmate.measured_peak_bytes is not None
    after = state(compiled)
    assert before.keys() == after.keys()
    assert all(before[k].tobytes() == after[k].tobytes() for k in before)


@pytest.mark.long
@pytest.mark.parametrize("buildable", [True, False])
def test_variables_of_losses_and_metrics_are_made_before_tracing(monkeypatch, buildable):
    """A step that creates variables is traced twice."""
    steps, real = [], keras.optimizers.Optimizer.apply_gradients
    monkeypatch.setattr(
        keras.optimizers.Optimizer, "apply_gradients", lambda *given: (steps.append(1), real(*given))[1]
    )
    plain, model = make(DENSE), make(DENSE)
    if not buildable:
        monkeypatch.setattr(model, "_symbolic_build", lambda **given: 1 / 0)
    compile_quickly(model, DENSE)
    assert len(steps) == (1 if buildable else 2)
    monkeypatch.undo()
    assert train(plain, DENSE) == train(model, DENSE)
    assert_same_state(plain, model)


@pytest.mark.long(only=("own_step",))
@pytest.mark.parametrize("name", ["dense", "own_step"])
def test_restore_undoes_everything(name):
    case = CASES[name]
    plain, compiled = make(case), make(case)
    attributes = set(vars(compiled))
    jit_compile, train_step = compiled.jit_compile, compiled.train_step
    train(compile_quickly(compiled, case), case)
    checkmate_tf.restore(compiled)
    assert compiled.train_step == train_step and compiled.jit_compile == jit_compile
    assert not {"train_step", "make_train_function", "checkmate"} & (set(vars(compiled)) - attributes)
    for _ in range(2):
        train(plain, case)
    train(compiled, case)
    assert_same_state(plain, compiled)


def test_restore_keeps_a_train_step_set_on_the_instance():
    model = make(DENSE)
    calls, plain = [], model.train_step

    def own(data):
        calls.append(1)
        return plain(data)

    model.train_step = own
    checkmate_tf.restore(compile_quickly(model, DENSE))
    assert model.train_step is own


@pytest.mark.long
def test_compiling_twice():
    plain, compiled = _pair()
    first = compiled.checkmate
    compile_quickly(compiled, DENSE, budget=0.8)
    assert compiled.checkmate.budget_bytes > first.budget_bytes
    assert compiled.checkmate.plain_peak_bytes == first.plain_peak_bytes
    assert train(compiled, DENSE) == train(plain, DENSE)
    checkmate_tf.restore(compiled)
    assert "train_step" not in vars(compiled)


@pytest.mark.long(only=("False",))
@pytest.mark.parametrize("again", [False, True])
def test_another_optimizer_afterwards(again):
    plain, compiled = _pair()
    for model in (plain, compiled):
        train(model, DENSE)
        model.compile(optimizer=keras.optimizers.SGD(0.01, momentum=0.9), loss="sparse_categorical_crossentropy")
    if again:
        compile_quickly(compiled, DENSE)
    assert train(compiled, DENSE) == train(plain, DENSE)
    assert_same_state(plain, compiled)
    assert not compiled.jit_compile


@pytest.mark.long
@pytest.mark.feature("Models", "trainable switched after compile", note="plans again")
def test_freezing_a_layer_afterwards():
    plain, compiled = _pair()
    for model in (plain, compiled):
        train(model, DENSE)
        model.layers[1].trainable = False
        model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy")
    assert train(compiled, DENSE) == train(plain, DENSE)
    assert_same_state(plain, compiled)


@pytest.mark.long
@pytest.mark.feature("Training", "two compiled models in one process")
def test_two_models_in_one_process():
    cases = DENSE, CASES["subclassed"]
    plain, compiled = [make(c) for c in cases], [compile_quickly(make(c), c) for c in cases]
    for models in (plain, compiled):
        for _ in range(2):
            for model, case in zip(models, cases, strict=True):
                train(model, case, steps=1)
    for mine, theirs in zip(plain, compiled, strict=True):
        assert_same_state(mine, theirs)


def _tape(model, loss):
    @tf.function(autograph=False)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(y, model(x, training=True)))
            if model.losses:
                value += tf.add_n(model.losses)
        return value, tape.gradient(value, model.trainable_variables)

    return gradients


def _function(model, loss, case, **options):
    settings = {
        "budget": min(0.7, case.budget),
        "costs": "flops",
        "gap": 1.0,
        "time_limit": 10,
        "progress": False,
        "verify": False,
    }
    return checkmate_tf.gradient_function(model, loss, **settings | {"batch_size": case.batch} | options)


@pytest.mark.long(but=("dense", "large_dense"))
@pytest.mark.feature("Training", "training loops of one's own (gradient_function)")
@pytest.mark.parametrize("name", ["dense", "regularized", "unet", "large_dense"])
def test_gradient_function_equals_a_tape(name):
    case = (CASES | {"large_dense": LARGE_DENSE})[name]
    loss = keras.losses.SparseCategoricalCrossentropy()
    models = make(case), make(case)
    plain = _tape(models[0], loss)
    compiled = _function(models[1], "sparse_categorical_crossentropy", case)
    assert compiled.checkmate.recomputations > 0
    x, y = case.data(case.batch)
    for n in (case.batch, case.batch, 3):
        expected, found = plain(x[:n], y[:n]), compiled(x[:n], y[:n])
        assert float(expected[0]) == float(found[0])
        for a, b in zip(expected[1], found[1], strict=True):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(models[0].variables, models[1].variables, strict=True):  # statistics and seeds
        np.testing.assert_array_equal(a, b)


def test_gradient_function_serves_a_model_that_is_not_compiled():
    class Spare(keras.layers.Layer):
        def build(self, shape):
            self.spare = self.add_weight(shape=(3,))

        def call(self, x):
            return x

    model = keras.Sequential([keras.Input((64, 8)), Spare(), *(keras.layers.Dense(32, "tanh") for _ in range(4))])
    x = DENSE.data(BATCH)[0]
    y = np.zeros((BATCH, 64, 32), "float32")
    found = _function(model, lambda y, p: tf.square(y - p), DENSE, batch_size=None, data=(x, y))(x, y)
    expected = _tape(model, lambda y, p: tf.square(y - p))(x, y)
    assert expected[1][0] is None and found[1][0] is None
    for a, b in zip(expected[1][1:], found[1][1:], strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_keras_chooses_about_xla_is_kept(monkeypatch, caplog):
    """On a CPU it chooses none. On a GPU it chooses XLA, which does not go with a choice of operators."""
    assert compile_quickly(make(DENSE), DENSE).jit_compile is False
    monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda model: True)
    model = compile_quickly(make(DENSE), DENSE)
    assert model.jit_compile is True and model._checkmate_controller.options.jit_compile
    model = compile_quickly(make(DENSE), DENSE, operators="choose")
    assert model.jit_compile is False and "jit_compile is set to False" in caplog.text


@pytest.mark.long(but=("None-nadam",))
@pytest.mark.parametrize("optimizer", ["nadam", "adafactor", "lamb"])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_variables_have_the_names_of_plain_training(optimizer, batch_size):
    """Some have no name of their own, and get the optimizer's."""

    def built():
        inputs = keras.Input((8,), name="x")
        model = keras.Model(inputs, keras.layers.Dense(4, name="y")(inputs))
        model.compile(getattr(keras.optimizers, optimizer.capitalize())(name=optimizer), "mse")
        return model

    models = plain, ours = built(), built()
    checkmate_tf.compile(ours, "1GB", batch_size=batch_size, costs="flops", verify=False, progress=False)
    for model in models:
        model.fit(np.zeros((8, 8), "float32"), np.zeros((8, 4), "float32"), batch_size=8, verbose=0)
    paths = [[v.path.removesuffix("_1") for v in model.optimizer.variables] for model in models]  # Keras counts names
    assert paths[0] == paths[1] and all(path.startswith(f"{optimizer}/") for path in paths[0])
