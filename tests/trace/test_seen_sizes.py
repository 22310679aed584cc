"""Sizes that data decides, without a bound: they are seen on a batch, and planned for with a margin."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.device.measure import find_device
from checkmate_tf.fit.subjects.looking import looked_at
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.seen import Seen
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

SPEC = tf.TensorSpec([None, 3])
BATCH = np.full((4, 3), 0.5, np.float32)  # adds up to 6


def _counted(x):
    """Two sizes: of a count of 6, and of those of its numbers that are even, which are seen when the first is known."""
    first = tf.range(tf.cast(tf.reduce_sum(x), tf.int32))
    second = tf.boolean_mask(first, first % 2 == 0)
    return tf.reduce_sum(tf.exp(tf.cast(first, tf.float32))) + tf.reduce_sum(tf.exp(tf.cast(second, tf.float32)))


def _seen(step, margin=0.0, batch=BATCH):
    shapes = [tf.TensorShape(batch.shape)] * len(step.inputs)
    calls = []

    def look(tensors, scalars):
        calls.append([t.op.type for t in tensors])
        return looked_at(step, [batch] * len(step.inputs), find_device(), tensors, scalars)

    return with_static_batch(step, shapes, look, margin), calls


def _bytes(step, static, kind):
    return [static.bytes_of(op.outputs[0]) for op in step.operations if op.type == kind]


@pytest.mark.parametrize("margin, first, second", [(0.0, 6, 3), (0.125, 7, 4), (1.0, 12, 6)])
def test_sizes_are_seen_one_after_the_other_with_a_margin(margin, first, second):
    step = trace_step(_counted, SPEC)
    static, calls = _seen(step, margin)
    assert _bytes(step, static, "Range") == [4 * first] and _bytes(step, static, "Where") == [8 * second]
    assert sorted(_bytes(step, static, "Exp")) == sorted([4 * first, 4 * second])
    assert static.seen and static.bounded and calls == [["Range"], ["Where"]]


@pytest.mark.parametrize("kept, seen", [(4, False), (1, True)])
def test_the_most_that_can_come_is_planned_for_unless_it_is_much_more(kept, seen):
    step = trace_step(lambda x: tf.reduce_sum(tf.exp(tf.exp(tf.boolean_mask(x, x[:, 0] > 0)))), SPEC)
    batch = np.where(np.arange(4)[:, None] < kept, BATCH, -BATCH)
    static, calls = _seen(step, batch=batch)
    assert static.bounded and static.seen is seen and calls
    assert _bytes(step, static, "Exp") == [12 * (1 if seen else 4)] * 2


def test_what_is_known_is_not_looked_at():
    step = trace_step(lambda x: tf.reduce_sum(tf.exp(x)), SPEC)
    static, calls = _seen(step)
    assert not static.bounded and not static.seen and calls == []


def test_parts_are_no_larger_than_the_whole():
    def parted(x):
        kinds = tf.cast(x[:, 0] > 0, tf.int32)
        parts = tf.dynamic_partition(x, kinds, 3)
        return tf.add_n([tf.reduce_sum(tf.exp(p)) for p in parts])

    step = trace_step(parted, SPEC)
    static, _ = _seen(step)
    assert _bytes(step, static, "Exp") == [12, 4 * 12, 12]  # nothing, but room for a row; all; and nothing
    bounded = with_static_batch(step, [tf.TensorShape(BATCH.shape)])
    assert _bytes(step, bounded, "Exp") == [4 * 12] * 3


def test_rounds_of_a_loop_are_counted():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            rounds = tf.cast(tf.reduce_sum(x), tf.int32)
            _, h = tf.while_loop(lambda k, h: k < rounds, lambda k, h: (k + 1, tf.exp(h)), (0, x))
            loss = tf.reduce_sum(h)
        return tape.gradient(loss, x)

    traced = trace_step(step, SPEC)
    small = np.full((4, 3), 0.25, np.float32)  # three rounds
    static, _ = _seen(traced, batch=small)
    forward = next(op for op in traced.operations if op.type.endswith("While"))
    lists = [static.bytes_of(t) for t in forward.outputs if t.dtype == tf.variant and t.consumers()]
    assert lists == [3 * small.nbytes]
    build_program(traced, static, "loop")


def test_sizes_that_disagree_with_a_margin_do_not_stop_it():
    """Six numbers, and the last six of fourteen: 7 and 8 with a margin. A product of the two would be refused."""

    def matched(x):
        count = tf.cast(tf.reduce_sum(x), tf.int32)
        left = tf.cast(tf.range(count), tf.float32)[None]
        right = tf.cast(tf.range(count + 8)[8:], tf.float32)[:, None]
        return tf.reduce_sum(left @ right)

    step = trace_step(matched, SPEC)
    static, _ = _seen(step, 0.125)
    assert all(static.bytes_of(t) is not None for op in step.operations for t in op.outputs)
    (product,) = (op for op in step.operations if op.type == "MatMul")
    assert static.operations[product].type == "Placeholder" and static.bytes_of(product.outputs[0]) == 4


def test_looking_leaves_variables_alone():
    generator = tf.random.Generator.from_seed(3)
    weight = tf.Variable(2.0)

    def step(x):
        drawn = generator.uniform([], 1, 5, tf.int32)
        weight.assign_add(1.0)
        return tf.reduce_sum(tf.exp(tf.cast(tf.range(drawn), tf.float32))) * weight

    traced = trace_step(step, SPEC)
    state = generator.state.numpy()
    static, calls = _seen(traced)
    assert calls and static.seen
    assert weight.numpy() == 2.0 and (generator.state.numpy() == state).all()


def test_a_step_that_cannot_be_looked_at(caplog):
    def failing(x):
        checked = tf.debugging.check_numerics(x, "not a number")
        return tf.reduce_sum(tf.exp(tf.cast(tf.range(tf.cast(tf.reduce_sum(checked), tf.int32)), tf.float32)))

    step = trace_step(failing, SPEC)
    static, _ = _seen(step, batch=np.full((4, 3), np.nan, np.float32))
    assert not static.seen and None in _bytes(step, static, "Range")
    assert "sizes that data decides cannot be looked at" in caplog.text
    files = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

    def moving(x):
        files.insert(tf.range(tf.cast(tf.reduce_sum(x), tf.int64)), tf.range(tf.cast(tf.reduce_sum(x), tf.int64)))
        return tf.reduce_sum(x)

    step = trace_step(moving, SPEC)
    caplog.clear()
    assert looked_at(step, [BATCH], find_device(), list(step.inputs), []) is None
    assert "changes more than variables (LookupTableInsertV2" in caplog.text


@pytest.mark.parametrize("margin, size, planned", [(0.125, 8, 9), (0.125, 0, 1), (0.0, 5, 5), (0.125, 1, 2)])
def test_a_margin_is_rounded_up(margin, size, planned):
    assert Seen(margin).more(size) == planned


def test_known_sizes_stay():
    t = tf.ones((2, 3))
    seen = Seen(1.0, {id(t): (2, 3)})
    assert seen.shape(t, tf.TensorShape([None, 3])) == (4, 3)
    assert seen.shape(t, tf.TensorShape(None)) == (2, 6)
    assert seen.shape(tf.ones(2), tf.TensorShape([None])).as_list() == [None]
