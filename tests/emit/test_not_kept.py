"""What only the batch size decides is computed in each step: TensorFlow does not compute it once, and keep it."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
import tensorflow as tf

from checkmate_tf.emit.emit import emit
from checkmate_tf.emit.ordering import Strict, Within
from checkmate_tf.plan import plan_from_sequence
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.folded import computed_in_each_step
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

BATCH, WIDTH = 64, 2**15
ROW = np.linspace(0.0, 1.0, WIDTH, dtype=np.float32)[None]


def _in_use():
    return tf.config.experimental.get_memory_info("CPU:0")["current"]


def _of_filled(x):
    return tf.reduce_sum(x * tf.exp(tf.fill(tf.shape(x), 0.5)), axis=1)


def _filled(x):
    return tf.reduce_sum(x - tf.fill(tf.shape(x), 2.5), axis=1)


def _tiled(x):
    return tf.reduce_sum(x * tf.tile(ROW, [tf.shape(x)[0], 1]), axis=1)


def _broadcast(x):
    return tf.reduce_sum(x / (1 + tf.broadcast_to(tf.reshape(ROW, [1, -1]), tf.shape(x))), axis=1)


def _looped(x):
    sums = tf.fill([8, tf.shape(x)[0], WIDTH // 8], 2.5)
    found = tf.while_loop(lambda k, *_: k < 3, lambda k, s: (k + 1, s + tf.reduce_mean(x)), (0, sums))
    return tf.reduce_sum(found[1])


STEPS = [_filled, _of_filled, _tiled, _broadcast, _looped]


def _program(step):
    traced = trace_step(step, tf.TensorSpec([None, WIDTH]))
    return build_program(traced, with_static_batch(traced, [tf.TensorShape([BATCH, WIDTH])]), "step")


def _check(step, strict):
    program = _program(step)
    plan = plan_from_sequence(program.graph, range(len(program.graph)))
    order = Strict() if strict else Within(10**9)
    emitted = tf.function(lambda x: emit(program, plan, order, [x]), autograph=False)
    x = tf.random.stateless_uniform((BATCH, WIDTH), (1, 2))
    expected, kept = _results(tf.function(step, autograph=False), x)
    found, rest = _results(emitted, x)
    assert np.array_equal(found, expected)
    assert rest < BATCH * ROW.nbytes // 8 < kept


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_nothing_stays_allocated(step, strict, no_grappler):
    _check(step, strict)


def test_nothing_that_loops_alone_read_stays_allocated_with_grappler():
    _check(_looped, strict=True)


def test_what_grappler_may_leave_out_is_left_to_it():
    """It computes no sum with a zero, and no product with a one."""
    assert computed_in_each_step(_program(_looped))
    assert not any(computed_in_each_step(_program(step)) for step in STEPS if step is not _looped)


def _results(function, x):
    """What two calls with a known batch size give, and the bytes that they leave behind."""
    concrete = function.get_concrete_function(tf.TensorSpec(x.shape))
    before = _in_use()
    results = [concrete(x).numpy() for _ in range(2)]
    return results, _in_use() - before
