"""Some nodes come where they are ready: the rest keeps its order, and everything reads the same copies."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from graphs import any_graphs, resnet, unet
from hypothesis import given, settings
from hypothesis import strategies as st
from recomputations import with_recomputations

from checkmate_tf.graph import Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.strategies.ordering.links import links
from checkmate_tf.strategies.ordering.ready import when_ready


def before(graph, node):
    own = links(graph)
    return own.before[own.before_ptr[node] : own.before_ptr[node + 1]].tolist()


def copies(graph, sequence):
    """What each computation reads: (node, how often it was computed before) of each."""
    seen, found = Counter(), set()
    for node in sequence.tolist():
        found.add((node, seen[node], tuple((i, seen[i]) for i in graph.inputs[node])))
        seen[node] += 1
    return found


def check(graph, sequence, free):
    moved = when_ready(graph, links(graph), sequence, free)
    evaluate(graph, plan_from_sequence(graph, moved))
    assert copies(graph, moved) == copies(graph, sequence)
    if moved is sequence:
        return False
    first = [node not in moved[:place] for place, node in enumerate(moved.tolist())]
    stays = [not free[node] or not first[place] for place, node in enumerate(moved.tolist())]
    old = [free[node] and node not in sequence[:place] for place, node in enumerate(sequence.tolist())]
    assert moved[stays].tolist() == np.delete(sequence, np.flatnonzero(old)).tolist()  # the rest keeps its order
    for place, node in enumerate(moved.tolist()):
        if not stays[place]:
            needed = [q for q in range(place) if moved[q] in before(graph, node)]
            assert not any(stays[max(needed, default=-1) + 1 : place])
    return True


@settings(max_examples=200, deadline=None)
@given(any_graphs(), st.integers(0, 100))
def test_each_comes_right_after_the_last_that_it_needs(graph, seed):
    free = np.random.default_rng(seed).random(len(graph)) < 0.4
    check(graph, with_recomputations(graph, seed), free)


@pytest.mark.parametrize("graph", [resnet(8), unet(2)], ids=["resnet", "unet"])
def test_real_graphs_change(graph):
    rng = np.random.default_rng(0)
    assert any(check(graph, with_recomputations(graph, seed), rng.random(len(graph)) < 0.3) for seed in range(8))


def test_nothing_moves_where_nothing_may():
    graph = resnet(4)
    sequence = with_recomputations(graph, 1)
    assert when_ready(graph, links(graph), sequence, np.zeros(len(graph), bool)) is sequence


def test_a_sequence_stays_if_something_would_come_again_too_late():
    """Node 0 may be computed again until all before node 3 are done. Node 2, moved up, would be the last of them."""
    edges, ones = [[], [0], [1], [0, 2]], np.ones(4, np.int64)
    graph = Graph("late", list("abcd"), np.zeros(4, np.int8), np.ones(4), ones, edges, recompute_until=[3, 4, 4, 4])
    sequence, free = np.array([0, 1, 0, 2, 3]), np.array([False, False, True, False])
    evaluate(graph, plan_from_sequence(graph, sequence))
    assert when_ready(graph, links(graph), sequence, free) is sequence
    assert when_ready(graph, links(graph), np.array([0, 1, 2, 3]), free).tolist() == [0, 1, 2, 3]
