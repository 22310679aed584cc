"""What TensorFlow computes beforehand where it knows the batch size."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.folded import folded_of
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

ROW = np.arange(4096, dtype=np.float32)[None]


def folded(step):
    traced = trace_step(step, tf.TensorSpec([None, 4096]))
    static = with_static_batch(traced, [tf.TensorShape([16, 4096])])
    return sum(folded_of(build_program(traced, static, "step")))


def numbers(x):
    """As many different numbers as the batch has."""
    return tf.reshape(tf.cast(tf.range(tf.shape(x)[0] * 4096), tf.float32), [-1, 4096])


def test_what_the_batch_size_alone_decides_counts():
    assert folded(lambda x: x + numbers(x)) == 16 * ROW.nbytes


def test_a_constant_that_is_written_many_times_does_not(no_grappler):
    """It is emitted so that it is computed in each step."""
    assert folded(lambda x: x + tf.tile(ROW, [tf.shape(x)[0], 1])) == 0
    assert folded(lambda x: tf.exp(tf.broadcast_to(ROW, tf.shape(x))) + x) == 0

    assert folded(lambda x: x * tf.exp(tf.fill(tf.shape(x), 2.0))) == 0


def test_where_grappler_is_on_it_does():
    assert folded(lambda x: x + tf.tile(ROW, [tf.shape(x)[0], 1])) == 16 * ROW.nbytes


def test_what_depends_on_data_does_not():
    assert folded(lambda x: tf.tile(x[:1], [tf.shape(x)[0], 1])) == 0


def test_small_values_and_random_ones_do_not():
    assert folded(lambda x: x + tf.cast(tf.shape(x)[0], tf.float32)) == 0
    assert folded(lambda x: x + tf.random.uniform(tf.shape(x))) == 0


def test_of_a_chain_what_is_read_in_the_end_counts():
    assert folded(lambda x: x + tf.exp(numbers(x))) == 16 * ROW.nbytes
