"""A schedule for one choice of ways, made of one for another: legal, within the budget, in the same order."""

import numpy as np
from graphs import operator_graphs, training_operators
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import PlanError
from checkmate_tf.graph import Graph
from checkmate_tf.operators import Implementation, OperatorGraph
from checkmate_tf.plan import evaluate
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies.monet.alike import alike


def firsts(sequence):
    return list(dict.fromkeys(sequence.tolist()))


@settings(max_examples=60)
@given(st.one_of(training_operators(), operator_graphs()), st.data())
def test_what_is_found_fits_and_keeps_the_graphs_order(operators, data):
    choices = [
        operators.choose({i: data.draw(st.integers(0, len(operators.ways(i)) - 1)) for i in range(len(operators))})
        for _ in range(2)
    ]
    (known, chosen), seed = choices, data.draw(st.integers(0, 2**31 - 1))
    plain = keep_all(known.graph)
    again = [i for i in range(len(known.graph)) if data.draw(st.booleans())]  # computed twice, where that may be
    sequence = Schedule(known.graph, np.array([k for i in plain.sequence for k in ([i, i] if i in again else [i])]))
    try:
        evaluate(known.graph, sequence.plan)
    except PlanError:  # some may not be computed again
        sequence = plain
    cut = data.draw(st.integers(0, 3))
    budget = max(0, keep_all(chosen.graph).peak_bytes - cut)
    found = alike(known, sequence.sequence, chosen, budget, seed)
    if sequence is plain and not cut:
        assert found is not None  # nothing is computed again then
    if found is not None:
        schedule = Schedule(chosen.graph, found)
        assert evaluate(chosen.graph, schedule.plan).peak_bytes <= budget
        assert firsts(found) == list(range(len(chosen.graph)))


def masked():
    """x, its mask, y of x, and two gradients, of which the last reads x or the mask."""
    graph = Graph("masked", ["x", "mask", "y", "g y", "g x"], np.array([0, 0, 0, 2, 2]), np.array([5.0, 1, 1, 1, 1]),
                  np.array([8, 1, 8, 8, 8]), [[], [0], [0], [2], [0, 3]])  # fmt: skip
    return OperatorGraph(graph, {4: [Implementation("mask", 1.0, (1, 3))]}, frozenset({1}))


def test_what_is_new_comes_at_its_place_and_what_is_gone_is_left_out():
    default, mask = masked().choose({}), masked().choose({4: 1})
    assert alike(default, np.arange(4), mask, 100, 0).tolist() == [0, 1, 2, 3, 4]
    assert alike(mask, np.arange(5), default, 100, 0).tolist() == [0, 1, 2, 3]


def test_recomputations_that_nothing_needs_any_more_go_and_those_that_are_needed_come():
    default, mask = masked().choose({}), masked().choose({4: 1})
    assert alike(default, np.array([0, 1, 2, 0, 3]), mask, 18, 0).tolist() == [0, 1, 2, 3, 4]  # x is not read any more
    assert keep_all(default.graph).peak_bytes == 24
    assert alike(mask, np.arange(5), default, 23, 0) is None  # g x reads two values and makes one


def test_another_order_is_kept_as_far_as_it_is_legal():
    graph = Graph("apart", list("abcd"), np.zeros(4, int), np.ones(4), np.ones(4), [[], [], [0], [1]])
    known = OperatorGraph(graph, {}).choose({})
    assert alike(known, np.array([1, 3, 0, 2]), known, 10, 0).tolist() == [1, 3, 0, 2]
