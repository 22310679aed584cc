"""Implementations of operators: what is chosen, what is left out, what is refused."""

from itertools import product

import numpy as np
import pytest
from graphs import operator_graphs, training
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.errors import CostError, GraphError
from checkmate_tf.graph import BACKWARD, FORWARD, Graph
from checkmate_tf.operators import Implementation, OperatorGraph
from checkmate_tf.schedule import keep_all


def masked(**ways) -> OperatorGraph:
    """x, relu, two encodings (a mask, and the mask packed), the next layer, and three gradients: g1 reads relu."""
    graph = Graph(
        "masked", ["x", "relu", "mask", "packed", "next", "g2", "g1", "g0"],
        np.array([FORWARD] * 5 + [BACKWARD] * 3), np.array([1.0, 2, 0.5, 0.25, 3, 4, 5, 6]),
        np.array([8, 8, 2, 1, 8, 8, 8, 8]), [[], [0], [0], [2], [1], [4, 1], [5, 1], [6]], 3,
        recompute_until=np.array([8, 8, 8, 8, 8, 5, 6, 0]),
    )  # fmt: skip
    given = {6: [Implementation("mask", 7.0, (5, 2)), Implementation("packed", 8.0, (3, 5, 3), 2, "signs of 0")]}
    return OperatorGraph(graph, ways or given, frozenset({2, 3}))


def test_the_default_is_the_graph_without_encodings():
    chosen = masked().choose({})
    assert chosen.nodes.tolist() == [0, 1, 4, 5, 6, 7]
    assert chosen.graph.names == ("x", "relu", "next", "g2", "g1", "g0")
    assert chosen.graph.inputs == ((), (0,), (1,), (1, 2), (1, 3), (4,))
    assert chosen.graph.recompute_until.tolist() == [6, 6, 6, 3, 4, 0]
    assert chosen.graph.constant_bytes == 3
    assert chosen.choice == {}


def test_what_a_chosen_way_reads_is_computed():
    operators = masked()
    assert [way.name for way in operators.ways(6)] == ["default", "mask", "packed"]
    assert operators.ways(6)[2].inputs == (3, 5)
    mask, packed = operators.choose({6: 1}), operators.choose({6: 2})
    assert [mask.graph.names[i] for i in mask.graph.inputs[5]] == ["mask", "g2"]
    assert [packed.graph.names[i] for i in packed.graph.inputs[6]] == ["packed", "g2"]
    assert len(packed.graph) == 8  # the packed mask is made of the mask
    assert packed.graph.costs[6] == 8.0
    assert packed.graph.workspace[6] == 2
    assert packed.choice == {6: 2}


def test_a_value_that_has_lost_its_readers_is_not_computed():
    graph = Graph("lost", list("abc"), np.array([0, 0, 2]), np.ones(3), np.ones(3), [[], [], [0, 1]])
    operators = OperatorGraph(graph, {2: [Implementation("other", 1.0, (1,))]})
    assert operators.optional == {0}
    assert operators.choose({2: 1}).nodes.tolist() == [1, 2]
    effects = Graph("effects", list("abc"), np.array([0, 0, 2]), np.ones(3), np.ones(3), [[], [], [0, 1]],
                    recompute_until=np.array([0, 3, 3]))  # fmt: skip
    operators = OperatorGraph(effects, {2: [Implementation("other", 1.0, (1,))]})
    assert operators.optional == frozenset()
    assert operators.choose({2: 1}).nodes.tolist() == [0, 1, 2]


def test_memory_is_taken_over_only_from_inputs_without_other_readers():
    graph = Graph("chain", list("abcd"), np.array([0, 0, 0, 2]), np.ones(4), np.full(4, 8), [[], [0], [1], [1, 2]],
                  workspace=np.array([0, -8, 0, 0]), held=np.array([0, 8, 0, 0]))  # fmt: skip
    ways = {2: [Implementation("in place", 1.0, (1,), -8)], 3: [Implementation("a", 1.0, (0, 2)),
                                                                 Implementation("c", 1.0, (2,))]}  # fmt: skip
    operators = OperatorGraph(graph, ways)

    def memory(choice):
        chosen = operators.choose(choice).graph
        return chosen.workspace.tolist(), chosen.held.tolist()

    assert memory({}) == ([0, -8, 0, 0], [0, 8, 0, 0])
    assert memory({2: 1}) == memory({})  # b is read by d, too
    assert memory({2: 1, 3: 1}) == ([0, 0, -8, 0], [0, 0, 8, 0])  # now a has two readers, and b one
    assert memory({2: 1, 3: 2}) == ([0, -8, -8, 0], [0, 8, 8, 0])


def test_nothing_is_computed_into_the_memory_of_what_is_smaller():
    graph = Graph("small", ["x", "code", "y", "g"], np.array([0, 0, 0, 2]), np.ones(4), np.array([8, 1, 8, 8]),
                  [[], [], [0], [0, 2]])  # fmt: skip
    operators = OperatorGraph(graph, {2: [Implementation("coded", 1.0, (0, 1), -8)]})
    assert operators.choose({2: 1}).graph.workspace.tolist() == [0, 0, 0, 0]  # only the code has no other reader


