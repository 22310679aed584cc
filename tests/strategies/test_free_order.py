"""The order of first computations is searched, too: moves are legal, schedules are valid, and bounds hold."""

from dataclasses import replace

import numpy as np
import pytest
from bruteforce import least_cost, least_free_cost
from graphs import a_legal_order, any_graphs, chain, random_graphs, random_step, resnet, transformer, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import GraphError, InfeasibleBudgetError, PlanError
from checkmate_tf.files.arrays import graph_from_arrays, graph_to_arrays
from checkmate_tf.files.graphs import graph_from_dict, graph_to_dict
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.operators import OperatorGraph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.ordering.links import links, move
from checkmate_tf.strategies.ordering.renumbered import renumbered
from checkmate_tf.strategies.orders import legalise, with_order_of_effects
from checkmate_tf.strategies.programs.any_order import any_order_bound
from checkmate_tf.strategies.search.arrays import flatten
from checkmate_tf.strategies.search.minimum_budget import proven_minimum
from checkmate_tf.strategies.search.search import search
from checkmate_tf.strategies.search.simulate import buffers, simulate
from checkmate_tf.strategies.search.variants import variants


def fork(branches: int, wide: int = 10) -> Graph:
    """Branches of a large value and a small one made of it, all large values first; the end reads the small ones."""
    n = 2 * branches + 1
    return Graph(
        "fork",
        [f"v{i}" for i in range(n)],
        np.full(n, FORWARD),
        np.ones(n),
        np.array([wide] * branches + [1] * (branches + 1)),
        [[] for _ in range(branches)] + [[i] for i in range(branches)] + [list(range(branches, 2 * branches))],
    )


def budget_of(graph: Graph, share: float) -> int:
    return graph.constant_bytes + int(share * (keep_all(graph).peak_bytes - graph.constant_bytes))


def a_budget(graph: Graph, rng: np.random.Generator) -> int:
    """Bytes between what any order needs and what the graph's needs without recomputation."""
    return int(rng.integers(proven_minimum(graph, "free")[0], keep_all(graph).peak_bytes + 1))


def run(graph: Graph, budget: int, looks: int, seed: int = 0) -> list[np.ndarray]:
    """The improvements within `looks` results of the search."""
    found = []
    for count, sequence in enumerate(search(graph, budget, seed, free=True)):
        if sequence is not None:
            found.append(sequence)
        if count >= looks:
            break
    return found


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 99), st.data())
def test_a_move_keeps_an_order_legal(graph, seed, data):
    order = a_legal_order(graph, seed)
    begin = data.draw(st.integers(0, len(graph) - 1))
    end = data.draw(st.integers(begin + 1, len(graph)))
    mark = np.zeros(len(graph), dtype=np.bool_)
    window, moved = move(order, links(graph), begin, end, data.draw(st.booleans()), mark)
    after = np.concatenate([order[:begin], window, order[end:]])
    assert moved == (after.tolist() != order.tolist())
    assert not mark.any()
    assert legalise(with_order_of_effects(graph), after) == after.tolist()
    evaluate(graph, plan_from_sequence(graph, after))


def test_moves_reach_the_best_order_of_branches():
    """Each large value dies before the next one is made."""
    graph = fork(2)
    window, moved = move(np.arange(5), links(graph), 1, 4, True, np.zeros(5, dtype=np.bool_))
    assert moved
    assert window.tolist() == [2, 1, 3]


@settings(max_examples=60, deadline=None)
@given(random_graphs(10), st.integers(0, 99), st.floats(0.3, 1.0))
def test_playing_in_an_order_is_playing_the_graph_numbered_so(graph, seed, share):
    graph = replace(graph, recompute_until=None)
    n, order = len(graph), a_legal_order(graph, seed)
    room = budget_of(graph, share) - graph.constant_bytes
    found = []
    for problem, names in ((flatten(graph, order=order), np.arange(n)), (flatten(renumbered(graph, order)), order)):
        sequence, evictions = np.zeros(64 * n, np.int64), np.zeros(n, np.int64)
        extra, length, stage = simulate(
            problem, room, np.zeros((1, n)), np.zeros(n, np.int64), 1.0, 0.0, 1e299, buffers(n), sequence, evictions
        )
        found.append((extra, length, stage, names[sequence[: max(length, 0)]].tolist()))
    assert found[0] == found[1]


@settings(max_examples=40, deadline=None)
@given(any_graphs(), st.floats(0.3, 0.95), st.integers(0, 9))
def test_what_the_search_finds_is_valid_and_within_the_budget(graph, share, seed):
    budget = budget_of(graph, share)
    for sequence in run(graph, budget, 8, seed):
        assert Schedule(graph, sequence).peak_bytes <= budget


@pytest.mark.parametrize(("nodes", "count"), [(3, 100), (4, 60), (5, 12)])
def test_no_schedule_in_any_order_costs_less_than_the_bound(nodes, count):
    rng, tight = np.random.default_rng(nodes), 0
    for _ in range(count):
        graph = random_step(rng, nodes)
        budget = a_budget(graph, rng)
        optimum, bound = least_free_cost(graph, budget), any_order_bound(graph, budget)
        assert bound <= optimum * (1 + 1e-9)
        assert optimum <= least_cost(graph, budget)
        tight += graph.base_cost < bound < np.inf
    assert tight >= count // 5  # it says more than the base cost


