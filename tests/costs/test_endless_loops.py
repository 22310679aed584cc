"""Loops that run as long as data decides are never run on made-up data: there they may never end."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from traced import graph_of, looped

from checkmate_tf.costs.alone.fabricate import may_run
from checkmate_tf.costs.calls import iterations_of, may_not_end
from checkmate_tf.costs.timed import time_ops
from checkmate_tf.costs.workspace import op_workspaces

SHAPE = (64, 64)


def until_one(x):
    """Steps are halved as long as they are too wide: with large numbers, for ever."""

    def body(t, dt, y):
        good = tf.reduce_max(tf.abs(dt * y)) < 0.05
        return tf.where(good, t + dt, t), tf.where(good, dt, 0.0 * dt), y

    return tf.while_loop(lambda t, dt, y: t < 1.0, body, (0.0, 0.1, x))[2]


def accepted(x):
    """The counter goes on only when data says so."""
    further = lambda i, y: (i + tf.cast(tf.reduce_max(y) < 0.0, tf.int32), y)  # noqa: E731 - a short callback
    return tf.while_loop(lambda i, y: i < 3, further, (0, x))[1]


def three_or_more(x):
    more = lambda i, y: (i < 3) | (tf.reduce_max(y) > 0.0)  # noqa: E731 - a short callback
    return tf.while_loop(more, lambda i, y: (i + 1, tf.sin(y)), (0, x))[1]


def within(inner):
    """A loop of two rounds around another."""
    return lambda x: tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, inner(y)), (0, x))[1]


def called(inner):
    return lambda x: tf.function(inner, autograph=False)(x)


def chosen(inner):
    return lambda x: tf.switch_case(tf.cast(x[0, 0], tf.int32), [lambda: tf.sin(x), lambda: inner(x)])


def within_as_long(x):
    """What the inner loop counts to is made outside of both."""
    rows = tf.shape(x)[0]
    inner = lambda y: tf.while_loop(lambda j, z: j < rows, lambda j, z: (1 + j, tf.tanh(z)), (0, y))[1]  # noqa: E731
    return within(inner)(x)


def gradient_of(function):
    """With the loop of the gradient, which pops from a list how often each inner loop has run."""
    return lambda x: (y := function(x), tf.gradients(y, x))


def down(x):
    return tf.while_loop(lambda i, y: i >= 1, lambda i, y: (i - 2, tf.sin(y)), (9, x))[1]


def calls_of(function):
    kinds = ("While", "PartitionedCall", "Case")
    return [op for op in graph_of(function, SHAPE).get_operations() if op.type.endswith(kinds)]


ENDLESS = [until_one, accepted, three_or_more, within(until_one), called(until_one), chosen(until_one)]


@pytest.mark.parametrize("function", [*ENDLESS, called(within(accepted))])
def test_what_may_never_end_is_not_run(function):
    (op,) = calls_of(function)
    assert may_not_end(op) and not may_run(op)


def test_it_is_estimated():
    (op,) = calls_of(until_one)
    result = time_ops([op])
    assert not result.measured.any() and np.isfinite(result.cost_us).all() and result.cost_us[0] > 0
    assert not op_workspaces([op]).any()


@pytest.mark.parametrize("function", [until_one, within(until_one)])
def test_nor_is_the_loop_of_its_gradient(function):
    """It counts to what the loop has counted, and could only be run after it."""
    loops = calls_of(gradient_of(lambda x: function(tf.sin(x))))
    assert len(loops) == 2 and not time_ops(loops).measured.any()


@pytest.mark.parametrize("function", [within_as_long, gradient_of(within_as_long), down, called(down), chosen(tf.cos)])
def test_what_counts_to_a_number_is_run(function):
    ops = calls_of(function)
    assert ops and not any(may_not_end(op) for op in ops) and all(may_run(op) for op in ops)
    assert time_ops(ops, repetitions=1).measured.all()


def test_rounds_are_counted_up_and_down():
    by_two = lambda x: tf.while_loop(lambda i, y: i < 9, lambda i, y: (i + 2, tf.sin(y)), (0, x))[1]  # noqa: E731
    assert [iterations_of(*calls_of(f)) for f in (down, by_two, within_as_long)] == [5, 5, 2]
    loop = next(op for op in graph_of(looped, SHAPE, SHAPE).get_operations() if op.type == "StatelessWhile")
    assert iterations_of(loop) == 7


def test_a_function_with_python_in_one_branch_is_not_run():
    python = lambda x: tf.ensure_shape(tf.numpy_function(lambda v: v, [x], tf.float32), SHAPE)  # noqa: E731
    (op,) = calls_of(chosen(python))
    assert not may_run(op)
