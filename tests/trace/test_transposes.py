"""Transposes of matrices are folded into the products that read them, and pairs that undo each other are left out.

Grappler does both. Other transposes stay."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.trace.rewrites.transposes import fold_transposes
from checkmate_tf.trace.step import trace_step

FIRST, SECOND = tf.TensorSpec([None, 3, 4]), tf.TensorSpec([None, 5, 4])


def swapped(t, axes=(0, 2, 1)):
    return tf.transpose(t, axes)


def folded(function, *specs):
    """A function's graph with folded transposes, as a callable, and the types of what its products read."""

    found = {}

    def step(*values):
        result = function(*values)
        found.update(fold_transposes(tf.compat.v1.get_default_graph()))
        return tf.nest.map_structure(lambda t: found[t.op].outputs[0] if t.op in found else t, result)

    concrete = tf.function(step, autograph=False).get_concrete_function(*specs)
    products = [op for op in concrete.graph.get_operations() if "MatMul" in op.type and op not in found]
    return concrete, [[t.op.type for t in op.inputs] for op in products]


def random(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("function", "one", "other"),
    [
        (lambda x, y: x @ swapped(y), (2, 3, 4), (2, 5, 4)),
        (lambda x, y: swapped(x) @ swapped(y), (2, 4, 3), (2, 5, 4)),
        (lambda x, y: tf.matmul(x, swapped(y), transpose_b=True), (2, 3, 4), (2, 4, 5)),
        (lambda x, y: tf.transpose(x) @ y, (4, 3), (4, 5)),
        (lambda x, y: tf.transpose(x) @ tf.transpose(y), (4, 3), (5, 4)),
    ],
)
def test_products_read_what_was_transposed(function, one, other):
    concrete, read = folded(function, tf.TensorSpec(one), tf.TensorSpec(other))
    assert read == [["Placeholder", "Placeholder"]]
    x, y = random(*one), random(*other)
    found = concrete(tf.constant(x), tf.constant(y))
    assert found.shape == concrete.outputs[0].shape
    assert np.array_equal(found, tf.function(function)(tf.constant(x), tf.constant(y)))  # as Grappler has it


def test_gradients_of_transposes_are_folded():
    def gradient(x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.exp(swapped(tf.matmul(x, y, transpose_b=True))))
        return tape.gradient(loss, x)

    concrete, read = folded(gradient, FIRST, SECOND)
    assert read == [
        ["Placeholder", "Placeholder"],
        ["Mul", "Placeholder"],
        ["Mul", "Placeholder"],
    ]  # with an inverted permutation
    x, y = tf.constant(random(2, 3, 4)), tf.constant(random(2, 5, 4))
    assert np.allclose(concrete(x, y), gradient(x, y), rtol=1e-5)


def test_another_reader_still_gets_the_transpose():
    def function(x, y):
        turned = swapped(y)
        return x @ turned, tf.exp(turned)

    concrete, read = folded(function, FIRST, SECOND)
    assert read == [["Placeholder", "Placeholder"]]
    y = random(2, 5, 4)
    assert np.array_equal(concrete(tf.constant(random(2, 3, 4)), tf.constant(y))[1], tf.exp(swapped(y)))


@pytest.mark.parametrize(
    ("function", "specs"),
    [
        (lambda x, y: x @ tf.transpose(y, [1, 2, 0]), ([5, 3, 4], [6, 5, 4])),  # another order of axes
        (lambda x, axes: x @ tf.transpose(x, axes), ([2, 3, 4], tf.TensorSpec([3], tf.int32))),  # an unknown one
        (lambda x: x @ swapped(x), (tf.TensorSpec([2, 3, 4], tf.complex64),)),
        (lambda x: x @ tf.transpose(tf.constant([[1.0, 2.0]])), ([3, 2],)),  # a constant
    ],
)
def test_other_transposes_are_left_alone(function, specs):
    _, read = folded(function, *(s if isinstance(s, tf.TensorSpec) else tf.TensorSpec(s) for s in specs))
    assert [kinds[1] for kinds in read] == ["Transpose"]


def test_products_wait_for_what_transposes_waited_for():
    def function(x, y):
        order = tf.constant([0, 2, 1])
        with tf.control_dependencies([tf.exp(x)]):
            turned = tf.transpose(y, order)
        return x @ turned

    concrete, read = folded(function, FIRST, SECOND)
    assert read == [["Placeholder", "Placeholder"]]
    (product,) = (t.op for t in concrete.outputs if t.op.type == "Identity")
    assert [op.type for op in product.inputs[0].op.control_inputs] == ["Exp"]


