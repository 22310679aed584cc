"""Gradients of biases have the plain step's bits: oneDNN computes them with the gradient of the filter, or does not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from cases import Case, assert_same_after, compile_quickly, make
from keras import layers

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")


def _convolutions():
    """The first filter's gradient reads the batch, so what holds it back must not be a copy of its gradient."""
    x = inputs = keras.Input((16, 16, 32))
    for _ in range(4):
        x = layers.Conv2D(32, 3, padding="same", activation="relu", bias_initializer="random_normal")(x)
    return _with_loss(keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x))))


def _dense(width: int):
    """Layers so wide that the gradient of a bias is a large value of its own, and others that are not."""
    x = inputs = keras.Input((64,))
    for units in (width, 64, width, 64):
        x = layers.Dense(units, activation="tanh", bias_initializer="random_normal")(x)
    return _with_loss(keras.Model(inputs, layers.Dense(1)(x)))


def _with_loss(model):
    model.compile(optimizer="adam", loss="mse")
    return model


def _data(*shape):
    def data(n):
        rng = np.random.default_rng(0)
        return rng.standard_normal((n, *shape)).astype("float32"), rng.standard_normal((n, 1)).astype("float32")

    return data


CASES = {
    "convolutions": Case(_convolutions, _data(16, 16, 32), budget=0.75, batch=32),
    "wide": Case(lambda: _dense(4200), _data(64), budget=0.8, batch=256),
    "dense": Case(lambda: _dense(512), _data(64), budget=0.85, batch=256),
}


@pytest.mark.long(but=("convolutions-free",))
@pytest.mark.parametrize("order", ["free", "fixed"])
@pytest.mark.parametrize("name", CASES)
def test_training_is_equal_bit_by_bit(name, order):
    case = CASES[name]
    plain, model = make(case), make(case)
    compile_quickly(model, case, order=order)
    assert model.checkmate.recomputations > 0
    x, y = case.data(2 * case.batch)
    assert_same_after(lambda m: m.fit(x, y, batch_size=case.batch, shuffle=False, verbose=0).history, model, plain)
