"""What operations take for themselves is learned from a recorded step. Here that is switched on for a CPU."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import tensorflow as tf
from allocators import measures
from cases import CASES, DENSE, assert_same_state, compile_quickly, make, program_of_case, train
from schedules import QUICK, SPEC, step

from checkmate_tf.allocator.workspace import NOTHING, Workspace
from checkmate_tf.costs.workspace import LEAST_BYTES
from checkmate_tf.device.measure import Device, find_device
from checkmate_tf.device.record import NotRecorded
from checkmate_tf.emit.emit import emit
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.fit import pipeline
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.fit.run import NotMeasurable
from checkmate_tf.fit.subjects import learned, tracing
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.partition.classes import LARGE, VIEW

pytestmark = pytest.mark.usefixtures("fresh_keras")

MIB, SIZE = 2**20, 2**17
GPU = Device("GPU:0", 2**30, measurable=True)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Learn on this device. Returns the subjects that were planned, each with what was learned."""
    monkeypatch.setattr(pipeline, "can_learn", lambda device, options: options.verify)
    subjects, real = [], pipeline.with_workspaces

    def noted(subject, found):
        subjects.append(real(subject, found))
        return subjects[-1]

    monkeypatch.setattr(pipeline, "with_workspaces", noted)
    return subjects


@pytest.fixture
def takes(monkeypatch):
    """Let operations of a type take so many bytes in a recorded step, and nothing alone. Peaks are as predicted."""

    def of_type(**sizes):
        def recorded(job, schedule):
            program = job.subject.program
            copies = {op: [SimpleNamespace(name=op.name, type=op.type, inputs=[])] for op in program.node_of}
            found = {op.name: own(sizes.get(op.type, 0)) for op in program.node_of}
            return copies, SimpleNamespace(workspaces=found)

        monkeypatch.setattr(learned, "_recorded", recorded)

    measures(monkeypatch, 0)
    return of_type


def own(size):
    """So many bytes, taken after the result's."""
    return Workspace(after=(size,)) if size else NOTHING


def test_where_it_is_done():
    options = PlanOptions()
    assert learned.can_learn(GPU, options)
    assert not learned.can_learn(find_device("CPU:0"), options)
    assert not learned.can_learn(replace(GPU, measurable=False), options)
    assert not learned.can_learn(GPU, replace(options, jit_compile=True))
    assert not learned.can_learn(GPU, replace(options, verify=False))


@pytest.mark.long
@pytest.mark.usefixtures("no_grappler")
@pytest.mark.parametrize(("name", "batch"), [("residual", 256), ("unet", 512)])
def test_training_is_equal_bit_by_bit(as_on_a_gpu, name, batch):
    """Batches are so large that what else lies in the process's memory is little."""
    case = replace(CASES[name], batch=batch)
    plain, compiled = make(case), make(case)
    history = train(plain, case)
    most = compile_quickly(make(case), case, verify=True, budget="10GB").checkmate.measured_peak_bytes
    as_on_a_gpu.clear()
    report = compile_quickly(compiled, case, verify=True, budget=int(0.85 * most)).checkmate
    assert as_on_a_gpu and report.seconds["learn"] > 0
    assert report.recomputations > 0 and report.measured_peak_bytes <= report.budget_bytes
    assert train(compiled, case) == history
    assert_same_state(plain, compiled)


def test_plans_are_made_with_what_was_learned(as_on_a_gpu, takes):
    takes(MatMul=SIZE)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="80%").checkmate
    subject = next(s for s in as_on_a_gpu if s.graph is report.schedule.graph)
    products = [op for op in subject.program.node_of if op.type == "MatMul"]
    assert products and dict(subject.program.scratch) == dict.fromkeys(products, own(SIZE))
    assert set(subject.learned) == set(subject.op_costs) == set(subject.program.step.operations)
    assert subject.graph.workspace.max() >= SIZE
    assert report.plain_peak_bytes == keep_all(as_on_a_gpu[-1].graph).peak_bytes
    assert report.budget_bytes == int(0.8 * report.plain_peak_bytes), "a share of what the plain step takes"


@pytest.mark.long
def test_costs_stay_as_they_were(as_on_a_gpu, takes, monkeypatch):
    takes(MatMul=SIZE)
    costs = []
    monkeypatch.setattr(pipeline, "learn", lambda job, ledger: costs.append(job.subject) or learned.learn(job, ledger))
    compile_quickly(make(DENSE), DENSE, verify=True, budget="80%")
    assert as_on_a_gpu[0].graph.base_cost == pytest.approx(costs[0].graph.base_cost)
    assert as_on_a_gpu[0].graph.cost_unit == costs[0].graph.cost_unit


