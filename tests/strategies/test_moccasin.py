"""Retention intervals have the optimum of brute force, in the graph's order and in any; the strategies keep budgets."""

import contextlib
import heapq
import logging
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from bruteforce import least_staged_cost
from graphs import chain, random_graphs, result_in_the_way, training, unet
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import MoccasinOptions, SolveOptions, checkmate  # noqa: F401 - its module is patched
from checkmate_tf.strategies.moccasin import improver
from checkmate_tf.strategies.moccasin.moccasin import improve, moccasin, moccasin_free
from checkmate_tf.strategies.moccasin.retention import Retention
from checkmate_tf.strategies.orders import legalise
from checkmate_tf.strategies.search.arrays import last_needs
from checkmate_tf.strategies.search.minimum_budget import proven_minimum

PATIENT = SolveOptions(time_limit=600, gap=0.0)
ONE_WORKER = MoccasinOptions(workers=1)
"""For what takes seconds, however busy the machine is."""


@st.composite
def full_graphs(draw, max_nodes):
    """Random graphs with workspace of either sign, held inputs and nodes that run once."""
    graph = draw(random_graphs(max_nodes))
    n = len(graph)
    column = lambda low, high: np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))  # noqa: E731
    return replace(graph, workspace=np.maximum(column(-3, 2), -graph.sizes), held=column(0, 3))


