"""Updates come where memory is free: an order that can be run, and never a higher peak."""

import numpy as np
from graphs import random_graphs
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.graph import BACKWARD, FORWARD, Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.late_updates import late_updates


def _in_order(graph, order):
    """The same graph with its nodes in another order."""
    place = {k: at for at, k in enumerate(order)}
    return Graph(
        name=graph.name,
        names=[graph.names[k] for k in order],
        kinds=graph.kinds[order],
        costs=graph.costs[order],
        sizes=graph.sizes[order],
        inputs=[[place[i] for i in graph.inputs[k]] for k in order],
        constant_bytes=graph.constant_bytes,
        workspace=graph.workspace[order],
    )


def _peak(graph, order):
    moved = _in_order(graph, list(order))
    return evaluate(moved, plan_from_sequence(moved, range(len(moved)))).peak_bytes


def _followers(graph):
    return [set(users) for users in graph.users]


def _small_inputs_large_gradient(layers=6, activation=4, weights=20):
    """A chain whose last layer has many weights, and reads a value of one byte."""
    inputs = [[i - 1] if i else [] for i in range(layers)] + [[layers - 1]]  # the last one: small, what the layer reads
    names, sizes = [f"f{i}" for i in range(layers)] + ["x"], [activation] * layers + [1]
    inputs += [[layers], [layers, layers + 1], [layers + 2]]
    names, sizes = [*names, "dy", "dw", "update"], [*sizes, 1, weights, 0]
    above = layers + 1
    for i in reversed(range(layers)):
        inputs.append([i, above])
        names, sizes = [*names, f"g{i}"], [*sizes, activation if i else 0]
        above = len(inputs) - 1
    kinds = [FORWARD] * (layers + 1) + [BACKWARD] * (len(inputs) - layers - 1)
    return Graph(
        name="large dense layer",
        names=names,
        kinds=np.array(kinds),
        costs=np.ones(len(inputs)),
        sizes=np.array(sizes),
        inputs=inputs,
        workspace=np.array([20 if name == "update" else 0 for name in names]),
    )


def test_the_update_of_a_large_layer_comes_when_activations_are_gone():
    graph = _small_inputs_large_gradient()
    order = late_updates(graph, _followers(graph))
    names = [graph.names[k] for k in order]
    assert names.index("dw") > names.index("g1") and names.index("update") == names.index("dw") + 1
    assert keep_all(graph).peak_bytes == 6 * 4 + 1 + 2 * 20
    assert _peak(graph, order) == 2 * 20  # what the update needs by itself: no order needs less


def test_what_follows_in_other_ways_comes_along():
    """The counter comes after the update, though it reads nothing of it."""
    graph = _small_inputs_large_gradient()
    followers, update = _followers(graph), graph.names.index("update")
    followers[update].add(len(graph) - 1)
    names = [graph.names[k] for k in late_updates(graph, followers)]
    assert names.index("update") < names.index("g0")


def test_an_order_that_gains_nothing_stays():
    graph = _small_inputs_large_gradient(weights=1)
    graph = Graph(
        name="small layer", names=graph.names, kinds=graph.kinds, costs=graph.costs, sizes=graph.sizes,
        inputs=graph.inputs,
    )  # fmt: skip
    assert late_updates(graph, _followers(graph)) == list(range(len(graph)))


def test_what_would_keep_much_for_its_update_stays():
    """The gradient of the weights reads a value that is half as large as they are."""
    graph = _small_inputs_large_gradient()
    sizes = graph.sizes.copy()
    sizes[graph.names.index("x")] = 10
    kept = Graph(
        name="large input", names=graph.names, kinds=graph.kinds, costs=graph.costs, sizes=sizes, inputs=graph.inputs,
        workspace=graph.workspace,
    )  # fmt: skip
    assert late_updates(kept, _followers(kept)) == list(range(len(kept)))


@given(random_graphs(7), st.data())
def test_any_order_can_be_run_and_needs_no_more(graph, data):
    n = len(graph)
    followers = _followers(graph)
    for k in range(n - 1):
        followers[k] |= data.draw(st.sets(st.integers(k + 1, n - 1), max_size=2))
    order = late_updates(graph, followers)
    assert sorted(order) == list(range(n))
    place = {k: at for at, k in enumerate(order)}
    assert all(place[k] < place[f] for k in range(n) for f in followers[k])
    assert _peak(graph, order) <= _peak(graph, range(n))