@pytest.mark.long
def test_what_was_learned_is_told_beside_what_was_measured_alone(as_on_a_gpu, takes, caplog):
    takes(MatMul=SIZE)
    with caplog.at_level(logging.DEBUG, "checkmate_tf"):
        compile_quickly(make(DENSE), DENSE, verify=True)
    assert "the most is 131 kB, alone 0 B" in caplog.text
    assert f"takes {SIZE} bytes in a step, alone 0" in caplog.text


@pytest.mark.long(but=("fails",))
@pytest.mark.parametrize("error", [NotRecorded("no record"), NotMeasurable("an iterator"), "fails"])
def test_where_it_cannot_be_learned_what_was_measured_alone_counts(as_on_a_gpu, monkeypatch, caplog, error):
    error = tf.errors.InvalidArgumentError(None, None, error) if isinstance(error, str) else error

    def fails(job, schedule):
        raise error

    monkeypatch.setattr(learned, "_recorded", fails)
    measures(monkeypatch, 0)
    with caplog.at_level(logging.INFO, "checkmate_tf"):
        report = compile_quickly(make(DENSE), DENSE, verify=True).checkmate
    assert not as_on_a_gpu and report.attempts
    assert "not learned from a step" in caplog.text


def test_a_step_that_runs_out_of_memory_is_tried_with_less(as_on_a_gpu, monkeypatch):
    targets, real = [], learned._first

    def first(job, target):
        targets.append(target)
        return real(job, target)

    def fails(job, schedule):
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    monkeypatch.setattr(learned, "_first", first)
    monkeypatch.setattr(learned, "_recorded", fails)
    measures(monkeypatch, 0)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB").checkmate
    assert len(targets) == POLICY.learn_tries and not as_on_a_gpu and report.attempts
    assert all(a - b == int(POLICY.out_of_memory * report.budget_bytes) for a, b in pairwise(targets))


