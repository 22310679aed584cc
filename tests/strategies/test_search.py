"""The eviction search: its schedules are valid, fit, and on tiny graphs are nearly always the best."""

import threading

import numpy as np
import pytest
from bruteforce import least_cost
from cases import program_of_case
from graphs import any_graphs, chain, random_graphs, resnet, training, transformer, unet
from hypothesis import given, settings
from hypothesis import strategies as st
from recomputations import with_recomputations

from checkmate_tf.graph import BACKWARD, Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import Schedule
from checkmate_tf.strategies.ordering.links import links
from checkmate_tf.strategies.search import simulate as simulation
from checkmate_tf.strategies.search.arrays import flatten, last_needs, pinned_bytes
from checkmate_tf.strategies.search.measured import refill
from checkmate_tf.strategies.search.minimum_budget import proven_minimum, tightest
from checkmate_tf.strategies.search.search import search
from checkmate_tf.strategies.search.sequences.exchange import exchange, turned
from checkmate_tf.strategies.search.sequences.keep_where_room import keep_where_room
from checkmate_tf.strategies.search.simulate import buffers, simulate
from checkmate_tf.strategies.search.walk import _ALPHAS, KeepSet, Walk


def run(graph: Graph, budget: int, looks: int = 12, seed: int = 0) -> np.ndarray | None:
    """The last improvement within `looks` results of the search."""
    best = None
    for count, sequence in enumerate(search(graph, budget, seed)):
        best = sequence if sequence is not None else best
        if count >= looks:
            break
    return best


def peak(graph: Graph) -> int:
    return evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes


def play(graph: Graph, room: int, alpha: float = 1.0, **options: object) -> tuple[np.ndarray, int]:
    """One simulation with weights 0: its sequence and the stage it reached."""
    n = len(graph)
    sequence, evictions = np.zeros(64 * n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    _, length, stage = simulate(
        flatten(graph, **options), room, np.zeros((1, n)), np.zeros(n, dtype=np.int64), alpha, 0.0, 1e299,
        buffers(n), sequence, evictions,
    )  # fmt: skip
    return sequence[: max(length, 0)], stage


def test_a_simulation_that_looks_at_too_many_values_gives_up(monkeypatch):
    graph = resnet(4)
    n, room = len(graph), int(0.8 * (peak(graph) - graph.constant_bytes))
    problem, weights, phase = flatten(graph), np.zeros((1, n)), np.zeros(n, dtype=np.int64)
    written = getattr(simulate, "py_func", simulate)  # its constants are those of the module, and not compiled
    outcomes = []
    for looks in (10**9, 5):
        monkeypatch.setattr(simulation, "_LOOKS", looks)
        sequence, evictions = np.zeros(64 * n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        outcomes.append(written(problem, room, weights, phase, 1.0, 0.0, 1e299, buffers(n), sequence, evictions))
    (extra, length, stage), (given_up, so_far, reached) = outcomes
    assert stage == n and 0 < extra < 1e299 and length > n
    assert given_up >= 1e299 and reached < n and 0 <= so_far < length


@settings(max_examples=60, deadline=None)
@given(random_graphs(9), st.floats(0.3, 1.0), st.sampled_from([0.0, 1.0, 4.0]), st.booleans())
def test_a_simulation_that_ends_is_a_schedule_within_the_budget(graph, share, alpha, backward):
    budget = graph.constant_bytes + int(share * (peak(graph) - graph.constant_bytes))
    sequence, stage = play(graph, budget - graph.constant_bytes, alpha, recompute_backward=backward)
    if stage == len(graph):
        assert Schedule(graph, sequence).peak_bytes <= budget
        shorter = keep_where_room(flatten(graph), budget - graph.constant_bytes, sequence)
        schedule = Schedule(graph, shorter)
        assert schedule.peak_bytes <= budget
        assert schedule.cost <= graph.costs[sequence].sum()


@pytest.mark.long(only=("30",))
@pytest.mark.parametrize("graphs", [10, 30])
def test_the_search_is_nearly_always_optimal_on_tiny_graphs(graphs):
    rng = np.random.default_rng(graphs)
    solved = matched = 0
    for _ in range(graphs):
        graph = random_training(rng)
        for budget in range(peak(graph) - 1, 0, -1):
            optimum = least_cost(graph, budget)
            if optimum == float("inf"):
                break
            solved += 1
            sequence = run(graph, budget, 8)
            if sequence is None:
                continue
            cost = evaluate(graph, plan_from_sequence(graph, sequence)).cost
            assert cost >= optimum - 1e-9
            matched += cost <= optimum + 1e-9
    assert solved >= graphs
    assert matched >= 0.95 * solved


def random_training(rng: np.random.Generator) -> Graph:
    n = int(rng.integers(3, 5))
    inputs = [[] if i == 0 else sorted({i - 1, int(rng.integers(i))}) for i in range(n)]
    return training(inputs, rng.integers(1, 6, n).tolist(), rng.integers(1, 6, n).tolist())


@settings(max_examples=25, deadline=None)
@given(random_graphs(6), st.floats(0.5, 1.0))
def test_what_is_found_is_never_better_than_the_best(graph, share):
    budget = graph.constant_bytes + int(share * (peak(graph) - graph.constant_bytes))
    optimum = least_cost(graph, budget)
    sequence = run(graph, budget, 2)
    if sequence is not None:
        found = evaluate(graph, plan_from_sequence(graph, sequence))
        assert found.peak_bytes <= budget
        assert found.cost >= optimum - 1e-9
    if budget < graph.constant_bytes + pinned_bytes(graph).max():
        assert optimum == float("inf")


@pytest.mark.parametrize("graph", [resnet(12), transformer(3), unet(3)], ids=lambda g: g.name)
def test_networks_at_60_percent(graph):
    budget = int(0.6 * peak(graph))
    sequence = run(graph, budget, 6)
    assert sequence is not None
    schedule = Schedule(graph, sequence)
    assert schedule.peak_bytes <= budget
    assert 0 < schedule.overhead < 0.25
    counts = schedule.evaluation.counts
    assert (counts[graph.kinds == BACKWARD] == 1).all()


def test_a_unit_chain_by_hand():
    # Four layers, a loss of 4 bytes and gradients: with everything kept g3 holds f0..f3, the loss and itself.
    graph = chain(4)
    assert peak(graph) == 3 + 1 + 4 + 1
    sequence = run(graph, 8, 3)
    assert sequence is not None
    # One of the inner layers is computed twice: the least there is.
    assert evaluate(graph, plan_from_sequence(graph, sequence)).cost == graph.base_cost + 1 == least_cost(graph, 8)


def test_stateful_nodes_run_once():
    until = np.full(13, 13)
    until[[1, 3]] = 0
    graph = chain(6, recompute_until=until)
    low = int(pinned_bytes(graph).max())
    for budget in range(low, peak(graph)):
        sequence = run(graph, budget, 3)
        if sequence is not None:
            counts = evaluate(graph, plan_from_sequence(graph, sequence)).counts
            assert counts[1] == counts[3] == 1


def test_a_value_is_not_recomputed_too_late():
    # f1 may be computed again in stages below 8 only, and g1 (stage 11) reads it.
    until = np.full(13, 13)
    until[1] = 8
    graph = chain(6, recompute_until=until)
    for budget in range(8, peak(graph)):
        sequence = run(graph, budget, 3)
        if sequence is not None:
            evaluate(graph, plan_from_sequence(graph, sequence))  # raises PlanError if too late


def test_workspace_counts_while_a_node_runs():
    graph = chain(4, workspace=[0, 0, 0, 0, 3, 0, 0, 0, 0])
    assert peak(graph) == 4 + 4 + 3
    sequence = run(graph, 10, 3)
    assert sequence is not None
    assert evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes <= 10


def test_last_needs_and_pinned_bytes_by_hand():
    graph = chain(2, recompute_until=[0, 5, 5, 0, 0])  # f0 f1 loss g1 g0
    assert last_needs(graph).tolist() == [4, 3, 3, 4, 5]
    # f0 is pinned from 1 to its last use by g0; at g1 (stage 3) it is an input already.
    assert pinned_bytes(graph).tolist() == [1, 2, 1 + 4 + 1, 1 + 1 + 4 + 1, 1 + 1 + 1]


def test_keep_sets_are_taken_as_starts():
    graph = resnet(12)
    budget = int(0.5 * peak(graph))
    given_sets = [KeepSet(np.array([40]), np.ones((1, len(graph))))]

    def take():
        taken = list(given_sets)
        given_sets.clear()
        return taken

    for count, _ in enumerate(search(graph, budget, 0, take)):
        if not given_sets or count > 300:
            break
    assert not given_sets


def test_the_same_seed_gives_the_same_start(monkeypatch):
    monkeypatch.setattr(
        "checkmate_tf.strategies.search.walk.SLICE", 60.0
    )  # seconds: a slow machine does not cut it short
    graph = resnet(12)
    first, second = (next(iter(search(graph, int(0.5 * peak(graph)), 3, walks=1))) for _ in range(2))
    assert first is not None
    assert np.array_equal(first, second)


def our_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("checkmate_tf walk")]


def have_ended(threads):
    """Whether all end; on a busy machine, where they have little of a core, some time after they were told to."""
    for thread in threads:
        thread.join(60.0)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("graph", [resnet(12), unet(3)], ids=["ResNet", "U-Net"])
@pytest.mark.parametrize("free", [False, True])
def test_several_walks_are_one_search(graph, free):
    budget = int(0.6 * peak(graph))
    walks = search(graph, budget, free=free, walks=4)
    costs = []
    for _ in range(30):
        sequence = next(walks)
        if sequence is not None:
            found = evaluate(graph, plan_from_sequence(graph, sequence))
            assert found.peak_bytes <= budget
            costs.append(found.cost)
    assert costs == sorted(costs, reverse=True)
    assert len(costs) == len(set(costs)) > 0
    threads = our_threads()
    assert len(threads) == 3
    walks.close()
    assert have_ended(threads)


def test_each_walk_takes_its_own_course(monkeypatch):
    """They share what does not change, and nothing else."""
    graph = resnet(6)
    own = Walk(graph, int(0.5 * peak(graph)) - graph.constant_bytes, 0, free=True)
    other = own.another(1, 1)
    assert other.problem.inputs is own.problem.inputs
    mine = [*own.scratch, own.sequence, own.found, own.evictions, own.problem.order, own.spare.order, own.problem.uses]
    theirs = [*other.scratch, other.sequence, other.found, other.evictions, other.problem.order, other.spare.order]
    assert not any(np.shares_memory(a, b) for a in mine for b in [*theirs, other.problem.uses])
    assert other.refiner is not own.refiner
    monkeypatch.setattr("checkmate_tf.strategies.search.walk.SLICE", 0.01)
    for _ in zip(range(20), own.run(list), strict=False):
        pass
    assert other.refiner.best == np.inf
    assert np.array_equal(other.problem.order, np.arange(len(graph)))


def test_what_goes_wrong_in_a_thread_is_told(monkeypatch):
    run = Walk.run

    def broken(self, keep_sets):
        if threading.current_thread() is not threading.main_thread():
            raise ZeroDivisionError("in a thread")
        return run(self, keep_sets)

    monkeypatch.setattr(Walk, "run", broken)
    graph = resnet(6)
    with pytest.raises(ZeroDivisionError, match="in a thread"):
        for _ in zip(range(1000), search(graph, int(0.5 * peak(graph)), walks=3), strict=False):
            pass
    assert have_ended(our_threads())


def test_one_walk_needs_no_thread():
    walks = search(resnet(6), int(0.5 * peak(resnet(6))), walks=1)
    next(walks)
    assert not our_threads()


def test_it_comes_back_when_no_other_exponent_fits(monkeypatch):
    graph = resnet(6)
    walk = Walk(graph, int(0.6 * peak(graph)), 0)
    play, alphas, refused = walk._play, set(_ALPHAS), 0

    def refuse_others(state):
        nonlocal refused
        if state.alpha in alphas and state.phase.max() == 0:
            return play(state)
        refused += 1
        assert refused < 1000, "it never comes back"
        return -1

    monkeypatch.setattr(walk, "_play", refuse_others)
    for _ in walk.run(list):
        if refused:
            return


@settings(max_examples=80, deadline=None)
@given(any_graphs(), st.sampled_from([0.0, 0.5]), st.integers(0, 100))
def test_exchanges_keep_to_the_budget_and_cost_no_more(graph, turns, seed):
    sequence = with_recomputations(graph, seed)
    budget = Schedule(graph, sequence).peak_bytes
    heat = 0.1 * graph.base_cost + 1e-9
    room = budget - graph.constant_bytes
    found = exchange(flatten(graph), links(graph), turns, room, sequence, 200, heat, 0.01 * heat, seed)
    schedule = Schedule(graph, found)
    assert schedule.peak_bytes <= budget
    assert schedule.cost <= graph.costs[sequence].sum() + 1e-9
    if not turns:
        assert list(dict.fromkeys(found.tolist())) == list(dict.fromkeys(sequence.tolist()))


def test_exchanges_make_plain_simulations_better_but_no_better_than_the_best():
    rng, better = np.random.default_rng(5), 0
    for _ in range(30):
        graph = random_training(rng)
        for budget in range(peak(graph) - 1, 0, -1):
            sequence, stage = play(graph, budget - graph.constant_bytes)
            if stage < len(graph):
                break
            args = (flatten(graph), links(graph), 0.0, budget - graph.constant_bytes, sequence)
            found = exchange(*args, 2000, 0.1 * graph.base_cost, 0.001 * graph.base_cost, 0)
            least, cost = least_cost(graph, budget), graph.costs[found].sum()
            assert least - 1e-9 <= cost <= graph.costs[sequence].sum() + 1e-9
            better += cost < graph.costs[sequence].sum() - 1e-9
    assert better


def test_where_nothing_costs_anything_there_is_nothing_to_exchange():
    graph = training([[], [0], [1], [2]], [0, 0, 0, 0], [4, 1, 3, 2])
    assert graph.base_cost == 0 and run(graph, peak(graph), 8) is not None


@settings(max_examples=60, deadline=None)
@given(any_graphs(), st.integers(0, 100))
def test_a_part_that_is_turned_round_leaves_a_legal_order_of_the_same_computations(graph, seed):
    sequence = with_recomputations(graph, seed)
    other = turned(flatten(graph), links(graph), sequence, seed)
    evaluate(graph, plan_from_sequence(graph, other))
    assert sorted(other.tolist()) == sorted(sequence.tolist())


def test_parts_of_a_graph_with_branches_can_be_turned_round():
    graph = training([[], [0], [0], [0], [1, 2, 3]], [1] * 5, [1] * 5)
    sequence = np.arange(len(graph))
    changed = [not np.array_equal(turned(flatten(graph), links(graph), sequence, k), sequence) for k in range(40)]
    assert sum(changed) > 10


@settings(max_examples=40, deadline=None)
@given(any_graphs(), st.integers(0, 100), st.floats(0.3, 1.2))
def test_what_fits_without_a_recomputation_does_without(graph, seed, more):
    sequence = with_recomputations(graph, seed)
    asked = []

    def fits(other):
        asked.append(other.tobytes())
        return evaluate(graph, plan_from_sequence(graph, other)).peak_bytes <= more * peak(graph)

    found = refill(graph, sequence, fits, 10.0)
    assert graph.costs[found].sum() <= graph.costs[sequence].sum()
    assert len(asked) <= len(sequence) - len(graph)  # each recomputation is tried once
    assert np.array_equal(found, sequence) or fits(found)
    if more > 1:
        assert len(found) == len(graph)


@pytest.mark.long
def test_very_small_budgets_of_a_traced_network_are_met():
    """Here gradients have to be computed again, which only the last recipe allows."""
    graph = program_of_case("transformer").graph
    low = proven_minimum(graph)[0]
    assert tightest(graph, low, 12.0)[0] <= 1.27 * low
