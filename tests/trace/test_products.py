"""What Grappler does to products, and what an emitted step does about it."""

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.emit.emit import Emission, emit
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.kernels import kernels_of
from checkmate_tf.trace.products import products_of
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

SPEC = tf.TensorSpec([64, 128])


def _program(function):
    step = trace_step(function, SPEC)
    return build_program(step, with_static_batch(step, [t.shape for t in step.inputs]), "products")


def _inner_last(x):
    """c (x y), where other things may come between the two products."""
    a, b = tf.tanh(x), tf.exp(x)
    return tf.reduce_sum(0.3 * (a * b))


def _inner_read_twice(x):
    scaled = 0.3 * tf.tanh(x)
    return tf.reduce_sum(scaled * tf.exp(x)) + tf.reduce_sum(scaled)


def _no_constant(x):
    return tf.reduce_sum(tf.tanh(x) * tf.exp(x) * tf.sin(x))


def test_a_constant_moves_to_the_second_factor():
    products = products_of(_program(_inner_last))
    ((inner, outer, factor),) = products.pushed
    assert factor.op.type == "Tanh" and [t.op.type for t in inner.inputs] == ["Tanh", "Exp"]
    assert inner in [t.op for t in outer.inputs]
    assert not products.as_written


def test_what_several_read_is_computed_as_written():
    products = products_of(_program(_inner_read_twice))
    assert [op.type for op in products.as_written] == ["Mul"] and not products.pushed


def test_other_products_are_left_alone():
    assert products_of(_program(_no_constant)) == ([], set())


@pytest.mark.parametrize("grappler", [True, False])
def test_the_first_factor_lives_until_the_outer_product(grappler, request):
    if not grappler:
        request.getfixturevalue("no_grappler")
    program = _program(_inner_last)
    kernels = kernels_of(program)
    operations = [op for node in program.nodes for op in node]
    ((inner, outer, factor),) = products_of(program).pushed
    buffers = {op: set(range(*kernels.outputs[k : k + 2])) for k, op in enumerate(operations)}
    read = {op: set(kernels.read[slice(*kernels.reads[k : k + 2])]) for k, op in enumerate(operations)}
    assert (buffers[factor.op] <= read[outer]) == grappler
    assert (buffers[factor.op] <= read[inner]) != grappler


@pytest.mark.parametrize(("function", "waits"), [(_inner_last, "Identity"), (_inner_read_twice, "Mul")])
def test_products_wait_for_what_they_read_whatever_grappler_does(function, waits):
    """Behind a trigger, which stays: behind the first factor, or so that a product is computed as written."""
    program = _program(function)
    plan = keep_all(program.graph).plan
    step = tf.function(lambda x: emit(program, plan, Strict(), [x]), autograph=False).get_concrete_function(SPEC)
    triggers = [op for op in step.graph.get_operations() if op.type == "ControlTrigger"]
    (trigger,) = triggers
    assert [op.type for op in trigger._control_outputs] == [waits]
    assert [t.op.type for op in trigger.control_inputs for t in op.inputs] == ["Tanh"]


def test_concatenations_are_not_joined():
    """A copy that one other concatenation alone reads would go into that one: a plan counts both."""

    def function(x):
        first = tf.concat([tf.tanh(x), tf.exp(x)], axis=1)
        second = tf.concat([first, tf.sin(x)], axis=1)
        return tf.reduce_sum(tf.concat([second, tf.cos(x)], axis=1))

    program = _program(function)
    given = np.random.default_rng(1).normal(size=SPEC.shape).astype("float32")
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        x = tf.compat.v1.placeholder(SPEC.dtype, SPEC.shape)
        emission = Emission(program, graph, [x])
        emission.run_strictly(keep_all(program.graph).plan)
        found = session.run(emission.outputs(), {x: given})
    axes = [tf.get_static_value(op.inputs[-1]) for op in graph.get_operations() if op.type == "ConcatV2"]
    assert axes == [1, -1, 1]
    assert found == function(tf.constant(given)).numpy()
