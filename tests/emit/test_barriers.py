"""What the next barrier waits for."""

from __future__ import annotations

import tensorflow as tf

from checkmate_tf.emit.barriers import Barriers


def test_a_barrier_waits_for_what_says_that_an_operation_has_run_though_a_reader_took_its_place():
    """An assignment waits for it. It reads the value, which stays in memory while its thread is held up."""
    with tf.Graph().as_default() as graph:
        made = tf.exp(tf.ones([4]))
        barriers = Barriers(graph, ())
        barriers.finish(made.op, made.op, [], [])
        done = barriers.stands_for(made.op)
        assert done.name == "checkmate/done" and barriers.stands_for(made.op) is done
        reader = tf.sin(made)
        barriers.finish(reader.op, reader.op, [made], [made.op])
        assert made.op not in barriers.finished and barriers.stands_for(made.op) is not done
        barriers.add(1)
        waits = set(barriers.put[1].control_inputs)
    assert done in waits and reader.op not in waits and len(waits) == 2
    assert all(op.type == "Identity" for op in waits)


def test_without_an_assignment_a_barrier_waits_for_the_reader_alone():
    with tf.Graph().as_default() as graph:
        made = tf.exp(tf.ones([4]))
        reader = tf.sin(made)
        barriers = Barriers(graph, ())
        barriers.finish(made.op, made.op, [], [])
        barriers.finish(reader.op, reader.op, [made], [made.op])
        barriers.add(1)
    assert [op.inputs[0].op for op in barriers.put[1].control_inputs] == [reader.op]
