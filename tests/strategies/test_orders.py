"""Any order of computation becomes one that can be run."""

import numpy as np
from graphs import chain, random_graphs
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.strategies.orders import legalise


@given(random_graphs(8), st.data())
def test_any_sequence_becomes_legal(graph, data):
    n = len(graph)
    given_ = data.draw(st.lists(st.integers(0, n - 1), max_size=3 * n))
    order = legalise(graph, given_)
    found = evaluate(graph, plan_from_sequence(graph, order))  # raises if it is not
    assert (found.counts >= 1).all()
    assert legalise(graph, order) == order
    assert (found.counts[graph.recompute_until == 0] == 1).all()
    first = [order.index(i) for i in range(n)]
    effects = np.flatnonzero(graph.recompute_until == 0)
    assert (np.diff([first[i] for i in effects]) > 0).all()
    for e in effects:
        assert all(first[i] < first[e] for i in range(e) if graph.recompute_until[i] <= e)


@given(random_graphs(7, stateful=False), st.data())
def test_a_legal_sequence_stays_as_it_is(graph, data):
    order: list[int] = []
    while len(set(order)) < len(graph):
        ready = [k for k in range(len(graph)) if set(graph.inputs[k]) <= set(order) and order.count(k) < 3]
        order.append(data.draw(st.sampled_from(ready)))
    assert legalise(graph, order) == order


def test_a_reader_of_variables_comes_before_their_assignment():
    graph = chain(2, recompute_until=[5, 3, 5, 0, 5])  # f1 reads what g1 assigns
    assert legalise(graph, [0, 2, 3, 1, 4, 1]) == [0, 1, 2, 3, 4]


def test_deep_graphs_need_no_recursion():
    graph = chain(5000)
    assert legalise(graph, [len(graph) - 1])[-1] == len(graph) - 1
