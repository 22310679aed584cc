"""Under XLA a rematerialized step takes less memory and computes what the plain step does under XLA."""

from __future__ import annotations

import functools
import gc
import re
from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import (
    BATCH,
    CASES,
    DENSE,
    Case,
    assert_same_state,
    compile_quickly,
    dense_model,
    make,
    program_of,
    program_of_case,
    train,
    vectors,
)
from graphs import paper_chain
from holes import without_holes

import checkmate_tf
from checkmate_tf.device.measure import captured_variables, find_device, measure_peak
from checkmate_tf.emit.emit import emit
from checkmate_tf.emit.ordering import Within
from checkmate_tf.emit.xla import XlaEmission, emit_compiled, emit_for_xla, recomputed_runs
from checkmate_tf.errors import BatchSizeError
from checkmate_tf.plan import plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, solve

pytestmark = pytest.mark.usefixtures("fresh_keras")


def test_a_run_begins_where_recomputation_follows_first_computations():
    plan = plan_from_sequence(paper_chain(3), [0, 1, 2, 3, 1, 2, 4, 0, 1, 5, 6])
    assert recomputed_runs(plan) == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_a_node_is_computed_again_once_in_a_run():
    plan = plan_from_sequence(paper_chain(3), [0, 1, 2, 3, 0, 1, 0, 1, 2, 4, 5, 6])
    assert recomputed_runs(plan) == [0, 0, 0, 0, 1, 1, 2, 2, 2, 2, 2, 2]


@functools.cache
def _planned(name):
    """A case's program and a plan that computes something again."""
    case = WIDE if name == "wide" else CASES[name]
    program = program_of(make(case), case) if name == "wide" else program_of_case(name)
    budget = int(case.budget * keep_all(program.graph).peak_bytes)
    schedule = solve(program.graph, budget, options=SolveOptions(10, gap=0.01))
    assert schedule.evaluation.counts.max() > 1
    return program, schedule


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.uint32, tf.int64])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
def test_what_is_tied_keeps_its_shape_and_type(shape, dtype):
    program, value = program_of_case("dense"), tf.cast(tf.fill(shape, 3.7), dtype)
    tied = []

    def step(*inputs):
        emission = XlaEmission(program, tf.compat.v1.get_default_graph(), inputs)
        emission.token = emission.zero
        tied.append(emission._tie(tf.constant(value.numpy())))
        return tied[0]

    graph = tf.function(step, autograph=False).get_concrete_function(*_specs(program))
    assert tied[0].shape == shape and tied[0].dtype == dtype and graph.structured_outputs.shape == shape


@pytest.mark.long
@pytest.mark.parametrize("name", ["residual", "transformer", "mixed"])
def test_everything_is_emitted_as_planned(name):
    """Without XLA the ties change nothing, so results would be equal; here the operations are counted."""
    program, schedule = _planned(name)
    made = []

    def step(*inputs):
        emission = XlaEmission(program, tf.compat.v1.get_default_graph(), inputs)
        emission.run_tied(schedule.plan, recomputed_runs(schedule.plan))
        made.append(emission)
        return [emission.tensor(t) for t in program.step.outputs]

    graph = tf.function(step, autograph=False).get_concrete_function(*_specs(program)).graph
    emission, counts = made[0], schedule.evaluation.counts
    for op, node in program.node_of.items():
        assert len(emission.copies[op]) == counts[node]
        originals = _inputs(emission.copies[op][0])
        for copy in emission.copies[op][1:]:
            assert _inputs(copy) != originals, op.name  # else XLA merges them
    assert any(internal.shape == [256] and internal.dtype == tf.uint32 for _, internal in graph.captures)


def _inputs(op):
    return [t.name for t in op.inputs]


def _specs(program):
    return [tf.TensorSpec(program.static.tensors[id(t)].shape, t.dtype) for t in program.step.inputs]


