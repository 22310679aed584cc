"""TensorArrays of dynamic size, in a loop and in line: their lists grow with what is written."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, make, train

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")


class Grows(keras.layers.Layer):
    def __init__(self, loops):
        super().__init__()
        self.loops = loops

    def call(self, x):
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True)
        if self.loops:
            write = lambda k, a: (k + 1, a.write(k, tf.sin(x * tf.cast(k + 1, tf.float32))))  # noqa: E731
            array = tf.while_loop(lambda k, _: k < 4, write, (0, array))[1]
        else:
            for k in range(4):
                array = array.write(k, tf.sin(x * (k + 1.0)))
        return tf.reduce_sum(array.stack(), 0)


def _case(loops):
    def model():
        x = inputs = keras.Input((24, 8))
        for _ in range(2):
            x = keras.layers.Dense(64, activation="gelu")(x)
            x = Grows(loops)(keras.layers.Dense(8, activation="gelu")(x))
        model = keras.Model(inputs, keras.layers.Dense(4, "softmax")(keras.layers.Flatten()(x)))
        model.compile("adam", "sparse_categorical_crossentropy")
        return model

    def data(n):
        rng = np.random.default_rng(0)
        return rng.standard_normal((n, 24, 8)).astype("float32"), rng.integers(0, 4, n)

    return Case(model, data, budget=0.85)


@pytest.mark.long(only=("False",))
@pytest.mark.feature("Models", "TensorArrays of dynamic size")
@pytest.mark.parametrize("loops", [False, True])
def test_training_is_equal(loops):
    case = _case(loops)
    plain, ours = make(case), compile_quickly(make(case), case)
    assert ours.checkmate.recomputations > 0
    assert_same_after(lambda model: train(model, case), ours, plain)
