"""The systems before Checkmate (its Table 1): revolve against the binomial optimum, Chen's bounds, generalisations."""

import math
from dataclasses import replace
from functools import cache

import networkx
import numpy as np
import pytest
from bruteforce import least_cost
from graphs import chain, paper_chain, random_graphs, resnet, training, transformer, unet
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import BACKWARD, FORWARD, LOSS, Graph
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies.baselines.articulation import ap_greedy, ap_sqrt, articulation_points
from checkmate_tf.strategies.baselines.chen import by_segment_size, chen_greedy, chen_sqrt, every_root
from checkmate_tf.strategies.baselines.griewank import forward_steps, griewank, revolve, split
from checkmate_tf.strategies.baselines.keepset import droppable, forward_end, keepset_sequence
from checkmate_tf.strategies.baselines.linearized import linearized_greedy, linearized_sqrt

CHAINS = {"griewank": griewank, "chen-sqrt": chen_sqrt, "chen-greedy": chen_greedy}
GENERAL = {
    "ap-sqrt": ap_sqrt,
    "ap-greedy": ap_greedy,
    "linearized-sqrt": linearized_sqrt,
    "linearized-greedy": linearized_greedy,
}
ALL = CHAINS | GENERAL
OPTIONS = SolveOptions()


@cache
def steps_back(steps, room):
    """t(l, c) by its recurrence."""
    if steps == 1 or room == 1:
        return steps * (steps - 1) // 2
    return min(m + steps_back(steps - m, room - 1) + steps_back(m, room) for m in range(1, steps))


@st.composite
def chains(draw, most=12):
    """Chains of any costs and sizes."""
    n = draw(st.integers(1, most))
    costs = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    sizes = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    return training([[i - 1] if i else [] for i in range(n)], costs, sizes, constant_bytes=draw(st.integers(0, 5)))


# Revolve ------------------------------------------------------------------------------------------------------------


def test_the_closed_form_and_the_split_are_optimal():
    for steps in range(1, 50):
        for room in range(1, 12):
            best = steps_back(steps, room)
            assert forward_steps(steps, room) == best
            if steps > 1 and room > 1:
                m = split(steps, room)
                assert 0 < m < steps
                assert m + steps_back(steps - m, room - 1) + steps_back(m, room) == best


@pytest.mark.parametrize("layers", [1, 2, 3, 5, 8, 13, 21, 40])
def test_revolve_on_unit_chains_is_the_binomial_optimum(layers):
    for snapshots in range(layers):
        # A gradient that reads its layer's output goes back to every layer, the first of all from the input.
        graph = paper_chain(layers)
        schedule = Schedule(graph, revolve(graph, snapshots))
        assert schedule.frontier_advancing
        assert len(schedule.sequence) - (layers + 1) == steps_back(layers + 1, snapshots + 1)
        assert schedule.peak_bytes <= snapshots + 3
        # One that reads its input, too: the last step need not be gone again, and the first starts at the input.
        graph = chain(layers)
        schedule = Schedule(graph, revolve(graph, snapshots))
        assert len(schedule.sequence) - (layers + 1) == steps_back(layers, snapshots + 1) + 1
        assert schedule.peak_bytes <= snapshots + 4 + 4  # two gradients, two values, and the loss of 4 bytes


@pytest.mark.parametrize("layers", [2, 3, 4, 5])
def test_no_schedule_of_a_unit_chain_is_cheaper_in_the_same_memory(layers):
    graph = paper_chain(layers)
    for snapshots in range(layers + 1):
        schedule = Schedule(graph, revolve(graph, snapshots))
        assert schedule.cost == least_cost(graph, schedule.peak_bytes)


def test_griewank_takes_the_most_snapshots_that_fit():
    graph = paper_chain(20)
    for budget in range(3, keep_all(graph).peak_bytes):
        schedule = griewank(graph, budget, OPTIONS)
        assert len(schedule.sequence) - 21 == steps_back(21, budget - 3 + 1)
    with pytest.raises(InfeasibleBudgetError) as caught:
        griewank(graph, 2, OPTIONS)
    assert (caught.value.minimum_bytes, caught.value.proven) == (3, True)


def test_in_long_chains_the_most_snapshots_are_found_by_bisection(monkeypatch):
    graph = paper_chain(20)
    with monkeypatch.context() as patch:
        patch.setattr("checkmate_tf.strategies.baselines.griewank._MANY", 3)
        patch.setattr("checkmate_tf.strategies.baselines.griewank._LENGTH", 100)
        for budget in range(5, keep_all(graph).peak_bytes):
            schedule = griewank(graph, budget, OPTIONS)
            assert len(schedule.sequence) - 21 == steps_back(21, budget - 3 + 1)
        with pytest.raises(InfeasibleBudgetError) as caught:
            griewank(graph, 4, OPTIONS)  # 41 nodes and t(21, 2) = 75 steps are too many
        assert caught.value.minimum_bytes == 5
    assert griewank(graph, 4, OPTIONS).peak_bytes == 4


