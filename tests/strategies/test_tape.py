"""A tape that moves have changed is the one that would be written anew, whatever the moves were."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import a_legal_order, any_graphs, tiny_graph, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.numba_jit import numba_jit
from checkmate_tf.schedule import Schedule
from checkmate_tf.strategies.random_graphs import layered, usual_edges
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.sequences.keep_where_room import profile
from checkmate_tf.strategies.search.sequences.tape import (
    added,
    blank,
    eject,
    extra_cost,
    left_out,
    sequence_of,
    write,
)

ROOM = 4096


@numba_jit
def eject_by(problem, tape, at, share, most, seed):
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    return eject(problem, tape, at, share, most)


def walked(graph, order, moves, seed):
    """Yield tapes that random moves lead to, each with the sequence that it has to have."""
    problem, random = flatten(graph), np.random.default_rng(seed)
    tape, other = blank(problem, ROOM), blank(problem, ROOM)
    write(problem, tape, np.array(order))
    yield problem, tape, np.array(order)
    for _ in range(moves):
        sequence = sequence_of(tape)
        again = np.flatnonzero(tape.previous[: len(sequence)] >= 0)
        if random.random() < 0.4 and again.size:
            at = int(random.choice(again))
            left_out(problem, tape, other, at)
            expected = np.delete(sequence, at)
        else:
            share, most = float(random.random()), int(random.integers(1, 9))
            at = int(random.integers(len(sequence)))
            use, nodes = eject_by(problem, tape, at, share, most, int(random.integers(2**31)))
            if not nodes.size:
                continue
            assert at < use < len(sequence) and nodes.size <= most
            assert tape.last_use[tape_copy(sequence, nodes, use)].max() >= use  # something is not kept any more
            added(problem, tape, other, use, nodes)
            expected = np.insert(sequence, use, nodes)
        tape, other = other, tape
        yield problem, tape, expected
        if tape.length[0] > ROOM - 16:
            return


def tape_copy(sequence, nodes, before):
    """Positions of the copies of some nodes before a position."""
    return np.array([np.flatnonzero(sequence[:before] == v)[-1] for v in nodes])


def check(problem, tape, expected):
    memory, last_use, previous = np.zeros((3, len(expected)), np.int64)
    sequence = profile(problem, expected, memory, last_use, previous)
    length = len(sequence)
    assert sequence_of(tape).tolist() == sequence.tolist()
    assert tape.memory[:length].tolist() == memory[:length].tolist()
    assert tape.last_use[:length].tolist() == last_use[:length].tolist()
    assert tape.previous[:length].tolist() == previous[:length].tolist()
    n = len(problem.sizes)
    assert tape.latest.tolist() == [int(np.flatnonzero(sequence == v)[-1]) for v in range(n)]
    first = [int(np.flatnonzero(sequence == v)[0]) for v in range(n)]
    assert tape.done.tolist() == [max(first[:k], default=-1) for k in range(n + 1)]
    assert extra_cost(problem, tape) == pytest.approx(problem.again[sequence[previous[:length] >= 0]].sum())


@settings(max_examples=150, deadline=None)
@given(any_graphs(), st.integers(0, 999))
def test_moves_lead_to_what_would_be_written(graph, seed):
    """With nodes that compute in place, and pay if they cannot; with some that may not be computed again."""
    for problem, tape, expected in walked(graph, a_legal_order(graph, seed), 12, seed):
        check(problem, tape, expected)


@pytest.mark.parametrize("seed", range(30))
def test_the_evaluator_agrees(seed):
    """With the peak of each, and that it is a schedule: nothing is computed again where it may not be."""
    graph = tiny_graph(np.random.default_rng(seed))
    for _, tape, _ in walked(graph, a_legal_order(graph, seed), 12, seed):
        sequence = sequence_of(tape)
        assert Schedule(graph, sequence).peak_bytes == graph.constant_bytes + tape.memory[: len(sequence)].max()


@pytest.mark.parametrize("graph", [layered(120, usual_edges(120), 3), unet(5)], ids=["layered", "unet"])
def test_long_walks(graph):
    """Hundreds of moves, in which values come to be computed many times."""
    most = 0
    for problem, tape, expected in walked(graph, np.arange(len(graph)), 400, seed=1):
        check(problem, tape, expected)
        most = max(most, int(np.bincount(sequence_of(tape)).max()))
    assert most > 3
