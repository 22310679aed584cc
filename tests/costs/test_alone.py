"""An operation that runs alone leaves the program as it was: its random numbers, its Python functions, its files."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from traced import graph_of, only  # noqa: E402

from checkmate_tf.costs.alone.fabricate import may_run  # noqa: E402
from checkmate_tf.costs.alone.values import StaticValues  # noqa: E402
from checkmate_tf.costs.timed import time_ops  # noqa: E402

BIG = (64, 256)


@pytest.mark.parametrize("seed", [5, None])
def test_random_numbers_of_the_program_stay_what_they_are(seed):
    def drawn(timed):
        tf.random.set_seed(1)
        first = tf.random.uniform(BIG, seed=seed).numpy()
        if timed:
            assert time_ops(ops, cache=False).measured.all()
        return [*first.flat, *tf.random.uniform(BIG, seed=seed).numpy().flat]

    tf.random.set_seed(1)
    ops = graph_of(lambda x: x + tf.random.uniform(BIG, seed=seed), BIG).get_operations()
    assert drawn(timed=True) == drawn(timed=False)


def test_python_is_not_called_with_made_up_data():
    called = []

    def note(x):
        called.append(x)
        return x

    def step(x):
        y = tf.numpy_function(note, [x], tf.float32, stateful=False)
        return y, tf.numpy_function(note, [tf.constant([3, 4])], tf.int32, stateful=False)

    traced = tf.function(step, autograph=False).get_concrete_function(tf.TensorSpec(BIG))  # keeps the functions
    ops = [op for op in traced.graph.get_operations() if op.type == "PyFuncStateless"]
    assert [StaticValues()(op.outputs[0]) for op in ops] == [None, None]
    time_ops(ops, cache=False)
    assert not called


def test_files_are_not_looked_for():
    graph = graph_of(lambda name: (tf.io.read_file(name), tf.io.matching_files(name)), tf.TensorSpec((), tf.string))
    assert not may_run(only(graph, "ReadFile")) and not may_run(only(graph, "MatchingFiles"))