@pytest.mark.long
def test_where_no_schedule_fits_nothing_runs(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(learned, "_recorded", lambda *_: pytest.fail("it ran"))
    measures(monkeypatch, 0)
    with pytest.raises(pipeline.InfeasibleBudgetError):
        compile_quickly(make(DENSE), DENSE, verify=True, budget="100kB")


@pytest.mark.long
def test_the_same_plan_serves_an_equal_step(as_on_a_gpu, takes):
    """It is not learned again: the operations of the next trace have the same places."""
    takes(MatMul=SIZE, Tanh=SIZE)
    options = replace(QUICK, verify=True)
    first = pipeline.plan_step(step, SPEC, 1024, options, "step")
    assert first.subject.learned and first.known.learned
    takes(MatMul=2 * SIZE)
    second = pipeline.plan_step(step, SPEC, 1024, options, "step", [first.known])
    assert second.schedule is first.schedule and second.report is first.report
    sizes = list(first.program.scratch.values())
    assert sizes and list(second.program.scratch.values()) == sizes


@pytest.mark.long
def test_codes_are_planned_with_it_too(as_on_a_gpu, takes, monkeypatch):
    takes(Conv2D=SIZE)
    built, real = [], tracing.Tracing.subject

    def noted(self, traced, replicas=None, known=None):
        built.append(real(self, traced, replicas, known))
        return built[-1]

    monkeypatch.setattr(tracing.Tracing, "subject", noted)
    compile_quickly(make(CASES["residual"]), CASES["residual"], verify=True, operators="choose", budget=0.9)
    coded = built[-1].program
    assert coded.scratch and all(op.type == "Conv2D" and one == own(SIZE) for op, one in coded.scratch.items())


# Of which operation it is.


@pytest.fixture
def emitted():
    """A program, and its operations as they were emitted."""
    program = program_of_case("residual")
    told = []
    plan = keep_all(program.graph).plan
    specs = [tf.TensorSpec(program.static.tensors[id(t)].shape, t.dtype) for t in program.step.inputs]
    function = tf.function(lambda *given: emit(program, plan, Strict(), given, told=told.append), autograph=False)
    graph = function.get_concrete_function(*specs).graph
    (copies,) = told
    assert {copy.graph for many in copies.values() for copy in many} == {graph}
    return program, copies


def _large(program, kind):
    return next(op for op, c in program.classes.items() if c == LARGE and op.type == kind)


def test_an_operation_is_found_by_its_names(emitted):
    program, copies = emitted
    assert set(program.node_of) <= set(copies)
    op = _large(program, "Conv2D")
    (copy,) = copies[op]
    found = learned.workspaces_by_operation(program, copies, {copy.name: Workspace((MIB,), (4 * MIB,))})
    assert {k: v for k, v in found.items() if v.bytes} == {op: Workspace((MIB,), (4 * MIB,))}
    assert set(found) == set(program.step.operations)


def test_the_most_of_its_copies(emitted):
    program, copies = emitted
    op = _large(program, "Conv2D")
    again = SimpleNamespace(name="again", type="Conv2D")
    sizes = {copies[op][0].name: own(MIB), "again": own(2 * MIB)}
    found = learned.workspaces_by_operation(program, {**copies, op: [*copies[op], again]}, sizes)
    assert found[op].bytes == 2 * MIB


def test_little_is_not_worth_counting(emitted):
    program, copies = emitted
    sizes = {copy.name: own(LEAST_BYTES - 1) for many in copies.values() for copy in many}
    assert set(learned.workspaces_by_operation(program, copies, sizes).values()) == {NOTHING}


def test_what_a_fused_kernel_takes_belongs_to_its_first_operation(emitted):
    """It has the name of its last one. Those before allocate nothing."""
    program, copies = emitted
    relu = next(
        copies[op][0]
        for op, c in program.classes.items()
        if c == LARGE and op.type == "Relu" and op.inputs[0].op.type == "BiasAdd"
    )
    convolution = relu.inputs[0].op.inputs[0].op
    traced = {copy.name: op for op, many in copies.items() for copy in many}
    assert convolution.type == "Conv2D" and convolution.name in traced
    found = learned.workspaces_by_operation(program, copies, {relu.name: own(MIB)})
    assert found[traced[convolution.name]] == own(MIB) and found[traced[relu.name]] == NOTHING
    found = learned.workspaces_by_operation(program, copies, {relu.name: own(MIB), convolution.name: NOTHING})
    assert found[traced[convolution.name]] == NOTHING and found[traced[relu.name]] == own(MIB)


def test_views_take_nothing():
    """A softmax of what was only given another shape is no fused kernel."""
    program = program_of_case("residual")
    view = next(op for op, c in program.classes.items() if c == VIEW)
    op = _large(program, "Relu")
    reshaped = SimpleNamespace(name="reshaped", type="Reshape", inputs=[])
    copy = SimpleNamespace(name="softmax", type="Softmax", inputs=[SimpleNamespace(op=reshaped)])
    found = learned.workspaces_by_operation(program, {view: [reshaped], op: [copy]}, {"softmax": own(MIB)})
    assert found[op] == own(MIB) and found[view] == NOTHING


@pytest.mark.long
def test_what_calls_functions_keeps_what_was_measured_alone():
    program = program_of_case("recurrent")
    loop = next(op for op in program.node_of if op.type == "While")
    other = next(op for op in program.node_of if op.type == "AddV2")
    program = replace(program, scratch=dict.fromkeys([loop, other], own(MIB)))
    found = learned.workspaces_by_operation(program, {}, {})
    assert {op: one for op, one in found.items() if one.bytes} == {loop: own(MIB)}


# With kernels that take memory: Eigen's gradients of filters do on every processor, oneDNN's only on some.

TRAINED = """
import json
import keras, numpy as np, tensorflow as tf
import checkmate_tf
from checkmate_tf.fit import pipeline

pipeline.can_learn = lambda device, options: options.verify
before, after, real = [], [], pipeline.learn

def learn(job, ledger):
    before.append(job.subject.program)
    after.append(real(job, ledger))
    return after[-1]

pipeline.learn = learn
keras.utils.set_random_seed(0)
layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
pooled = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)]
model = keras.Sequential([keras.Input((64, 64, 3)), *layers, *pooled])
model.compile("adam", "mse")
checkmate_tf.compile(model, 0.8, batch_size=32, costs="flops", time_limit=20, progress=False, cache=False)
report = model.checkmate
(program,), (learned,) = before, after
filters = [op for op in learned if op.type == "Conv2DBackpropFilter"]
print(json.dumps({
    "alone": [program.scratch[op].bytes for op in filters],
    "learned": [learned[op].bytes for op in filters],
    "others": max(own.bytes for op, own in learned.items() if op not in filters),
    "recomputations": report.recomputations,
    "attempts": [[a.placed_bytes, a.measured_bytes, a.strict] for a in report.attempts],
    "budget": report.budget_bytes,
    "peak": report.measured_peak_bytes,
}))
"""


@pytest.mark.long
def test_kernels_take_in_a_step_what_they_take_alone():
    """Where they are the same: alone whole chunks count, in a step what was asked for. Plans are as foreseen."""
    variables = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_ENABLE_ONEDNN_OPTS": "0"}
    done = subprocess.run([sys.executable, "-c", TRAINED], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(found["alone"]) == 4 and min(found["learned"]) > MIB
    for alone, in_a_step in zip(found["alone"], found["learned"], strict=True):
        assert alone / 2 < in_a_step <= alone
    assert found["others"] < min(found["learned"])
    assert found["recomputations"] > 0 and found["peak"] <= found["budget"]
    for placed, measured, strict in found["attempts"]:
        assert not strict or measured == pytest.approx(placed, rel=0.02)
