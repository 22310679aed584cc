"""Graphs are checked when they are made, and cannot be changed after."""

import numpy as np
import pytest
from graphs import chain

from checkmate_tf.errors import CostError, GraphError
from checkmate_tf.graph import BACKWARD, FORWARD, Graph


def make(**fields):
    base = {
        "name": "g", "names": ["a", "b"], "kinds": [FORWARD, BACKWARD], "costs": [1.0, 2.0], "sizes": [3, 4],
        "inputs": [[], [0]],
    }  # fmt: skip
    return Graph(**(base | fields))


def test_columns_and_users():
    graph = make(inputs=[[], [0, 0]], workspace=[0, 5])
    assert len(graph) == 2
    assert graph.inputs == ((), (0,))
    assert graph.users == ((1,), ())
    assert graph.edges == [(0, 1)]
    assert graph.base_cost == 3.0
    assert graph.working_set.tolist() == [3, 3 + 4 + 5]
    assert graph.recompute_until.tolist() == [2, 2]


def test_columns_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        make().costs[0] = 5


def test_the_caller_s_arrays_are_copied():
    costs = np.array([1.0, 2.0])
    graph = make(costs=costs)
    costs[0] = 7
    assert graph.costs[0] == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sizes": [1]}, "sizes has 1 entries for 2 nodes"),
        ({"inputs": [[], [1]]}, r"node 1 \(b\) reads node 1, which is not before it"),
        ({"inputs": [[], [-1]]}, "reads node -1"),
        ({"sizes": [1, -1]}, "a size is negative"),
        ({"workspace": [-9, 0]}, "workspace below minus the size"),
    ],
)
def test_malformed(fields, message):
    with pytest.raises(GraphError, match=message):
        make(**fields)


@pytest.mark.parametrize("cost", [-1.0, np.nan, np.inf])
def test_bad_costs_name_the_node(cost):
    with pytest.raises(CostError, match=r"the cost of node 1 \(b\)"):
        make(costs=[1.0, cost])


def test_with_costs():
    graph = make().with_costs(np.array([5.0, 5.0]), "flops")
    assert (graph.base_cost, graph.cost_unit) == (10.0, "flops")


def test_a_chain_mirrors_itself():
    graph = chain(2)
    assert [graph.names[i] for i in range(5)] == ["f0", "f1", "loss", "g1", "g0"]
    assert graph.inputs == ((), (0,), (1,), (0, 1, 2), (0, 3))
