"""TWRemat: tree decompositions are valid, its plans are too, and memory and length obey Theorem 5 of the paper."""

import math

import networkx as nx
import numpy as np
import pytest
from graphs import chain, random_graphs, resnet, result_in_the_way, training, transformer
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.algorithms.approximation import treewidth_min_fill_in

from checkmate_tf.errors import GraphError, InfeasibleBudgetError
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.options import SolveOptions
from checkmate_tf.strategies.orders import early_effects, with_order_of_effects, without_dead
from checkmate_tf.strategies.treewidth.decomposition import (
    TreeDecomposition,
    divide,
    merge_bags,
    minimum_fill_in,
    neighbours_of,
)
from checkmate_tf.strategies.treewidth.twremat import (
    divisions,
    limits,
    recursive_sequence,
    twremat,
    twremat_sequence,
)

OPTIONS = SolveOptions(time_limit=30)


def neighbours(graph: nx.Graph) -> list[set[int]]:
    return [set(graph[v]) for v in range(len(graph))]


@st.composite
def undirected(draw: st.DrawFn, most: int = 12) -> list[set[int]]:
    n = draw(st.integers(1, most))
    pairs = [(a, b) for a in range(n) for b in range(a)]
    beside: list[set[int]] = [set() for _ in range(n)]
    for a, b in draw(st.lists(st.sampled_from(pairs), max_size=3 * n)) if pairs else []:
        beside[a].add(b)
        beside[b].add(a)
    return beside


def unit_graph(inputs: list[list[int]]) -> Graph:
    """Unit costs and sizes, and a final node that reads what nobody else does."""
    read = {i for row in inputs for i in row}
    inputs = [*inputs, [v for v in range(len(inputs)) if v not in read]]
    n = len(inputs)
    return Graph("unit", [f"v{i}" for i in range(n)], np.full(n, FORWARD), np.ones(n), np.ones(n), inputs)


@st.composite
def unit_graphs(draw: st.DrawFn, most: int = 30) -> Graph:
    n = draw(st.integers(1, most))
    near = draw(st.integers(1, 6))
    return unit_graph(
        [sorted(draw(st.sets(st.integers(max(0, j - near), j - 1), max_size=3))) if j else [] for j in range(n)]
    )


# The decomposition.


@settings(max_examples=100, deadline=None)
@given(undirected())
def test_decompositions_are_valid(beside):
    tree = minimum_fill_in(beside)
    merged = merge_bags(tree)
    tree.check(beside)
    merged.check(beside)
    assert merged.width == tree.width
    assert len(merged) <= len(beside) == len(tree)
    assert not any(merged.bags[a] <= merged.bags[b] or merged.bags[b] <= merged.bags[a] for a, b in merged.edges)


@settings(max_examples=100, deadline=None)
@given(undirected())
def test_the_vertex_of_least_fill_in_goes_first(beside):
    left = {v: set(row) for v, row in enumerate(beside)}
    expected = []
    while left:

        def order(v: int) -> tuple[int, int, int]:
            fill = sum(b not in left[a] for a in left[v] for b in left[v] if a < b)
            return fill, len(left[v]), v

        v = min(left, key=order)
        around = left.pop(v)
        expected.append({v, *around})
        for u in around:
            left[u] = (left[u] | around) - {u, v}
    assert [set(bag) for bag in minimum_fill_in(beside).bags] == expected


def test_known_widths():
    assert minimum_fill_in(neighbours(nx.path_graph(9))).width == 1
    assert minimum_fill_in(neighbours(nx.balanced_tree(3, 3))).width == 1
    assert minimum_fill_in(neighbours(nx.cycle_graph(9))).width == 2
    assert minimum_fill_in(neighbours(nx.complete_graph(7))).width == 6
    assert minimum_fill_in(neighbours(nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 12)))).width == 3


def test_widths_are_those_of_networkx():
    mine, theirs = [], []
    for seed in range(40):
        graph = nx.gnp_random_graph(12 + seed, 3.0 / (12 + seed), seed=seed)
        mine.append(minimum_fill_in(neighbours(graph)).width)
        theirs.append(treewidth_min_fill_in(graph)[0])
    assert np.abs(np.subtract(mine, theirs)).max() <= 1  # equal fill-in is decided differently
    assert sum(mine) <= 1.02 * sum(theirs)


