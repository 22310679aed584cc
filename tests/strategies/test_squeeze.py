"""Random changes until a schedule fits: what they leave is a schedule that takes no more."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import any_graphs, resnet, unet
from hypothesis import given, settings
from hypothesis import strategies as st
from recomputations import with_recomputations

from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.measured import in_time, squeeze
from checkmate_tf.strategies.search.sequences.exchange import ejected
from checkmate_tf.strategies.search.sequences.keep_where_room import useful


def taken_by(graph):
    return lambda sequence: evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 100))
def test_what_comes_of_it_is_a_schedule_that_takes_no_more(graph, turns, seed):
    sequence = with_recomputations(graph, seed)
    taken = taken_by(graph)
    found = squeeze(graph, sequence, taken, int(0.8 * taken(sequence)), 0.02, turns, seed)
    assert taken(found) <= taken(sequence)
    changed = not np.array_equal(found, sequence)
    assert not changed or len(useful(flatten(graph), found)) == len(found)  # nothing that nobody reads
    if turns == 1:
        assert not Counter(found.tolist()) - Counter(sequence.tolist())  # nothing more is computed
    if turns == 0:
        assert list(dict.fromkeys(found.tolist())) == list(dict.fromkeys(sequence.tolist()))


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 100))
def test_a_value_that_is_dropped_leaves_a_schedule_in_the_same_order(graph, seed):
    sequence = with_recomputations(graph, seed)
    other = ejected(flatten(graph), sequence, seed)
    evaluate(graph, plan_from_sequence(graph, other))
    assert list(dict.fromkeys(other.tolist())) == list(dict.fromkeys(sequence.tolist()))


@pytest.mark.parametrize("graph", [resnet(8), unet(2)], ids=["resnet", "unet"])
def test_the_plain_step_is_made_to_fit(graph):
    plain, taken = np.arange(len(graph)), taken_by(graph)
    target = int(0.8 * taken(plain))
    found = squeeze(graph, plain, taken, target, 20.0, 0.0)
    assert taken(found) <= target and len(found) > len(graph)


def test_nothing_costs_more_than_it_may():
    graph = resnet(8)
    plain, taken = np.arange(len(graph)), taken_by(graph)
    target = int(0.8 * taken(plain))
    dear = graph.costs[squeeze(graph, plain, taken, target, 20.0, 0.0)].sum()
    most = (graph.base_cost + dear) / 2
    found = squeeze(graph, plain, taken, target, 2.0, 0.0, 0, most)
    assert graph.base_cost < graph.costs[found].sum() <= most < dear


def test_what_fits_is_left_as_it_is():
    graph = resnet(4)
    plain, taken = np.arange(len(graph)), taken_by(graph)
    assert np.array_equal(squeeze(graph, plain, taken, taken(plain), 5.0, 0.5), plain)


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 100))
def test_nothing_comes_again_after_its_time(graph, seed):
    rng, sequence = np.random.default_rng(seed), with_recomputations(graph, seed)
    ends = {k: set(rng.integers(0, len(graph), 2).tolist()) - {k} for k in range(0, len(graph), 2)}
    found = in_time(graph, sequence, ends)
    assert evaluate(graph, plan_from_sequence(graph, found)).cost <= graph.costs[sequence].sum() * (1 + 1e-9)
    assert list(dict.fromkeys(found.tolist())) == list(dict.fromkeys(sequence.tolist()))
    first = {node: place for place, node in reversed(list(enumerate(found.tolist())))}
    late = [k for p, k in enumerate(found.tolist()) if p != first[k] and any(first[e] < p for e in ends.get(k, ()))]
    assert not late


def test_what_comes_in_time_is_left_as_it_is():
    graph = resnet(4)
    sequence = with_recomputations(graph, 1)
    last = {k: {len(graph) - 1} for k in range(len(graph) - 1)}
    assert len(sequence) > len(graph) and in_time(graph, sequence, last) is sequence
    assert len(in_time(graph, sequence, {k: {0} for k in range(1, len(graph))})) < len(sequence)
