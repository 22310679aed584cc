"""Values wait on the host where that costs less, or where nothing else fits; and never where it is off.

The host here is the device itself: copies within it are operations like others, so that plans train on any machine.
`tests/emit/test_paged_emission.py` has two devices.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import tensorflow as tf
from allocators import crowd, says, steady
from cases import CASES, DENSE, assert_same_state, compile_quickly, make, program_of_case, train
from pages import paged_graph, paged_schedule
from schedules import QUICK, SPEC, step

import checkmate_tf
from checkmate_tf.costs.copies import CopyRates
from checkmate_tf.device.measure import Device
from checkmate_tf.errors import InfeasibleBudgetError, PlanError, StrategyError
from checkmate_tf.fit.cache import cache_key
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.fit.pipeline import plan_step
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.fit.subjects import fitted, paging
from checkmate_tf.paging import with_host, without_host
from checkmate_tf.report import paged_of
from checkmate_tf.report.page import report_section
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions

pytestmark = pytest.mark.usefixtures("fresh_keras")

CASE = CASES["residual"]
ROOFLINE = {"costs": "roofline", "page": "auto"}
TIGHT = ROOFLINE | {"verify": True, "budget": 0.45}  # no plan without copies costs nearly as little, whatever is found


def _pages_all(graph, budget_bytes, options):
    """In the place of the search: all values are copied, and come back early or just in time."""
    for ahead in (8, 0):
        schedule = replace(paged_schedule(graph, ahead), budget_bytes=budget_bytes, lower_bound=graph.base_cost)
        if schedule.peak_bytes <= budget_bytes:
            return schedule
    raise InfeasibleBudgetError(f"less than {schedule.peak_bytes}", budget_bytes, schedule.peak_bytes, proven=False)


@pytest.fixture
def hosted(monkeypatch):
    """A device whose host is near: values of 16 KiB can be copied, in almost no time. Gives what was asked of it."""
    asked = []

    def rates(device, host, **_):
        asked.append((device, host))
        return CopyRates(1e9, 1e9, 0.01)

    monkeypatch.setattr(Device, "host", property(lambda device: "/device:CPU:0"))
    monkeypatch.setattr(paging, "copy_rates", rates)
    monkeypatch.setattr(paging, "with_host", functools.partial(with_host, least_bytes=16384))
    monkeypatch.setattr("checkmate_tf.strategies.paging.paging.paging", _pages_all)
    return asked


@pytest.mark.long
def test_values_wait_on_the_host_where_that_costs_less(hosted, no_grappler):
    plain, model = make(CASE), make(CASE)
    compile_quickly(model, CASE, **ROOFLINE)
    report = model.checkmate
    assert hosted == [("/device:CPU:0", "/device:CPU:0")]
    paged = report.paged
    assert paged is not None and paged.values == paged.fetches > 5 and report.recomputations == 0
    assert report.strict and report.overhead < 0.02 and report.predicted_peak_bytes <= report.budget_bytes
    assert 0 < paged.host_bytes < report.plain_peak_bytes and 0 <= paged.waiting < 0.02
    assert f"{paged.values} values wait on the host" in report.table() and "waits for copies included" in report.table()
    assert report.to_dict()["paged"]["values"] == paged.values
    assert train(model, CASE) == train(plain, CASE)
    assert_same_state(plain, model)


def refuses(job, *_):
    raise InfeasibleBudgetError("at least so much", job.budget_bytes, 2 * job.budget_bytes, proven=False)


@pytest.mark.long
def test_the_page_tells_of_it(hosted, monkeypatch):
    model = make(CASE)
    with monkeypatch.context() as patch:  # or recomputation may cost less
        patch.setattr(fitted, "_ordered_and_fitted", refuses)
        report = compile_quickly(model, CASE, **ROOFLINE).checkmate
    section = report_section(report)
    rows = dict(section.tables[0].rows)
    assert "wait on the host" in rows["paging"]
    assert section.lists[0].caption == "paging computes nothing again"
    report = compile_quickly(model, CASE, **ROOFLINE | {"page": "never"}).checkmate
    assert report.paged is None and "paging" not in report.table() and report.to_dict()["paged"] is None


def test_where_nothing_else_fits_values_wait_on_the_host(hosted, monkeypatch):
    monkeypatch.setattr(fitted, "_ordered_and_fitted", refuses)
    report = compile_quickly(make(CASE), CASE, **ROOFLINE).checkmate
    assert report.paged is not None and report.predicted_peak_bytes <= report.budget_bytes
    with pytest.raises(InfeasibleBudgetError, match="at least so much"):
        compile_quickly(make(CASE), CASE, **ROOFLINE | {"page": "never"})


@pytest.mark.long
def test_a_refusal_names_the_least_of_both_ways(hosted):
    with pytest.raises(InfeasibleBudgetError) as refused:
        compile_quickly(make(CASE), CASE, budget=100_000, time_limit=1, **ROOFLINE)
    least = paged_schedule(paged_graph(program_of_case("residual"))).peak_bytes
    assert 100_000 < refused.value.minimum_bytes <= 1.05 * least


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"page": "never"},
        {"costs": "flops"},
        {"costs": lambda op: 1.0},
        {"operators": "choose"},
        {"strategy": "checkpoint-all", "budget": "10GB"},
        {"budget": "10GB"},
    ],
    ids=["never", "flops", "a callable", "codes", "a strategy", "room for all"],
)
def test_where_it_is_off(hosted, options):
    report = compile_quickly(make(CASE), CASE, **ROOFLINE | options).checkmate
    assert report.paged is None and report.schedule.graph.host is None and not hosted


def test_off_on_the_host_and_under_xla(hosted, monkeypatch):
    model = make(DENSE)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    assert compile_quickly(model, DENSE, **ROOFLINE).checkmate.paged is None and not hosted
    monkeypatch.undo()
    assert Device("CPU:0", 1, True).host is None and Device("GPU:1", 1, True).host == "/device:CPU:0"


@pytest.mark.long
def test_off_where_copies_cannot_be_measured(hosted, monkeypatch):
    monkeypatch.setattr(paging, "copy_rates", lambda *_: None)
    assert compile_quickly(make(CASE), CASE, **ROOFLINE).checkmate.paged is None


@pytest.mark.long
def test_copies_that_take_long_are_left_out(hosted, monkeypatch):
    monkeypatch.setattr(paging, "copy_rates", lambda *_: CopyRates(1.0, 1.0, 1e5))
    assert compile_quickly(make(CASE), CASE, **ROOFLINE).checkmate.paged is None


@pytest.mark.long
def test_no_more_is_copied_than_the_host_may_hold(hosted, monkeypatch):
    monkeypatch.setenv("TF_GPU_HOST_MEM_LIMIT_IN_MB", "0")
    assert compile_quickly(make(CASE), CASE, **ROOFLINE).checkmate.paged is None


def test_measured_in_strict_order_alone(hosted, monkeypatch):
    calls = says(monkeypatch, lambda job, predicted, strict: steady(predicted))
    report = compile_quickly(make(CASE), CASE, **TIGHT).checkmate
    assert report.paged is not None and report.attempts[-1].copies == report.paged.values
    assert all(a.strict for a in report.attempts if a.copies) and calls
    assert report.sure_bytes <= POLICY.sure * report.budget_bytes and report.placed_peak_bytes is None
    assert "with copies" in report.table()


@pytest.mark.long
def test_steps_that_take_longer_are_not_taken(hosted, monkeypatch):
    def measure(job, predicted, strict):
        return replace(steady(predicted), seconds=2.0 if job.subject.pages else 1.0)

    says(monkeypatch, measure)
    report = compile_quickly(make(CASE), CASE, **TIGHT).checkmate
    assert report.paged is None and any(a.copies for a in report.attempts)


@pytest.mark.long
@pytest.mark.parametrize("share", [0.03, 0.6])
def test_a_peak_over_the_budget_while_training_plans_again(hosted, monkeypatch, no_grappler, share):
    """With copies if that fits, or else without."""
    says(monkeypatch, lambda job, predicted, strict: steady(predicted))
    plain, model = make(CASE), make(CASE)
    first = compile_quickly(model, CASE, **TIGHT).checkmate
    assert first.paged is not None
    crowd(monkeypatch, [int(first.budget_bytes * (1 + share))])
    assert train(model, CASE) == train(plain, CASE)
    assert_same_state(plain, model)
    again = model.checkmate
    assert again.exceeded_bytes or again.schedule is first.schedule


def test_a_plan_serves_an_equal_step_again(hosted):
    """As when Grappler was switched, or the model compiled again."""
    options = replace(QUICK, costs="profile")  # the same times again
    first = plan_step(step, SPEC, 1024, options, "step")
    second = plan_step(step, SPEC, 1024, options, "step", [first.known])
    assert first.report.paged is not None and second.schedule is first.schedule and len(hosted) == 1
    assert second.subject.pages == first.subject.pages and second.without.graph.host is None
    tf.function(second.emit, autograph=False)([tf.ones([1024, 64])])


@pytest.mark.long
def test_a_saved_schedule_with_copies(hosted, tmp_path):
    path = tmp_path / "paged.json"
    model = make(CASE)
    report = compile_quickly(model, CASE, **TIGHT | {"verify": False}).checkmate
    assert report.paged is not None
    schedule = report.schedule
    schedule.save(path)
    loaded = Schedule.load(path, schedule.graph)
    assert loaded.plan == schedule.plan and loaded.cost == schedule.cost
    with pytest.raises(PlanError, match='copies values to the memory of the host.*page="never"'):
        compile_quickly(make(CASE), CASE, schedule=path, **ROOFLINE)
    with pytest.raises(PlanError, match="copies is missing"):
        plain = keep_all(without_host(schedule.graph))
        plain.save(path)
        Schedule.load(path, schedule.graph)


def test_the_cache_tells_graphs_with_copies_apart():
    plain = program_of_case("residual").graph
    graphs = [plain, *(with_host(plain, rate, rate, least_bytes=1 << 17) for rate in (1.0, 2.0))]
    assert len({cache_key(graph, 10**6, "paging", SolveOptions()) for graph in graphs}) == 3
    assert cache_key(graphs[1], 10**6, "paging", SolveOptions()) == cache_key(
        with_host(plain, 1.0, 1.0, least_bytes=1 << 17), 10**6, "paging", SolveOptions()
    )


def test_what_is_told_of_copies():
    graph = paged_graph(program_of_case("residual"))
    assert paged_of(keep_all(without_host(graph))) is None
    schedule = paged_schedule(graph, every=2)
    paged = paged_of(schedule)
    copied = [graph.inputs[k][0] for k in schedule.sequence if k >= graph.host.first]
    assert paged.values == len(copied) and paged.fetches == len(copied)
    assert paged.host_bytes == graph.sizes[copied].sum()  # all are there when the backward pass begins
    computing = float(graph.costs @ schedule.evaluation.counts)
    assert paged.waiting == pytest.approx(1 - computing / schedule.cost)


@pytest.mark.parametrize("page", ["always", None, True])
def test_refused(page):
    with pytest.raises(StrategyError, match="page=.*is unknown"):
        PlanOptions(page=page)
    with pytest.raises(StrategyError, match="page=.*is unknown"):
        checkmate_tf.compile(make(DENSE), 0.8, batch_size=16, page=page)


@pytest.mark.long
def test_gradients_of_a_loop_of_ones_own(hosted, no_grappler):
    x, y = CASE.data(CASE.batch)
    options = {"batch_size": CASE.batch, "verify": False, "progress": False, "time_limit": 5, "costs": "roofline"}
    found = []
    for page in ("never", "auto"):
        model = make(CASE)
        gradients = checkmate_tf.gradient_function(model, "sparse_categorical_crossentropy", 0.6, page=page, **options)
        assert (gradients.checkmate.paged is not None) == (page == "auto")
        found.append([t.numpy().tobytes() for t in tf.nest.flatten(gradients(x, y))])
    assert found[0] == found[1]
