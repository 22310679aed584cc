"""Sums of three and more: the bits of AddN, the order of Grappler, and no memory that outlives the step."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
import tensorflow as tf

from checkmate_tf.execute.sums import emit_sum, order_of_terms


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_the_bits_are_those_of_the_kernel(dtype):
    random = np.random.default_rng(0)
    differing = 0
    for count in range(3, 35):
        scales = 10.0 ** random.uniform(-3, 3, count)
        terms = [tf.cast(tf.constant(scale * random.normal(size=999)), dtype) for scale in scales]
        expected = tf.raw_ops.AddN(inputs=terms)
        np.testing.assert_array_equal(emit_sum(terms, "sum").numpy(), expected.numpy())
        differing += not np.array_equal(tf.raw_ops.AddN(inputs=terms[::-1]).numpy(), expected.numpy())
    assert differing > 20  # so the order shows in the bits


def _terms():
    """Terms in an order that is not that of their names, one of them behind an identity."""
    with tf.Graph().as_default():
        b, a = tf.constant(1.0, name="b"), tf.constant(2.0, name="a")
        c = tf.identity(tf.stop_gradient(tf.constant(3.0, name="Z")), name="c")
        two = tf.split(tf.constant([1.0, 2.0]), 2, name="a")[1]
        return [b, two, c, a]


def test_terms_are_in_the_order_of_grappler():
    assert order_of_terms(_terms()) == [2, 3, 1, 0]


def test_terms_stay_in_order_without_grappler(no_grappler):
    assert order_of_terms(_terms()) == [0, 1, 2, 3]


def test_nothing_stays_allocated():
    """Of a sum of three in a graph of more than 256 MB, Grappler keeps the memory until the next step."""
    value = tf.ones((24, 2**20))

    @tf.function(autograph=False)
    def step(x):
        y = tf.nn.relu(x)
        total = emit_sum([2.0 * y, tf.exp(y), tf.sigmoid(y)], "sum")
        return tf.reduce_sum(total * total)

    device, size = "CPU:0", value.numpy().nbytes
    before = tf.config.experimental.get_memory_info(device)["current"]
    step(value)
    step(value)
    after = tf.config.experimental.get_memory_info(device)["current"]
    assert after - before < size // 2