@given(chains(), st.integers(0, 12))
def test_revolve_is_valid_on_any_chain(graph, snapshots):
    schedule = Schedule(graph, revolve(graph, snapshots))
    assert schedule.frontier_advancing
    assert schedule.cost >= graph.base_cost


@given(chains(8), st.data())
def test_revolve_minds_what_must_not_be_computed_again(graph, data):
    n = len(graph)
    until = data.draw(st.lists(st.sampled_from([0, n // 2 + 1, n // 2 + 3, n]), min_size=n, max_size=n))
    graph = replace(graph, recompute_until=np.array(until))
    for snapshots in range(4):
        assert Schedule(graph, revolve(graph, snapshots)).evaluation.counts.max() <= n


# Chen ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 8, 9, 15, 16, 17, 100, 1000])
def test_chen_sqrt_keeps_its_bounds(layers):
    graph = chain(layers)
    budget = keep_all(graph).peak_bytes - 1
    try:
        schedule = chen_sqrt(graph, budget, OPTIONS)
    except InfeasibleBudgetError:
        assert layers < 9  # too short to save anything
        return
    root = math.isqrt(layers)
    # layers // root kept, a segment of at most root + 1, two gradients, the loss of 4 bytes
    assert schedule.peak_bytes <= layers // root + root + 1 + 2 + 4
    counts = schedule.evaluation.counts
    assert counts[:layers].max() <= 2 and counts[layers:].max() == 1
    assert schedule.cost <= graph.base_cost + layers


def test_every_root():
    assert every_root(range(9)) == [2, 5, 8]
    assert every_root(range(11)) == [2, 5, 8]
    assert every_root([7, 9]) == [7, 9]
    assert every_root([]) == []


def greedy_by_hand(graph, candidates, b):
    kept, total = [], 0
    for i in range(forward_end(graph)):
        if droppable(graph)[i]:
            total += int(graph.sizes[i])
            if i in candidates and total > b:
                kept.append(i)
                total = 0
    return tuple(kept)


@given(random_graphs(12, stateful=True), st.data())
def test_the_keep_sets_of_every_b_are_tried(graph, data):
    candidates = sorted(data.draw(st.sets(st.sampled_from(range(len(graph))))) & set(np.flatnonzero(droppable(graph))))
    by_hand = {greedy_by_hand(graph, candidates, b) for b in range(int(graph.sizes.sum()) + 1)}
    found = list(by_segment_size(graph, candidates))
    assert set(found) == by_hand
    assert len(found) == len(by_hand)
    assert found[-1] == ()


def test_where_there_are_too_many_segment_sizes_they_are_a_series():
    rng = np.random.default_rng(0)
    n = 6000
    graph = training([[i - 1] if i else [] for i in range(n)], [1.0] * n, rng.integers(1, 10**6, n).tolist())
    found = list(by_segment_size(graph, range(n)))
    assert 10 < len(found) <= 1000
    assert len(set(found)) == len(found)
    assert len(found[0]) > 1000
    assert found[-1] == ()


def test_greedy_is_the_cheapest_over_all_segment_sizes():
    graph = resnet(5)
    for strategy, candidates in (
        (ap_greedy, articulation_points(graph)),
        (linearized_greedy, np.flatnonzero(droppable(graph)).tolist()),
    ):
        offers = [Schedule(graph, keepset_sequence(graph, kept)) for kept in by_segment_size(graph, candidates)]
        least = min(s.peak_bytes for s in offers)
        for share in (0.0, 0.3, 0.6, 0.9):
            budget = int(least + share * (keep_all(graph).peak_bytes - least))
            best = min(s.cost for s in offers if s.peak_bytes <= budget)
            assert strategy(graph, budget, OPTIONS).cost == best
        with pytest.raises(InfeasibleBudgetError) as caught:
            strategy(graph, least - 1, OPTIONS)
        assert caught.value.minimum_bytes == least


# Generalisations ----------------------------------------------------------------------------------------------------


@given(chains(), st.floats(0.2, 0.99))
def test_generalisations_reproduce_the_originals_on_chains(graph, share):
    budget = int(share * keep_all(graph).peak_bytes)
    for original, others in ((chen_sqrt, (ap_sqrt, linearized_sqrt)), (chen_greedy, (ap_greedy, linearized_greedy))):
        found = []
        for strategy in (original, *others):
            try:
                found.append(strategy(graph, budget, OPTIONS).sequence.tolist())
            except InfeasibleBudgetError as error:
                found.append(error.minimum_bytes)
        assert found[0] == found[1] == found[2]


@given(st.data())
def test_articulation_points_are_those_of_the_undirected_graph(data):
    n = data.draw(st.integers(1, 12))  # forward nodes: one source, and all sinks are read by the loss
    reach = data.draw(st.integers(1, n))
    inputs = [sorted(data.draw(st.sets(st.integers(max(0, j - reach), j - 1), min_size=1, max_size=3))) for j in
              range(1, n)]  # fmt: skip
    sinks = [i for i in range(n) if not any(i in row for row in inputs)]
    graph = Graph(
        "random", [f"v{i}" for i in range(n + 2)], [FORWARD] * n + [LOSS, BACKWARD], np.ones(n + 2), np.ones(n + 2),
        [[], *inputs, sinks, [n]],
    )  # fmt: skip
    undirected = networkx.Graph([(i, j) for i, j in graph.edges if j <= n])
    undirected.add_edge("input", 0)
    assert articulation_points(graph) == sorted(networkx.articulation_points(undirected))


def test_articulation_points_of_networks():
    blocks = resnet(4)  # node 0, and for each block two nodes inside and the sum
    assert articulation_points(blocks) == [0, 3, 6, 9, 12]
    assert articulation_points(chain(5)) == [0, 1, 2, 3, 4]
    # The skip of the outer level leads from node 2 to 11, that of the inner from 5 to 8.
    assert articulation_points(unet(2)) == [0, 1, 2, 11, 12]


def test_what_is_kept_anyway_hides_no_articulation_point():
    inputs = [[], [0], [0, 1], [0, 2], [0, 3]]  # all read 0
    graph = training(inputs, [1.0] * 5, [1] * 5)
    assert articulation_points(graph) == [0, 4]
    seeds = replace(graph, recompute_until=np.array([0, *[len(graph)] * (len(graph) - 1)]))
    assert articulation_points(seeds) == [1, 2, 3, 4]
    mask = training([[], [0], [], [0, 1, 2], [3]], [1.0] * 5, [1] * 5)  # 2 reads nothing
    assert articulation_points(mask) == [0, 3, 4]


def test_without_articulation_points_nothing_is_dropped():
    dense = training([[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3]], [1.0] * 5, [1] * 5, constant_bytes=10)
    dense = replace(dense, inputs=[*dense.inputs[:5], [0, 4], *dense.inputs[6:]])
    assert articulation_points(dense) == [0]  # nothing comes before it
    peak = keep_all(dense).peak_bytes
    for strategy in (ap_sqrt, ap_greedy):
        assert strategy(dense, peak, OPTIONS).overhead == 0
        with pytest.raises(InfeasibleBudgetError) as caught:
            strategy(dense, peak - 1, OPTIONS)
        assert caught.value.minimum_bytes == peak


# All of them --------------------------------------------------------------------------------------------------------


def check(name, graph, budget):
    """Valid and within the budget, or a typed error that is true."""
    try:
        schedule = ALL[name](graph, budget, OPTIONS)
    except InfeasibleBudgetError as error:
        assert error.minimum_bytes > budget and error.budget_bytes == budget
        assert ALL[name](graph, error.minimum_bytes, OPTIONS).peak_bytes <= error.minimum_bytes
        return None
    except StrategyError:
        assert name in CHAINS
        return None
    assert schedule.frontier_advancing
    assert schedule.peak_bytes <= budget
    assert schedule.cost >= graph.base_cost
    assert (schedule.strategy, schedule.budget_bytes) == (name, budget)
    return schedule


@given(random_graphs(9), st.floats(0.1, 1.1))
def test_any_graph_and_budget(graph, share):
    for name in ALL:
        check(name, graph, int(share * keep_all(graph).peak_bytes))


@given(random_graphs(6))
def test_none_is_cheaper_than_the_optimum(graph):
    for budget in {max(keep_all(graph).peak_bytes - less, 1) for less in range(4)}:
        for name in ALL:
            schedule = check(name, graph, budget)
            if schedule is not None:
                assert schedule.cost >= least_cost(graph, budget) - 1e-9


@pytest.mark.parametrize("name", sorted(ALL))
@pytest.mark.parametrize("build", [lambda: resnet(8), lambda: transformer(4), lambda: unet(3), lambda: chain(40)])
def test_networks(name, build):
    graph = build()
    linear = graph.name.startswith("chain")
    peak = keep_all(graph).peak_bytes
    saved = False
    for percent in (20, 40, 60, 80, 95):
        if name in CHAINS and not linear:
            with pytest.raises(StrategyError, match=f'"{name}" serves linear networks only.*node'):
                ALL[name](graph, peak * percent // 100, OPTIONS)
            continue
        saved |= check(name, graph, peak * percent // 100) is not None
    assert saved or (name in CHAINS and not linear)
    assert ALL[name](graph, peak, OPTIONS).overhead == 0
