"""Values are dropped at a rising price until a sequence fits; graphs without a backward pass, solved so."""

import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import a_legal_order, any_graphs, chain, resnet, transformer, unet
from hypothesis import given, settings
from hypothesis import strategies as st
from recomputations import with_recomputations

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.moccasin.improver import Improver, by_stages
from checkmate_tf.strategies.ordering.links import links
from checkmate_tf.strategies.ordering.renumbered import renumbered
from checkmate_tf.strategies.random_graphs import layered, usual_edges
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.minimum_budget import proven_minimum, tightest
from checkmate_tf.strategies.search.search import Walk
from checkmate_tf.strategies.search.sequences.lowering import lowered
from checkmate_tf.strategies.search.sequences.settle import first_price, ruined, settle


def settled(graph, budget, order=None, turns=0.0, seed=0, steps=3000):
    """What some moves make of a plain sequence."""
    problem, room = flatten(graph), budget - graph.constant_bytes
    sequence = np.arange(len(graph)) if order is None else np.array(order)
    price = first_price(graph, problem, sequence, room)
    return settle(problem, links(graph), turns, 0.2, room, sequence, price, 1.5, 100, steps, seed)


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 99), st.floats(0.3, 1.0), st.sampled_from([0.0, 0.4]))
def test_what_settles_is_a_schedule_within_the_budget(graph, seed, share, turns):
    """By the one evaluator; so is what has not settled yet, but for the budget."""
    plain = keep_all(graph)
    budget = graph.constant_bytes + int(share * (plain.peak_bytes - graph.constant_bytes))
    order = a_legal_order(graph, seed)
    found = settled(graph, budget, order, turns, seed)
    schedule = Schedule(graph, found.sequence)  # raises if it is not one
    assert schedule.cost == pytest.approx(graph.base_cost + found.cost)
    assert (schedule.peak_bytes <= budget) == (found.excess == 0)
    if not turns:
        assert list(dict.fromkeys(found.sequence.tolist())) == order.tolist()


