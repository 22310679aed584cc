"""Keep-sets: sequences are valid, R is the least for S, and a chain is computed again segment by segment."""

import itertools

import numpy as np
import pytest
from graphs import chain, paper_chain, random_graphs, training, unet
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import BACKWARD, FORWARD, Graph
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies.baselines.keepset import (
    cheapest_that_fits,
    droppable,
    forward_end,
    keepset_sequence,
    require_chain,
)


def subsets(graph):
    """Any set of forward nodes, those that must be kept anyway included."""
    return st.sets(st.sampled_from(range(forward_end(graph))))


def least_recomputation(graph, S):
    """Least cost over all R for this S, by trying every subset of nodes in every stage (8a-8c, 1b, 1c)."""
    n, total = len(graph), 0.0
    for t in range(n):
        best = np.inf
        for size in range(t + 1):
            for more in itertools.combinations(range(t), size):
                computed = {*more, t}
                there = computed | set(np.flatnonzero(S[t]).tolist())
                wanted = set(np.flatnonzero(S[t + 1]).tolist()) if t + 1 < n else set()
                if wanted <= there and all(there.issuperset(graph.inputs[j]) for j in computed):
                    best = min(best, sum(float(graph.costs[j]) for j in computed))
        total += best
    return total


def classic(graph, layers, kept):
    """Chen's schedule of a chain: before the first gradient that needs a segment, all of the segment but its end."""
    ends = sorted(kept)
    segments = [range(a + 1, b) for a, b in zip([-1, *ends], [*ends, layers], strict=True)]
    while segments and not len(segments[-1]):
        segments.pop()
    waiting = segments[:-1]
    order = list(range(layers + 1))
    for t in range(layers + 1, len(graph)):
        if waiting and any(i in waiting[-1] for i in graph.inputs[t]):
            order += waiting.pop()
        while waiting and not len(waiting[-1]):
            waiting.pop()
        order.append(t)
    return order


@given(random_graphs(8), st.data())
def test_any_keep_set_of_any_graph_gives_a_valid_schedule(graph, data):
    kept = data.draw(subsets(graph))
    schedule = Schedule(graph, keepset_sequence(graph, kept))
    counts = schedule.evaluation.counts  # raises if anything is missing, or computed again after it may be
    assert schedule.frontier_advancing
    once = ~droppable(graph)
    once[list(kept)] = True
    assert (counts[once] == 1).all()
    cuts = [i for i in kept if i < forward_end(graph)]
    assert counts.max() <= 2 + len(cuts)  # no more than once a segment


@given(random_graphs(7), st.data())
def test_no_other_r_is_cheaper_for_the_same_s(graph, data):
    schedule = Schedule(graph, keepset_sequence(graph, data.draw(subsets(graph))))
    assert schedule.cost == pytest.approx(least_recomputation(graph, schedule.S))


@given(st.integers(1, 14), st.data(), st.sampled_from([chain, paper_chain]))
def test_a_chain_is_computed_again_segment_by_segment(layers, data, build):
    graph = build(layers)
    kept = data.draw(st.sets(st.integers(0, layers - 1)))
    sequence = keepset_sequence(graph, kept)
    assert sequence == classic(graph, layers, kept)
    assert Schedule(graph, sequence).evaluation.counts.max() <= 2


@given(random_graphs(8))
def test_nothing_kept_and_everything_kept_are_the_plain_order(graph):
    assert keepset_sequence(graph, ()) == list(range(len(graph)))
    assert keepset_sequence(graph, range(forward_end(graph))) == list(range(len(graph)))


def test_a_skip_is_computed_once_for_each_segment_that_needs_it():
    # A chain in which 4 and 5 read 1, too: it lies before the kept 2, they after it.
    graph = training([[], [0], [1], [2], [3, 1], [4, 1], [5]], [1.0] * 7, [1] * 7)
    sequence = keepset_sequence(graph, {2, 5})
    counts = Schedule(graph, sequence).evaluation.counts
    # 6 is in the last segment; 3 and 4 are one segment, whose gradients read 1 (from 0); 0 and 1 are the first.
    assert counts[:7].tolist() == [3, 3, 1, 2, 2, 1, 1]
    assert sequence[8:] == [8, 0, 1, 3, 4, 9, 10, 11, 0, 1, 12, 13, 14]


def test_a_value_that_must_not_be_computed_again_is_a_source():
    graph = training([[], [0], [1], [2]], [1.0] * 4, [1] * 4, recompute_until=[9, 0, 9, 9, 9, 0, 0, 0, 0])
    assert keepset_sequence(graph, {2}) == [0, 1, 2, 3, 4, 5, 6, 0, 7, 8]
    late = training([[], [0], [1], [2]], [1.0] * 4, [1] * 4, recompute_until=[6, 9, 9, 9, 9, 0, 0, 0, 0])
    assert keepset_sequence(late, {2}) == [0, 1, 2, 3, 4, 5, 1, 6, 7, 8]  # at stage 6 it is too late for node 0
    assert Schedule(late, keepset_sequence(late, {2})).overhead > 0


def test_without_a_backward_pass_nothing_is_computed_again():
    graph = Graph("forward", "abc", np.full(3, FORWARD), np.ones(3), np.ones(3), [[], [0], [0, 1]])
    assert keepset_sequence(graph, {1}) == [0, 1, 2]
    alone = Graph("backward", "ab", np.full(2, BACKWARD), np.ones(2), np.ones(2), [[], [0]])
    assert keepset_sequence(alone, ()) == [0, 1]


def test_large_graphs():
    graph = chain(5000)
    schedule = Schedule(graph, keepset_sequence(graph, range(70, 5000, 71)))
    assert schedule.peak_bytes < 150
    assert len(schedule.sequence) < len(graph) + 5000


def test_the_cheapest_that_fits_is_taken():
    graph = chain(9)
    offers = [keepset_sequence(graph, kept) for kept in ({2, 5}, {4}, {0, 1, 2, 3, 4, 5}, ())]
    found = [Schedule(graph, offer) for offer in offers]
    for budget in range(1, keep_all(graph).peak_bytes + 2):
        fitting = [s.cost for s in found if s.peak_bytes <= budget]
        if fitting:
            schedule = cheapest_that_fits(graph, budget, "test", offers, 60.0)
            assert (schedule.cost, schedule.strategy, schedule.budget_bytes) == (min(fitting), "test", budget)
            assert schedule.peak_bytes <= budget
            continue
        with pytest.raises(InfeasibleBudgetError, match='too small for strategy "test"') as caught:
            cheapest_that_fits(graph, budget, "test", offers, 60.0)
        assert caught.value.minimum_bytes == min(s.peak_bytes for s in found)


def test_what_breaks_a_chain_is_named():
    require_chain(chain(4), "test")
    require_chain(paper_chain(4), "test")
    with pytest.raises(StrategyError, match=r'"test" serves linear.*here f\d+ \(node \d+\) comes after f\d+ and reads'):
        require_chain(unet(2), "test")
    second = training([[], [], [0, 1]], [1.0] * 3, [1] * 3)
    with pytest.raises(StrategyError, match=r"here f1 \(node 1\) comes after f0 and reads no node"):
        require_chain(second, "test")
