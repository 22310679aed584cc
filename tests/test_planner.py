"""The measured promise: the plan's real peak is within the budget, or the plan is made again, or refused."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace

import keras
import pytest
import tensorflow as tf
from cases import DENSE, assert_same_state, compile_quickly, make, state, train
from schedules import QUICK, SPEC, step

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.execute import fit, planner
from checkmate_tf.execute.job import Job, PlanOptions
from checkmate_tf.execute.measure import (
    HOW_TO_MEASURE,
    Device,
    captured_variables,
    fed_as_by_fit,
    find_device,
    measure_peak,
)
from checkmate_tf.plan import evaluate
from checkmate_tf.report import Peak
from checkmate_tf.units import parse_budget

pytestmark = [
    pytest.mark.usefixtures("fresh_keras"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]

WIDE = replace(DENSE, batch=2048)


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


def test_measuring_leaves_every_variable_as_it_was():
    model = make(DENSE)
    train(model, DENSE)
    before = {k: v.tobytes() for k, v in state(model).items()}
    compile_quickly(model, DENSE, verify=True, budget="1GB")
    assert model.checkmate.measured_peak_bytes
    assert before == {k: v.tobytes() for k, v in state(model).items()}


def test_without_statistics_the_report_says_why(monkeypatch):
    monkeypatch.setattr(planner, "find_device", lambda: Device("CPU:0", 10**9, measurable=False))
    report = compile_quickly(make(DENSE), DENSE, verify=True).checkmate
    assert report.measured_peak_bytes is None and report.attempts == ()
    assert report.not_measured == HOW_TO_MEASURE and "TF_CPU_ALLOCATOR_USE_BFC" in str(report)


def test_unasked_the_report_says_so():
    report = compile_quickly(make(DENSE), DENSE, verify=False).checkmate
    assert report.measured_peak_bytes is None and "verify=False" in str(report)


def steady(peak_bytes):
    """The peak of steps that do not differ."""
    return Peak(peak_bytes, peak_bytes, 1.0)


def _measures(monkeypatch, *extra):
    """Let the device measure what is predicted and so many bytes more (None: out of memory); the last goes on."""
    calls = []

    def measure(job, plan, limit_bytes, most_bytes):
        more = extra[min(len(calls), len(extra) - 1)]
        calls.append(limit_bytes)
        return None if more is None else steady(evaluate(job.graph, plan).peak_bytes + more)

    monkeypatch.setattr(fit, "_measure", measure)
    return calls


def test_a_peak_over_the_budget_plans_again(monkeypatch):
    _measures(monkeypatch, 500_000, 500_000, 0)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="1.3MB").checkmate
    first, strict, second = report.attempts[:3]
    assert first.measured_bytes > report.budget_bytes >= second.measured_bytes
    assert replace(first, strict=True) == strict
    assert second.target_bytes < first.target_bytes and second.predicted_bytes < first.predicted_bytes
    assert report.measured_peak_bytes <= report.budget_bytes
    assert "plans tried" in str(report)


def test_steps_that_differ_leave_room(monkeypatch):
    """A peak within the budget is not enough where the next step may take more."""

    def measure(job, plan, limit_bytes, most_bytes):
        peak = evaluate(job.graph, plan).peak_bytes
        return Peak(peak, peak + 500_000, 1.0)

    monkeypatch.setattr(fit, "_measure", measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="1.3MB").checkmate
    first, last = report.attempts[0], report.attempts[-1]
    assert first.measured_bytes <= 0.98 * report.budget_bytes < first.peak.sure_bytes
    assert report.sure_bytes == report.measured_peak_bytes + 500_000 <= 0.98 * report.budget_bytes
    assert last.predicted_bytes < first.predicted_bytes
    assert "at most" in str(report) and report.to_dict()["attempts"][0]["sure_bytes"] == first.peak.sure_bytes


def test_computations_out_of_order_leave_room_in_the_budget(monkeypatch):
    """Far below the budget they may need 15% more than was predicted; near it, nothing that pieces may take."""
    limits = _measures(monkeypatch, 0)
    far = compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB").checkmate
    assert limits == [int(1.15 * far.predicted_peak_bytes)]
    limits.clear()
    near = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8).checkmate
    most = 0.98 * near.budget_bytes - 0.1 * (near.budget_bytes - near.variable_bytes - near.input_bytes)
    for attempt, limit in zip(near.attempts, limits, strict=True):
        loose = int(1.15 * attempt.predicted_bytes)
        assert limit == pytest.approx(max(attempt.predicted_bytes, min(loose, most)), rel=0.01)
    assert limits[-1] < loose


@pytest.mark.parametrize(("seconds", "rest"), [(1.02, True), (1.2, False)])
def test_strict_order_where_it_takes_no_longer(monkeypatch, seconds, rest):
    """The first plan over the budget is measured in strict order, too; all others in the order that costs less."""

    def measure(job, plan, limit_bytes, most_bytes):
        peak = evaluate(job.graph, plan).peak_bytes + (500_000 if limit_bytes else 450_000)
        return Peak(peak, peak, 1.0 if limit_bytes else seconds)

    monkeypatch.setattr(fit, "_measure", measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="1.3MB").checkmate
    first, second, *others = report.attempts
    assert not first.strict and second.strict and first.predicted_bytes == second.predicted_bytes
    assert first.target_bytes == second.target_bytes
    assert others and all(a.strict is rest for a in others)
    assert report.overhead == others[-1].overhead
    assert report.strict is rest and report.strict_cost == seconds
    values = report.to_dict()
    assert values["step_ratio"] == pytest.approx((1 + report.overhead) * (seconds if rest else 1))
    assert ("keep one strict order, 1.02 times the seconds" in str(report)) is rest


def test_strict_order_is_not_measured_where_a_plan_that_fits_costs_as_little(monkeypatch):
    """Strict order is taken to cost a tenth of a step, which is more than there is to save."""
    calls = []

    def measure(job, plan, limit_bytes, most_bytes):
        calls.append(most_bytes)
        peak = evaluate(job.graph, plan).peak_bytes
        return steady(peak if len(calls) == 1 else job.budget_bytes + peak)

    monkeypatch.setattr(fit, "_measure", measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="1.4MB").checkmate
    first, *others = report.attempts
    assert 0.02 < first.overhead < 0.1 and report.overhead == first.overhead
    assert others and not any(a.strict for a in others)
    most = int(0.98 * report.budget_bytes)
    assert calls == [None] + [most] * len(others)


def test_an_unsteady_plan_gives_way_to_strict_order(monkeypatch):
    def measure(job, plan, limit_bytes, most_bytes):
        peak = evaluate(job.graph, plan).peak_bytes
        return Peak(peak, int(1.06 * peak) if limit_bytes else peak, 1.0)

    monkeypatch.setattr(fit, "_measure", measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB").checkmate
    assert [a.strict for a in report.attempts] == [False, True]
    assert report.sure_bytes == report.measured_peak_bytes


def test_the_order_whose_next_schedule_costs_less_comes_first(monkeypatch):
    """Out of order pieces take as much again, in strict order none to speak of, and it takes little longer."""

    def measure(job, plan, limit_bytes, most_bytes):
        peak = evaluate(job.graph, plan).peak_bytes
        most = 2 * peak - job.graph.constant_bytes if limit_bytes else peak + 415_000
        return Peak(most, most, 1.0 if limit_bytes else 1.004)

    monkeypatch.setattr(fit, "_measure", measure)
    monkeypatch.setattr(fit, "_SAME", 1.0)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="1.3MB").checkmate
    first, *others = report.attempts
    assert not first.strict and len(others) > 1 and all(a.strict for a in others)
    assert report.overhead == min(a.overhead for a in others[1:]) > first.overhead


@pytest.mark.feature("Faults", "out of memory while a plan is measured")
def test_out_of_memory_while_measuring_plans_again(monkeypatch):
    _measures(monkeypatch, None, 0)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8).checkmate
    first, second = report.attempts[:2]
    assert first.measured_bytes is None
    assert second.target_bytes < first.target_bytes or second.strict
    assert report.measured_peak_bytes <= report.budget_bytes and "out of memory" in str(report)


def test_a_first_target_that_is_infeasible_is_raised_to_the_budget(monkeypatch):
    _measures(monkeypatch, 0)
    asked, real = [], fit.solve_once

    def solve(graph, target, options, seconds):
        asked.append(target)
        if len(asked) < 3:
            raise InfeasibleBudgetError("none was found", target, target + 1, proven=False)
        return real(graph, target, options, seconds)

    monkeypatch.setattr(fit, "solve_once", solve)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.95).checkmate
    assert asked[1] == asked[0] + 1 and asked[2] == report.budget_bytes


def test_a_promise_that_cannot_be_kept_is_refused(monkeypatch):
    calls = _measures(monkeypatch, 10**7)
    model = make(DENSE)
    with pytest.raises(InfeasibleBudgetError, match="allocator needs.*raise the budget") as caught:
        compile_quickly(model, DENSE, verify=True, budget=0.8)
    assert calls and not caught.value.proven
    assert caught.value.minimum_bytes > 10**7 > caught.value.budget_bytes
    assert not hasattr(model, "checkmate")
    train(model, DENSE)


@pytest.mark.parametrize("measured", [False, True])
def test_near_the_budget_others_with_the_least_known_peak_are_tried(monkeypatch, measured):
    """In the seconds that are left a search may name a far higher peak as the least than was known before."""
    asked, real = [], fit.solve_once

    def measure(job, plan, limit_bytes, most_bytes):
        return steady(int((0.97 if len(job.attempts) > 2 else 1.05) * job.budget_bytes))

    def solve(graph, target, options, seconds):
        asked.append(target)
        known = real(graph, 700_000, options, {})
        if len(asked) == 1 and measured:
            return known
        peak = known.peak_bytes if len(asked) == 1 else 2 * known.peak_bytes
        raise InfeasibleBudgetError("few seconds", target, peak, proven=False, sequence=known.sequence.tolist())

    monkeypatch.setattr(fit, "_measure", measure)
    monkeypatch.setattr(fit, "solve_once", solve)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="750kB").checkmate
    assert len(asked) > 1 and len(report.attempts) > 2
    assert len({a.predicted_bytes for a in report.attempts}) == 1


@pytest.mark.feature("Faults", "out of memory while a plan is measured")
def test_out_of_memory_every_time_is_refused(monkeypatch):
    _measures(monkeypatch, None)
    with pytest.raises(InfeasibleBudgetError, match="raise the budget"):
        compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8)


class _Crowded(Device):
    """A device that others share: its peaks while training are as given, then none."""

    def peak_bytes(self):
        return PEAKS.pop(0) if PEAKS else 0


PEAKS: list[int] = []


def _crowd(monkeypatch, peaks):
    monkeypatch.setattr(
        "checkmate_tf.execute.controller.find_device", lambda: _Crowded("CPU:0", 10**9, measurable=True)
    )
    monkeypatch.setattr(planner, "_foreign_bytes", lambda program, device: 0)
    PEAKS[:] = peaks


def test_a_peak_over_the_budget_while_training_plans_again(monkeypatch, no_grappler):
    _measures(monkeypatch, 0)
    plain, model = make(DENSE), make(DENSE)
    first = compile_quickly(model, DENSE, verify=True, budget=0.95).checkmate
    over = first.budget_bytes + first.budget_bytes // 25
    _crowd(monkeypatch, [over])
    assert train(model, DENSE) == train(plain, DENSE)
    assert_same_state(plain, model)
    report = model.checkmate
    assert report.exceeded_bytes == (over,) and report.attempts[-1].target_bytes < first.attempts[-1].target_bytes
    assert "planned again" in str(report) and report.attempts[: len(first.attempts)] == first.attempts


def test_a_strict_plan_is_made_anew_in_strict_order(monkeypatch, no_grappler):
    def measure(job, plan, limit_bytes, most_bytes):
        return steady(evaluate(job.graph, plan).peak_bytes * (10 if limit_bytes else 1))

    monkeypatch.setattr(fit, "_measure", measure)
    model = make(DENSE)
    first = compile_quickly(model, DENSE, verify=True, budget=0.95).checkmate
    assert [a.strict for a in first.attempts][0] is False and first.attempts[-1].strict
    _crowd(monkeypatch, [first.budget_bytes + first.budget_bytes // 25])
    train(model, DENSE)
    anew = model.checkmate.attempts[len(first.attempts) :]
    assert anew and all(a.strict for a in anew)


def test_after_a_peak_over_the_budget_the_order_is_strict(monkeypatch, no_grappler):
    _measures(monkeypatch, 0)
    model = make(DENSE)
    first = compile_quickly(model, DENSE, verify=True, budget=0.95).checkmate
    _crowd(monkeypatch, [first.budget_bytes + first.budget_bytes // 25])
    train(model, DENSE)
    anew = model.checkmate.attempts[len(first.attempts) :]
    assert not any(a.strict for a in first.attempts)
    assert anew and all(a.strict for a in anew)


def test_plans_near_a_hard_limit_keep_one_strict_order(monkeypatch):
    limits = _measures(monkeypatch, 0)
    device = Device("CPU:0", 1_400_000, measurable=True)
    monkeypatch.setattr(planner, "find_device", lambda: device)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="1.3MB").checkmate
    assert all(a.strict for a in report.attempts) and set(limits) == {0}
    assert len(report.attempts) > 1 and all(a.target_bytes <= 0.8 * device.limit_bytes for a in report.attempts)
    job = Job(None, None, 1_300_000, device, PlanOptions(), {})
    assert job.orders == (True,)
    assert replace(job, options=PlanOptions(jit_compile=True)).orders == (False,)
    assert replace(job, budget_bytes=1_000_000).orders == (False, True)


def _crowded_after_planning(monkeypatch, budget, share, limit_bytes=None):
    """A compiled model, and a device on which so much has come since that `share` of the budget will be needed."""
    _measures(monkeypatch, 0)
    monkeypatch.setattr(planner, "_foreign_bytes", lambda program, device: 0)
    model = make(DENSE)
    report = compile_quickly(model, DENSE, verify=True, budget=budget, time_limit=3).checkmate
    come = int(share * report.budget_bytes) - report.measured_peak_bytes
    device = _Crowded("CPU:0", limit_bytes or int(1.1 * report.budget_bytes), measurable=True)
    monkeypatch.setattr("checkmate_tf.execute.controller.find_device", lambda: device)
    monkeypatch.setattr(planner, "_foreign_bytes", lambda program, device: come + report.input_bytes)
    _measures(monkeypatch, come)
    PEAKS.clear()
    return model, report


@pytest.mark.parametrize("share", [1.05, 0.995])
def test_room_is_made_for_data_before_training(monkeypatch, no_grappler, share):
    plain = make(DENSE)
    model, first = _crowded_after_planning(monkeypatch, 0.95, share)
    assert train(model, DENSE) == train(plain, DENSE)
    assert_same_state(plain, model)
    assert model.checkmate.expected_bytes == (int(share * first.budget_bytes),)
    assert not model.checkmate.exceeded_bytes and "room for data" in str(model.checkmate)
    assert model.checkmate.predicted_peak_bytes < first.predicted_peak_bytes


def test_data_that_fits_is_not_planned_for(monkeypatch):
    model, first = _crowded_after_planning(monkeypatch, 0.95, 0.985)
    train(model, DENSE)
    assert model.checkmate.attempts == first.attempts and not model.checkmate.replanned


def test_data_that_fits_exactly_is_never_refused(monkeypatch, caplog):
    """There is no tighter plan, but what is expected is within the budget: it trains, though its limit is near."""
    model, first = _crowded_after_planning(monkeypatch, 0.95, 0.995)
    monkeypatch.setattr("checkmate_tf.execute.controller.plan_again", _refuse)
    train(model, DENSE)
    assert model.checkmate.attempts == first.attempts and "no plan leaves room" in caplog.text


def _refuse(*_):
    raise InfeasibleBudgetError("no schedule fits", 1, 2, proven=False)


def test_data_without_room_is_refused_below_a_hard_limit(monkeypatch):
    model, _ = _crowded_after_planning(monkeypatch, 0.8, 3.8)
    before = [v.numpy() for v in model.trainable_variables]
    with pytest.raises(InfeasibleBudgetError, match="with its data.*tf.data.Dataset"):
        train(model, DENSE)
    assert all((a == b.numpy()).all() for a, b in zip(before, model.trainable_variables, strict=True))


def test_data_without_room_is_warned_of_once(monkeypatch, caplog):
    model, _ = _crowded_after_planning(monkeypatch, 0.8, 3.8, 10**12)
    train(model, DENSE)
    train(model, DENSE)
    assert caplog.text.count("no plan leaves room") == 1


def test_planning_again_keeps_nothing_of_fit(monkeypatch):
    """Else the data of one fit would be in memory beside that of the next, until the garbage is collected."""
    model, first = _crowded_after_planning(monkeypatch, 0.8, 1.3)
    real, failed = fit.solve_once, []

    def solve(graph, target, options, seconds):
        if not failed:
            failed.append(True)
            raise InfeasibleBudgetError("none was found", target, target + 1, proven=False)
        return real(graph, target, options, seconds)

    monkeypatch.setattr(fit, "solve_once", solve)
    local = keras.callbacks.Callback()  # of the frames of fit, as the data
    alive = weakref.ref(local)
    gc.collect()
    gc.disable()
    try:
        model.fit(*DENSE.data(DENSE.batch), verbose=0, callbacks=[local])
        del local
        assert failed and len(model.checkmate.attempts) > len(first.attempts)
        assert alive() is None
    finally:
        gc.enable()


def test_measurements_are_fed_as_by_fit():
    seen = []
    batch = [tf.ones([4, 2]), tf.zeros([4])]

    def step(x, y):
        seen.append((x.shape, y.shape))
        return tf.reduce_sum(x) + tf.reduce_sum(y)

    for device in ("CPU:0", "GPU:0"):
        run = fed_as_by_fit(step, batch, Device(device, 10**9, measurable=False))
        assert [float(run()) for _ in range(3)] == [8.0] * 3
    assert seen == [((4, 2), (4,))] * 2
    assert float(fed_as_by_fit(lambda: tf.constant(1.0), [], Device("CPU:0", 10**9, measurable=False))()) == 1.0


@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_as_many_batches_are_ready_as_the_pipeline_keeps(prefetch):
    """A batch of 16 MiB may get a piece of up to twice its size."""
    device, batch = find_device(), [tf.zeros([4, 2**20])]
    before = device.current_bytes()
    run = fed_as_by_fit(tf.reduce_sum, batch, device, prefetch)
    assert float(run()) == 0
    ready, until = -1, time.monotonic() + 10
    while ready < prefetch * 2**24 and time.monotonic() < until:
        time.sleep(0.05)
        ready = device.current_bytes() - before
    assert prefetch * 2**24 <= ready <= prefetch * 2**25 + 2**20
    del run


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, "2"])
def test_a_pipeline_keeps_a_whole_number_of_batches(prefetch):
    model = make(DENSE)
    with pytest.raises(checkmate_tf.BatchSizeError, match="prefetch=.* is not a whole number of batches"):
        compile_quickly(model, DENSE, prefetch=prefetch)
    with pytest.raises(checkmate_tf.BatchSizeError, match="prefetch="):
        checkmate_tf.gradient_function(model, "mse", batch_size=4, prefetch=prefetch)
    assert not hasattr(model, "checkmate")


def test_plans_are_measured_with_the_batches_that_the_pipeline_keeps(monkeypatch):
    fed, real = [], fit.fed_as_by_fit
    monkeypatch.setattr(fit, "fed_as_by_fit", lambda *given: fed.append(given[3:]) or real(*given))
    compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB", prefetch=2)
    compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB")
    assert set(fed) == {(2,), (None,)}


def test_planning_again_ends(monkeypatch, caplog):
    _measures(monkeypatch, 0)
    model = make(DENSE)
    budget = compile_quickly(model, DENSE, verify=True, budget=0.8).checkmate.budget_bytes
    _crowd(monkeypatch, [100 * budget])
    train(model, DENSE)
    report = model.checkmate
    assert report.training_peak_bytes == 100 * budget and not report.exceeded_bytes
    assert "OVER" in str(report) and "no other plan" in caplog.text


def test_auto_is_the_limit_of_the_device(monkeypatch):
    monkeypatch.setattr(planner, "find_device", lambda: Device("CPU:0", 123_456_789, measurable=False))
    report = compile_quickly(make(DENSE), DENSE, budget="auto").checkmate
    assert report.budget_bytes == 123_456_789 and report.recomputations == 0


@pytest.mark.parametrize(("limit", "expected"), [("512", 512 * 2**20), ("", None), ("many", None)])
def test_the_limit_of_the_cpu(monkeypatch, limit, expected):
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", limit)
    device = find_device()
    assert device.name == "CPU:0" and device.measurable
    assert device.limit_bytes == expected if expected else device.limit_bytes > 10**8


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


def test_profiled_costs():
    report = compile_quickly(make(DENSE), DENSE, costs="profile").checkmate
    assert report.costs == "profile" and report.schedule.graph.base_cost > 0
    assert report.schedule.graph.cost_unit == "us"


def test_costs_by_a_callable():
    report = compile_quickly(make(DENSE), DENSE, costs=lambda op: 1.0).checkmate
    operations = report.schedule.graph.base_cost
    assert report.costs == "given" and operations == int(operations) > len(report.schedule.graph)


def test_a_measured_peak_sees_the_step():
    v = tf.Variable(tf.zeros(1000))

    @tf.function
    def step():
        v.assign_add(tf.reduce_sum(tf.random.uniform((1 << 20,))) * tf.ones(1000))

    graph = step.get_concrete_function().graph
    peak, reason = measure_peak(find_device(), step, captured_variables(graph.captures))
    assert peak.sure_bytes >= peak.bytes >= 4 << 20 and not reason
    assert not v.numpy().any()


def test_the_same_schedule_serves_an_equal_graph():
    first = planner.plan_step(step, SPEC, 1024, QUICK, "step")
    second = planner.plan_step(step, SPEC, 1024, QUICK, "step", [first])
    other = planner.plan_step(step, SPEC, 1024, replace(QUICK, budget=parse_budget(0.9)), "step", [first])
    assert second.schedule is first.schedule and second.report is first.report
    assert other.schedule is not first.schedule
    assert first.report.recomputations > 0
    assert isinstance(first.report, checkmate_tf.Report)
