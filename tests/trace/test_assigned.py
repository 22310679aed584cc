"""Which nodes assign variables that others read: those must not be computed again afterwards."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from cases import program_of_case

from checkmate_tf.trace.assigned import assigned_later
from checkmate_tf.trace.ops import inputs_of
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")


def reads(program, node):
    """Names of the variables whose values a node reads."""
    owners = (program.source_of(t).op for op in program.nodes[node] for t in inputs_of(op))
    return {op.inputs[0].op.name for op in owners if op.type == "ReadVariableOp"}


@pytest.mark.parametrize("case", ["dense", "residual", "unet"])
def test_each_layer_is_ended_by_the_updates_of_its_variables(case):
    program = program_of_case(case)
    found = assigned_later(program)
    assert found
    for node, ends in found.items():
        assert node not in ends
        assigned = {t.op.name for k in ends for op in program.nodes[k] for t in op.inputs if t.dtype == tf.resource}
        assert reads(program, node) & assigned
    layers = ("MatMul", "Conv2D")
    first = next(k for k, node in enumerate(program.nodes) if any(op.type in layers for op in node))
    assert first in found


def test_frozen_variables_end_nothing():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(256, trainable=False), keras.layers.Dense(256)])
    model.compile("sgd", "mse")
    spec = (tf.TensorSpec([None, 8]), tf.TensorSpec([None, 256]))
    step = trace_step(model.train_step, spec)
    shapes = [tf.TensorShape([64, *t.shape[1:]]) for t in step.inputs]
    program = build_program(step, with_static_batch(step, shapes), "frozen")
    frozen = {t.op.name for t in step.graph.inputs} - {
        t.op.name for op in program.node_of for t in op.inputs if t.dtype == tf.resource and "Assign" in op.type
    }
    ended = assigned_later(program)
    only = [k for k in range(len(program.nodes)) if reads(program, k) and reads(program, k) <= frozen]
    assert only and not ended.keys() & set(only)
