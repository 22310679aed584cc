"""Greedy walks start solves of graphs without a backward pass, in the graph's order and in others."""

from dataclasses import replace

import numpy as np
import pytest
from graphs import a_legal_order, any_graphs, chain
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.checkmate import _Improver
from checkmate_tf.strategies.ordering.renumbered import renumbered
from checkmate_tf.strategies.random_graphs import layered, usual_edges
from checkmate_tf.strategies.search.greedy import by_stages, greedy, within
from checkmate_tf.strategies.search.minimum_budget import proven_minimum, tightest


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 99), st.floats(0.2, 1.0))
def test_a_graph_in_another_order_has_the_same_schedules(graph, seed, share):
    order = a_legal_order(graph, seed)
    other = renumbered(graph, order)
    assert keep_all(other).peak_bytes == Schedule(graph, order).peak_bytes
    limit = int(share * keep_all(graph).peak_bytes)
    for keep in (False, True):
        sequence = greedy(graph, limit, order, keep)
        there = Schedule(other, np.argsort(order)[sequence])
        here = Schedule(graph, sequence)  # raises if it is not one
        assert (here.cost, here.peak_bytes) == pytest.approx((there.cost, there.peak_bytes))
        if keep:
            assert list(dict.fromkeys(sequence.tolist())) == order.tolist()
            assert there.frontier_advancing


def test_limits_to_recomputation_follow_the_order():
    """Node 0 may be computed again as long as node 1 or one before it is to come; node 1 comes last here."""
    graph = replace(chain(3), recompute_until=[2, *[7] * 6])
    later = renumbered(graph, np.arange(7))
    assert later.recompute_until.tolist() == graph.recompute_until.tolist()
    wide = layered(20, usual_edges(20), seed=0)
    order = a_legal_order(wide, 1)
    limited = replace(wide, recompute_until=np.arange(20))
    rank = np.argsort(order)
    expected = [1 + int(rank[:until].max(initial=-1)) for until in range(20)]
    assert renumbered(limited, order).recompute_until.tolist() == [expected[i] for i in order]


def test_stages_are_sorted_and_hold_a_node_once():
    assert by_stages([0, 1, 2, 1, 0, 1, 3]) == [0, 1, 2, 0, 1, 3]
    assert by_stages([1, 0]) == []


@pytest.mark.long(only=("fixed-0.8",))
@pytest.mark.parametrize(("order", "share"), [("fixed", 0.8), ("free", 0.7)])
def test_wide_graphs_have_schedules_far_below_their_peak(order, share):
    graph = layered(250, usual_edges(250), seed=1)
    budget = int(share * keep_all(graph).peak_bytes)
    schedule = solve(graph, budget, options=SolveOptions(time_limit=4, order=order))
    assert schedule.peak_bytes <= budget
    assert schedule.overhead < 0.6
    assert schedule.frontier_advancing == (order == "fixed")


@pytest.mark.long
def test_the_least_budget_known_is_near_what_greedy_walks_reach():
    graph = layered(100, usual_edges(100), seed=1)
    low = proven_minimum(graph)[0]
    fixed, sequence = tightest(graph, low, 4.0)
    assert evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes == fixed
    assert fixed < 0.5 * keep_all(graph).peak_bytes
    with pytest.raises(InfeasibleBudgetError) as error:
        solve(graph, low - 1, options=SolveOptions(time_limit=4, order="free"))
    assert error.value.minimum_bytes < 0.5 * keep_all(graph).peak_bytes


def test_a_walk_without_time_gives_nothing_up():
    graph = layered(100, usual_edges(100), seed=1)
    limit, order = keep_all(graph).peak_bytes // 2, np.arange(100)
    assert len(greedy(graph, limit, order, True)) > len(graph)
    assert greedy(graph, limit, order, True, seconds=-1.0).tolist() == order.tolist()
    assert within(graph, limit, order, True, seconds=0.0) is None
    found = within(graph, limit + limit // 2, order, True, seconds=60.0)
    assert Schedule(graph, found).peak_bytes <= limit + limit // 2


def test_cp_sat_is_told_only_of_schedules_in_its_order():
    graph = chain(6)
    budget, order = keep_all(graph).peak_bytes, np.arange(len(graph))
    with _Improver(graph, budget, SolveOptions(time_limit=5), order, None) as improver:
        assert improver._known(order) == order.tolist()
        assert improver._known(order[::-1]) == []
        assert not improver._started
    with _Improver(graph, budget, SolveOptions(time_limit=5), order, order) as improver:
        assert improver._started
