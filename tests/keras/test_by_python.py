"""Steps that Python calls, what they train, and callbacks that compile or restore the model while it trains."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, Case, assert_same_after, assert_same_state, compile_quickly, make, train

import checkmate_tf

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

LATE = {"batch_size": None, "data": None}
QUICK = {"costs": "flops", "gap": 1.0, "time_limit": 10, "progress": False, "verify": False}
X = np.random.default_rng(0).normal(size=(16, 24, 32)).astype("float32")


def narrow(**compiled):
    """Four layers of one shape, so that the gradient of one could be taken for that of another."""
    keras.utils.set_random_seed(3)
    inputs = x = keras.Input((24, 32))
    for k in range(4):
        x = keras.layers.Dense(32, activation="gelu", use_bias=False, name=f"d{k}")(x)
    model = keras.Model(inputs, x)
    model.compile("adam", "mse", **compiled)
    return model


@pytest.mark.long(only=("late",))
@pytest.mark.parametrize("told", [{}, {"batch_size": 16}], ids=["late", "told"])
def test_gradients_are_those_of_what_is_trainable_now(told):
    model = narrow()
    step = checkmate_tf.gradient_function(model, "mse", 0.9, **told, **QUICK)
    for frozen in ([], ["d0"], ["d0", "d2"], []):
        for layer in model.layers:
            layer.trainable = layer.name not in frozen
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(X, model(X, training=True)))
        expected = tape.gradient(loss, model.trainable_variables)
        found = step(X, X)[1]
        assert len(found) == len(expected) == 4 - len(frozen)
        for ours, plain in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-7)


def test_gradients_of_losses_in_several_types():
    """Activity regularizers have the type of activations, those of kernels that of weights."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((24, 8), dtype="float32")
    policy = keras.DTypePolicy("mixed_bfloat16")
    layer = keras.layers.Dense(32, "gelu", kernel_regularizer="l2", activity_regularizer="l2", dtype=policy)
    model = keras.Model(inputs, keras.layers.Dense(4, dtype=policy)(layer(inputs)))
    step = checkmate_tf.gradient_function(model, "mse", 1.0, batch_size=np.int64(16), **QUICK)
    loss, gradients = step(X[..., :8], X[..., :4])
    assert loss.dtype == tf.float32 and np.isfinite(loss) and all(g is not None for g in gradients)


class Noise(keras.layers.Layer):
    """Noise that no seed generator of Keras makes."""

    def call(self, inputs):
        return inputs + tf.random.normal(tf.shape(inputs))


@pytest.mark.parametrize("late", [False, True], ids=["told", "late"])
def test_steps_that_python_calls_are_traced_once_and_draw_other_numbers(late):
    keras.utils.set_random_seed(7)
    inputs = keras.Input((8,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(64)(Noise()(inputs))))
    model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
    checkmate_tf.compile(model, 1.0, **({} if late else {"batch_size": 8}), **QUICK)
    batch = np.zeros((8, 8), "float32"), np.zeros((8, 1), "float32")
    losses = [float(model.train_on_batch(*batch)) for _ in range(4)]
    assert len(set(losses)) == 4
    assert len(model._checkmate_controller.by_python._traced) == 1


@pytest.mark.long(only=("told",))
@pytest.mark.parametrize("late", [False, True], ids=["told", "late"])
def test_what_is_frozen_or_thawed_after_training_waits_for_the_next_compile(late):
    """As in plain Keras: its function is traced."""

    def action(model):
        found = [train(model, DENSE, 1)]
        model.layers[1].trainable = False
        found.append(train(model, DENSE, 1))
        model.layers[1].trainable = True
        model.layers[2].trainable = False
        model.compile("adam", DENSE_LOSS)
        found.append(train(model, DENSE, 1))
        model.layers[2].trainable = True
        return [*found, train(model, DENSE, 1)]

    plain, model = make(DENSE), make(DENSE)
    compile_quickly(model, DENSE, **(LATE if late else {}))
    assert_same_after(action, model, plain)


def _normalized():
    x = inputs = keras.Input((64, 8))
    for _ in range(3):
        x = keras.layers.Dense(32, activation="tanh")(x)
    x = keras.layers.BatchNormalization(center=False, scale=False, name="normalized")(x)
    model = keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(keras.layers.GlobalMaxPooling1D()(x)))
    model.compile("sgd", DENSE_LOSS)
    return model


def test_a_frozen_layer_without_weights_computes_as_it_does_in_the_plain_model():
    def action(model):
        model.get_layer("normalized").trainable = False
        found = train(model, DENSE, 2)
        model.get_layer("normalized").trainable = True
        return found, train(model, DENSE, 1)

    case = Case(_normalized, DENSE.data, budget=0.8)
    plain, model = make(case), compile_quickly(make(case), case)
    assert_same_after(action, model, plain)


DENSE_LOSS = "sparse_categorical_crossentropy"


class Changes(keras.callbacks.Callback):
    """Does something with the model at the end of the first epoch."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 0:
            self.change(self.model)


@pytest.mark.long
@pytest.mark.parametrize("late", [False, True], ids=["told", "late"])
def test_a_callback_may_restore_or_compile_the_model(late):
    ours = LATE if late else {}
    x, y = DENSE.data(2 * DENSE.batch)
    plain, restored, compiled = (make(DENSE) for _ in range(3))
    compile_quickly(restored, DENSE, **ours)
    settings = {"batch_size": DENSE.batch, "epochs": 3, "verbose": 0}
    found = [
        model.fit(x, y, callbacks=[Changes(change)], **settings).history
        for model, change in (
            (plain, lambda model: None),
            (restored, checkmate_tf.restore),
            (compiled, lambda model: compile_quickly(model, DENSE, **ours)),
        )
    ]
    assert found[0] == found[1] == found[2]
    assert_same_state(plain, restored)
    assert_same_state(plain, compiled)
    assert not hasattr(restored, "checkmate") and compiled.checkmate is not None


@pytest.mark.long
@pytest.mark.parametrize("batches", [(16, 40, 64), (24, 40, 64)])
def test_the_small_batch_may_come_first(batches):
    """`fit` shuffles the batches of a PyDataset."""
    x, y = DENSE.data(64)
    begins = (0, *batches[:-1])

    class Parts(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, k):
            return x[begins[k] : batches[k]], y[begins[k] : batches[k]]

    plain, model = make(DENSE), compile_quickly(make(DENSE), DENSE, **LATE)
    assert_same_after(lambda each: each.fit(Parts(), shuffle=False, epochs=2, verbose=0).history, model, plain)
    assert model.checkmate.batch_size == 24


@pytest.mark.long(only=("late",))
@pytest.mark.parametrize("told", [LATE, {}], ids=["late", "told"])
def test_a_step_that_python_calls_follows_the_next_compile(told):
    """It would go on with the optimizer that was replaced."""
    plain, ours = make(DENSE), compile_quickly(make(DENSE), DENSE, **told)
    x, y = DENSE.data(8)
    batch = tf.constant(x), tf.constant(y)
    for model in (plain, ours):
        model.train_step(batch)
        before = [v.numpy() for v in model.trainable_variables]
        model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
        model.train_step(batch)
        if model is ours:
            assert all((a == b.numpy()).all() for a, b in zip(before, model.trainable_variables, strict=True))
    assert int(plain.optimizer.iterations) == int(ours.optimizer.iterations) == 1
