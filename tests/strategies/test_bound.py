"""The relaxation is below every schedule, and says infeasible only where that is so."""

import numpy as np
import pytest
from bruteforce import least_cost, least_free_cost
from graphs import chain, random_graphs, random_step, resnet, transformer, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.solvers import Milp, safe_bound
from checkmate_tf.solvers.ortools import METHODS, solve
from checkmate_tf.strategies.programs.any_order import any_order_bound, any_order_bounds
from checkmate_tf.strategies.programs.bound import bounds, peak_bounds, relax
from checkmate_tf.strategies.programs.bound_process import BoundProcess
from checkmate_tf.strategies.search.arrays import pinned_bytes
from checkmate_tf.strategies.search.minimum_budget import proven_minimum


def peak(graph):
    return evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes


@settings(max_examples=40, deadline=None)
@given(random_graphs(6), st.floats(0.4, 1.0))
def test_never_above_the_optimum(graph, share):
    budget = graph.constant_bytes + int(share * (peak(graph) - graph.constant_bytes))
    optimum = least_cost(graph, budget)
    for bound in bounds(graph, budget, 5.0):
        assert bound.cost <= optimum + 1e-9


@settings(max_examples=40, deadline=None)
@given(random_graphs(6), st.floats(0.4, 1.0), st.data())
def test_any_boundaries_bound(graph, share, data):
    budget = graph.constant_bytes + int(share * (peak(graph) - graph.constant_bytes))
    optimum = least_cost(graph, budget)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(graph) - 1), min_size=1)))
    relaxation = relax(graph, budget, np.array(chosen))
    if relaxation is None:
        assert optimum == float("inf")
    else:
        cost = solve(relaxation.milp, "glop", 5.0).bound * (graph.base_cost or 1.0)
        assert cost <= optimum + 1e-9


@settings(max_examples=40, deadline=None)
@given(random_graphs(6), st.integers(0, 8))
def test_the_least_peak_at_a_cost_is_never_overestimated(graph, extra):
    limit = graph.base_cost + extra
    budgets = range(graph.constant_bytes, peak(graph) + 1)
    least = next(b for b in budgets if least_cost(graph, b) <= limit)
    for bound in peak_bounds(graph, limit, 5.0):
        assert bound.cost <= least + 1e-4


def test_the_least_peak_of_a_chain():
    graph = chain(4)
    least = next(b for b in range(peak(graph) + 1) if least_cost(graph, b) <= graph.base_cost + 3)
    assert max(b.cost for b in peak_bounds(graph, graph.base_cost + 3, 5.0)) > least - 1


def test_chains_at_every_budget():
    graph = chain(3)
    for budget in range(3, peak(graph) + 1):
        optimum = least_cost(graph, budget)
        found = list(bounds(graph, budget, 5.0))
        assert max((b.cost for b in found), default=0.0) <= optimum + 1e-9


def test_it_says_something():
    graph = resnet(10)
    costs = [b.cost for b in bounds(graph, int(0.6 * peak(graph)), 3.0)]
    assert costs[-1] > 1.001 * graph.base_cost
    assert costs == sorted(costs)


def test_infeasible_is_proven():
    graph = unet(3)
    found = list(bounds(graph, int(pinned_bytes(graph).max()) - 1, 5.0))
    assert found[-1].cost == float("inf")


@pytest.mark.parametrize(("nodes", "count"), [(3, 40), (4, 20)])
def test_bounds_in_any_order_rise_to_the_optimum_and_not_above(nodes, count):
    """They are the optimum in most small steps, as programs in whole numbers; the quick one in few."""
    rng, closed, recomputing = np.random.default_rng(nodes), 0, 0
    for _ in range(count):
        graph = random_step(rng, nodes)
        budget = int(rng.integers(proven_minimum(graph, "free")[0], peak(graph) + 1))
        optimum, found = least_free_cost(graph, budget), [graph.base_cost, *any_order_bounds(graph, budget, 5.0)]
        assert found == sorted(found) and found[-1] <= optimum * (1 + 1e-9)
        assert found[-1] >= any_order_bound(graph, budget) - 1e-6 * graph.base_cost
        recomputing += optimum > graph.base_cost
        closed += graph.base_cost < optimum <= found[-1] + 1e-4 * graph.base_cost
    assert closed >= 0.5 * recomputing > 0


def test_no_order_fits_below_the_least():
    graph = unet(2)
    assert list(any_order_bounds(graph, proven_minimum(graph, "free")[0] - 1, 5.0)) == [np.inf]


@pytest.mark.parametrize(("in_order", "free"), [(True, False), (True, True), (False, True)])
def test_the_process_tells_what_holds_in_the_orders_that_are_asked_for(in_order, free):
    graph = transformer(3)
    budget = int(0.5 * peak(graph))
    with BoundProcess(graph, budget, 20.0, relaxed=True, fixed=in_order, free=free) as process:
        told = []
        while process.running:
            told += process.news(0.1)
        told += process.news()
    fixed, orders = ([one[key] for one in told if key in one] for key in ("cost", "any_order"))
    assert (bool(fixed), bool(orders)) == (in_order, free)
    if free:
        assert orders == sorted(orders) and any_order_bound(graph, budget) <= orders[-1] * (1 + 1e-9)


def knapsack() -> Milp:
    # min -3a -2b, 2a + 2b <= 3: -4 with a = 1, b = 1/2; -3 in integers.
    return Milp(
        np.array([-3.0, -2.0]), np.array([[2.0, 2.0]]), np.array([-np.inf]), np.array([3.0]), np.zeros(2), np.ones(2),
        integer=np.ones(2, dtype=bool),
    )  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_solvers_agree(method):
    solution = solve(knapsack(), method, 5.0)
    expected = -4.0 if method in ("glop", "pdlp") else -3.0
    assert solution.status == "optimal"
    assert solution.objective == pytest.approx(expected, abs=1e-4)
    assert solution.bound == pytest.approx(expected, abs=1e-4)


def test_solvers_say_infeasible():
    milp = Milp(np.ones(1), np.array([[1.0]]), np.array([2.0]), np.array([np.inf]), np.zeros(1), np.ones(1))
    for method in ("glop", "highs"):
        solution = solve(milp, method, 5.0)
        assert (solution.status, solution.bound) == ("infeasible", float("inf"))


def test_unknown_method():
    with pytest.raises(ValueError, match="choose one of glop"):
        solve(knapsack(), "simplex")


@given(st.floats(-10, 10))
def test_any_multipliers_are_safe(dual):
    assert safe_bound(knapsack(), np.array([dual])) <= -4.0 + 1e-9


def test_the_best_multipliers_are_exact():
    assert safe_bound(knapsack(), np.array([-1.0])) == pytest.approx(-4.0)
