"""A profile that moves have changed is the one that would be computed anew, whatever the moves were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import a_legal_order, any_graphs, tiny_graph, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.evaluator import evaluate
from checkmate_tf.graph import Graph
from checkmate_tf.numba_jit import numba_jit
from checkmate_tf.schedule import Schedule
from checkmate_tf.strategies.ordering.links import again_in_time, links, move
from checkmate_tf.strategies.random_graphs import layered, usual_edges
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.sequences.keep_where_room import profile
from checkmate_tf.strategies.search.sequences.moves import add, eject, leave_out, turn
from checkmate_tf.strategies.search.sequences.profiled import blank, extra_cost, sequence_of, write

ROOM = 4096


@numba_jit
def eject_by(problem, here, at, share, most, seed):
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    return eject(problem, here, at, share, most)


def walked(graph, order, moves, seed):
    """Yield what random moves lead to, each with the sequence that it has to have."""
    problem, random, before_after = flatten(graph), np.random.default_rng(seed), links(graph)
    here, other = blank(problem, ROOM), blank(problem, ROOM)
    write(problem, here, np.array(order))
    yield problem, here, np.array(order)
    for _ in range(moves):
        sequence = sequence_of(here)
        again = np.flatnonzero(here.previous[: len(sequence)] >= 0)
        kind = random.random()
        if kind < 0.3:
            begin, end = np.sort(random.choice(len(sequence) + 1, 2, replace=False))
            part, moved = move(sequence, before_after, begin, end, kind < 0.15, np.zeros(len(graph), bool))
            expected = np.concatenate((sequence[:begin], part, sequence[end:]))
            in_time = again_in_time(expected, problem.until)
            assert turn(problem, here, other, int(begin), part) == in_time
            if not (moved and in_time):
                continue
        elif kind < 0.6 and again.size:
            at = int(random.choice(again))
            leave_out(problem, here, other, at)
            expected = np.delete(sequence, at)
        else:
            share, most = float(random.random()), int(random.integers(1, 9))
            at = int(random.integers(len(sequence)))
            use, nodes = eject_by(problem, here, at, share, most, int(random.integers(2**31)))
            if not nodes.size:
                continue
            assert at < use < len(sequence) and nodes.size <= most
            assert here.last_use[copies_before(sequence, nodes, use)].max() >= use  # something is not kept any more
            add(problem, here, other, use, nodes)
            expected = np.insert(sequence, use, nodes)
        here, other = other, here
        yield problem, here, expected
        if here.length[0] > ROOM - 16:
            return


def line(nodes):
    """Each node reads the one before."""
    inputs = [[i - 1] if i else [] for i in range(nodes)]
    ones = [1] * nodes
    return Graph("line", [f"v{i}" for i in range(nodes)], np.zeros(nodes, int), ones, ones, inputs)


def copies_before(sequence, nodes, before):
    """Positions of the copies of some nodes before a position."""
    return np.array([np.flatnonzero(sequence[:before] == v)[-1] for v in nodes])


def check(problem, here, expected):
    memory, last_use, previous = np.zeros((3, len(expected)), np.int64)
    sequence = profile(problem, expected, memory, last_use, previous)
    length = len(sequence)
    assert sequence_of(here).tolist() == sequence.tolist()
    assert here.memory[:length].tolist() == memory[:length].tolist()
    assert here.last_use[:length].tolist() == last_use[:length].tolist()
    assert here.previous[:length].tolist() == previous[:length].tolist()
    n = len(problem.sizes)
    assert here.latest.tolist() == [int(np.flatnonzero(sequence == v)[-1]) for v in range(n)]
    first = [int(np.flatnonzero(sequence == v)[0]) for v in range(n)]
    assert here.done.tolist() == [max(first[:k], default=-1) for k in range(n + 1)]
    assert extra_cost(problem, here) == pytest.approx(problem.again[sequence[previous[:length] >= 0]].sum())


@settings(max_examples=150, deadline=None)
@given(any_graphs(), st.integers(0, 999))
def test_moves_lead_to_what_would_be_written(graph, seed):
    """With nodes that compute in place, and pay if they cannot; with some that may not be computed again."""
    for problem, here, expected in walked(graph, a_legal_order(graph, seed), 12, seed):
        check(problem, here, expected)


@pytest.mark.parametrize("seed", range(30))
def test_the_evaluator_agrees(seed):
    """With the peak of each, and that it is a schedule: nothing is computed again where it may not be."""
    graph = tiny_graph(np.random.default_rng(seed))
    for _, here, _ in walked(graph, a_legal_order(graph, seed), 12, seed):
        sequence = sequence_of(here)
        assert Schedule(graph, sequence).peak_bytes == graph.constant_bytes + here.memory[: len(sequence)].max()


@pytest.mark.parametrize("seed", range(20))
def test_what_is_dropped_may_be_computed_again_and_is_not_read_there(seed):
    """Until any node is reached, as `recompute_until` says: also before the first, and past the last."""
    n, random = 30, np.random.default_rng(seed)
    graph = replace(layered(n, usual_edges(n), seed), recompute_until=random.integers(-2, n + 3, n))
    problem = flatten(graph)
    here, other = blank(problem, ROOM), blank(problem, ROOM)
    write(problem, here, np.array(a_legal_order(graph, seed)))
    for _ in range(40):
        sequence = sequence_of(here)
        at = int(random.integers(len(sequence)))
        use, nodes = eject_by(problem, here, at, float(random.random()), 4, int(random.integers(2**31)))
        if nodes.size == 0:
            continue
        copies = copies_before(sequence, nodes, use)
        waiting = nodes[here.last_use[copies] >= use]
        assert len(waiting) == 1  # the value that is dropped: what else is in memory is not computed again
        assert waiting[0] not in graph.inputs[sequence[at]]
        add(problem, here, other, use, nodes)
        evaluate(graph, Schedule(graph, sequence_of(other)).plan)  # raises if a node is computed again too late
        here, other = other, here


@pytest.mark.parametrize("nodes", [3, 60])
def test_a_chain_of_recomputations_goes_with_the_last(nodes):
    """Few positions are left out one after the other, many at once."""
    graph = line(nodes)
    problem = flatten(graph)
    here, other = blank(problem, ROOM), blank(problem, ROOM)
    write(problem, here, np.array([*range(nodes - 1), *range(nodes)]))
    assert here.length[0] == 2 * nodes - 1
    leave_out(problem, here, other, 2 * nodes - 3)
    check(problem, other, np.arange(nodes))


@pytest.mark.parametrize("graph", [layered(120, usual_edges(120), 3), unet(5)], ids=["layered", "unet"])
def test_long_walks(graph):
    """Hundreds of moves, in which values come to be computed many times."""
    most = 0
    for problem, here, expected in walked(graph, np.arange(len(graph)), 400, seed=1):
        check(problem, here, expected)
        most = max(most, int(np.bincount(sequence_of(here)).max()))
    assert most > 3


def test_what_computes_in_place_pays_while_another_reader_comes():
    """Turned so that the later of two copies of its input is there, the first can end before the part."""
    inputs = [[], [0], [1], [1, 2], [1, 3]]
    graph = Graph(
        "in place", list("ixabc"), np.zeros(5, int), [1] * 5, [10] * 5, inputs, held=np.array([0, 5, 0, 0, 0])
    )
    problem = flatten(graph)
    here, other, back = (blank(problem, 16) for _ in range(3))
    write(problem, here, np.array([0, 1, 2, 1, 3, 0, 1, 4]))
    assert here.last_use[0] == 3 and here.memory[1] == 25
    assert turn(problem, here, other, 3, np.array([0, 1, 3]))
    assert other.last_use[0] == 1 and other.memory[1] == 20
    check(problem, other, np.array([0, 1, 2, 0, 1, 3, 1, 4]))
    assert turn(problem, other, back, 3, np.array([1, 3, 0]))
    check(problem, back, np.array([0, 1, 2, 1, 3, 0, 1, 4]))
