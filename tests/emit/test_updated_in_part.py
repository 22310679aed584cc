"""Variables of which steps update some rows: TensorFlow would copy all of one for each read, and plans do not."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, make
from keras import layers

from checkmate_tf.trace.ops import updated_in_part

WORDS, WIDTH, LENGTH = 100_000, 32, 16  # a table far larger than all else
TABLE_BYTES = 4 * WORDS * WIDTH


def _model(optimizer):
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(inputs)
    for _ in range(3):
        x = layers.Dense(WIDTH)(layers.Dense(128, activation="gelu")(x))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
    model.compile(optimizer, "mse")
    return model


def _data(n):
    rng = np.random.default_rng(0)
    return rng.integers(0, WORDS, (n, LENGTH)), rng.standard_normal((n, 1)).astype("float32")


@pytest.mark.long(only=("adagrad",))
@pytest.mark.usefixtures("fresh_keras", "no_grappler")
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_an_embedding_is_not_copied_and_trains_to_the_same_numbers(optimizer):
    case = Case(lambda: _model(optimizer), _data, budget="200MB", batch=32)
    plain, model = make(case), make(case)
    compile_quickly(model, case, verify=True)
    report = model.checkmate
    assert report.measured_peak_bytes < report.placed_peak_bytes + TABLE_BYTES // 2
    assert_same_after(
        lambda m: m.fit(*_data(96), batch_size=32, epochs=2, shuffle=False, verbose=0).history, model, plain
    )


@pytest.mark.usefixtures("fresh_keras")
def test_what_is_read_in_part_as_well_stays_as_it_is():
    both, one, whole = (tf.Variable(tf.zeros([4, 2])) for _ in range(3))
    rows = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]))

    @tf.function(autograph=False)
    def step():
        read = both.sparse_read([0]) + one.read_value()[:1] + whole.read_value()[:1]
        both.scatter_add(rows)
        one.scatter_add(rows)
        whole.assign_add(tf.ones([4, 2]))
        return read

    graph = step.get_concrete_function().graph
    (found,) = updated_in_part(graph.get_operations())
    assert [external for external, internal in graph.captures if internal.op is found] == [one.handle]