def test_without_grappler_nothing_is_folded(no_grappler):
    _, read = folded(lambda x, y: x @ swapped(y), FIRST, SECOND)
    assert read == [["Placeholder", "Transpose"]]


@pytest.mark.parametrize("optimizer", ["arithmetic_optimization", "constant_folding"])
def test_without_an_optimizer_that_it_takes_nothing_is_folded(optimizer):
    before = tf.config.optimizer.get_experimental_options()
    try:
        tf.config.optimizer.set_experimental_options({optimizer: False})
        _, read = folded(lambda x, y: x @ swapped(y), FIRST, SECOND)
    finally:
        tf.config.optimizer.set_experimental_options({optimizer: True, **before})
    assert read == [["Placeholder", "Transpose"]]


def around(x, first, second):
    """Two transposes, one after the other."""
    return tf.transpose(tf.transpose(x, first), second)


@pytest.mark.parametrize(
    ("first", "second"), [([1, 0, 2], [1, 0, 2]), ([1, 2, 0], [2, 0, 1]), ([-1, 0, 1], [1, 2, 0]), ([0, 1, 2],) * 2]
)
def test_what_two_transposes_leave_as_it_was_is_read_directly(first, second):
    step = trace_step(lambda x: tf.exp(around(x, first, second)), FIRST)
    assert [op.type for op in step.operations if op.type in ("Transpose", "Exp")] == ["Exp"]
    x = random(2, 3, 4)
    assert np.array_equal(around(x, first, second), x)


@pytest.mark.parametrize(("first", "second"), [([1, 2, 0], [1, 2, 0]), ([1, 0, 2], [0, 2, 1])])
def test_transposes_that_leave_something_changed_stay(first, second):
    step = trace_step(lambda x: tf.exp(around(x, first, second)), FIRST)
    assert [op.type for op in step.operations].count("Transpose") == 2


def test_gradients_of_pairs_are_pairs():
    """Their permutations are inverses that TensorFlow computes."""

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.exp(around(x, [1, 2, 0], [2, 0, 1])))
        return tape.gradient(loss, x)

    step = trace_step(gradient, FIRST)
    assert "Transpose" not in [op.type for op in step.operations]


def test_the_first_of_a_pair_stays_for_another_reader():
    def step(x):
        turned = tf.transpose(x, [1, 0, 2])
        return tf.sin(turned), tf.exp(tf.transpose(turned, [1, 0, 2]))

    kinds = [op.type for op in trace_step(step, FIRST).operations]
    assert kinds.count("Transpose") == 1


@pytest.mark.parametrize("which", [0, 1])
def test_a_pair_of_which_one_waits_for_something_stays(which):
    def function(x, y):
        order = tf.constant([1, 0, 2])
        for k in range(2):
            with tf.control_dependencies([tf.sin(y)] if k == which else []):
                x = tf.transpose(x, order)
        return tf.exp(x)

    concrete, _ = folded(function, FIRST, SECOND)
    (result,) = (op for op in concrete.graph.get_operations() if op.type == "Exp")
    assert result.inputs[0].op.type == "Transpose"


def test_what_a_pair_gave_back_may_be_a_result():
    step = trace_step(lambda x: around(tf.exp(x), [1, 0, 2], [1, 0, 2]), FIRST)
    assert [op.type for op in step.operations if op.type in ("Transpose", "Exp")] == ["Exp"]
    assert step.outputs[0].shape.as_list() == [None, 3, 4]


def test_what_is_known_of_its_shape_stays_known():
    def step(x):
        result = around(tf.boolean_mask(x, x[:, 0, 0] > 0), [1, 0, 2], [1, 0, 2])
        result.set_shape([7, 3, 4])
        return tf.exp(result)

    (exp,) = [op for op in trace_step(step, FIRST).operations if op.type == "Exp"]
    assert exp.inputs[0].shape.as_list() == [7, 3, 4]


@pytest.mark.parametrize("as_written", [False, True])
def test_steps_have_no_operation_for_what_is_folded(as_written):
    step = trace_step(lambda pair: pair[0] @ swapped(pair[1]), (FIRST, SECOND), as_written=as_written)
    assert ("Transpose" in [op.type for op in step.operations]) == as_written


def test_a_folded_product_keeps_its_place():
    def step(pair):
        x, y = pair
        product = x @ swapped(y)
        later = tf.exp(x)
        return product, later, tf.sin(product)

    step = trace_step(step, (FIRST, SECOND))
    kinds = [op.type for op in step.operations if op.type in ("BatchMatMulV2", "Exp", "Sin")]
    assert kinds == ["BatchMatMulV2", "Exp", "Sin"]
    assert step.outputs[0].op in step.operations