def test_an_encoding_of_an_input_takes_its_memory_from_the_reader():
    graph = Graph("mask", ["x", "mask", "relu", "g"], np.array([0, 0, 0, 2]), np.ones(4), np.array([8, 1, 8, 8]),
                  [[], [0], [0], [2]], workspace=np.array([0, 0, -8, 0]), held=np.array([0, 0, 8, 0]))  # fmt: skip
    operators = OperatorGraph(graph, {3: [Implementation("mask", 1.0, (1,))]}, frozenset({1}))
    assert operators.choose({}).graph.workspace.tolist() == [0, -8, 0]
    masked = OperatorGraph(graph, {3: [Implementation("mask", 1.0, (1, 2))]}, frozenset({1})).choose({3: 1}).graph
    assert (masked.workspace.tolist(), masked.held.tolist()) == ([0, 0, 0, 0], [0, 0, 0, 0])


@given(operator_graphs(), st.data())
def test_every_choice_is_a_graph_of_its_ways(operators, data):
    choice = {i: data.draw(st.integers(0, len(operators.ways(i)) - 1)) for i in range(len(operators))}
    chosen = operators.choose(choice)
    graph = chosen.graph
    left_out = set(range(len(operators))) - set(chosen.nodes.tolist())
    assert left_out <= operators.optional
    for at, node in enumerate(chosen.nodes.tolist()):
        way = operators.ways(node)[chosen.choice.get(node, 0)]
        assert chosen.nodes[list(graph.inputs[at])].tolist() == list(way.inputs)
        assert graph.costs[at] == way.cost
        assert graph.users[at] or node not in operators.encodings
    assert keep_all(graph).evaluation.counts.tolist() == [1] * len(graph)


@given(operator_graphs())
def test_no_choice_leaves_out_more_than_what_is_optional(operators):
    found = set()
    for ways in product(*(range(len(operators.ways(i))) for i in range(len(operators)))):
        found |= set(range(len(operators))) - set(operators.choose(dict(enumerate(ways))).nodes.tolist())
    assert found <= operators.optional


def test_what_an_operation_takes_in_its_lightest_way_is_needed_in_any_choice():
    assert masked().least_bytes == 3 + 24  # grad of "next" reads two values, and so would "g1" but for its masks
    heavy = Graph("heavy", ["x", "mask", "g"], np.array([0, 0, 2]), np.ones(3), np.array([8, 1, 2]), [[], [0], [0]])
    ways = {2: [Implementation("mask", 1.0, (1,), 3)]}
    assert (
        OperatorGraph(heavy, ways, frozenset({1})).least_bytes == 6
    )  # the mask alone takes 9, but some choice does without it


@given(operator_graphs())
def test_no_choice_needs_or_costs_less_than_the_least(operators):
    for ways in product(*(range(len(operators.ways(i))) for i in range(len(operators)))):
        graph = operators.choose(dict(enumerate(ways))).graph
        assert operators.least_bytes <= graph.constant_bytes + graph.working_set.max(initial=0)
        assert operators.least_cost <= graph.base_cost + 1e-9


def test_the_least_cost_has_the_cheapest_way_of_each_node_that_is_always_there():
    ways = {6: [Implementation("mask", 0.5, (5, 2)), Implementation("dear", 9.0, (5, 1))]}
    operators = OperatorGraph(masked().graph, ways, masked().encodings)
    assert (
        operators.least_cost == 1.0 + 3 + 4 + 0.5 + 6 + 2
    )  # x, next, g2, g1 by its mask, g0, and relu, which next reads


@pytest.mark.parametrize(
    ("ways", "error", "text"),
    [
        ({6: [Implementation("late", 1.0, (6,))]}, GraphError, r"node 6 \(g1\): implementation 'late' reads node 6"),
        ({6: [Implementation("under", 1.0, (-1,))]}, GraphError, "'under' reads node -1, which is not before it"),
        ({6: [Implementation("dear", np.nan, ())]}, CostError, r"\(g1\): implementation 'dear' costs nan"),
        ({6: [Implementation("paid", -1.0, ())]}, CostError, "'paid' costs -1.0; costs must be finite"),
        ({2: [Implementation("small", 1.0, (), -3)]}, GraphError, r"\(mask\): implementation 'small' .* of -3 bytes"),
        ({8: [Implementation("none", 1.0, ())]}, GraphError, "there is no node 8 to implement, only 0 to 7"),
        ({6: [Implementation("a", 1.0, ()), Implementation("a", 2.0, ())]}, GraphError, "one name: default, a, a"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(ways, error, text):
    operators = masked()
    with pytest.raises(error, match=text):
        OperatorGraph(operators.graph, ways, operators.encodings)


@pytest.mark.parametrize(("choice", "text"), [
    ({6: 3}, r"node 6 has no way 3 to compute it \(default, mask, packed\)"),
    ({6: -1}, "node 6 has no way -1"), ({9: 1}, r"node 9 has no way 1 .*\(no such node\)"),
])  # fmt: skip
def test_a_choice_that_does_not_exist(choice, text):
    with pytest.raises(GraphError, match=text):
        masked().choose(choice)


def test_encodings_exist():
    with pytest.raises(GraphError, match="there is no node 7"):
        OperatorGraph(training([[], [0], [1]], [1.0] * 3, [1] * 3), {}, frozenset({7}))