def _wide() -> keras.Model:
    inputs = x = keras.Input((256,))
    for _ in range(12):
        x = keras.layers.Dense(256, activation="tanh")(x)
    model = keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(x), name="wide")
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(n, 256)).astype("float32"), rng.integers(0, 4, n)


WIDE = Case(_wide, _rows, budget=0.6, batch=1024)


def _steps(program, plan, limit):
    """The step with a plan, compiled by XLA: tied, and as it is emitted for TensorFlow; and without a plan."""
    plain = keep_all(program.graph)
    emitters = {
        "tied": lambda *batch: emit_for_xla(program, plan, batch),
        "ordered": lambda *batch: emit(program, plan, Within(limit), batch),
        "plain": lambda *batch: emit(program, plain.plan, Within(plain.peak_bytes), batch),
    }
    return {name: tf.function(step, autograph=False, jit_compile=True) for name, step in emitters.items()}


@pytest.mark.feature("XLA", "jit_compile=True on a CPU", note="equal to rounding")
def test_memory_and_numbers_under_xla():
    program, schedule = _planned("wide")
    batch = [tf.constant(a) for a in WIDE.data(WIDE.batch)]
    variables = captured_variables(program.step.captures)
    start = [v.numpy() for v in variables]
    device, peaks, ends, left = find_device(), {}, {}, {}
    plugs = []  # XLA takes one large buffer, and a hole that is less than twice as large would do
    for name, step in _steps(program, schedule.plan, schedule.peak_bytes).items():
        gc.collect()
        plugs.append(without_holes(device))
        before = device.current_bytes()  # with what other tests of this process left
        peaks[name] = measure_peak(device, functools.partial(step, *batch), variables)[0].bytes - before
        step(*batch)
        ends[name] = [v.numpy() for v in variables]
        for v, value in zip(variables, start, strict=True):
            v.assign(value)
        compiled = step.experimental_get_compiler_ir(*batch)(stage="optimized_hlo")
        left[name] = Counter(re.findall(r" (tanh|dot)\(", compiled))
    del plugs
    assert peaks["tied"] < 0.8 * peaks["plain"]
    assert peaks["ordered"] > 0.95 * peaks["plain"]  # XLA merges: why there is another emission
    assert left["ordered"] == left["plain"]
    assert left["tied"].total() > left["plain"].total()
    for mine, theirs in zip(ends["tied"], ends["plain"], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_checks_come_before_the_compiled_step():
    """XLA leaves assertions out, so a batch that is too large must be refused before it is called."""
    program, schedule = _planned("wide")
    variables = captured_variables(program.step.captures)
    before = [v.numpy() for v in variables]

    @tf.function(autograph=False)
    def step(limit, *batch):
        check = tf.debugging.assert_less(tf.shape(batch[0])[0], limit)
        return emit_compiled(program, schedule.plan, batch, [check])

    batch = [tf.constant(a) for a in WIDE.data(WIDE.batch)]
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.constant(WIDE.batch), *batch)
    assert all(np.array_equal(v.numpy(), value) for v, value in zip(variables, before, strict=True))
    assert set(step(tf.constant(WIDE.batch + 1), *batch)) == {"accuracy", "loss"}


@pytest.mark.long
@pytest.mark.feature("XLA", "jit_compile=True on a CPU", note="equal to rounding")
def test_a_model_with_jit_compile_trains_as_without_a_plan():
    plain, planned = (make(Case(lambda: dense_model(jit_compile=True), vectors)) for _ in range(2))
    compile_quickly(planned, DENSE)
    assert planned.checkmate.recomputations > 0
    histories = [train(model, DENSE) for model in (plain, planned)]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-5)
    assert_same_state(plain, planned, rtol=1e-4)
    x, y = DENSE.data(BATCH + 1)
    with pytest.raises(BatchSizeError, match="planned for 16"):
        planned.fit(x, y, batch_size=BATCH + 1, verbose=0)
    assert checkmate_tf.restore(planned).jit_compile is True
