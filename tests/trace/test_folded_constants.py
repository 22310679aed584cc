"""What TensorFlow computes beforehand where it knows the batch size."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from checkmate_tf.allocator.sequence import events_of
from checkmate_tf.trace.kernels import kernels_of
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.folded import folded_of
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

ROW = np.arange(4096, dtype=np.float32)[None]


def folded(step):
    traced = trace_step(step, tf.TensorSpec([None, 4096]))
    static = with_static_batch(traced, [tf.TensorShape([16, 4096])])
    return sum(folded_of(build_program(traced, static, "step")).sizes)


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


def test_what_is_folded_takes_nothing_in_a_step():
    """And what reads it reads a constant, which is there before."""
    traced = trace_step(lambda x: tf.exp(x + tf.exp(numbers(x))), tf.TensorSpec([None, 4096]))
    program = build_program(traced, with_static_batch(traced, [tf.TensorShape([16, 4096])]), "step")
    made = folded_of(program)
    names = {op.type for op in made.operations}
    assert {"Range", "Cast", "Exp"} <= names and "AddV2" not in names
    sequence = range(len(program.nodes))
    whole, less = (events_of(kernels_of(program, folded=ops), sequence) for ops in ((), made.operations))
    asked = [sorted(events.sizes[events.sizes > 0].tolist()) for events in (whole, less)]
    assert asked[1] == [16 * ROW.nbytes]  # the second takes over what the first makes
    assert asked[0].count(16 * ROW.nbytes) > 1
