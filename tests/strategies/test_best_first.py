"""Best-first search, in the graph's order and in any: the optimum of brute force, and bounds that hold on the way."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from bruteforce import least_cost, least_free_cost
from graphs import chain, tiny_graph, transformer

from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.graph import FORWARD, Graph
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.ordering import best_first
from checkmate_tf.strategies.ordering.best_first import BestFirst
from checkmate_tf.strategies.ordering.states import LARGEST
from checkmate_tf.strategies.search.minimum_budget import proven_minimum


def a_budget(graph: Graph, rng: np.random.Generator) -> int:
    least, plain = proven_minimum(graph, "free")[0], keep_all(graph).peak_bytes
    return int(rng.integers(least, max(least, plain - 1) + 1))


@pytest.mark.long(but=("0-fixed", "0-free"))
@pytest.mark.parametrize("order", ["fixed", "free"])
@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_optimum_of_brute_force(seed, order):
    rng, dearer, impossible = np.random.default_rng(seed), 0, 0
    least = least_cost if order == "fixed" else least_free_cost
    for _ in range(200):
        graph = tiny_graph(rng)
        budget = a_budget(graph, rng)
        optimum, search = least(graph, budget), BestFirst(graph, budget, order)
        search.explore(60.0)
        assert search.ended
        assert search.bound == pytest.approx(optimum)
        if optimum == np.inf:
            impossible += 1
            assert search.sequence is None
            continue
        assert search.sequence is not None
        found = Schedule(graph, search.sequence)
        assert found.peak_bytes <= budget
        assert found.cost == pytest.approx(optimum)
        if order == "fixed":
            assert list(dict.fromkeys(search.sequence.tolist())) == list(range(len(graph)))
        dearer += optimum > graph.base_cost
    assert dearer > 10
    assert impossible > 2


def test_what_costs_as_much_as_a_known_schedule_is_not_looked_for():
    graph, budget = chain(12), keep_all(chain(12)).peak_bytes * 7 // 10
    optimum = solve(graph, budget, options=SolveOptions(time_limit=20, gap=0.0, order="free"))
    assert optimum.status == "optimal"
    assert optimum.solver.startswith("best-first")
    search = BestFirst(graph, budget)
    search.explore(60.0, known=optimum.cost)
    assert (search.ended, search.sequence, search.bound) == (True, None, optimum.cost)


def test_its_bound_holds_where_it_has_no_room_to_end(monkeypatch):
    graph = transformer(1)
    budget = keep_all(graph).peak_bytes * 7 // 10
    bounds = []
    for most in (10, 200, 2000):
        monkeypatch.setattr(best_first, "_STATES", most)
        search = BestFirst(graph, budget)
        search.explore(60.0)
        assert search.ended
        assert search.sequence is None
        bounds.append(search.bound)
    assert graph.base_cost < bounds[0] <= bounds[1] <= bounds[2]
    monkeypatch.undo()
    schedule = solve(graph, budget, options=SolveOptions(time_limit=60, gap=0.0, order="free"))
    assert bounds[2] <= schedule.lower_bound <= schedule.cost


@pytest.mark.long
def test_small_graphs_are_solved_or_refused_with_proof():
    rng, optimal, refused = np.random.default_rng(5), 0, 0
    for _ in range(20):
        graph = tiny_graph(rng)
        budget = a_budget(graph, rng)
        optimum = least_free_cost(graph, budget)
        try:
            schedule = solve(graph, budget, options=SolveOptions(time_limit=60, gap=0.0, order="free"))
        except InfeasibleBudgetError as error:
            refused += 1
            assert error.proven
            assert optimum == np.inf
            continue
        optimal += 1
        assert schedule.status == "optimal"
        assert schedule.cost == pytest.approx(optimum)
    assert min(optimal, refused) >= 1


def test_it_takes_as_many_nodes_as_an_integer_has_bits():
    graph = Graph(
        "row", [f"v{i}" for i in range(LARGEST)], np.full(LARGEST, FORWARD), np.ones(LARGEST),
        np.ones(LARGEST), [[i - 1] if i else [] for i in range(LARGEST)],
    )  # fmt: skip
    search = BestFirst(graph, 2)
    search.explore(60.0)
    assert search.sequence.tolist() == list(range(LARGEST))
    with pytest.raises(ValueError, match="62 at most"):
        BestFirst(chain(40), 10)


def test_limits_to_recomputation_may_lie_past_the_last_node():
    """As for `plan.evaluate`: such nodes may be computed again to the end."""
    graph = Graph(
        "late", ["early", "wide"], np.full(2, FORWARD), np.ones(2), [6, 7], [[], []], waits=[[], [0]],
        recompute_until=[100, 100], workspace=[0, 0],
    )  # fmt: skip
    search = BestFirst(graph, 13)
    search.explore(60.0)
    assert search.bound == least_free_cost(graph, 13) == 2.0


def two_bottlenecks(count: int) -> Graph:
    """Of `count` equal values half have to go for one node, and nearly all for another: C(count, count / 2) sets do."""
    first, middle = 0, count + 1
    values = list(range(1, count + 1))
    inputs = [[], *[[first]] * count, [first], [middle], [*values, middle + 1], [middle + 2], [middle + 3]]
    inputs.append([first, middle + 4])
    sizes = np.zeros(len(inputs), dtype=np.int64)
    sizes[[first, middle, middle + 3]], sizes[values] = (1, count + 1, 2 * count + 1), 2
    costs = np.ones(len(inputs))
    costs[first] = 100
    waits: list[Sequence[int]] = [()] * len(inputs)
    waits[middle] = values
    return Graph("two", [f"v{i}" for i in range(len(inputs))], np.zeros(len(inputs)), costs, sizes, inputs, waits=waits)


@pytest.mark.long(only=("free",))
@pytest.mark.parametrize("order", ["fixed", "free"])
def test_a_state_with_too_many_after_it_ends_the_search(order, monkeypatch):
    """It would go on for hours, in compiled code that neither looks at the clock nor at Ctrl-C."""
    graph = two_bottlenecks(40)
    search = BestFirst(graph, 81, order)
    search.explore(60.0)
    assert search.ended and search.sequence is None
    assert search.bound <= solve(graph, 81, options=SolveOptions(time_limit=3, order=order)).cost + 1e-9
    tried = []
    real = best_first.explore

    def explored(steps, tree, room, count, known):
        found = real(steps, tree, room, count, known)
        tried.append(found[-1])
        return found

    monkeypatch.setattr(best_first, "explore", explored)
    BestFirst(graph, 81, order).explore(60.0)
    assert max(tried) <= 3 * best_first._SETS


@pytest.mark.parametrize("until", [0, -1])
def test_what_cannot_be_computed_again_may_say_so_with_any_number_below_one(until):
    graph = chain(6)
    until = np.where(np.arange(len(graph)) % 3 == 0, until, graph.recompute_until)
    graph = replace(graph, recompute_until=until)
    low, high = proven_minimum(graph, "free")[0], keep_all(graph).peak_bytes
    for budget in range(low, high + 1):
        search = BestFirst(graph, budget, "fixed")
        search.explore(60.0)
        assert search.bound == pytest.approx(least_cost(graph, budget))


def test_where_it_gives_up_at_once_the_search_begins():
    """It has ended without an answer then, and a schedule is owed that is better than that of least memory."""
    graph = two_bottlenecks(40)
    schedule = solve(graph, 90, options=SolveOptions(time_limit=0.2))
    assert "eviction" in schedule.solver
    assert schedule.cost < 200
