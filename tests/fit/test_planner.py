"""What `compile` plans for: budgets in every form, costs, progress; and the measured peak is within the budget."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, compile_quickly, make
from schedules import QUICK, SPEC, step

import checkmate_tf
from checkmate_tf.costs import timed as timing
from checkmate_tf.device.measure import HOW_TO_MEASURE, Device, find_device
from checkmate_tf.errors import InfeasibleBudgetError, PlanError
from checkmate_tf.fit import pipeline
from checkmate_tf.fit.job import Job, Ledger, Subject
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.fit.subjects import fitted, tracing
from checkmate_tf.units import parse_budget

pytestmark = [
    pytest.mark.usefixtures("fresh_keras"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

WIDE = replace(DENSE, batch=2048)


@pytest.mark.long
def test_the_measured_peak_is_within_the_budget():
    device = find_device()
    model = make(WIDE)
    plain = compile_quickly(model, WIDE, verify=True, budget="10GB").checkmate.measured_peak_bytes
    report = compile_quickly(model, WIDE, verify=True, budget=int(0.8 * plain)).checkmate
    assert report.recomputations > 0
    assert report.measured_peak_bytes is not None and not report.not_measured
    assert report.measured_peak_bytes <= report.budget_bytes < plain
    assert report.attempts[-1].measured_bytes is not None
    data = tf.data.Dataset.from_tensors(WIDE.data(WIDE.batch)).cache()
    model.fit(data, verbose=0)
    tf.config.experimental.reset_memory_stats(device.name)
    model.fit(data, verbose=0)
    used = tf.config.experimental.get_memory_info(device.name)["peak"]
    assert used <= report.budget_bytes


def test_without_statistics_the_report_says_why(monkeypatch):
    monkeypatch.setattr(pipeline, "find_device", lambda: Device("CPU:0", 10**9, measurable=False))
    report = compile_quickly(make(DENSE), DENSE, verify=True).checkmate
    assert report.measured_peak_bytes is None and report.attempts == ()
    assert report.not_measured == HOW_TO_MEASURE and "TF_CPU_ALLOCATOR_USE_BFC" in str(report)


def test_unasked_the_report_says_so():
    report = compile_quickly(make(DENSE), DENSE, verify=False).checkmate
    assert report.measured_peak_bytes is None and "verify=False" in str(report)


def test_auto_is_the_limit_of_the_device(monkeypatch):
    monkeypatch.setattr(pipeline, "find_device", lambda: Device("CPU:0", 123_456_789, measurable=False))
    report = compile_quickly(make(DENSE), DENSE, budget="auto").checkmate
    assert report.budget_bytes == 123_456_789 and report.recomputations == 0


def test_a_fraction_is_of_the_plain_peak():
    report = compile_quickly(make(DENSE), DENSE, budget="80%").checkmate
    assert report.budget_bytes == int(0.8 * report.plain_peak_bytes)


def test_a_generous_budget_changes_nothing():
    report = compile_quickly(make(DENSE), DENSE, budget="10GB").checkmate
    assert report.recomputations == 0 and report.overhead == 0.0


def test_progress_is_told():
    told = []
    compile_quickly(make(DENSE), DENSE, progress=lambda *args: told.append(args), verify=True, budget="1GB")
    assert {"trace", "measure"} <= {stage for stage, *_ in told}
    assert all(0 <= done <= total for _, done, total, _ in told)


def test_costs_are_told_before_the_first_operation_is_timed(monkeypatch, tmp_path):
    """Who hears it may wait until the device is free, and that must not count as time for costs."""
    told, timed = [], []
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path))
    time_all = timing.time_ops
    monkeypatch.setattr(timing, "time_ops", lambda *a, **k: (timed.append(len(told)), time_all(*a, **k))[1])
    hear = lambda stage, *rest: told.append(stage)  # noqa: E731 - a short callback
    compile_quickly(make(DENSE), DENSE, costs="profile", progress=hear, verify=True, budget="1GB")
    assert timed == [told.index("costs") + 1]
    assert told.index("costs") < told.index("kernels") < told.index("measure")


@pytest.mark.parametrize(("costs", "measured"), [("profile", True), ("roofline", True), ("flops", False)])
def test_costs_are_those_of_the_device_that_trains(monkeypatch, costs, measured):
    asked = []

    def of_one(ops, name, **options):
        asked.append(options.get("device"))
        return np.ones(len(ops))

    monkeypatch.setattr(tracing, "op_costs", of_one)
    compile_quickly(make(DENSE), DENSE, costs=costs, budget="1GB")
    assert asked == [find_device().name if measured else None]


def test_profiled_costs():
    report = compile_quickly(make(DENSE), DENSE, costs="profile").checkmate
    assert report.costs == "profile" and report.schedule.graph.base_cost > 0
    assert report.schedule.graph.cost_unit == "us"


def test_costs_by_a_callable():
    report = compile_quickly(make(DENSE), DENSE, costs=lambda op: 1.0).checkmate
    operations = report.schedule.graph.base_cost
    assert report.costs == "given" and operations == int(operations) > len(report.schedule.graph)


def test_the_same_schedule_serves_an_equal_graph():
    first = pipeline.plan_step(step, SPEC, 1024, QUICK, "step")
    second = pipeline.plan_step(step, SPEC, 1024, QUICK, "step", [first.known])
    other = pipeline.plan_step(step, SPEC, 1024, replace(QUICK, budget=parse_budget(0.9)), "step", [first.known])
    assert second.schedule is first.schedule and second.report is first.report
    assert other.schedule is not first.schedule
    assert first.report.recomputations > 0
    assert isinstance(first.report, checkmate_tf.Report)


@pytest.mark.parametrize(("with_codes", "without"), [(5, 7), (7, 5)])
def test_a_refusal_names_the_least_budget_of_both_ways(monkeypatch, with_codes, without):
    options = PlanOptions(operators="choose")
    plain, coded = (Subject(None, None, codes) for codes in ({}, {"mask": 1}))

    def fit(job, ledger):
        least = with_codes if job.subject.codes else without
        raise InfeasibleBudgetError(f"at least {least}", 3, least, proven=False)

    monkeypatch.setattr(fitted, "choose_encodings", lambda *_: coded)
    monkeypatch.setattr(fitted, "fit", fit)
    with pytest.raises(InfeasibleBudgetError, match="at least 5"):
        tracing = SimpleNamespace(subject=None, name="model")
        device = Device("CPU:0", 10**9, measurable=False)
        fitted._chosen_and_fitted(Job(plain, 3, device, options), Ledger(), tracing, None)


def test_a_saved_schedule_is_none_of_the_order_traced(monkeypatch):
    """Where it takes more than the budget as measured, and nothing else fits in its order."""
    options = PlanOptions(schedule="saved.json")
    late, traced = Subject(None, None), Subject(None, None)

    def fit_given(job, ledger, saved):
        if job.subject is traced:
            raise PlanError("it is not for this graph")

    def fit(job, ledger):
        if job.subject is late:
            raise InfeasibleBudgetError("nothing fits", 3, 5, proven=False)
        return "a plan"

    monkeypatch.setattr(fitted, "fit_given", fit_given)
    monkeypatch.setattr(fitted, "fit", fit)
    monkeypatch.setattr(fitted, "with_memory", lambda job: job)
    tracing = SimpleNamespace(subject=None, name="model")
    job = Job(late, 3, Device("CPU:0", 10**9, measurable=True), options)
    planned, found = fitted._ordered_and_fitted(job, Ledger(), tracing, {}, traced)
    assert planned.subject is traced and found == "a plan"


@pytest.mark.parametrize("options", [{"gap": -1.0}, {"time_limit": 0.0}, {"seed": -1}, {"seed": 1.5}])
def test_limits_are_checked_when_options_are_made(options):
    with pytest.raises(ValueError, match="give a"):
        PlanOptions(**options)


def test_an_unknown_argument_is_named():
    model = make(DENSE)
    with pytest.raises(TypeError, match="no argument 'batch_sise'.*time_limit"):
        checkmate_tf.compile(model, 0.8, batch_sise=32)