def test_skeletons_of_networks_have_small_width():
    assert minimum_fill_in(neighbours_of(chain(50))).width == 2
    assert minimum_fill_in(neighbours_of(resnet(40))).width <= 4
    assert minimum_fill_in(neighbours_of(transformer(8))).width <= 6


@pytest.mark.parametrize(
    ("bags", "edges", "says"),
    [
        ([{0, 1}], [], "both ends"),
        ([{0, 1}, {2}], [(0, 1)], "both ends"),
        ([{0, 1}, {1, 2}], [], "tree"),
        ([{0, 1}, {2}, {1, 2}], [(0, 1), (1, 2)], "connected parts"),
    ],
)
def test_the_checker_tells_what_is_no_decomposition(bags, edges, says):
    with pytest.raises(GraphError, match=says):
        TreeDecomposition(tuple(map(frozenset, bags)), tuple(edges)).check([{1}, {0, 2}, {1}])
    with pytest.raises(GraphError, match="vertex 1 is in 0 bags"):
        TreeDecomposition((frozenset({0}),), ()).check([set(), set()])


@settings(max_examples=100, deadline=None)
@given(undirected(20))
def test_separators_halve_the_graph(beside):
    parts = divide(merge_bags(minimum_fill_in(beside)))
    assert sorted(v for part in parts for v in part.separator) == list(range(len(beside)))
    for index, part in enumerate(parts):
        ranges = [set(range(child, parts[child].last)) for child in part.parts]
        assert set().union(*ranges) == set(range(index + 1, part.last))
        inside = [{v for p in r for v in parts[p].separator} for r in ranges]
        for k, child in enumerate(part.parts):
            assert 2 * parts[child].bags <= part.bags
            others = set().union(*inside[:k], *inside[k + 1 :])
            assert not any(beside[v] & others for v in inside[k])


# The schedules.


@settings(max_examples=100, deadline=None)
@given(unit_graphs())
def test_theorem_5(graph):
    tree = merge_bags(minimum_fill_in(neighbours_of(graph)))
    levels, width = math.floor(math.log2(len(tree))) + 1, tree.width
    found = evaluate(graph, plan_from_sequence(graph, recursive_sequence(graph, divide(tree))))
    most_inputs = max(map(len, graph.inputs))
    # A level of the recursion holds a separator and the inputs of one of its nodes; the final node is asked for.
    assert found.peak_bytes <= levels * (most_inputs + width + 1) + 1
    # A separator's call calls each part once for each of its nodes and once at the end.
    assert found.counts.max() <= (width + 2) ** (levels - 1)


@settings(max_examples=60, deadline=None)
@given(random_graphs(10))
def test_every_limit_gives_a_valid_plan(graph):
    for ordered, parts in divisions(graph):
        for k in [*limits(parts), len(graph) + 1]:
            sequence = twremat_sequence(graph, parts, k, ordered=ordered)
            counts = evaluate(graph, plan_from_sequence(graph, sequence)).counts  # raises if it is not valid
            assert (counts[graph.recompute_until == 0] == 1).all()
            if (graph.recompute_until == len(graph)).all():
                assert without_dead(graph, sequence) == sequence
                assert k <= len(graph) or sequence == list(range(len(graph)))


def test_the_peak_of_a_chain_grows_like_its_logarithm():
    # TWRemat(1) on n unit layers and their gradients: NoRemat holds all n of them.
    for n in (32, 128, 512):
        graph = chain(n)
        ((_, parts),) = divisions(graph)
        found = evaluate(graph, plan_from_sequence(graph, twremat_sequence(graph, parts, 1)))
        assert found.peak_bytes <= 4 * math.log2(n) + 8
        assert found.counts.sum() <= len(graph) * math.log2(n) / 3
        assert keep_all(graph).peak_bytes > n


def test_the_limit_trades_memory_for_length():
    graph = chain(256)
    ((_, parts),) = divisions(graph)
    found = [evaluate(graph, plan_from_sequence(graph, twremat_sequence(graph, parts, k))) for k in limits(parts)]
    peaks, lengths = [e.peak_bytes for e in found], [int(e.counts.sum()) for e in found]
    assert lengths == sorted(lengths)
    assert peaks == sorted(peaks, reverse=True)
    assert len(limits(parts)) >= 6


