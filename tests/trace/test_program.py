"""From thousands of operations to the nodes worth deciding about: nothing lost, nothing twice, effects never again."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, Case, dense_model, make, program_of, program_of_case, vectors

from checkmate_tf.errors import DynamicShapeError
from checkmate_tf.graph import BACKWARD, FORWARD, LOSS
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.ops import inputs_of, is_stateful
from checkmate_tf.trace.partition.classes import LARGE, SHAPE, SMALL, SOURCE, VIEW
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")

NAMES = ["residual", "unet", "transformer", "recurrent", "own_step", "mixed"]


def _program(function, spec, batch=8, large_bytes=1024):
    step = trace_step(function, spec)
    shapes = [tf.TensorShape([batch if d is None else d for d in t.shape]) for t in step.inputs]
    return build_program(step, with_static_batch(step, shapes), "step", large_bytes)


def _node(program, kind):
    return next(k for op, k in program.node_of.items() if op.type == kind)


@pytest.mark.parametrize("name", NAMES)
def test_every_operation_has_its_place(name):
    program = program_of_case(name)
    assert set(program.classes) == set(program.step.operations)
    in_nodes = [op for node in program.nodes for op in node]
    assert len(in_nodes) == len(set(in_nodes))
    assert set(in_nodes) == {op for op, c in program.classes.items() if c in (SMALL, LARGE)} == set(program.node_of)
    in_shapes = [op for row in program.shapes for op in row]
    assert set(in_shapes) == {op for op, c in program.classes.items() if c == SHAPE}
    assert set(program.classes.values()) <= {SOURCE, VIEW, SHAPE, SMALL, LARGE}


@pytest.mark.parametrize("name", NAMES)
def test_edges_are_reads_of_buffers(name):
    program = program_of_case(name)
    for k, node in enumerate(program.nodes):
        read = {program.node_of.get(program.source_of(t).op) for op in node for t in inputs_of(op)} - {None, k}
        if node:
            assert set(program.graph.inputs[k]) == read


@pytest.mark.parametrize("name", NAMES)
def test_effects_are_never_recomputed(name):
    program = program_of_case(name)
    effects = [op for op in program.node_of if is_stateful(op)]
    assert effects
    for op in effects:
        assert program.graph.recompute_until[program.node_of[op]] == 0
    again = program.graph.recompute_until > np.arange(1, len(program.graph) + 1)
    assert again.sum() > 3
    for k in np.flatnonzero(again):
        assert not any(is_stateful(op) for op in program.nodes[k])


@pytest.mark.parametrize("name", NAMES)
def test_kinds_go_forward_loss_backward(name):
    kinds = program_of_case(name).graph.kinds
    assert {FORWARD, LOSS, BACKWARD} == set(kinds.tolist())
    assert (kinds == LOSS).sum() == 1


def test_bytes_of_the_whole():
    program = program_of_case("dense")
    model = dense_model()
    model.optimizer.build(model.trainable_variables)
    held = sum(4 * int(np.prod(v.shape)) for v in model.trainable_variables)
    assert program.input_bytes == DENSE.batch * (64 * 8 * 4 + 8)
    assert 2 * held < program.variable_bytes < 3 * held  # weights, a slot each; statistics, counters, seeds
    assert program.graph.constant_bytes >= program.variable_bytes + program.input_bytes


def test_activations_grow_with_the_batch_and_parameters_do_not():
    case = Case(dense_model, vectors)
    small, large = (program_of(make(case), case, batch) for batch in (16, 64))
    assert small.variable_bytes == large.variable_bytes and large.input_bytes == 4 * small.input_bytes
    a, b = (keep_all(p.graph).peak_bytes - p.variable_bytes for p in (small, large))
    assert 3.5 < b / a < 4.1


def test_a_value_with_one_reader_behind_it_is_merged():
    weights = tf.constant(np.ones((64, 64), "float32"))
    program = _program(lambda x: tf.reduce_sum(tf.exp(x) @ weights), tf.TensorSpec([None, 64]))
    assert len({_node(program, kind) for kind in ("Exp", "MatMul")}) == 1


def test_a_value_with_two_readers_is_not():
    def step(x):
        a = tf.exp(x)
        b = tf.sin(a @ tf.ones((64, 64)))
        return tf.reduce_sum(b @ tf.ones((64, 64))) + tf.reduce_sum(a)

    program = _program(step, tf.TensorSpec([None, 64]))
    assert _node(program, "Exp") != _node(program, "MatMul")
    assert program.graph.sizes[_node(program, "Exp")] == 8 * 64 * 4


def test_a_view_belongs_to_whoever_owns_the_buffer():
    def step(x):
        a = tf.exp(x)
        flat = tf.reshape(a, (-1, 8))
        return tf.reduce_sum(tf.sin(flat)) + tf.reduce_sum(tf.cos(tf.identity(a)))

    program = _program(step, tf.TensorSpec([None, 64]))
    exp = next(op for op in program.step.operations if op.type == "Exp")
    for kind in ("Sin", "Cos"):
        reader = next(op for op in program.step.operations if op.type == kind)
        assert program.source_of(reader.inputs[0]).op is exp
    views = [op for op in program.step.operations if op.type in ("Reshape", "Identity") and op.inputs[0].op is exp]
    assert len(views) == 2 and not any(view in program.node_of for view in views)


def test_shape_operations_take_no_memory():
    def step(x):
        a = tf.exp(x)
        return tf.reshape(a, (tf.shape(a)[0] * 2, 32))

    program = _program(step, tf.TensorSpec([None, 64]))
    kinds = {op.type for row in program.shapes for op in row}
    assert {"Shape", "Mul", "Pack"} <= kinds


def test_what_only_its_shape_is_read_of_is_freed_at_once():
    """It is computed, but nothing keeps it."""

    def function(x):
        y = tf.exp(x)
        return tf.sin(x) * tf.cast(tf.shape(y)[0], tf.float32)

    program = _program(function, tf.TensorSpec([None, 256]))
    node = _node(program, "Exp")
    assert program.nodes[node] and not program.graph.users[node]
    assert program.graph.sizes[node] == 0 and program.graph.workspace[node] == 8 * 1024


def test_results_are_held_to_the_end():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(tf.exp(tf.sin(x)))
        return y, tape.gradient(y, x)

    program = _program(step, tf.TensorSpec([None, 1024]))
    assert program.graph.names[-1] == "outputs" and program.nodes[-1] == ()
    held = sum(int(program.graph.sizes[k]) for k in program.graph.inputs[-1])
    assert held >= 8 * 1024 * 4


def test_costs_are_summed_by_node():
    program = program_of_case("dense")
    operations = list(program.node_of)
    total = program.node_costs(operations, np.ones(len(operations)))
    assert total.tolist() == [float(len(node)) for node in program.nodes]
    outside = next(op for op, c in program.classes.items() if c == SOURCE)
    assert program.node_costs([outside], np.ones(1)).sum() == 0


def test_an_unknown_size_is_refused_by_name():
    with pytest.raises(DynamicShapeError, match=r"the size of \S+ \(Range, shape .* does not follow from the batch"):
        _program(lambda x: tf.reduce_sum(tf.range(tf.cast(x[0, 0], tf.int32))), tf.TensorSpec([None, 64]))


def test_a_loop_without_a_bound_is_refused():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, h = tf.while_loop(lambda i, h: tf.reduce_sum(h) < 9.0, lambda i, h: (i + 1, tf.exp(h)), (0, x))
            loss = tf.reduce_sum(h)
        return tape.gradient(loss, x)

    with pytest.raises(DynamicShapeError, match="maximum_iterations"):
        _program(step, tf.TensorSpec([None, 64]))


def test_a_plain_step_of_one_layer():
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    case = Case(lambda: model, lambda n: (np.zeros((n, 3), "float32"), np.zeros((n, 2), "float32")))
    program = program_of(model, case)
    assert len(program.graph) >= 1 and keep_all(program.graph).peak_bytes > program.variable_bytes
