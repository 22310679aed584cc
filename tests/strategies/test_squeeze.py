"""Random changes until a schedule fits: what they leave is a schedule that takes no more."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import any_graphs, resnet, unet
from hypothesis import given, settings
from hypothesis import strategies as st
from recomputations import with_recomputations

from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.exchange import ejected
from checkmate_tf.strategies.search.measured import squeeze


def taken_by(graph):
    return lambda sequence: evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 100))
def test_what_comes_of_it_is_a_schedule_that_takes_no_more(graph, turns, seed):
    sequence = with_recomputations(graph, seed)
    taken = taken_by(graph)
    found = squeeze(graph, sequence, taken, int(0.8 * taken(sequence)), 0.02, turns, seed)
    assert taken(found) <= taken(sequence)
    if turns == 1:
        assert sorted(found.tolist()) == sorted(sequence.tolist())
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


def test_what_fits_is_left_as_it_is():
    graph = resnet(4)
    plain, taken = np.arange(len(graph)), taken_by(graph)
    assert np.array_equal(squeeze(graph, plain, taken, taken(plain), 5.0, 0.5), plain)
