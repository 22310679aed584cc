"""Casts to larger whole numbers come after the views that read them; values and what others read stay."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.trace.rewrites.casts import cast_late
from checkmate_tf.trace.step import trace_step

VIEWS = {
    "Reshape": lambda t: tf.reshape(t, [-1]),
    "Squeeze": lambda t: tf.squeeze(t, [2]),
    "ExpandDims": lambda t: tf.expand_dims(t, 1),
}


def late(make, dtype=tf.float32):
    """What `make(x)` returns in a graph whose casts were put late, and a function that computes it."""
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(dtype, [2, 3, 1], name="x")
        results = make(x)
        found = cast_late(graph, results)
        results = [found.get(t.ref(), t) for t in results]
    session = tf.compat.v1.Session(graph=graph)
    return results, lambda value: session.run(results, {x: value})


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_comes_first(kind):
    (result,), run = late(lambda x: [VIEWS[kind](tf.cast(x, tf.int64))])
    assert result.op.type == "Cast" and result.op.inputs[0].op.type == kind and result.op.inputs[0].dtype == tf.float32
    value = np.arange(6, dtype=np.float32).reshape(2, 3, 1) - 2.5
    (found,) = run(value)
    expected = VIEWS[kind](tf.cast(value, tf.int64))
    assert result.shape == expected.shape and found.dtype == np.int64 and np.array_equal(found, expected)


def test_views_of_views_and_what_reads_them():
    (result,), run = late(lambda x: [tf.reshape(tf.squeeze(tf.cast(x, tf.int64), [2]), [-1]) + 1])
    cast = result.op.inputs[0].op
    assert (
        cast.type == "Cast" and cast.inputs[0].op.type == "Reshape" and cast.inputs[0].op.inputs[0].op.type == "Squeeze"
    )
    assert run(np.ones((2, 3, 1), np.float32))[0].tolist() == [2] * 6


def test_what_looks_at_its_shape_is_in_nobodys_way():
    (result, shape), run = late(
        lambda x: (lambda c: [tf.reshape(c, [-1]), tf.raw_ops.Shape(input=c)])(tf.cast(x, tf.int64))
    )
    assert result.op.type == "Cast" and shape.op.inputs[0].dtype == tf.float32
    assert run(np.ones((2, 3, 1), np.float32))[1].tolist() == [2, 3, 1]


def test_only_the_cast_that_nobody_else_reads_is_put_late():
    (first, _), _ = late(lambda x: [tf.reshape(tf.cast(x, tf.int64), [-1]), tf.cast(x, tf.int64) + 1])
    assert first.op.type == "Cast"


@pytest.mark.parametrize(
    "make",
    [
        lambda x: (lambda c: [tf.reshape(c, [-1]), c + 1])(tf.cast(x, tf.int64)),  # others read it
        lambda x: (lambda c: [tf.reshape(c, [-1]), c])(tf.cast(x, tf.int64)),  # it is a result
        lambda x: [tf.reshape(tf.cast(x, tf.float64), [-1])],  # no whole numbers
        lambda x: [tf.reshape(tf.cast(x, tf.int8), [-1])],  # smaller ones
    ],
)
def test_what_stays_where_it_is(make):
    results, run = late(make)
    value = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    assert results[0].op.type == "Reshape"
    assert all(np.array_equal(a, b) for a, b in zip(run(value), make(value), strict=True))


def test_labels_of_a_step_are_cast_for_the_loss():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4, 4, 2)), keras.layers.Conv2D(3, 1, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    spec = (tf.TensorSpec([None, 4, 4, 2]), tf.TensorSpec([None, 4, 4], tf.int64))
    step = trace_step(model.train_step, spec)
    wide = [op for op in step.operations if op.type == "Cast" and op.outputs[0].dtype == tf.int64]
    assert wide and not any(r.type == "Reshape" for op in wide for r in op.outputs[0].consumers())
