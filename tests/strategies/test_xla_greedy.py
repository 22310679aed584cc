"""XLA's greedy: valid plans, memory counted as the evaluator does, and the budget kept or an error that names one."""

import numpy as np
import pytest
from graphs import chain, random_graphs, resnet, training, transformer, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.greedy_walk import _Walk, greedy_sequence
from checkmate_tf.strategies.options import SolveOptions
from checkmate_tf.strategies.xla_greedy import xla_greedy

OPTIONS = SolveOptions(time_limit=30)


def plain(inputs, sizes, costs=None, **fields) -> Graph:
    n = len(inputs)
    costs = np.ones(n) if costs is None else costs
    return Graph("plain", [f"v{i}" for i in range(n)], np.full(n, FORWARD), costs, sizes, inputs, **fields)


def at_share(graph: Graph, share: float) -> int:
    return graph.constant_bytes + int(share * (keep_all(graph).peak_bytes - graph.constant_bytes))


@settings(max_examples=150, deadline=None)
@given(random_graphs(10), st.floats(0.0, 1.0), st.booleans())
def test_the_walk_counts_memory_as_the_evaluator_does(graph, share, held):
    if held:
        graph = Graph(
            graph.name, graph.names, graph.kinds, graph.costs, graph.sizes, graph.inputs, graph.constant_bytes,
            graph.workspace, graph.recompute_until, np.arange(len(graph)) % 3,
        )  # fmt: skip
    walk = _Walk(graph, at_share(graph, share))
    sequence = walk.run()
    found = evaluate(graph, plan_from_sequence(graph, sequence))
    assert walk.memory[: walk.steps].tolist() == found.memory.tolist()


@settings(max_examples=100, deadline=None)
@given(random_graphs(10), st.floats(0.0, 1.0))
def test_within_the_budget_or_an_error_that_names_one(graph, share):
    budget = at_share(graph, share)
    try:
        schedule = xla_greedy(graph, budget, OPTIONS)
    except InfeasibleBudgetError as error:
        assert budget < error.minimum_bytes <= keep_all(graph).peak_bytes
        again = xla_greedy(graph, error.minimum_bytes, OPTIONS)
        assert again.peak_bytes <= error.minimum_bytes
        return
    assert schedule.peak_bytes <= budget
    assert schedule.strategy == "xla-greedy"
    assert (schedule.evaluation.counts[graph.recompute_until == 0] == 1).all()
    if keep_all(graph).peak_bytes <= budget:
        assert schedule.overhead == 0


def test_a_chain_ends_at_half_of_the_memory():
    # Each value is made from the one before it, so only one of two neighbours can be given up.
    graph = chain(64)
    peak = keep_all(graph).peak_bytes
    least = min(evaluate(graph, plan_from_sequence(graph, greedy_sequence(graph, b))).peak_bytes for b in range(peak))
    assert 0.5 * peak < least < 0.6 * peak


def test_nothing_is_gained_where_every_value_is_made_from_a_dead_one():
    # A feed-forward net as in section 4.1: product (freed at once), activation (kept for the gradient), in turn.
    inputs = [[i - 1] if i else [] for i in range(20)]
    saves = [[i] if i % 2 else [] for i in range(20)]
    graph = training(inputs, [1.0] * 20, [10] * 20, saves=saves)
    sequence = greedy_sequence(graph, 0)
    assert evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes == keep_all(graph).peak_bytes


def test_the_largest_gain_goes_first_and_of_equal_ones_the_cheapest():
    # v0 (2 bytes), v1 and v2 (3 bytes each, v2 cheaper) are in memory while v4 (4 bytes) is computed.
    inputs = [[], [], [], [0, 1, 2], [], [4], [0, 5], [1, 6], [2, 7]]
    graph = plain(inputs, [2, 3, 3, 0, 4, 0, 0, 0, 0], [1.0, 5.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    assert keep_all(graph).peak_bytes == 12
    assert greedy_sequence(graph, 10) == [0, 1, 2, 3, 4, 5, 6, 7, 2, 8]
    assert greedy_sequence(graph, 8) == [0, 1, 2, 3, 4, 5, 6, 1, 7, 2, 8]


def test_a_value_that_nobody_has_read_is_put_off_instead_of_computed_twice():
    # v2 is in memory, not read yet, while v3 is computed.
    graph = plain([[], [0], [], [], [3], [0, 4], [2, 5]], [3, 0, 4, 4, 0, 0, 0])
    assert greedy_sequence(graph, 8) == [0, 1, 3, 4, 5, 2, 6]


@pytest.mark.parametrize(("size", "again"), [(2, [1]), (3, [])])
def test_an_input_that_died_counts_against_the_gain(size, again):
    # v1 (3 bytes) is made from v0. To give it up while v3 (4 bytes) is computed, v0 has to be kept.
    walk = _Walk(plain([[], [0], [1], [], [3], [1, 4]], [size, 3, 0, 4, 0, 0]), 6)
    assert walk.run() == [0, 1, 2, 3, 4, *again, 5]
    assert walk.memory[3] == (6 if again else 7)


@pytest.mark.parametrize(("size", "again"), [(3, [1]), (6, [])])
def test_no_earlier_step_is_taken_over_the_limit(size, again):
    # To give up v1 while v4 is computed, v0 (2 bytes) has to be kept while v2 is computed.
    walk = _Walk(plain([[], [0], [1], [2], [], [4], [1, 5]], [2, 3, size, 0, 7, 0, 0]), 9)
    assert walk.run() == [0, 1, 2, 3, 4, 5, *again, 6]
    assert walk.memory[2] == (8 if again else 9)


def test_stateful_nodes_run_once_and_variables_are_read_in_time():
    until = np.full(13, 13)
    until[[1, 3]] = 0
    until[2] = 8
    graph = chain(6, recompute_until=until)
    for limit in range(keep_all(graph).peak_bytes):
        counts = evaluate(graph, plan_from_sequence(graph, greedy_sequence(graph, limit))).counts  # raises if too late
        assert counts[1] == counts[3] == 1


@pytest.mark.parametrize("graph", [resnet(20), transformer(4), unet(4)], ids=lambda g: g.name)
def test_networks_at_70_percent(graph):
    schedule = xla_greedy(graph, at_share(graph, 0.7), OPTIONS)
    assert schedule.peak_bytes <= at_share(graph, 0.7)
    assert 0 < schedule.overhead < 0.3


def test_an_impossible_budget_is_a_typed_error():
    graph = chain(8)
    with pytest.raises(InfeasibleBudgetError) as caught:
        xla_greedy(graph, 3, OPTIONS)
    assert caught.value.proven
    assert caught.value.minimum_bytes > 3
