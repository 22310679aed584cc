"""The tape of a Python function holds what it read and made until its gradient has run."""

from __future__ import annotations

import tensorflow as tf

from checkmate_tf.graph import Graph
from checkmate_tf.trace.kernels import kernels_of
from checkmate_tf.trace.program import Program, build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.sizes.tapes import tapes_of
from checkmate_tf.trace.step import trace_step

BATCH, WIDTH = 16, 1024
BYTES = BATCH * WIDTH * 4


def _program(step) -> Program:
    traced = trace_step(step, tf.TensorSpec([None, WIDTH]))
    return build_program(traced, with_static_batch(traced, [tf.TensorShape([BATCH, WIDTH])]), "step", 1024)


def _in_python(x):
    found = tf.py_function(tf.tanh, [x], tf.float32)
    found.set_shape(x.shape)
    return found


def _two(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _in_python(tf.exp(x))
        loss = tf.reduce_sum(tf.sin(_in_python(tf.exp(y) + y)))
    return tape.gradient(loss, x)


def test_each_gradient_takes_the_tape_of_its_own_function():
    program = _program(_two)
    operations = program.step.operations
    tapes = tapes_of(operations)
    functions = [op for op in operations if op.type == "EagerPyFunc"]
    gradients = [op for op in functions if op in tapes]
    assert len(functions) == 4 and [tapes[op] for op in gradients] == functions[1::-1]


def test_a_function_that_is_traced_as_one_has_its_tapes_too():
    inner = tf.function(lambda x: tf.ensure_shape(tf.py_function(tf.tanh, [x], tf.float32), (BATCH, WIDTH)))
    traced = trace_step(lambda x: _gradient(x, lambda v: inner(tf.exp(v))), tf.TensorSpec([None, WIDTH]))
    function, gradient = (op for op in traced.operations if op.type == "EagerPyFunc")
    assert tapes_of(traced.operations) == {gradient: function}


def test_what_the_tape_holds_is_a_part_of_the_function_until_then():
    program = _program(_two)
    graph: Graph = program.graph
    for op, recorded in program.tapes.items():
        k, later = program.node_of[recorded], program.node_of[op]
        assert graph.sizes[k] == 2 * BYTES  # its own result, and what it read
        assert k in graph.inputs[later] and max(graph.users[k]) == later
        assert graph.recompute_until[k] == 0


def test_the_allocator_sees_two_values_that_the_gradient_reads():
    program = _program(_two)
    kernels = kernels_of(program)
    operations = [op for node in program.nodes for op in node]
    for op, recorded in program.tapes.items():
        made = operations.index(recorded)
        mine = range(kernels.outputs[made], kernels.outputs[made + 1])
        assert [int(kernels.bytes[b]) for b in mine] == [BYTES, BYTES]
        at = operations.index(op)
        assert set(mine) <= set(kernels.read[kernels.reads[at] : kernels.reads[at + 1]].tolist())


def test_without_a_gradient_nothing_is_held():
    program = _program(lambda x: tf.reduce_sum(_in_python(tf.exp(x))))
    assert not program.tapes
    (op,) = [op for op in program.step.operations if op.type == "EagerPyFunc"]
    assert program.graph.sizes[program.node_of[op]] <= BYTES


def test_constants_and_batches_are_there_anyway():
    program = _program(lambda x: _gradient(x, lambda v: _in_python(v + 0.0)))
    other = _program(lambda x: _gradient(x, _in_python))
    held = [[p.taped_bytes(op) for op in p.tapes.values()] for p in (program, other)]
    assert held == [[BYTES], [0]]


def _gradient(x, function):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.sin(function(x)))
    return tape.gradient(loss, x)
