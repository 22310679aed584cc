"""Equal operations are joined: readers read the first of them, and numbers stay what they are."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.trace.rewrites.equal import join_equal
from checkmate_tf.trace.step import trace_step


def joined(make):
    """What `make(x)` returns in a graph, with equal operations joined."""
    with tf.Graph().as_default() as graph:
        results = make(tf.compat.v1.placeholder(tf.float32, [3], name="x"))
        found = join_equal(graph, results)
        return [found.get(t.ref(), t) for t in results]


def test_what_reads_equal_operations_reads_the_first():
    first, second, sums, products = joined(lambda x: [tf.exp(x), tf.exp(x), tf.exp(x) + 1.0, tf.exp(x) * 2.0])
    assert second is first and sums.op.inputs[0] is first and products.op.inputs[0] is first


def test_what_follows_equal_operations_is_equal_too():
    one, other = joined(lambda x: [tf.sin(tf.exp(x) + 1.0), tf.sin(tf.exp(x) + 1.0)])
    assert one is other


def test_each_output_of_an_operation_is_replaced():
    first, second = joined(lambda x: [tf.split(x, 3)[2], tf.split(x, 3)[2]])
    assert first is second and first.value_index == 2


def test_other_inputs_attributes_devices_and_waits_make_another_operation():
    def make(x):
        with tf.device("CPU:0"):
            placed = tf.exp(x)
        with tf.control_dependencies([tf.sin(x)]):
            later = tf.exp(x)
        return [tf.exp(x), tf.exp(-x), tf.cast(x, tf.float16), tf.cast(x, tf.int32), placed, later]

    results = joined(make)
    assert len({t.ref() for t in results}) == len(results)


def test_zeros_of_two_signs_are_two_constants():
    one, other, again = joined(lambda x: [tf.constant(0.0), tf.constant(-0.0), tf.constant(-0.0)])
    assert one is not other and again is other


def test_random_numbers_and_effects_stay_apart():
    def make(x):
        return [tf.random.uniform([3], seed=1), tf.random.uniform([3], seed=1), x + 1.0]

    one, other, _ = joined(make)
    assert one is not other


def test_poolings_of_random_regions_stay_apart():
    """They are registered as stateless."""
    pool = lambda x: tf.nn.fractional_max_pool(tf.reshape(x, (1, 1, 3, 1)), [1, 1, 1.4, 1])[0]  # noqa: E731
    one, other = joined(lambda x: [pool(x), pool(x)])
    assert one is not other


def test_what_waits_for_an_operation_waits_for_the_one_that_is_left():
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3])
        first, second = tf.exp(x), tf.exp(x)
        with tf.control_dependencies([second]):
            effect = tf.no_op()
        join_equal(graph)
        assert effect.control_inputs == [first.op]


@given(st.lists(st.tuples(st.sampled_from("+-*x"), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=30))
def test_numbers_stay_what_they_are_and_no_two_operations_are_equal(operations):
    make = {"+": tf.add, "-": tf.subtract, "*": tf.multiply, "x": tf.maximum}
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [3])
        values = [x]
        for kind, a, b in operations:
            values.append(make[kind](values[a % len(values)], values[b % len(values)]))
        number = np.array([0.5, -1.25, 0.75], np.float32)
        with tf.compat.v1.Session() as session:
            expected = session.run(values, {x: number})
        found = join_equal(graph, values)
        left = [found.get(t.ref(), t) for t in values]
        with tf.compat.v1.Session() as session:
            for mine, theirs in zip(session.run(left, {x: number}), expected, strict=True):
                np.testing.assert_array_equal(mine, theirs)
    made = {t.op for t in left}
    assert len({(op.type, *(t.ref() for t in op.inputs)) for op in made}) == len(made)


def test_labels_are_cast_once_for_the_loss_and_all_metrics():
    """Grappler takes such casts for one, at the place of the first: a plan that counts several places them wrongly."""
    model = keras.Sequential([keras.layers.Input([4]), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae", "mse"])
    spec = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 2], tf.int32))
    step = trace_step(model.train_step, spec)
    casts = [op for op in step.operations if op.type == "Cast" and op.inputs[0].op.type == "Placeholder"]
    assert len(casts) == 1 and len(casts[0].outputs[0].consumers()) > 1
