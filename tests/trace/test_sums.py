"""Sums of three and more: the bits of AddN, the order of Grappler, and no memory that outlives the step."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "true")
import tensorflow as tf

from checkmate_tf.emit.emit import emit
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.ops import inputs_of
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.rewrites.sums import emit_sum, order_of_terms
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step


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
        b, a = tf.exp(1.0, name="b"), tf.exp(2.0, name="a")
        c = tf.identity(tf.stop_gradient(tf.exp(3.0, name="Z")), name="c")
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


def _three_readers(x):
    """A step whose gradient is a sum of three, of which the last is asked for first."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x)
        loss = tf.reduce_sum(tf.exp(y)) + tf.reduce_sum(tf.sin(y)) + tf.reduce_sum(tf.sigmoid(y))
    return tape.gradient(loss, x)


def test_each_term_is_added_before_the_next_is_made():
    step = trace_step(_three_readers, tf.TensorSpec([None, 8]))
    kinds = [op.type for op in step.operations]
    assert kinds.count("AddN") == kinds.count("Snapshot") == 2
    assert all(len(op.inputs) == 2 for op in step.operations if op.type == "AddN")
    position = {op: k for k, op in enumerate(step.operations)}
    first, second = (op for op in step.operations if op.type == "AddN")
    (added,) = (t.op for t in inputs_of(second) if t.op.type == "Snapshot")
    (last,) = (t.op for t in inputs_of(second) if t.op is not added)
    assert inputs_of(added)[0].op is first and position[added] < position[last] < position[second]


def test_a_sum_is_left_whole_where_xla_compiles_it():
    step = trace_step(_three_readers, tf.TensorSpec([None, 8]), as_written=True)
    assert [len(op.inputs) for op in step.operations if op.type == "AddN"] == [3]


def test_who_waits_for_a_sum_waits_for_what_stands_for_it():
    def step(x):
        total = tf.add_n([x, 2.0 * x, 3.0 * x])
        with tf.control_dependencies([total.op]):
            return tf.exp(x), total

    traced = trace_step(step, tf.TensorSpec([None, 8]))
    assert [len(op.inputs) for op in traced.operations if op.type == "AddN"] == [2, 2]
    (waiting,) = (op for op in traced.operations if op.type == "Exp")
    assert [c.type for c in waiting.control_inputs] == ["Snapshot"]


@pytest.mark.parametrize("places", ["aab", "aba", "baa", "aabb", "xab", "xxa", "axb"])
@pytest.mark.parametrize("grappler", [True, False])
def test_the_kernel_begins_with_what_it_can_add_to(places, grappler, request):
    """Not with a tensor that is given twice, nor with a variable (x)."""
    if not grappler:
        request.getfixturevalue("no_grappler")
    x = tf.Variable(np.random.default_rng(0).normal(size=999).astype("float32"))

    def step(y):
        made = {"a": tf.exp(y), "b": 1000.0 * tf.tanh(y), "x": x.read_value()}
        return tf.add_n([made[k] for k in places])

    y = tf.constant(np.random.default_rng(1).normal(size=999).astype("float32"))
    expected = tf.function(step, autograph=False)(y)
    traced = trace_step(step, tf.TensorSpec([999]))
    terms = next(
        op
        for op in tf.function(step, autograph=False).get_concrete_function(y).graph.get_operations()
        if op.type == "AddN"
    )
    order = order_of_terms(inputs_of(terms))
    assert sum(op.type == "AddN" for op in traced.operations) == len(places) - 1

    @tf.function(autograph=False)
    def in_twos(y):
        made = {"a": tf.exp(y), "b": 1000.0 * tf.tanh(y), "x": x.read_value()}
        return emit_sum([made[places[k]] for k in order], "sum")

    np.testing.assert_array_equal(in_twos(y).numpy(), expected.numpy())


def _given_twice(x):
    """The gradient of `x`: one term each of two additions and a tanh. As nothing is broadcast, two are one buffer."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x + (x + 1000.0 * tf.tanh(x))
        loss = tf.reduce_sum(tf.exp(tf.sin(y)) * y)
    return tape.gradient(loss, x)


def _of_pieces(x):
    first, second = tf.split(tf.tanh(tf.reshape(x, (2, -1, 16))), 2)
    return tf.add_n([first, second, 1000.0 * tf.sin(3 * first)])


def _broadcast(x):
    """Here a sum of a gradient does add: one operand is a row."""
    row = tf.reduce_mean(x, axis=0, keepdims=True)
    with tf.GradientTape() as tape:
        tape.watch(row)
        y = row + (x + row * row) + 1000.0 * tf.tanh(row)
        loss = tf.reduce_sum(tf.exp(tf.sin(y)) * y)
    return tape.gradient(loss, row)


@pytest.mark.parametrize("step", [_given_twice, _of_pieces, _broadcast])
def test_what_lies_in_one_buffer_is_no_term_to_begin_with(step, no_grappler):
    """The batch dimension is open, so that only the runtime sees that a sum of a gradient adds nothing."""
    spec, x = tf.TensorSpec([None, 16]), np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
    plain = tf.function(step, autograph=False, input_signature=[spec])
    sums = [op for op in plain.get_concrete_function().graph.get_operations() if op.type == "AddN"]
    assert any(len(op.inputs) > 2 for op in sums)
    traced = trace_step(step, spec)
    program = build_program(traced, with_static_batch(traced, [tf.TensorShape(x.shape)]), "sums")
    plan = keep_all(program.graph).plan
    ours = tf.function(lambda given: emit(program, plan, Strict(), [given]), autograph=False, input_signature=[spec])
    np.testing.assert_array_equal(ours(x).numpy(), plain(x).numpy())


def test_terms_of_one_gradient_are_made_one_at_a_time():
    """What else reads the gradient are terms of the same sum."""

    def step(x):
        dy = tf.exp(x)
        return tf.reduce_sum(tf.add_n([dy * tf.sin(x), dy * tf.cos(x), dy * tf.tanh(x)]))

    kinds = [op.type for op in trace_step(step, tf.TensorSpec([None, 8])).operations]
    assert kinds.index("AddN") < len(kinds) - 1 - kinds[::-1].index("Mul")


def test_sums_that_are_results_are_replaced():
    def step(x):
        return {"total": tf.add_n([x, tf.exp(x), tf.sin(x)])}

    traced = trace_step(step, tf.TensorSpec([None, 8]))
    for result in (traced.outputs[0], traced.structured_outputs["total"]):
        while result.op.type == "Identity":
            result = result.op.inputs[0]
        assert result.op.type == "Snapshot"
    assert traced.outputs[0].shape.as_list() == [None, 8]
