"""What settles nowhere is pressed into the budget: moves that lose may be taken, and the least budgets are met."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import a_legal_order, any_graphs, chain, tiny_graph, transformer
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies.ordering.least_peak import least_peak
from checkmate_tf.strategies.ordering.links import links
from checkmate_tf.strategies.random_graphs import layered, usual_edges
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.minimum_budget import proven_minimum
from checkmate_tf.strategies.search.sequences import refine
from checkmate_tf.strategies.search.sequences.lowering import lowered
from checkmate_tf.strategies.search.sequences.press import Press, press, pressure
from checkmate_tf.strategies.search.sequences.profiled import blank, write
from checkmate_tf.strategies.search.sequences.refine import Refiner
from checkmate_tf.strategies.search.sequences.settle import HIGHEST, first_price, settle


def pressed(graph, budget, order=None, turns=0.0, seed=0, steps=3000, heat=5.0):
    """What some moves make of a plain sequence, at a temperature of so many mean sizes and less."""
    sequence, size = np.arange(len(graph)) if order is None else np.array(order), max(graph.sizes.mean(), 1.0)
    return press(
        flatten(graph), links(graph), turns, 0.3, 0.5, budget - graph.constant_bytes, sequence, 1e-3 * size,
        heat * size, 0.02 * heat * size, steps, seed,
    )  # fmt: skip


def pressing(graph, budget, sequence=None, seed=0):
    order = np.arange(len(graph)) if sequence is None else sequence
    return Press(graph, links(graph), budget - graph.constant_bytes, order, 0.0, np.random.default_rng(seed))


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 99), st.floats(0.3, 1.0), st.sampled_from([0.0, 0.4]))
def test_what_is_pressed_is_a_schedule_and_has_no_pressure_if_it_fits(graph, seed, share, turns):
    """By the one evaluator; so is what does not fit yet, but for the budget."""
    plain = keep_all(graph)
    budget = graph.constant_bytes + int(share * (plain.peak_bytes - graph.constant_bytes))
    order = a_legal_order(graph, seed)
    found = pressed(graph, budget, order, turns, seed, steps=500)
    Schedule(graph, found.sequence)  # raises if it is not one
    schedule = Schedule(graph, found.best)
    assert (schedule.peak_bytes <= budget) == (found.over == 0)
    assert schedule.peak_bytes - budget <= found.over  # of one stage
    if not turns:
        assert list(dict.fromkeys(found.best.tolist())) == order.tolist()


def test_pressure_is_the_most_of_each_stage():
    graph = chain(3)
    problem, length = flatten(graph), len(graph)
    profiled = blank(problem, 16)
    write(problem, profiled, np.arange(length))
    memory = profiled.memory[:length]
    assert pressure(profiled, 0) == memory.sum()  # each is a stage of its own
    profiled.previous[length - 2] = 0  # if the last but one were computed again, it would belong to the stage before
    assert pressure(profiled, 0) == memory.sum() - min(memory[-2], memory[-3])
    assert pressure(profiled, int(memory.max())) == 0


def test_equal_seeds_give_equal_sequences():
    graph = transformer(3)
    budget = int(0.6 * keep_all(graph).peak_bytes)
    first, again, other = (pressed(graph, budget, seed=seed).best for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_the_least_budget_of_a_small_graph_is_met(seed):
    """Brute force says what that is, where outputs are kept: they are never dropped here."""
    graph = tiny_graph(np.random.default_rng(seed))
    until = [int(graph.recompute_until[i]) if graph.users[i] else i for i in range(len(graph))]
    graph = replace(graph, recompute_until=np.array(until))
    budgets = range(proven_minimum(graph)[0], keep_all(graph).peak_bytes + 1)
    least = next(budget for budget in budgets if np.isfinite(least_cost(graph, budget)))
    assert pressing(graph, least, seed=seed).go_on(flatten(graph), 30.0)


def test_it_fits_where_nothing_settles():
    """A random layered graph at 60% of its peak."""
    graph = layered(120, usual_edges(120), 2)
    budget = int(0.6 * keep_all(graph).peak_bytes)
    room, problem = budget - graph.constant_bytes, flatten(graph)
    price = first_price(graph, problem, np.arange(len(graph)), room)
    for seed in range(3):
        found = settle(problem, links(graph), 0.0, 0.2, room, np.arange(len(graph)), price, 1.5, 200, 100_000, seed)
        assert found.excess and found.price > HIGHEST * price
    one = pressing(graph, budget, found.sequence)
    assert one.go_on(problem, 300.0)
    assert Schedule(graph, one.sequence).peak_bytes <= budget


def test_a_search_goes_on_from_what_was_pressed(monkeypatch):
    """Its first schedule comes from there, and others that cost less are made of it."""
    graph = layered(120, usual_edges(120), 2)
    room = int(0.6 * keep_all(graph).peak_bytes) - graph.constant_bytes
    refiner = Refiner(
        graph, flatten(graph), links(graph), room, np.random.default_rng(0), False, [np.arange(len(graph))]
    )
    pressed_before, costs = [], []
    monkeypatch.setattr(refine, "Press", lambda *given: pressed_before.append(len(costs)) or Press(*given))
    for _ in range(1500):
        for sequence in refiner.settled(0.2):
            schedule = Schedule(graph, sequence)
            assert schedule.peak_bytes <= room + graph.constant_bytes
            costs.append(schedule.cost)
        if len(costs) > 1:
            break
    assert pressed_before[0] == 0  # there was no schedule before
    assert costs[-1] < costs[0]


def test_all_orders_settle_before_one_is_pressed(monkeypatch):
    """The first does not settle; the second fits as it is."""
    graph = layered(120, usual_edges(120), 2)
    order = least_peak(graph, 1.0).order
    room = Schedule(graph, order).peak_bytes - graph.constant_bytes
    starts = [np.arange(len(graph)), order]
    refiner = Refiner(graph, flatten(graph), links(graph), room, np.random.default_rng(0), True, starts)
    pressed_ones = []
    monkeypatch.setattr(refine, "Press", lambda *given: pressed_ones.append(given) or Press(*given))
    while refiner.kept is None:
        list(refiner.settled(0.05))
    assert refiner.best == 0 and refiner.drafts > 1 and not pressed_ones


def test_what_costs_nothing_is_pressed_too():
    graph = layered(120, usual_edges(120), 2)
    graph = replace(graph, costs=np.zeros(len(graph)))
    budget = int(0.6 * keep_all(graph).peak_bytes)
    assert pressing(graph, budget).go_on(flatten(graph), 60.0)


def test_what_cannot_be_pressed_is_given_up():
    graph = chain(6)
    one = pressing(graph, proven_minimum(graph)[0] - 1)
    while not one.stale:
        assert not one.go_on(flatten(graph), 0.05)
    assert one.over > 0


def test_lower_budgets_are_met_where_nothing_settles():
    graph = layered(100, usual_edges(100), 11)
    peak, low = keep_all(graph).peak_bytes, proven_minimum(graph)[0]
    found = Schedule(graph, lowered(graph, np.arange(len(graph)), 0.0, low, 10.0))
    assert found.peak_bytes < 0.6 * peak
