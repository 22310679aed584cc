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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sizes", [1.9, 4]),
        ("sizes", [np.nan, 4]),
        ("sizes", [2**63, 4]),
        ("sizes", [[1, 2], [3, 4]]),
        ("sizes", ["three", 4]),
        ("costs", ["one", 2.0]),
        ("kinds", [300, 0]),
        ("kinds", [7, 0]),
        ("inputs", [[], [0.7]]),
        ("waits", [[], 0]),
        ("constant_bytes", -5),
        ("constant_bytes", 1.5),
    ],
)
def test_what_is_no_number_of_the_kind_is_refused(field, value):
    with pytest.raises(GraphError, match=field if value != [7, 0] else "kind"):
        make(**{field: value})


@pytest.mark.parametrize(
    "fields", [{"sizes": [2**61, 2**61 + 1]}, {"workspace": [2**62, 1]}, {"costs": [1e308, 1e308]}]
)
def test_what_cannot_be_added_up_is_refused(fields):
    with np.errstate(over="ignore"), pytest.raises(GraphError, match="too many to be added up"):
        make(**fields)


def test_whole_floats_are_numbers_of_bytes():
    graph = make(sizes=[3.0, np.float32(4)], constant_bytes=1e6)
    assert graph.sizes.tolist() == [3, 4] and graph.sizes.dtype == np.int64
    assert graph.constant_bytes == 10**6 and isinstance(graph.constant_bytes, int)


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
