"""Orders of least peak: known optima are met, small ones are proven, and a strategy keeps to them."""

from collections.abc import Sequence

import numpy as np
import pytest
from bruteforce import least_peak_of_any_order
from graphs import a_legal_order, chain, random_graphs, resnet, tiny_graph, transformer
from hypothesis import given, settings

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.ordering import least_peak as module
from checkmate_tf.strategies.ordering.descents import depth_first, descend
from checkmate_tf.strategies.ordering.least_peak import least_peak
from checkmate_tf.strategies.ordering.lives import least_possible, lives, peak
from checkmate_tf.strategies.ordering.renumbered import renumbered
from checkmate_tf.strategies.orders import legalise, with_order_of_effects


def units(inputs: Sequence[Sequence[int]], sizes: Sequence[int] | None = None) -> Graph:
    n = len(inputs)
    return Graph(
        "known", [f"v{i}" for i in range(n)], np.full(n, FORWARD), np.ones(n), sizes or np.ones(n, int), inputs
    )


def in_tree(depth: int) -> Graph:
    """A complete binary tree, leaves first. Each node is computed from two: Sethi and Ullman's count of registers."""
    inputs: list[list[int]] = [[] for _ in range(2**depth)]
    level = list(range(2**depth))
    while len(level) > 1:
        inputs += [[a, b] for a, b in zip(level[::2], level[1::2], strict=True)]
        level = list(range(len(inputs) - len(level) // 2, len(inputs)))
    return units(inputs)


def out_tree(depth: int) -> Graph:
    """A complete binary tree, root first, whose leaves leave nothing: one path of it is in memory."""
    n = 2 ** (depth + 1) - 1
    return units([[] if i == 0 else [(i - 1) // 2] for i in range(n)], [1] * (n // 2) + [0] * (n - n // 2))


def grid(rows: int, columns: int) -> Graph:
    """Each node reads the one above it and the one on its left: one line of the shorter kind, and one node."""
    at = lambda i, j: i * columns + j  # noqa: E731
    return units([[at(i, j - 1)] * (j > 0) + [at(i - 1, j)] * (i > 0) for i in range(rows) for j in range(columns)])


def branches(count: int) -> Graph:
    """Values of 10 and of 1 made of each, all of the former first: one large value, and all small ones before it."""
    inputs = [[] for _ in range(count)] + [[i] for i in range(count)] + [list(range(count, 2 * count))]
    return units(inputs, [10] * count + [1] * (count + 1))


def valleys(count: int) -> Graph:
    """Chains of a hill of 3 + i and a valley of 1: hills come first where they are highest (Liu)."""
    inputs = [[] for _ in range(count)] + [[i] for i in range(count)] + [list(range(count, 2 * count))]
    return units(inputs, [3 + i for i in range(count)] + [1] * (count + 1))


KNOWN = [
    (units([[i - 1] if i else [] for i in range(50)], [1 + i % 7 for i in range(50)]), 13, "chain"),
    (in_tree(2), 4, "in-tree 2"),
    (in_tree(4), 6, "in-tree 4"),
    (in_tree(8), 10, "in-tree 8"),
    (out_tree(3), 3, "out-tree 3"),
    (out_tree(7), 7, "out-tree 7"),
    (grid(5, 12), 6, "grid 5x12"),
    (grid(12, 5), 6, "grid 12x5"),
    (grid(8, 20), 9, "grid 8x20"),
    (branches(7), 17, "7 branches"),
    (branches(60), 70, "60 branches"),
    (valleys(20), 23, "20 valleys"),
    (units([[], [], *([i, i + 1] for i in range(48))]), 3, "Fibonacci"),
    (units([*([] for _ in range(30)), list(range(30))]), 31, "star"),
]


@pytest.mark.long(only=("out-tree 7",))
@pytest.mark.parametrize(("graph", "least", "name"), KNOWN, ids=[name for _, _, name in KNOWN])
def test_known_optima_are_met(graph, least, name):
    for numbered in (graph, renumbered(graph, a_legal_order(graph, 1))):
        found = least_peak(numbered, 30.0, enough_bytes=least)
        assert found.peak_bytes == least
        assert evaluate(numbered, plan_from_sequence(numbered, found.order)).peak_bytes == least
        assert found.lower_bytes <= least


@pytest.mark.parametrize("index", [k for k, (graph, _, _) in enumerate(KNOWN) if len(graph) <= 31])
def test_known_optima_of_small_graphs_are_proven(index):
    graph, least, _ = KNOWN[index]
    found = least_peak(graph, 30.0)
    assert (found.peak_bytes, found.lower_bytes) == (least, least)


def test_small_graphs_have_the_least_peak_of_brute_force(monkeypatch):
    rng, lower = np.random.default_rng(0), 0
    for _ in range(150):
        graph = tiny_graph(rng)
        optimum = least_peak_of_any_order(graph)
        found = least_peak(graph, 10.0)
        assert (found.peak_bytes, found.lower_bytes) == (optimum, optimum)
        lower += optimum < keep_all(graph).peak_bytes
        with monkeypatch.context() as patch:  # as if it was a large graph
            patch.setattr(module, "LARGEST", 0)
            quick = least_peak(graph, 0.05)
            assert quick.lower_bytes <= optimum <= quick.peak_bytes
    assert lower > 20


@settings(max_examples=60, deadline=None)
@given(random_graphs(12))
def test_orders_are_legal_and_their_peak_is_the_evaluators(graph):
    steps, base = lives(graph), depth_first(graph)
    for order in (base, descend(steps, base, 5, False), descend(steps, np.arange(len(graph)), 5, True)):
        assert legalise(with_order_of_effects(graph), order) == order.tolist()
        found = evaluate(graph, plan_from_sequence(graph, order)).peak_bytes
        assert peak(steps, order) + graph.constant_bytes == found >= least_possible(graph) + graph.constant_bytes


def test_the_strategy_orders_and_recomputes_nothing():
    graph = branches(6)
    schedule = solve(graph, 16, strategy="least-peak")
    assert (schedule.peak_bytes, schedule.cost, schedule.status) == (16, graph.base_cost, "optimal")
    with pytest.raises(InfeasibleBudgetError, match="16 B, no order does with less") as error:
        solve(graph, 15, strategy="least-peak", options=SolveOptions(time_limit=20))
    assert error.value.minimum_bytes == 16
    with pytest.raises(InfeasibleBudgetError) as error:
        solve(graph, int(graph.working_set.max()) - 1, strategy="least-peak", options=SolveOptions(time_limit=20))
    assert error.value.proven
    large = branches(60)
    with pytest.raises(InfeasibleBudgetError, match="70 B, the least peak of an order found") as error:
        solve(large, 69, strategy="least-peak", options=SolveOptions(time_limit=1))
    assert not error.value.proven


def test_what_recomputation_may_do_with_is_not_called_proven():
    inputs = [[], [0], [], [0, 1, 2], [1, 3], [2, 4]]
    graph = units(inputs, [1, 5, 3, 3, 8, 5])
    assert evaluate(graph, plan_from_sequence(graph, [0, 1, 2, 3, 4, 2, 5])).peak_bytes == 16
    with pytest.raises(InfeasibleBudgetError, match="19 B, no order does with less without recomputation") as error:
        solve(graph, 16, strategy="least-peak", options=SolveOptions(time_limit=20))
    assert (error.value.proven, error.value.bound_order) == (False, "free")


@pytest.mark.parametrize("graph", [resnet(12), transformer(3), chain(12)], ids=lambda g: g.name)
def test_no_order_of_a_training_step_saves_what_its_gradients_read(graph):
    found = least_peak(graph, 5.0)
    assert found.lower_bytes == found.peak_bytes == keep_all(graph).peak_bytes


def test_a_free_order_begins_with_one_that_fits():
    graph = renumbered(in_tree(8), a_legal_order(in_tree(8), 3))
    schedule = solve(graph, 10, options=SolveOptions(time_limit=10, order="free"))
    assert (schedule.cost, schedule.status, schedule.strategy) == (graph.base_cost, "optimal", "checkmate")
