"""How operations are timed: by which calls, and what is taken off. Times are made up."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from traced import above, graph_of, looped, only  # noqa: E402

from checkmate_tf.costs import timed  # noqa: E402
from checkmate_tf.costs.alone.eager import empty_function  # noqa: E402
from checkmate_tf.costs.alone.fabricate import Fabricator  # noqa: E402
from checkmate_tf.costs.alone.values import StaticValues  # noqa: E402
from checkmate_tf.costs.counts import BRANCHES  # noqa: E402


def timer_of(queues=False):
    """A timer for which calling an operation takes 10 us, and any in a graph 1 us."""
    timer = object.__new__(timed._OpTimer)
    timer.queues, timer.repetitions, timer.call_us, timer.op_us = queues, 3, 10.0, 1.0
    return timer


@pytest.mark.parametrize("queues", [False, True])
def test_a_loop_is_timed_beyond_an_empty_function(monkeypatch, queues):
    """The call of a function takes longer than that of an operation."""
    timer, runs = timer_of(queues), []
    monkeypatch.setattr(timed, "runner", lambda op, inputs: lambda: runs.append("loop"))
    monkeypatch.setattr(timed, "empty_function", lambda inputs: lambda *given: runs.append("empty"))
    takes = {"loop": 350e-6, "empty": 300e-6}
    monkeypatch.setattr(timer, "_seconds", lambda run: takes[(run(), runs[-1])[1]])
    loop = only(graph_of(looped, (4, 8), (8, 8)), "StatelessWhile")
    assert timer.time(loop, Fabricator(StaticValues()), 1.0) == pytest.approx(50 + 1)
    assert runs[:6] == ["loop", "empty"] * 3


def chosen_by(index, x):
    """One of two branches, each with a gradient that reads what the branch kept."""
    ways = [lambda: x @ tf.sin(x), lambda: tf.cos(tf.exp(x))]
    return tf.switch_case(index, ways) if index.dtype.is_integer else tf.cond(index, *ways)


def with_gradient(index, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = chosen_by(index, x)
    return tape.gradient(y, x)


@pytest.mark.parametrize(("dtype", "kind"), [(tf.bool, "If"), (tf.int32, "Case")])
@pytest.mark.parametrize("dearest", [0, 1])
def test_of_branches_the_dearest_counts(monkeypatch, dtype, kind, dearest):
    timer, runs = timer_of(), []
    monkeypatch.setattr(timed, "runner", lambda op, inputs: lambda: runs.append(int(inputs[0])))
    monkeypatch.setattr(timed, "empty_function", lambda inputs: lambda *given: runs.append("empty"))
    takes = {0: 310e-6, 1: 310e-6, "empty": 300e-6, dearest: 350e-6}
    monkeypatch.setattr(timer, "_seconds", lambda run: takes[(run(), runs[-1])[1]])
    op = only(graph_of(chosen_by, tf.TensorSpec((), dtype), (8, 8)), f"Stateless{kind}")
    assert timer.time(op, Fabricator(StaticValues()), 1.0) == pytest.approx(50 + 1)


@pytest.mark.parametrize("dtype", [tf.bool, tf.int32])
def test_a_gradient_takes_the_branch_that_its_forward_pass_took(dtype):
    graph = graph_of(with_gradient, tf.TensorSpec((), dtype), (8, 8))
    forward, gradient = (op for op in graph.get_operations() if op.type in BRANCHES)
    assert forward in above(gradient)
    for fabricator in Fabricator(StaticValues()).of_branches(gradient):
        inputs = fabricator.inputs_of(gradient)
        timed.runner(gradient, inputs)()  # an error if it was the other one


def test_a_branch_that_is_known_is_the_only_one():
    sin = tf.function(tf.sin, autograph=False).get_concrete_function(tf.TensorSpec((4, 8)))
    call = lambda x: tf.raw_ops.StatelessIf(  # noqa: E731
        cond=tf.constant(True), input=[x], Tout=[tf.float32], then_branch=sin, else_branch=sin
    )
    fabricator = Fabricator(StaticValues())
    assert list(fabricator.of_branches(only(graph_of(call, (4, 8)), "StatelessIf"))) == [fabricator]


def test_what_is_slow_for_a_moment_does_not_count(monkeypatch):
    timer, differences = timer_of(), iter([4e-6, 5e-6, 3e-3, -2e-3, 6e-6])
    monkeypatch.setattr(timer, "_repeated", lambda sample, *times: list(differences))
    assert timer._beyond(lambda: None, lambda: None, 1.0) == pytest.approx(5 + 1)


def test_an_empty_function_gives_its_inputs():
    given = [tf.ones([2, 3]), tf.Variable(1.0).handle]
    assert [t.dtype for t in empty_function(given)(*given)] == [tf.float32, tf.resource]


def test_small_operations_are_timed_in_a_graph_though_functions_should_run_eagerly(monkeypatch):
    calls, sin = [], tf.sin
    monkeypatch.setattr(tf, "sin", lambda x: (calls.append(1), sin(x))[1])
    tf.config.run_functions_eagerly(True)
    try:
        assert timed._graph_op_us() > 0
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(calls) == 300


@pytest.mark.parametrize(("queues", "waits"), [(True, 1), (False, 0)])
def test_a_device_that_queues_is_waited_for_whatever_comes_out(monkeypatch, queues, waits):
    asked = []
    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: asked.append(1))
    assert timer_of(queues)._seconds(list, 3) > 0
    assert len(asked) == waits
