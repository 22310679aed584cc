"""The default strategy end to end, the registry, and the errors for budgets that are too small."""

import logging
import subprocess
import sys

import numpy as np
import pytest
from bruteforce import least_cost, least_free_cost
from graphs import chain, resnet, stages_turned, tiny_graph, unet

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.strategies import STRATEGIES, SolveOptions, checkmate, minimum_budget, solve
from checkmate_tf.strategies.ordering.states import LARGEST
from checkmate_tf.strategies.programs.bound_process import BoundProcess
from checkmate_tf.strategies.search.minimum_budget import proven_minimum


def peak(graph):
    return evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes


def test_importing_strategies_imports_no_solver():
    code = (
        "import sys, checkmate_tf.strategies;"
        "print([m for m in ('numba', 'ortools', 'scipy.optimize', 'tensorflow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_unknown_strategies_are_named_with_the_known():
    with pytest.raises(StrategyError, match="'chekmate' is unknown; choose one of .*checkmate.*checkpoint-all"):
        solve(chain(3), 100, "chekmate")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("time_limit", value) for value in (0, -1, float("nan"), "60", None, True, np.ones(2))],
        *[("gap", value) for value in (-1, float("nan"), "1%", None, [0.1])],
    ],
)
def test_options_are_checked(name, value):
    with pytest.raises(ValueError, match=f"^{name} is "):
        SolveOptions(**{name: value})


@pytest.mark.parametrize("seconds", [1, 0.5, np.float32(2), np.int64(3), float("inf")])
def test_any_positive_number_of_seconds_is_a_limit(seconds):
    assert SolveOptions(time_limit=seconds).time_limit == seconds


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_a_budget_above_the_peak_needs_no_recomputation(strategy):
    graph = resnet(4)
    schedule = solve(graph, peak(graph), strategy)
    assert (schedule.overhead, schedule.gap, schedule.status) == (0.0, 0.0, "optimal")
    assert (schedule.strategy, schedule.budget_bytes) == (strategy, peak(graph))


def test_checkpoint_all_says_what_to_do_below_its_peak():
    graph = chain(4, constant_bytes=1000)
    with pytest.raises(InfeasibleBudgetError, match='below 1.01 kB, the peak without recomputation.*"checkmate"'):
        solve(graph, 1008, "checkpoint-all")


def test_a_network_with_gap_and_progress():
    graph = resnet(16)
    calls = []
    options = SolveOptions(time_limit=6, gap=0.02, progress=lambda *call: calls.append(call))
    schedule = solve(graph, int(0.6 * peak(graph)), options=options)
    assert schedule.peak_bytes <= 0.6 * peak(graph)
    assert graph.base_cost <= schedule.lower_bound <= schedule.cost
    assert schedule.gap < 0.05
    assert calls
    assert all(len(call) == 4 for call in calls)


@pytest.fixture(params=[0, LARGEST], ids=["by search and bound", "best-first"])
def _both_ways(request, monkeypatch):
    """Without best-first search before anything else, and with it."""
    monkeypatch.setattr(sys.modules["checkmate_tf.strategies.checkmate"], "LARGEST", request.param)


@pytest.mark.usefixtures("_both_ways")
def test_the_optimum_of_a_chain_is_bracketed():
    graph = chain(3)
    for budget in range(proven_minimum(graph)[0], peak(graph)):
        optimum = least_cost(graph, budget)
        try:
            schedule = solve(graph, budget, options=SolveOptions(time_limit=1.0, gap=0.0))
        except InfeasibleBudgetError:
            continue
        assert schedule.lower_bound <= optimum + 1e-9 <= schedule.cost + 2e-9


@pytest.mark.usefixtures("_both_ways")
def test_a_proof_is_about_stages_in_any_order():
    """For this budget problem (9) has no schedule, and the graph's order has one."""
    graph, budget, sequence = stages_turned()
    schedule = solve(graph, budget, options=SolveOptions(time_limit=20.0, gap=0.0))
    optimum = least_cost(graph, budget)
    assert (schedule.status, schedule.bound_order) == ("optimal", "fixed")
    assert schedule.cost == schedule.lower_bound == optimum == graph.costs[sequence].sum()


def test_a_budget_below_the_working_set_names_the_figure_and_the_node():
    graph = unet(3)
    low, node = proven_minimum(graph)
    with pytest.raises(InfeasibleBudgetError) as caught:
        solve(graph, low - 1_000_000, options=SolveOptions(time_limit=1.0))
    assert caught.value.proven
    assert f"the least that any schedule of this model needs ({graph.names[node]})" in str(caught.value)
    assert str(caught.value).endswith("raise the budget or lower the batch size")


def test_a_budget_that_another_order_may_keep_is_said_to_be_too_small_for_the_one_given():
    """The first value cannot be computed again, and waits for its reader while a large one is computed."""
    sizes, until = [6, 5, 1, 1], [0, 4, 4, 4]
    graph = Graph("g", list("avcd"), [FORWARD] * 4, [1.0] * 4, sizes, [(), (), (0,), (1, 2)], recompute_until=until)
    assert proven_minimum(graph)[0] == 11 > proven_minimum(graph, "free")[0]
    with pytest.raises(InfeasibleBudgetError, match="any schedule of this model in the order given needs"):
        solve(graph, 8, options=SolveOptions(time_limit=1.0))
    assert solve(graph, 8, options=SolveOptions(time_limit=2.0, order="free")).peak_bytes <= 8


