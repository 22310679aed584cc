"""Plans from schedules that were solved before, or are given: the same training, and nothing solved."""

from __future__ import annotations

import contextlib
import errno
import gc
import math
import signal
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
from cases import DENSE, assert_same_state, compile_quickly, make, train
from graphs import chain
from schedules import (
    QUICK,
    SPEC,
    fails_with,
    recomputing,
    step,
)

import checkmate_tf
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.errors import InfeasibleBudgetError, PlanError
from checkmate_tf.fit import pipeline, run, solving
from checkmate_tf.fit.job import Ledger
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.plan import evaluate
from checkmate_tf.report import Peak
from checkmate_tf.units import parse_budget


def plan(options=QUICK, batch_size=1024):
    return pipeline.plan_step(step, SPEC, batch_size, options, "step")


@pytest.fixture
def solves(monkeypatch):
    """The budgets that were solved for."""
    asked, real = [], solving.solve

    def solve(graph, target, *arguments):
        asked.append(target)
        return real(graph, target, *arguments)

    monkeypatch.setattr(solving, "solve", solve)
    return asked


def measured(monkeypatch, *extra):
    """Let the device measure what is predicted and so many bytes more; the last goes on."""
    left = list(extra)

    def measure(job, plan, order, needless):
        peak = evaluate(job.subject.graph, plan).peak_bytes + (left.pop(0) if len(left) > 1 else left[0])
        return Peak(peak, peak, 1.0)

    monkeypatch.setattr(run, "placed_as", lambda *_: None)  # what else lies on the device plays no part
    monkeypatch.setattr(run, "measure", measure)


@pytest.mark.feature("Schedules that last", "solved once: the cache")
def test_the_second_plan_is_not_solved_for(solves):
    first, second = plan(), plan()
    assert len(solves) == 1
    assert second.schedule.sequence.tolist() == first.schedule.sequence.tolist()
    assert (first.schedule.origin, second.schedule.origin) == ("", "the cache")
    assert second.report.to_dict()["origin"] == "the cache" and "; from the cache" in str(second.report)
    assert second.report.seconds["solved before"] > 0 and "solved before" not in first.report.seconds
    assert not plan(replace(QUICK, seed=1)).schedule.origin and len(solves) == 2


def test_progress_with_no_limit_of_time():
    """What is known already is all there is: bars cannot show infinitely much of it."""
    calls = []
    for _ in range(2):
        calls.clear()
        plan(replace(QUICK, time_limit=math.inf, progress=lambda *told: calls.append(told)))
    done, total = [(done, total) for stage, done, total, _ in calls if stage == "solve"][-1]
    assert done == total < math.inf


def test_without_the_cache_nothing_is_read_or_kept(solves, folder):
    for _ in range(2):
        assert not plan(replace(QUICK, cache=False)).schedule.origin
    assert len(solves) == 2 and not folder.exists()


def test_time_from_the_cache_is_part_of_the_time_limit(monkeypatch):
    graph, asked = chain(4), []
    monkeypatch.setattr(solving, "solve", lambda *given: asked.append(given[-1].time_limit) or recomputing())
    times = iter(range(0, 100, 2))  # each look at the clock is 2 s after the last: each solve takes 2 s
    monkeypatch.setattr(solving, "time", SimpleNamespace(perf_counter=lambda: float(next(times))))
    options = PlanOptions(budget=parse_budget(1.0), time_limit=10.0)
    ledger = Ledger()
    solving.solve_once(graph, 100, options, ledger)
    assert asked == [10.0] and "solved before" not in ledger.seconds
    solving.solve_once(graph, 100, options, ledger)
    assert asked == [10.0] and ledger.seconds["solved before"] == 2.0
    solving.solve_once(graph, 101, options, ledger)
    assert asked == [10.0, pytest.approx(8.0, abs=0.5)]