def test_the_search_is_nearly_always_optimal_on_tiny_graphs():
    rng, solved, matched = np.random.default_rng(3), 0, 0
    for _ in range(25):
        graph = random_step(rng, 4)
        budget = a_budget(graph, rng)
        optimum = least_free_cost(graph, budget)
        if not graph.base_cost < optimum < np.inf:
            continue
        solved += 1
        costs = [Schedule(graph, sequence).cost for sequence in run(graph, budget, 20)]
        assert min(costs, default=np.inf) >= optimum - 1e-9
        matched += min(costs, default=np.inf) <= optimum + 1e-9
    assert solved >= 5
    assert matched >= 0.7 * solved


@pytest.mark.parametrize("branches", [2, 3, 6])
def test_order_alone_saves_what_recomputation_would_cost(branches):
    """In the best order one large value is there at a time, and nothing is computed again."""
    graph = fork(branches)
    budget = 10 + branches
    free = solve(graph, budget, options=SolveOptions(time_limit=10, gap=0.0, order="free"))
    assert (free.cost, free.status, free.peak_bytes) == (graph.base_cost, "optimal", budget)
    assert keep_all(graph).peak_bytes > budget
    try:
        fixed = solve(graph, budget, options=SolveOptions(time_limit=2, gap=0.0))
    except InfeasibleBudgetError:
        return
    assert fixed.cost > graph.base_cost


@pytest.mark.long(only=("0.5-unet3", "0.5-resnet12"))
@pytest.mark.parametrize("graph", [resnet(12), unet(3), transformer(3), chain(12)], ids=lambda g: g.name)
@pytest.mark.parametrize("share", [0.7, 0.5])
def test_networks_are_solved_with_a_bound_for_any_order(graph, share):
    budget = budget_of(graph, share)
    options = SolveOptions(time_limit=4, order="free", settle=True)
    schedule = solve(graph, budget, options=options)
    assert schedule.peak_bytes <= budget
    assert graph.base_cost <= schedule.lower_bound <= schedule.cost
    assert schedule.lower_bound >= any_order_bound(graph, budget) * (1 - 1e-9)
    assert schedule.bound_order == "free"


def test_what_no_order_can_do_is_proven():
    graph = chain(6)
    least, node = proven_minimum(graph, "free")
    assert least == graph.constant_bytes + int(graph.working_set[node]) == int(graph.working_set.max())
    assert any_order_bound(graph, least - 1) == np.inf
    with pytest.raises(InfeasibleBudgetError, match="the least that any schedule") as error:
        solve(graph, least - 1, options=SolveOptions(time_limit=1, order="free"))
    assert error.value.proven


def test_variants_of_a_schedule_keep_its_order():
    graph = fork(4)
    order = [0, 4, 1, 5, 2, 6, 3, 7, 8]
    found = [Schedule(graph, sequence) for sequence in variants(graph, order, [14, 16, 20])]
    assert found
    assert all(list(dict.fromkeys(s.sequence.tolist())) == order and s.peak_bytes <= 20 for s in found)


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match='"fixed".*"free"'):
        SolveOptions(order="any")


def test_what_a_node_waits_for_comes_first():
    graph = replace(fork(2), waits=[[], [], [1], [], []])
    assert legalise(graph, [0, 2, 3, 4]) == [0, 1, 2, 3, 4]
    with pytest.raises(PlanError, match="v2 comes before a node that it waits for"):
        evaluate(graph, plan_from_sequence(graph, [0, 2, 1, 3, 4]))
    for again in (graph_from_dict(graph_to_dict(graph)), graph_from_arrays(graph_to_arrays(graph))):
        assert again.waits == graph.waits == ((), (), (1,), (), ())
    best = solve(graph, 20 + 1, options=SolveOptions(time_limit=2, gap=0.0, order="free"))
    assert best.cost == graph.base_cost
    with pytest.raises(GraphError, match="waits for one that is not before it"):
        replace(graph, waits=[[], [], [3], [], []])
    with pytest.raises(GraphError, match="waits_for"):
        graph_from_dict({**graph_to_dict(graph), "nodes": [{**graph_to_dict(graph)["nodes"][0], "waits_for": [0]}]})


def test_the_least_budget_of_branches_is_found_by_their_order():
    graph = fork(5)
    with pytest.raises(InfeasibleBudgetError) as error:
        solve(graph, 14, options=SolveOptions(time_limit=2, order="free"))
    assert error.value.minimum_bytes == 15
    assert Schedule(graph, error.value.sequence).peak_bytes == 15


def test_waits_are_of_the_same_nodes_after_ways_are_chosen():
    """Node 0 is an encoding that nobody reads. It is left out, so indices change."""
    graph = replace(fork(2), inputs=[[], [], [1], [], [2, 3]], waits=[[], [], [0, 1], [], []])
    kept = OperatorGraph(graph, {}, frozenset({0})).choose().graph
    assert kept.names == ("v1", "v2", "v3", "v4")
    assert kept.waits == ((), (0,), (), ())
