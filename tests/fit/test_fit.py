"""Which plan is measured next, by what the device said of those before, and which is kept."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from allocators import measures, says, steady
from budgets import peaks_of
from cases import DENSE, Case, compile_quickly, make, train
from graphs import chain
from keras import layers

from checkmate_tf.device.measure import Device
from checkmate_tf.emit.ordering import Strict, Within
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.fit import finding, job, pipeline, run
from checkmate_tf.fit.job import Ledger
from checkmate_tf.fit.policy import POLICY, Limits
from checkmate_tf.report import Peak

pytestmark = pytest.mark.usefixtures("fresh_keras")


def test_a_peak_over_the_budget_plans_again(monkeypatch):
    peaks = peaks_of(DENSE)
    lost = peaks.span(1.3)
    measures(monkeypatch, lost, lost, 0)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks.at(1.8)).checkmate
    first, strict, second = report.attempts[:3]
    assert first.measured_bytes > report.budget_bytes >= second.measured_bytes
    assert replace(first, strict=True) == strict
    assert second.target_bytes < first.target_bytes and second.predicted_bytes < first.predicted_bytes
    assert report.measured_peak_bytes <= report.budget_bytes
    assert "plans tried" in report.table()


def test_steps_that_differ_leave_room(monkeypatch):
    """A peak within the budget is not enough where the next step may take more."""

    peaks = peaks_of(DENSE)
    more = peaks.span(1.3)
    says(monkeypatch, lambda job, predicted, strict: Peak(predicted, predicted + more, 1.0))
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks.at(1.8)).checkmate
    first, last = report.attempts[0], report.attempts[-1]
    assert first.measured_bytes <= POLICY.sure * report.budget_bytes < first.peak.sure_bytes
    assert report.sure_bytes == report.measured_peak_bytes + more <= POLICY.sure * report.budget_bytes
    assert last.predicted_bytes < first.predicted_bytes
    assert "at most" in report.table() and report.to_dict()["attempts"][0]["sure_bytes"] == first.peak.sure_bytes


def test_computations_out_of_order_leave_room_in_the_budget(monkeypatch):
    """Far below the budget they may need 15% more than was predicted; near it, nothing that pieces may take."""
    orders = measures(monkeypatch, 0)
    far = compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB").checkmate
    assert orders == [Within(int(1.15 * far.predicted_peak_bytes))]
    orders.clear()
    near = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8).checkmate
    most = POLICY.sure * near.budget_bytes - 0.1 * (near.budget_bytes - near.variable_bytes - near.input_bytes)
    for attempt, order in zip(near.attempts, orders, strict=True):
        loose = int(1.15 * attempt.predicted_bytes)
        assert order.bytes == pytest.approx(max(attempt.predicted_bytes, min(loose, most)), rel=0.01)
    assert orders[-1].bytes < loose


@pytest.mark.long(only=("1.02-True",))
@pytest.mark.parametrize(("seconds", "rest"), [(1.02, True), (1.2, False)])
def test_strict_order_where_it_takes_no_longer(monkeypatch, seconds, rest):
    """The first plan over the budget is measured in strict order, too; all others in the order that costs less."""

    peaks = peaks_of(DENSE)

    def measure(job, predicted, strict):
        peak = predicted + peaks.span(1.15 if strict else 1.3)
        return Peak(peak, peak, seconds if strict else 1.0)

    says(monkeypatch, measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks.at(1.8)).checkmate
    first, second, *others = report.attempts
    assert not first.strict and second.strict and first.predicted_bytes == second.predicted_bytes
    assert first.target_bytes == second.target_bytes
    assert others and all(a.strict is rest for a in others)
    assert report.overhead == others[-1].overhead
    assert report.strict is rest and report.strict_cost == seconds
    values = report.to_dict()
    assert values["step_ratio"] == pytest.approx((1 + report.overhead) * (seconds if rest else 1))
    assert ("keep one strict order, 1.02 times the seconds" in report.table()) is rest


@pytest.mark.long
def test_strict_order_is_not_measured_where_a_plan_that_fits_costs_as_little(monkeypatch):
    """Strict order is taken to cost a tenth of a step, which is more than there is to save."""

    def measure(job, predicted, strict):
        return steady(predicted if len(calls) == 1 else job.budget_bytes + predicted)

    calls = says(monkeypatch, measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks_of(DENSE).at(2.0)).checkmate
    first, *others = report.attempts
    assert 0.02 < first.overhead < 0.1 and report.overhead == first.overhead
    assert others and not any(a.strict for a in others)
    assert [needless for _, needless in calls] == [False] + [True] * len(others)


def _deep():
    x = inputs = keras.Input((64, 8))
    for _ in range(24):
        x = layers.Dense(32, activation="tanh")(x)
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(layers.Dense(4, activation="softmax")(x)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


DEEP = Case(_deep, DENSE.data)


@pytest.mark.long
def test_each_plan_measured_in_vain_makes_the_next_save_more(monkeypatch):
    """Where one fits, another is worth a measurement for a percent of the step; after one in vain, for two."""

    def measure(job, predicted, strict):
        return steady(predicted if len(calls) == 1 else job.limits.most_bytes + 1)

    calls = says(monkeypatch, measure)
    budget = peaks_of(DEEP).at(0.82)
    first, *others = compile_quickly(make(DEEP), DEEP, verify=True, budget=budget).checkmate.attempts
    assert len(others) >= 2
    for number, attempt in enumerate(others, 1):
        assert 1 + attempt.overhead < (1 - 0.01 * number) * (1 + first.overhead)


def test_a_larger_plan_leaves_room_for_steps_that_differ(monkeypatch):
    """Aimed at what steps took, and not at what they may take, it would be over the budget."""
    says(monkeypatch, lambda job, predicted, strict: Peak(predicted, int(1.04 * predicted), 1.0))
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks_of(DENSE).at(2.0)).checkmate
    first, second = report.attempts[:2]
    assert first.peak.sure_bytes > first.measured_bytes == first.predicted_bytes
    room = first.peak.sure_bytes - first.predicted_bytes
    assert second.target_bytes == int(POLICY.sure * report.budget_bytes) - room > first.target_bytes
    assert second.peak.sure_bytes <= POLICY.sure * report.budget_bytes


def test_an_unsteady_plan_gives_way_to_strict_order(monkeypatch):
    def measure(job, predicted, strict):
        return Peak(predicted, predicted if strict else int(1.06 * predicted), 1.0)

    says(monkeypatch, measure)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB").checkmate
    assert [a.strict for a in report.attempts] == [False, True]
    assert report.sure_bytes == report.measured_peak_bytes


@pytest.mark.long
def test_the_order_whose_next_schedule_costs_less_comes_first(monkeypatch):
    """Out of order pieces take as much again, in strict order just too much, and it takes little longer."""

    peaks = peaks_of(DENSE)

    def measure(job, predicted, strict):
        firsts.append(predicted)
        too_much = job.limits.most_bytes - firsts[0] + peaks.span(0.05)
        most = predicted + too_much if strict else 2 * predicted - job.subject.graph.constant_bytes
        return Peak(most, most, 1.004 if strict else 1.0)

    firsts = []
    says(monkeypatch, measure)
    monkeypatch.setattr(job, "POLICY", replace(POLICY, same_seconds=1.0))
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks.at(1.8)).checkmate
    first, *others = report.attempts
    assert not first.strict and len(others) > 1 and all(a.strict for a in others)
    assert report.overhead == min(a.overhead for a in others[1:]) > first.overhead


@pytest.mark.long
@pytest.mark.feature("Faults", "out of memory while a plan is measured")
def test_out_of_memory_while_measuring_plans_again(monkeypatch):
    measures(monkeypatch, None, 0)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8).checkmate
    first, second = report.attempts[:2]
    assert first.measured_bytes is None
    assert second.target_bytes < first.target_bytes or second.strict
    assert report.measured_peak_bytes <= report.budget_bytes and "out of memory" in report.table()


def test_a_first_target_that_is_infeasible_is_raised_to_the_budget(monkeypatch):
    measures(monkeypatch, 0)
    asked, real = [], finding.solve_once

    def solve(graph, target, options, ledger):
        asked.append(target)
        if len(asked) < 3:
            raise InfeasibleBudgetError("none was found", target, target + 1, proven=False)
        return real(graph, target, options, ledger)

    monkeypatch.setattr(finding, "solve_once", solve)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=0.95).checkmate
    assert asked[1] == asked[0] + 1 and asked[2] == report.budget_bytes


def test_a_promise_that_cannot_be_kept_is_refused(monkeypatch):
    calls = measures(monkeypatch, 10**7)
    model = make(DENSE)
    with pytest.raises(InfeasibleBudgetError, match="took 10.5 MB; raise the budget to") as caught:
        compile_quickly(model, DENSE, verify=True, budget=0.8, time_limit=2)
    assert calls and not caught.value.proven
    assert caught.value.minimum_bytes > 10**7 > caught.value.budget_bytes
    assert not hasattr(model, "checkmate")
    train(model, DENSE)


@pytest.mark.long
def test_a_refusal_says_what_batches_that_are_kept_ready_take(monkeypatch):
    measures(monkeypatch, 10**7)
    monkeypatch.setattr(run, "POLICY", replace(POLICY, told=0.0))
    pipeline = tf.data.Dataset.from_tensors(DENSE.data(DENSE.batch))
    for options, told in (({"data": pipeline}, True), ({"data": pipeline, "prefetch": 1}, False), ({}, False)):
        with pytest.raises(InfeasibleBudgetError) as caught:
            compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8, time_limit=2, **options)
        assert ("compile(..., prefetch=1)" in str(caught.value)) == told
    least, few = 10 * 2**20, 2**20
    assert POLICY.kept_ready(few // 100, 20 * few, least) == ""
    assert "about 5.24 MB would do" in POLICY.kept_ready(few, 20 * few, least)


@pytest.mark.parametrize("taken, enough", [(10**7, True), (10**7 + 1, False)])
def test_a_refusal_says_if_the_budget_that_it_names_is_enough_for_all_values(taken, enough):
    memory = SimpleNamespace(placed=lambda sequence: SimpleNamespace(taken_bytes=taken))
    device = SimpleNamespace(foreign_bytes=lambda own: 0, is_cpu=False)
    subject = SimpleNamespace(program=SimpleNamespace(variable_bytes=0), graph=chain(3))
    options = SimpleNamespace(prefetch=None)
    asked = SimpleNamespace(
        measure=True, memory=memory, device=device, subject=subject, options=options, budget_bytes=10**6
    )
    told = str(run._refusal(asked, InfeasibleBudgetError("too small", 10**6, 10**7, proven=False)))
    assert told.startswith("too small") and ("such a step takes about 10.0 MB" in told) is enough


def test_a_refusal_says_what_others_on_the_device_take(monkeypatch):
    measures(monkeypatch, 10**7)
    others = tf.ones([2 * 10**7], tf.uint8)
    with pytest.raises(InfeasibleBudgetError, match=r"\d MB of that are not this model's: other models, or arrays"):
        compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8, time_limit=2)
    del others
    assert POLICY.not_ours(10**5, 10**7, 10**8) == ""
    assert "30.0 MB of that" in (told := POLICY.not_ours(3 * 10**7, 10**8, 10**8)) and "about 70.0 MB would" in told


def test_a_proven_refusal_says_what_others_on_the_device_take():
    others = tf.ones([4 * 10**7], tf.uint8)
    with pytest.raises(
        InfeasibleBudgetError, match=r"\d MB of that are not this model's: other models, or arrays"
    ) as e:
        compile_quickly(make(DENSE), DENSE, verify=True, budget=10**5, time_limit=1)
    assert e.value.proven and e.value.minimum_bytes > 4 * 10**7
    del others


@pytest.mark.long(but=("True",))
@pytest.mark.parametrize("measured", [False, True])
def test_near_the_budget_others_with_the_least_known_peak_are_tried(monkeypatch, measured):
    """In the seconds that are left a search may name a far higher peak as the least than was known before."""
    asked, real = [], finding.solve_once

    peaks = peaks_of(DENSE)

    def measure(job, predicted, strict):
        return steady(int((0.97 if len(calls) > 3 else 1.05) * job.budget_bytes))

    def solve(graph, target, options, ledger):
        asked.append(target)
        known = real(graph, peaks.at(0.25), options, Ledger())
        if len(asked) == 1 and measured:
            return known
        peak = known.peak_bytes if len(asked) == 1 else 2 * known.peak_bytes
        raise InfeasibleBudgetError("few seconds", target, peak, proven=False, sequence=known.sequence.tolist())

    calls = says(monkeypatch, measure)
    monkeypatch.setattr(finding, "solve_once", solve)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=peaks.at(0.4)).checkmate
    assert len(asked) > 1 and len(report.attempts) > 2
    assert len({a.predicted_bytes for a in report.attempts}) == 1


@pytest.mark.long
@pytest.mark.feature("Faults", "out of memory while a plan is measured")
def test_out_of_memory_every_time_is_refused(monkeypatch):
    measures(monkeypatch, None)
    with pytest.raises(InfeasibleBudgetError, match="raise the budget"):
        compile_quickly(make(DENSE), DENSE, verify=True, budget=0.8, time_limit=2)


def test_plans_near_a_hard_limit_keep_one_strict_order(monkeypatch):
    orders, budget = measures(monkeypatch, 0), peaks_of(DENSE).at(1.8)
    device = Device("CPU:0", int(1.08 * budget), measurable=True)
    monkeypatch.setattr(pipeline, "find_device", lambda: device)
    report = compile_quickly(make(DENSE), DENSE, verify=True, budget=budget).checkmate
    assert all(a.strict for a in report.attempts) and set(orders) == {Strict()}
    assert len(report.attempts) > 1 and all(a.target_bytes <= 0.8 * device.limit_bytes for a in report.attempts)
    limits = Limits(budget, 0, device.limit_bytes, on_cpu=True, measured=True)
    assert limits.orders == (True,)
    assert replace(limits, ordered=False).orders == (False,)
    assert replace(limits, budget_bytes=device.limit_bytes // 2).orders == (False, True)
