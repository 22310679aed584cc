"""With `batch_size=` alone targets are guessed. Where a loss may take others, the error says so."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, assert_same_after, compile_quickly, make

import checkmate_tf
from checkmate_tf.errors import TraceError

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

X, Y = DENSE.data(DENSE.batch)
GUESSED = r"targets for a loss that is not known \({}\) were guessed.*give data=.*or leave batch_size= out"


def focal(y, y_pred):
    """Of class ids."""
    found = tf.where(tf.one_hot(tf.cast(y, tf.int32), y_pred.shape[-1]) > 0, y_pred, 1 - y_pred)
    return -tf.reduce_sum((1 - found) ** 2 * tf.math.log(found), axis=-1)


class Focal(keras.losses.Loss):
    def call(self, y, y_pred):
        return focal(y, y_pred)


def _model(loss=focal):
    model = make(DENSE)
    model.compile("adam", loss)
    return model


@pytest.mark.parametrize(
    ("loss", "name"), [(focal, "focal"), (Focal(name="mine"), "mine"), ([focal], "focal"), ("ctc", "ctc")]
)
def test_the_error_says_that_targets_were_guessed(loss, name):
    model = _model(loss)
    for call in (lambda: compile_quickly(model, DENSE), lambda: checkmate_tf.op_graph(model, 8, "flops")):
        with pytest.raises(TraceError, match=GUESSED.format(name)):
            call()
    assert not hasattr(model, "checkmate")


def test_a_gradient_function_says_it_too():
    with pytest.raises(TraceError, match=GUESSED.format("focal")):
        checkmate_tf.gradient_function(make(DENSE), focal, 0.8, batch_size=8, costs="flops", progress=False)


@pytest.mark.parametrize("given", [{"data": (X, Y)}, pytest.param({}, marks=pytest.mark.long)])
def test_what_the_error_advises(given):
    model = compile_quickly(_model(), DENSE, **{"batch_size": None, "budget": 0.8} | given)
    assert_same_after(lambda one: one.train_on_batch(X, Y), model, _model())
    assert len(model._checkmate_controller.earlier) == 1


@pytest.mark.parametrize(("loss", "given"), [("mse", {}), (focal, {"data": (X, np.zeros((len(X), 9, 9, 9)))})])
def test_nothing_is_said_where_nothing_was_guessed(loss, given):
    model = _model(loss)

    def broken(data):
        raise ValueError("broken")

    model.train_step = broken
    with pytest.raises(TraceError, match="broken") as found:
        compile_quickly(model, DENSE, **{"batch_size": None if given else 8} | given)
    assert "guessed" not in str(found.value)