def test_equal_seeds_give_equal_sequences():
    graph = transformer(3)
    budget = int(0.6 * keep_all(graph).peak_bytes)
    first, again, other = (settled(graph, budget, seed=seed).sequence for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


INTERRUPTED = """
import os, signal, threading
from test_settle import settled, transformer

signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without
graph = transformer(3)
settled(graph, 1)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    while True:
        settled(graph, 1, steps=2000)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_while_compiled_code_runs_is_an_exception():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], env=environment, capture_output=True, text=True)
    assert done.stdout == "interrupted\n", done.stderr[-2000:]


@pytest.mark.parametrize("budget", [7, 8, 9])
def test_of_some_seeds_one_finds_the_optimum_of_a_chain(budget):
    graph = chain(5)
    found = [settled(graph, budget, seed=seed) for seed in range(20)]
    costs = [graph.base_cost + one.cost for one in found if not one.excess]
    assert min(costs) == least_cost(graph, budget) < np.inf


def test_the_price_rises_while_nothing_settles():
    graph = unet(2)
    found = settled(graph, graph.constant_bytes + 1, steps=2000)
    assert found.excess and found.left == 0
    assert found.price > 2 * first_price(graph, flatten(graph), np.arange(len(graph)), 1)


def test_lowering_ends_where_no_price_is_enough():
    graph = unet(2)
    assert len(lowered(graph, np.arange(len(graph)), 0.0, 0, math.inf)) > len(graph)


def test_others_of_a_sequence_begin_at_lower_prices_and_are_shorter():
    graph = transformer(3)
    refiner = Walk(graph, int(0.5 * keep_all(graph).peak_bytes), seed=0).refiner
    while refiner.drafts < 200:
        list(refiner.settled(0.05))
        if refiner.line.top is not None:  # else the next is a plain one
            draft = refiner._new_draft()
            assert 0 < draft.price <= refiner.here.price and len(draft.sequence) < len(refiner.here.sequence)
    assert refiner.here.price > 1e-6 * first_price(graph, refiner.problem, np.arange(len(graph)), refiner.room)


def test_plain_sequences_and_the_best_take_turns_where_nothing_is_gained(monkeypatch):
    graph = transformer(3)
    refiner = Walk(graph, int(0.5 * keep_all(graph).peak_bytes), seed=0).refiner
    lines, end_of = [refiner.line], refiner._end_of

    def recorded(draft):
        end_of(draft)
        if refiner.line is not lines[-1]:
            lines.append(refiner.line)
            bests.append(refiner.best)
            if not refiner.line.fresh:
                assert refiner.line.top.cost == refiner.best

    bests = []
    monkeypatch.setattr(refiner, "_end_of", recorded)
    while len(lines) < 5:
        list(refiner.settled(0.05))
    assert [line.fresh for line in lines[:5]] == [False, True, False, True, False]
    assert bests == sorted(bests, reverse=True)


@settings(max_examples=40, deadline=None)
@given(any_graphs(), st.integers(0, 99), st.floats(0.0, 1.0))
def test_what_is_ruined_loses_recomputations_alone(graph, seed, share):
    sequence = with_recomputations(graph, seed)
    problem, length = flatten(graph), len(sequence)
    rest = ruined(problem, sequence, share, 0, length, seed)
    assert list(dict.fromkeys(rest.tolist())) == list(dict.fromkeys(sequence.tolist()))
    Schedule(graph, rest)
    assert ruined(problem, sequence, 1.0, 0, length, seed).tolist() == list(range(len(graph)))
    assert ruined(problem, sequence, 1.0, length, length + 9, seed).tolist() == sequence.tolist()


@pytest.mark.long(only=("transformer3-0.3",))
@pytest.mark.parametrize("turns", [0.0, 0.3])
@pytest.mark.parametrize("graph", [unet(3), transformer(3), resnet(10)], ids=lambda graph: graph.name)
def test_memory_is_lowered_to_near_the_least(graph, turns):
    low = proven_minimum(graph, "free" if turns else "fixed")[0]
    sequence = lowered(graph, np.arange(len(graph)), turns, low, 10.0)
    peak = evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes
    assert low <= peak <= 1.15 * tightest(graph, low, 2.0)[0]


def test_without_time_nothing_is_lowered():
    graph = transformer(2)
    assert lowered(graph, np.arange(len(graph)), 0.0, 0, -1.0).tolist() == list(range(len(graph)))


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 99), st.floats(0.2, 1.0))
def test_a_graph_in_another_order_has_the_same_schedules(graph, seed, share):
    order = a_legal_order(graph, seed)
    other = renumbered(graph, order)
    assert keep_all(other).peak_bytes == Schedule(graph, order).peak_bytes
    sequence = settled(graph, int(share * keep_all(graph).peak_bytes), order, seed=seed).sequence
    there = Schedule(other, np.argsort(order)[sequence])
    here = Schedule(graph, sequence)  # raises if it is not one
    assert (here.cost, here.peak_bytes) == pytest.approx((there.cost, there.peak_bytes))
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


@pytest.mark.long(only=("free-250-0.8-0.2",))
@pytest.mark.parametrize(("n", "share", "most"), [(100, 0.7, 0.5), (250, 0.8, 0.2), (500, 0.9, 0.2)])
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_graphs_without_a_backward_pass_cost_little_far_below_their_peak(n, share, most, order):
    graph = layered(n, usual_edges(n), seed=1)
    budget = int(share * keep_all(graph).peak_bytes)
    schedule = solve(graph, budget, options=SolveOptions(time_limit=20, order=order, gap=0.1))
    assert schedule.peak_bytes <= budget
    assert schedule.overhead < most
    assert schedule.frontier_advancing or order == "free"


@pytest.mark.long(only=("0", "2"))
@pytest.mark.parametrize("seed", range(3))
def test_an_order_that_may_change_needs_no_more(seed):
    """The graph's own order is one of those that it may have."""
    graph = layered(40, usual_edges(40), seed=seed)
    fixed = tightest(graph, proven_minimum(graph)[0], 3.0)[0]
    free = tightest(graph, proven_minimum(graph, "free")[0], 6.0, order="free")[0]  # 4 s of them in the graph's
    assert free <= fixed


@pytest.mark.long
def test_an_error_names_a_budget_far_below_the_peak():
    graph = layered(100, usual_edges(100), seed=1)
    low = proven_minimum(graph)[0]
    fixed, sequence = tightest(graph, low, 4.0)
    assert evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes == fixed
    assert fixed < 0.5 * keep_all(graph).peak_bytes
    with pytest.raises(InfeasibleBudgetError) as error:
        solve(graph, low - 1, options=SolveOptions(time_limit=2, order="free"))
    assert error.value.minimum_bytes < 0.5 * keep_all(graph).peak_bytes


def test_cp_sat_is_told_only_of_schedules_in_its_order():
    graph = chain(6)
    budget, order = keep_all(graph).peak_bytes, np.arange(len(graph))
    with Improver(graph, budget, SolveOptions(time_limit=5), order, None) as improver:
        assert improver._known(order) == order.tolist()
        assert improver._known(order[::-1]) == []
        assert not improver._started
    with Improver(graph, budget, SolveOptions(time_limit=5), order, order) as improver:
        assert improver._started