def test_the_least_budget_is_bracketed_and_can_be_met():
    graph = resnet(4)
    low, found, node = minimum_budget(graph, 4.0)
    assert low <= found < peak(graph)
    assert graph.working_set[node] <= low
    schedule = solve(graph, found, options=SolveOptions(time_limit=3.0))
    assert schedule.peak_bytes <= found


def test_an_infeasible_budget_brings_the_least_schedule():
    graph = unet(3)
    with pytest.raises(InfeasibleBudgetError) as caught:
        solve(graph, proven_minimum(graph)[0] - 1, options=SolveOptions(time_limit=1.0))
    error = caught.value
    assert error.sequence is not None and error.minimum_bytes < peak(graph)
    assert evaluate(graph, plan_from_sequence(graph, error.sequence)).peak_bytes == error.minimum_bytes


def test_an_unproven_failure_is_worded_differently(monkeypatch):
    module = sys.modules["checkmate_tf.strategies.checkmate"]
    graph = resnet(12)
    budget = int(0.9 * peak(graph))
    monkeypatch.setattr(module, "search", lambda *_: iter(()))
    monkeypatch.setattr(module, "tightest", lambda *_: (budget + 1, None))
    with pytest.raises(InfeasibleBudgetError, match="one may exist; the least budget with a known") as caught:
        solve(graph, budget, options=SolveOptions(time_limit=1.0))
    assert not caught.value.proven
    assert caught.value.minimum_bytes == budget + 1


def test_an_interrupt_gives_the_best_so_far(monkeypatch, caplog):
    module = sys.modules["checkmate_tf.strategies.checkmate"]
    real = module.search

    def interrupted(*arguments):
        yield next(s for s in real(*arguments) if s is not None)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "search", interrupted)
    graph = resnet(8)
    with caplog.at_level(logging.WARNING):
        schedule = solve(graph, int(0.6 * peak(graph)), options=SolveOptions(gap=0.0))
    assert schedule.peak_bytes <= 0.6 * peak(graph)
    assert "interrupted" in caplog.text


def test_a_solver_that_does_not_start_costs_only_the_bound(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    graph = resnet(12)
    schedule = solve(graph, int(0.8 * peak(graph)), options=SolveOptions(time_limit=1.0))
    assert schedule.lower_bound == graph.base_cost
    assert schedule.peak_bytes <= 0.8 * peak(graph)


def test_the_child_process_reports_and_ends():
    graph = resnet(8)
    with BoundProcess(graph, int(0.6 * peak(graph)), 2.0) as process:
        while process.running:
            pass
        news = process.news()
    assert news
    assert news[-1]["cost"] > graph.base_cost
    assert not process.running


def test_checkmate_is_the_default():
    assert checkmate.checkmate is not None
    assert solve(chain(3), 100).strategy == "checkmate"


def test_a_solver_without_memory_costs_only_the_bound():
    graph = resnet(12)
    options = SolveOptions(time_limit=2.0, gap=0.0, memory_limit=1 << 20)
    schedule = solve(graph, int(0.8 * peak(graph)), options=options)
    assert schedule.lower_bound == graph.base_cost and schedule.peak_bytes <= 0.8 * peak(graph)


@pytest.mark.parametrize("order", ["fixed", "free"])
def test_tiny_graphs_are_solved_without_another_process(monkeypatch, order):
    module = sys.modules["checkmate_tf.strategies.checkmate"]
    monkeypatch.setattr(module, "BoundProcess", None)
    monkeypatch.setattr(module, "search", None)
    graph = chain(6)
    least = minimum_budget(graph, 5.0)[1]
    said = []
    options = SolveOptions(gap=0.0, order=order, progress=lambda *told: said.append(told[1:]))
    for budget in range(least, peak(graph)):
        schedule = solve(graph, budget, options=options)
        assert schedule.cost == (least_free_cost if order == "free" else least_cost)(graph, budget)
        assert (schedule.status, schedule.solver, schedule.lower_bound) == ("optimal", "best-first", schedule.cost)
        assert said.pop() == (schedule.cost, schedule.cost, 0.0)


def test_a_tiny_graph_that_fits_nowhere_is_proven_to(monkeypatch):
    """Though each operation alone would fit."""
    monkeypatch.setattr(sys.modules["checkmate_tf.strategies.checkmate"], "BoundProcess", None)
    graph = tiny_graph(np.random.default_rng(79))
    assert proven_minimum(graph)[0] < 24 and least_cost(graph, 24) == np.inf > least_cost(graph, 25)
    with pytest.raises(InfeasibleBudgetError, match=r"in the order given fits it \(proven\)") as caught:
        solve(graph, 24, options=SolveOptions(time_limit=2.0))
    assert caught.value.proven and caught.value.minimum_bytes == 25
