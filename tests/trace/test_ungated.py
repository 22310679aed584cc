"""Which nodes run as soon as what they read is there, and what that is for in a plan in strict order."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from cases import program_of_case
from traced import above, graph_of

from checkmate_tf.emit.emit import Emission
from checkmate_tf.plan import plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.ordering.links import links
from checkmate_tf.strategies.ordering.ready import when_ready
from checkmate_tf.trace.ops import is_stateful
from checkmate_tf.trace.partition.classes import SMALL, runs_when_ready
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step
from checkmate_tf.trace.ungated import ungated

pytestmark = pytest.mark.usefixtures("fresh_keras")


def program_of(step):
    traced = trace_step(step, tf.TensorSpec([64, 256]))
    return build_program(traced, with_static_batch(traced, [tf.TensorShape([64, 256])]), "step", 8192)


@pytest.mark.parametrize("case", ["dense", "residual", "unet"])
def test_they_are_small_and_without_effects(case):
    program = program_of_case(case)
    found = ungated(program)
    assert found.any() and len(found) == len(program.graph)
    for node in np.flatnonzero(found):
        assert all(program.classes[op] == SMALL and not is_stateful(op) for op in program.nodes[node])
    assert not any(found[program.node_of[op]] for op in program.node_of if is_stateful(op))


def test_gradients_of_small_filters_are_among_them():
    program = program_of_case("unet")
    filters = [k for op, k in program.node_of.items() if op.type == "Conv2DBackpropFilter"]
    small = [k for k in filters if all(program.classes[op] == SMALL for op in program.nodes[k])]
    assert small and ungated(program)[small].all()


def test_padding_is_not():
    """A convolution may do it, later."""
    program = program_of(lambda x: tf.exp(tf.pad(tf.reduce_sum(tf.exp(x), 0), [[1, 1]])))
    (pad,) = [op for op in program.node_of if op.type == "Pad"]
    assert program.classes[pad] == SMALL and not ungated(program)[program.node_of[pad]]


def test_what_waits_for_more_than_it_reads_is_not():
    program = program_of(lambda x: tf.reduce_sum(tf.exp(x), 0))
    of = {op.type: op for op in program.node_of}
    assert runs_when_ready(of["Sum"], program.classes, lambda _: [])
    assert not runs_when_ready(of["Sum"], program.classes, lambda _: [of["Exp"]])


def test_what_comes_next_waits_for_one_where_it_is_ready():
    """It has no gate, and would run beside what comes next, and hold what it reads until then."""

    def step(x):
        y = tf.exp(x)
        z = tf.sin(y)
        return y, tf.reduce_sum(y, 0), z, tf.cos(z)

    program = program_of(step)
    of = {op.type: op for op in program.step.operations}
    first, total, sine, cosine = (program.node_of[of[kind]] for kind in ("Exp", "Sum", "Sin", "Cos"))
    mine = (first, total, sine, cosine)
    rest = [node for node in keep_all(program.graph).sequence if node not in mine]
    late = np.array([first, sine, cosine, total, *rest])
    moved = when_ready(program.graph, links(program.graph), late, ungated(program))
    assert moved[:4].tolist() == [first, total, sine, cosine]

    def waits(sequence):
        made = []

        def emitted(x):
            made.append(Emission(program, tf.compat.v1.get_default_graph(), [x]))
            made[0].run_strictly(plan_from_sequence(program.graph, sequence))
            return [made[0].tensor(t) for t in program.step.outputs]

        graph_of(emitted, tf.TensorSpec([64, 256]))
        (small,), (next_large,) = made[0].copies[of["Sum"]], made[0].copies[of["Sin"]]
        return small in above(next_large)

    assert waits(moved) and not waits(late)
