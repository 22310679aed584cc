"""The program by lifetimes has the optimum of problem (9); on a coarse grid it is a restriction."""

import numpy as np
import pytest
from bruteforce import least_cost, least_staged_cost
from graphs import chain, random_graphs, resnet, stages_turned, unet
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.graph import Graph
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.solvers.ortools import solve
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies import solve as solve_graph
from checkmate_tf.strategies.programs.exact import exact
from checkmate_tf.strategies.programs.lifetimes import lifetimes


def solved(graph, budget, grid=None, movable=None):
    grid = np.arange(len(graph)) if grid is None else grid
    movable = np.ones(len(graph), dtype=bool) if movable is None else movable
    program = lifetimes(graph, budget, grid, movable)
    if program is None:
        return None
    solution = solve(program.milp, "highs", 20.0)
    if solution.x is None:
        return None
    sequence = program.sequence(solution.x)
    found = evaluate(graph, plan_from_sequence(graph, sequence))
    assert found.peak_bytes <= budget
    assert found.cost <= solution.objective * (graph.base_cost or 1.0) + 1e-6
    return found.cost


@settings(max_examples=80, deadline=None)
@given(random_graphs(7), st.floats(0.3, 1.0))
def test_the_optimum(graph, share):
    peak = evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes
    budget = graph.constant_bytes + int(share * (peak - graph.constant_bytes))
    optimum, found = least_staged_cost(graph, budget), solved(graph, budget)
    assert (found is None and optimum == float("inf")) or found == pytest.approx(optimum)


def test_a_result_may_be_dropped_and_computed_again_at_the_end():
    """Node 1 is a sink that is in the way of node 2."""
    graph = Graph(
        name="sink", names=tuple("abcd"), kinds=[0, 2, 2, 2], costs=[1.0, 3.0, 1.0, 1.0], sizes=[0, 1, 0, 0],
        inputs=[(), (), (), ()], workspace=[0, 0, 1, 0],
    )  # fmt: skip
    assert least_staged_cost(graph, 1) == solved(graph, 1) == 9.0


@pytest.mark.parametrize("budget", [5, 6, 8, 12])
def test_chains(budget):
    graph = chain(4)
    optimum, found = least_cost(graph, budget), solved(graph, budget)
    assert (found is None and optimum == float("inf")) or found == pytest.approx(optimum)


def test_a_coarse_grid_gives_schedules():
    for graph in (resnet(8), unet(3)):
        peak = evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes
        late = np.flatnonzero(graph.kinds == 2)
        coarse, fine = (solved(graph, int(0.7 * peak), late[::step], graph.kinds == 0) for step in (4, 1))
        assert fine is not None and fine > graph.base_cost
        assert coarse is None or coarse >= fine - 1e-4 * fine


def test_small_graphs_are_solved_to_the_end():
    graph, budget = chain(6), 7
    sequence = exact(graph, budget, 20.0)
    assert sequence is not None
    cost = evaluate(graph, plan_from_sequence(graph, sequence)).cost
    assert cost == least_staged_cost(graph, budget)
    schedule = solve_graph(graph, budget, "checkmate", SolveOptions(time_limit=20.0, gap=0.0))
    assert schedule.status == "optimal" and schedule.cost == cost


def test_there_is_no_sequence_where_nothing_fits_or_nodes_are_too_many():
    assert exact(chain(4), 3, 10.0) is None
    assert exact(resnet(30), 10**9, 10.0) is None
    graph, budget, _ = stages_turned()
    assert exact(graph, budget, 10.0) is None
