"""Schedules near a given one: valid, within their budgets, and at its own budget as cheap as it is."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from graphs import chain, random_graphs, resnet, transformer, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.search.variants import variants

GRAPHS = {"chain": chain(20), "transformer": transformer(3), "unet": unet(3), "resnet": resnet(12)}
SHARES = (0.5, 0.7, 0.85)  # of the plain step's bytes


def cost_of(graph, sequence):
    return float(graph.costs[sequence].sum())


@functools.cache
def solved(name, share):
    graph = GRAPHS[name]
    return solve(graph, int(share * keep_all(graph).peak_bytes), options=SolveOptions(3.0, gap=0.02))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", GRAPHS)
def test_each_variant_is_a_schedule_within_its_budget(name, share):
    graph, schedule = GRAPHS[name], solved(name, share)
    for part in (0.9, 0.97, 1.0, 1.05):
        budget = int(part * schedule.peak_bytes)
        found = list(variants(graph, schedule.sequence.tolist(), [budget]))
        assert len(found) <= 4 and (found or part < 1)
        for sequence in found:
            evaluated = evaluate(graph, plan_from_sequence(graph, sequence.tolist()))
            assert evaluated.peak_bytes <= budget and evaluated.counts.min() > 0
            assert evaluated.cost == pytest.approx(cost_of(graph, sequence))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", GRAPHS)
def test_at_its_own_budget_the_schedule_comes_out_again(name, share):
    graph, schedule = GRAPHS[name], solved(name, share)
    found = list(variants(graph, schedule.sequence.tolist(), [schedule.peak_bytes]))
    assert min(cost_of(graph, sequence) for sequence in found) <= 1.01 * schedule.cost


@pytest.mark.parametrize("name", GRAPHS)
def test_more_room_costs_no_more_and_the_plain_step_is_near(name):
    graph, schedule = GRAPHS[name], solved(name, 0.7)
    budgets = [schedule.peak_bytes, int(1.2 * schedule.peak_bytes), keep_all(graph).peak_bytes]
    costs = [min(cost_of(graph, s) for s in variants(graph, schedule.sequence.tolist(), [b])) for b in budgets]
    assert costs == sorted(costs, reverse=True) and costs[-1] == pytest.approx(graph.base_cost)


def test_equal_questions_have_equal_answers():
    graph, schedule = GRAPHS["unet"], solved("unet", 0.7)
    budgets = [int(part * schedule.peak_bytes) for part in np.linspace(0.9, 1.1, 9)]
    once, twice = (list(variants(graph, schedule.sequence.tolist(), budgets)) for _ in range(2))
    assert len(once) == len(twice) > 1
    assert all(np.array_equal(a, b) for a, b in zip(once, twice, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(once, once[1:], strict=False))


@settings(max_examples=60)
@given(random_graphs(9), st.floats(0.3, 1.1))
def test_variants_of_the_plain_step_of_any_graph_are_valid(graph, share):
    plain = keep_all(graph)
    budget = graph.constant_bytes + int(share * (plain.peak_bytes - graph.constant_bytes))
    for sequence in variants(graph, plain.sequence.tolist(), [budget]):
        assert Schedule(graph, sequence).peak_bytes <= budget