def solved(program, **parameters):
    """Objective and sequence; infinite and None if there is no solution."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = 300
    for key, value in parameters.items():
        setattr(solver.parameters, key, value)
    status = solver.solve(program.model)
    if status == cp_model.INFEASIBLE:
        return float("inf"), None
    assert status == cp_model.OPTIMAL
    return solver.objective_value, program.sequence(solver.value)


def optimum(graph, budget, copies, **settings):
    """Least cost of the model, whose sequence is as the model says."""
    program = Retention(graph, budget, copies, **settings)
    objective, sequence = solved(program)
    if sequence is None:
        return float("inf")
    assert legalise(graph, sequence) == sequence
    found = evaluate(graph, plan_from_sequence(graph, sequence))
    assert found.peak_bytes <= budget
    assert found.cost == pytest.approx(program.cost(objective))
    assert (found.counts <= copies).all()
    return found.cost


def least_free_cost(graph, budget_bytes):
    """Dijkstra over (nodes computed so far, values in memory): the least cost in any legal order."""
    n, room, until = len(graph), budget_bytes - graph.constant_bytes, graph.recompute_until
    own = [{i for i in graph.inputs[k] if graph.users[i] == (k,)} for k in range(n)]
    before = [{i for i in range(k) if until[i] <= k} if until[k] == 0 else set() for k in range(n)]
    sinks = {i for i in range(n) if not graph.users[i]}
    start = (frozenset(), frozenset())
    costs, heap, pushed = {start: 0.0}, [(0.0, 0, start)], 0
    while heap:
        cost, _, state = heapq.heappop(heap)
        done, memory = state
        if cost > costs[state]:
            continue
        if len(done) == n and sinks <= memory:
            return cost
        moves = [(done, memory - {i}, cost) for i in memory]
        stage = min(set(range(n)) - done, default=n)
        for k in set(range(n)) - memory:
            if not memory >= set(graph.inputs[k]) or (k in done and stage >= until[k]) or not before[k] <= done:
                continue
            needs = sum(int(graph.sizes[i]) for i in memory) + int(graph.sizes[k] + graph.workspace[k])
            total = cost + float(graph.costs[k])
            if needs <= room:
                moves.append((done | {k}, memory - own[k] | {k}, total))
            if needs + graph.held[k] <= room:
                moves.append((done | {k}, memory | {k}, total))
        for *after, total in moves:
            if total < costs.get(tuple(after), float("inf")):
                costs[tuple(after)] = total
                pushed += 1
                heapq.heappush(heap, (total, pushed, tuple(after)))
    return float("inf")


# -- the model ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(full_graphs(6), st.integers(0, 6))
def test_the_optimum_in_the_order_of_the_graph(graph, cut):
    budget = keep_all(graph).peak_bytes - cut
    assume(budget > graph.constant_bytes)
    n = len(graph)
    assert optimum(graph, budget, [n] * n) == least_staged_cost(graph, budget)


@settings(max_examples=25, deadline=None)
@given(full_graphs(5), st.integers(0, 5))
def test_the_optimum_in_any_order(graph, cut):
    budget = keep_all(graph).peak_bytes - cut
    assume(budget > graph.constant_bytes)
    assert optimum(graph, budget, [4] * len(graph), free=True) == least_free_cost(graph, budget)


@settings(max_examples=15, deadline=None)
@given(random_graphs(6), st.integers(1, 4))
def test_the_first_phase_ends_at_the_budget_or_the_least_peak(graph, cut):
    plain = keep_all(graph).peak_bytes
    budget = plain - cut
    assume(budget > graph.constant_bytes)
    program = Retention(graph, budget, [len(graph)] * len(graph), phase=1)
    objective, sequence = solved(program)
    least = next(b for b in range(budget, plain + 1) if least_staged_cost(graph, b) < float("inf"))
    assert objective == (least - graph.constant_bytes) // program.unit
    assert evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes <= least


@st.composite
def sequences(draw, graph, free):
    """Legal orders with recomputations: any, or in stages."""
    n, last = len(graph), last_needs(graph)
    if free:
        return legalise(graph, draw(st.lists(st.integers(0, n - 1), max_size=2 * n)))
    found = []
    for t in range(n):
        again = [k for k in range(t) if t < graph.recompute_until[k] and t <= last[k]]
        found += [k for k in again if draw(st.integers(0, 2)) == 0] + [t]
    return found


@settings(max_examples=30, deadline=None)
@given(full_graphs(7), st.booleans(), st.data())
def test_any_sequence_is_a_solution_within_its_peak_and_not_below(graph, free, data):
    sequence = data.draw(sequences(graph, free))
    found = evaluate(graph, plan_from_sequence(graph, sequence))
    for budget in (found.peak_bytes, found.peak_bytes - 1):
        assume(budget > graph.constant_bytes)
        program = Retention(graph, budget, found.counts, free=free)
        program.hint(sequence)
        objective, again = solved(program, fix_variables_to_their_hinted_value=True)
        if budget < found.peak_bytes:
            assert again is None
        else:
            assert again == sequence
            assert program.cost(objective) == pytest.approx(found.cost)


def test_copies_limit_each_node():
    graph = chain(3)
    budget, n = keep_all(graph).peak_bytes - 1, len(graph)
    tight = least_staged_cost(graph, budget)
    assert graph.base_cost < tight < float("inf")
    assert optimum(graph, budget, [3] * n) == tight
    assert optimum(graph, budget, [1] * n) == float("inf")
    assert optimum(graph, budget + 1, [1] * n) == graph.base_cost
    assert optimum(graph, budget, [2, *[1] * (n - 1)]) == tight  # f0 once more is enough
    assert optimum(graph, budget, [1, *[2] * (n - 1)]) > tight


def test_a_free_order_can_save_what_no_recomputation_does():
    graph = Graph("two", ["a", "b", "c", "d"], [0] * 4, [1.0] * 4, [5, 5, 1, 1], [[], [], [0], [1]])
    budget = 7  # a, c, b, d: 6, 6, then 1 + 5 + 1
    assert optimum(graph, budget, [2] * 4, free=True) == 4
    assert optimum(graph, budget, [4] * 4) == least_staged_cost(graph, budget) > 4


def test_large_odd_sizes_fit_really():
    sizes = [(1 << 45) + 3, (1 << 44) + 1, (1 << 45) + 7, 5]
    graph = training([[i - 1] if i else [] for i in range(4)], [1.5, 0.25, 1.0, 2.0], sizes, constant_bytes=11)
    budget = int(0.9 * keep_all(graph).peak_bytes)
    found = optimum(graph, budget, [3] * len(graph))
    assert found == pytest.approx(least_staged_cost(graph, budget))


# -- the strategies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [moccasin, moccasin_free])
def test_two_phases_in_a_child_process(strategy):
    graph = training([[], [0], [1], [2, 0]], [1.0, 2.0, 3.0, 1.0], [4, 2, 3, 2], constant_bytes=5)
    budget = keep_all(graph).peak_bytes - 2
    calls = []
    options = replace(PATIENT, moccasin=ONE_WORKER, progress=lambda *call: calls.append(call))
    schedule = strategy(graph, budget, options)
    assert schedule.peak_bytes <= budget
    assert (schedule.budget_bytes, schedule.lower_bound, schedule.status) == (budget, 0.0, "feasible")
    assert schedule.strategy == strategy.__name__.replace("_", "-")
    assert schedule.solver == "CP-SAT, optimal for its C"
    if strategy is moccasin:
        assert schedule.cost == least_staged_cost(graph, budget)
    assert calls[-1][1] == schedule.cost == pytest.approx(calls[-1][2])
    assert all(cost >= schedule.cost >= bound and 0 <= gap <= 1 for _, cost, bound, gap in calls)
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)


def test_a_network_within_its_budget():
    graph = unet(2)
    budget = int(0.8 * keep_all(graph).peak_bytes)
    schedule = moccasin(graph, budget, replace(PATIENT, gap=0.05))
    assert schedule.peak_bytes <= budget
    assert schedule.frontier_advancing
    assert schedule.evaluation.counts.max() == 2


@pytest.mark.long(but=("moccasin_free-1",))
@pytest.mark.parametrize(("strategy", "below"), [(moccasin, 1), (moccasin, 50), (moccasin_free, 1)])
def test_a_budget_that_is_too_small_names_the_least_peak(strategy, below):
    graph = chain(3, constant_bytes=100)
    low = proven_minimum(graph)[0]
    with pytest.raises(InfeasibleBudgetError) as caught:
        strategy(graph, low - below, replace(PATIENT, moccasin=ONE_WORKER))
    assert caught.value.proven
    assert low <= caught.value.minimum_bytes <= keep_all(graph).peak_bytes
    schedule = strategy(graph, caught.value.minimum_bytes, replace(PATIENT, gap=1.0, moccasin=ONE_WORKER))
    assert schedule.peak_bytes <= caught.value.minimum_bytes


def test_what_its_number_of_copies_rules_out_is_not_called_proven():
    graph = chain(4)
    plain = keep_all(graph).peak_bytes
    with pytest.raises(InfeasibleBudgetError, match="one may exist") as caught:
        moccasin(graph, plain - 1, replace(PATIENT, moccasin=MoccasinOptions(1, workers=1)))
    assert (caught.value.proven, caught.value.minimum_bytes) == (False, plain)


def test_what_another_order_may_do_with_is_not_called_proven():
    options = replace(PATIENT, moccasin=ONE_WORKER)
    assert moccasin_free(result_in_the_way(), 6, options).peak_bytes == 6
    with pytest.raises(InfeasibleBudgetError, match="though one may exist") as caught:
        moccasin_free(result_in_the_way(), 5, options)
    assert (caught.value.proven, caught.value.bound_order) == (False, "free")
    with pytest.raises(InfeasibleBudgetError) as caught:
        moccasin(result_in_the_way(), 6, options)
    assert (caught.value.proven, caught.value.bound_order) == (True, "fixed")


def test_copies_are_one_number_or_one_for_each_node():
    graph = chain(4)
    budget = keep_all(graph).peak_bytes - 1
    with pytest.raises(StrategyError, match="2 numbers for"):
        moccasin(graph, budget, replace(PATIENT, moccasin=MoccasinOptions((1, 2), workers=1)))
    most = [1, *[3] * (len(graph) - 1)]
    schedule = moccasin(graph, budget, replace(PATIENT, moccasin=MoccasinOptions(most, workers=1)))
    assert (schedule.evaluation.counts <= most).all() and schedule.peak_bytes <= budget
    for wrong in ({"copies": 0}, {"copies": (1, 0)}, {"workers": -1}):
        with pytest.raises(ValueError, match="copies|workers"):
            MoccasinOptions(**wrong)


def test_only_cp_sat_serves():
    graph = chain(4)
    with pytest.raises(StrategyError, match="'moccasin' is a constraint program.*not 'highs'"):
        moccasin(graph, 8, SolveOptions(solver="highs"))


def test_a_known_schedule_is_improved_without_the_first_phase():
    graph, budget, poor = with_poor_schedule()
    with improve(graph, budget, poor, PATIENT.time_limit, PATIENT) as process:
        news = []
        while process.running:
            news += process.news(0.5)
        news += process.news()
    assert {message["phase"] for message in news} == {2}
    sequences = [message["sequence"] for message in news if "sequence" in message]
    costs = [evaluate(graph, plan_from_sequence(graph, sequence)).cost for sequence in sequences]
    assert all(cost <= graph.costs[poor].sum() for cost in costs)
    assert costs[-1] == least_staged_cost(graph, budget) < graph.costs[poor].sum()
    assert all(keeps(graph, sequence, budget) for sequence in sequences)


@pytest.mark.parametrize("late", [False, True])
def test_the_default_strategy_improves_what_its_search_finds_in_a_graph_without_a_backward_pass(monkeypatch, late):
    """CP-SAT starts from the first schedule; from nothing if there is none soon, and anew once there is one."""
    graph, budget, poor = with_poor_schedule()
    module = sys.modules["checkmate_tf.strategies.checkmate"]
    calls = []

    def search(*_):
        if late:
            yield None
        yield np.array(poor)
        while not calls or calls[-1][1] == graph.costs[poor].sum():
            time.sleep(0.05)
            yield None

    monkeypatch.setattr(module, "search", search)
    monkeypatch.setattr(module, "BoundProcess", Silent)
    monkeypatch.setattr(module, "_FIRST", 0.0)
    monkeypatch.setattr(module, "LARGEST", 0)  # or best-first search has the optimum before anything begins
    monkeypatch.setattr(improver, "_HANDOVER", 0.0 if late else np.inf)
    options = replace(PATIENT, progress=lambda *call: calls.append(call))
    schedule = module.checkmate(graph, budget, options)
    assert schedule.cost < graph.costs[poor].sum()
    assert schedule.peak_bytes <= budget
    assert "CP-SAT" in schedule.solver


def with_poor_schedule():
    """A graph without a backward pass, a budget, and a schedule that recomputes too much."""
    inputs = [[], [0], [1], [2], [3, 0], [4, 1], [5, 2]]
    graph = Graph("late", list("abcdefg"), [0] * 7, [2, 9, 3, 1, 1, 1, 1], [4, 4, 4, 4, 1, 1, 1], inputs)
    poor = [0, 1, 2, 3, 0, 4, 0, 1, 5, 0, 1, 2, 6]
    budget = evaluate(graph, plan_from_sequence(graph, poor)).peak_bytes
    return graph, budget, poor


def keeps(graph, sequence, budget):
    return evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes <= budget


class Silent(contextlib.nullcontext):
    """A bound that says nothing."""

    running = True

    def __init__(self, *_, **__):
        super().__init__(self)

    def news(self):
        return []


class Interrupted(contextlib.nullcontext):
    """A solver whose user gives up after the first message."""

    running, ending = True, ""

    def __init__(self, graph, *_, **__):
        super().__init__(self)
        n = len(graph)
        self.messages = [{"phase": 1, "sequence": [*range(n - 2), 0, n - 2, n - 1]}]  # f0 once more, for its users

    def news(self, _):
        if not self.messages:
            raise KeyboardInterrupt
        return [self.messages.pop()]


def test_an_interrupt_gives_the_best_so_far(monkeypatch, caplog):
    monkeypatch.setattr(sys.modules["checkmate_tf.strategies.moccasin.moccasin"], "IntervalsProcess", Interrupted)
    graph = chain(4)
    plain = keep_all(graph).peak_bytes
    with caplog.at_level(logging.WARNING):
        schedule = moccasin(graph, plain - 1, SolveOptions())
    assert (schedule.cost, schedule.peak_bytes) == (graph.base_cost + 1, plain - 1)
    assert "interrupted" in caplog.text
    with pytest.raises(KeyboardInterrupt):
        moccasin(graph, plain - 2, SolveOptions())


def test_a_solver_without_memory_is_a_failure_that_is_said(caplog):
    graph = unet(2)
    budget = int(0.8 * keep_all(graph).peak_bytes)
    with caplog.at_level(logging.WARNING), pytest.raises(InfeasibleBudgetError, match="one may exist"):
        moccasin(graph, budget, SolveOptions(memory_limit=1 << 20))
    assert "the solver's process" in caplog.text