@pytest.fixture
def ctrl_c():
    """Python's own handler: a process that was started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.feature("Faults", "Ctrl-C while solving")
@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_answer_is_used_and_not_kept(monkeypatch, folder):
    def interrupted(graph, target, *arguments):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return real(graph, target, *arguments)

    before, real = signal.getsignal(signal.SIGINT), solving.solve
    monkeypatch.setattr(solving, "solve", interrupted)
    plan()
    assert not folder.exists() and signal.getsignal(signal.SIGINT) is before


@pytest.mark.feature("Faults", "Ctrl-C while solving")
@pytest.mark.parametrize("error", [KeyboardInterrupt, InfeasibleBudgetError("none", 1, 2, proven=True)])
def test_what_is_not_solved_is_not_kept(monkeypatch, folder, error):
    def fail(*arguments):
        raise error

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(solving, "solve", fail)
    with pytest.raises((KeyboardInterrupt, InfeasibleBudgetError)):
        solving.solve_once(chain(4), 100, QUICK, Ledger())
    assert not folder.exists() and signal.getsignal(signal.SIGINT) is before


@pytest.mark.feature("Faults", "disk full, cache read-only")
def test_a_disk_that_is_full_is_no_reason_to_fail(monkeypatch, caplog, solves):
    monkeypatch.setattr("os.replace", fails_with(errno.ENOSPC))
    for _ in range(2):
        assert plan().report.recomputations > 0
    assert len(solves) == 2 and caplog.text.count("not kept") == 1


@pytest.fixture
def saved(tmp_path):
    """A schedule of the step in a file, and nothing in the cache."""
    path = tmp_path / "schedule.json"
    plan(replace(QUICK, cache=False)).schedule.save(path)
    return path


def test_a_saved_schedule_is_used_as_it_is(saved, solves):
    found = plan(replace(QUICK, schedule=saved))
    assert not solves
    assert found.schedule.origin == str(saved) and found.report.recomputations > 0
    assert f"; from {saved}" in str(found.report) and found.report.to_dict()["origin"] == str(saved)


def test_a_saved_schedule_is_of_the_first_structure_of_data(saved, solves):
    first = plan(replace(QUICK, schedule=saved))
    options = replace(QUICK, schedule=saved, budget=parse_budget(0.8))
    later = pipeline.plan_step(step, SPEC, 512, options, "step", [first.known])
    assert len(solves) == 1 and not later.schedule.origin


@pytest.mark.feature("Schedules that last", "a schedule of another model", refused="the error names what differs")
def test_a_saved_schedule_that_does_not_match_is_refused(saved, tmp_path):
    with pytest.raises(PlanError, match="sizes differs"):
        plan(replace(QUICK, schedule=saved), batch_size=512)
    with pytest.raises(PlanError, match="over the budget of.*raise the budget"):
        plan(replace(QUICK, schedule=saved, budget=parse_budget(0.3)))
    with pytest.raises(PlanError, match="cannot be read"):
        plan(replace(QUICK, schedule=tmp_path / "missing.json"))


def test_a_saved_schedule_is_measured(saved, monkeypatch, solves):
    options = replace(QUICK, schedule=saved, verify=True, budget=parse_budget(0.9))
    measured(monkeypatch, 0)
    found = plan(options)
    assert [a.strict for a in found.report.attempts] == [False]
    assert found.report.measured_peak_bytes == found.schedule.peak_bytes
    measured(monkeypatch, 10**9, 0)  # too much, but for the strict order
    found = plan(options)
    assert [a.strict for a in found.report.attempts] == [False, True] and found.order == Strict()
    assert not solves


def test_a_saved_schedule_just_below_the_budget_is_used(saved, monkeypatch, solves):
    """One that `compile` made may be as near, where none takes less."""
    options = replace(QUICK, schedule=saved, verify=True, budget=parse_budget(0.9))
    measured(monkeypatch, 0)
    report = plan(options).report
    measured(monkeypatch, int(0.995 * report.budget_bytes) - report.predicted_peak_bytes)
    found = plan(options)
    assert not solves and found.schedule.origin == str(saved)
    assert POLICY.sure * report.budget_bytes < found.report.sure_bytes <= report.budget_bytes


def test_a_saved_schedule_over_the_budget_is_planned_anew(tmp_path, monkeypatch, solves, caplog):
    path, options = tmp_path / "schedule.json", replace(QUICK, budget=parse_budget(0.9), time_limit=2)
    plan(options).schedule.save(path)
    asked = len(solves)
    measured(monkeypatch, 10**9, 10**9, 0)
    found = plan(replace(options, schedule=path, verify=True))
    assert len(solves) > asked and "planning anew" in caplog.text
    assert len(found.report.attempts) > 2 and found.schedule.origin != str(path)
    assert found.report.measured_peak_bytes <= found.report.budget_bytes


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Schedules that last", "save and load")
@pytest.mark.usefixtures("fresh_keras")
def test_models_train_alike_with_cached_and_loaded_schedules(no_grappler, tmp_path, solves):
    plain, cached, loaded = (make(DENSE) for _ in range(3))
    solved = compile_quickly(make(DENSE), DENSE).checkmate
    assert solves and solved.recomputations > 0
    solved.schedule.save(tmp_path / "dense.json")
    solves.clear()
    assert compile_quickly(cached, DENSE).checkmate.schedule.origin == "the cache"
    compile_quickly(loaded, DENSE, cache=False, schedule=tmp_path / "dense.json")
    assert loaded.checkmate.schedule.origin == str(tmp_path / "dense.json") and not solves
    history = train(plain, DENSE)
    for model in (cached, loaded):
        assert train(model, DENSE) == history
        assert_same_state(plain, model)


@pytest.mark.usefixtures("fresh_keras")
def test_a_refused_schedule_leaves_the_model_as_it_was(tmp_path):
    recomputing().save(tmp_path / "chain.json")
    model = make(DENSE)
    with pytest.raises(PlanError, match="chain.json is not for graph 'dense': nodes is 9, not"):
        compile_quickly(model, DENSE, schedule=tmp_path / "chain.json")
    loss = "sparse_categorical_crossentropy"
    with pytest.raises(PlanError, match="chain.json is not for graph 'dense'"):
        checkmate_tf.gradient_function(
            model, loss, 0.8, batch_size=4, costs="flops", progress=False, schedule=tmp_path / "chain.json"
        )
    assert not hasattr(model, "checkmate") and "train_step" not in vars(model)


@pytest.mark.long
def test_a_refusal_keeps_nothing_of_its_caller():
    """Else the data of a model that was refused would be in memory until the garbage is collected."""

    class Data:
        pass

    def refused():
        data = Data()
        with contextlib.suppress(InfeasibleBudgetError):
            plan(replace(QUICK, budget=parse_budget(1)))
        return weakref.ref(data)

    gc.collect()
    gc.disable()
    try:
        assert refused()() is None
    finally:
        gc.enable()