def test_a_sequence_that_is_too_long_is_given_up():
    graph = chain(64)
    ((_, parts),) = divisions(graph)
    assert twremat_sequence(graph, parts, 1, most=3 * len(graph) // 2) is None
    assert twremat_sequence(graph, parts, 100, most=3 * len(graph) // 2) is not None


@settings(max_examples=60, deadline=None)
@given(random_graphs(10), st.floats(0.0, 1.0))
def test_within_the_budget_or_an_error_that_names_one(graph, share):
    peak = keep_all(graph).peak_bytes
    budget = graph.constant_bytes + int(share * (peak - graph.constant_bytes))
    try:
        schedule = twremat(graph, budget, OPTIONS)
    except InfeasibleBudgetError as error:
        assert budget < error.minimum_bytes <= peak
        assert twremat(graph, error.minimum_bytes, OPTIONS).peak_bytes <= error.minimum_bytes
        return
    assert schedule.peak_bytes <= budget
    assert schedule.strategy == "twremat"
    if peak <= budget:
        assert schedule.overhead == 0


def test_what_another_order_may_do_with_is_not_called_proven():
    graph = result_in_the_way()
    assert evaluate(graph, plan_from_sequence(graph, [1, 2, 0])).peak_bytes == 6
    with pytest.raises(InfeasibleBudgetError, match="though one may exist") as caught:
        twremat(graph, 6, OPTIONS)
    assert (caught.value.proven, caught.value.bound_order) == (False, "free")
    with pytest.raises(InfeasibleBudgetError) as caught:
        twremat(graph, 4, OPTIONS)
    assert caught.value.proven


@pytest.mark.parametrize("graph", [resnet(58), transformer(12)], ids=lambda g: g.name)
def test_networks_at_30_percent(graph):
    schedule = twremat(graph, int(0.3 * keep_all(graph).peak_bytes), OPTIONS)
    assert schedule.peak_bytes <= 0.3 * keep_all(graph).peak_bytes
    tight = twremat(graph, int(0.15 * keep_all(graph).peak_bytes), OPTIONS)
    assert schedule.cost < tight.cost


def test_what_runs_once_keeps_its_order():
    inputs = [[i - 1] if i else [] for i in range(12)]
    until = np.full(25, 25)
    until[[2, 9, 14, 20]] = 0
    until[5] = 14  # reads a variable that node 14 assigns
    graph = training(inputs, [1.0] * 12, [1] * 12, recompute_until=until)
    for ordered, parts in divisions(graph):
        for k in limits(parts):
            sequence = twremat_sequence(graph, parts, k, ordered=ordered)
            effects = [v for v in sequence if until[v] == 0]
            assert effects == [2, 9, 14, 20]
            assert 5 not in sequence[sequence.index(14) :]


def test_useless_computations_are_dropped():
    graph = chain(2)  # f0, f1, the loss, g1 (reads f0 and f1), g0 (reads f0)
    assert without_dead(graph, [0, 1, 0, 1, 2, 3, 0, 4]) == [0, 1, 2, 3, 0, 4]
    assert without_dead(graph, [0, 1, 2, 1, 3, 4, 4]) == [0, 1, 2, 1, 3, 4]


def test_updates_come_as_soon_as_their_gradients_are_there():
    # Six layers f (0-5), the loss, gradients g (7-12, of the last layer first), of each a scaled copy (13-18) that an
    # update applies (19-24).
    graph = chain(6)
    inputs = [*graph.inputs, *([g] for g in range(7, 13)), *([s] for s in range(13, 19))]
    until = np.where(np.arange(25) < 19, 25, 0)
    graph = Graph("updates", [str(v) for v in range(25)], np.full(25, FORWARD), np.ones(25), np.ones(25), inputs,
                  recompute_until=until)  # fmt: skip
    expected = [*range(7), *(v for g in range(7, 13) for v in (g, g + 6, g + 12))]
    assert without_dead(graph, early_effects(graph, range(25))) == expected
    # The update of the last layer comes where both its gradient and the update before it can be had.
    assert with_order_of_effects(graph).inputs[24] == (18, 23)
    again = [*range(13), *range(14, 19), *range(20, 25), *range(8), 13, 19]
    order = without_dead(graph, early_effects(graph, again))
    assert order == expected


@settings(max_examples=60, deadline=None)
@given(random_graphs(10))
def test_early_effects_are_where_they_may_be(graph):
    sequence = recursive_sequence(graph, next(divisions(graph))[1])
    order = early_effects(graph, sequence)
    plan_from_sequence(graph, order)  # raises if something is computed before its inputs
    assert set(order) == set(range(len(graph)))
    kept = [v for v in order if graph.recompute_until[v]]
    assert len(kept) >= len([v for v in sequence if graph.recompute_until[v]])
