"""The published quadratic program and its linear form: equal, and equal to brute force."""

import importlib
import json
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
from bruteforce import least_staged_cost
from commands import flat, invoke
from graphs import chain, paper_chain, random_graphs, resnet, training
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import BudgetError, InfeasibleBudgetError, StrategyError
from checkmate_tf.files.graphs import write_graph
from checkmate_tf.largest_batch.max_batch_size import max_batch_size
from checkmate_tf.schedule import keep_all
from checkmate_tf.solvers import Milp, Products, solve_milp
from checkmate_tf.solvers.gurobi import gurobi_licence
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.strategies.max_batch import cost_limit, max_batch, max_batch_linear, max_batch_quadratic

programs = importlib.import_module("checkmate_tf.strategies.max_batch.programs")
GUROBI_RUNS = gurobi_licence() != "none"  # the licence in gurobipy's wheel ends some day
needs_gurobi = pytest.mark.skipif(not GUROBI_RUNS, reason="gurobipy is not installed, or its licence has ended")
NAMES = ("max_batch_quadratic", "max_batch_linear")
FORMS = [pytest.param(max_batch_quadratic, marks=needs_gurobi), max_batch_linear]


def best_batch(graph, memory, limit, fixed=None):
    """By brute force over problem (9); integer sizes."""
    fixed = graph.constant_bytes if fixed is None else fixed
    one = replace(graph, constant_bytes=graph.constant_bytes - fixed)
    least = next(b for b in range(keep_all(one).peak_bytes + 1) if least_staged_cost(one, b) <= limit)
    return (memory - fixed) // least


def small_graphs():
    """Within 200 variables; sizes that make batches worth counting."""
    graphs = random_graphs(6)
    return st.builds(lambda g, held: replace(g, held=np.array(held[: len(g)])), graphs, st.lists(
        st.integers(0, 2), min_size=6, max_size=6
    ))  # fmt: skip


def diamond():
    """A skip past a large cheap layer."""
    return training([[], [0], [1, 0]], [3.0, 1.0, 2.0], [2, 5, 1])


@pytest.mark.long(
    only=tuple(f"{o}-graph{k}-{f}" for o in ("one-forward", "0.0") for k in range(5) for f in NAMES)
    + tuple(f"0.15-graph{k}-{f}" for k in (2, 3) for f in NAMES)
)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("graph", [chain(2), chain(3), chain(3, constant_bytes=7), paper_chain(3), diamond()])
@pytest.mark.parametrize("overhead", ["one-forward", 0.0, 0.15])
def test_small_networks(form, graph, overhead):
    memory = 999
    optimum = best_batch(graph, memory, cost_limit(graph, overhead))
    found = form(graph, memory, overhead, options=SolveOptions(time_limit=60.0))
    assert (found.batch_size, found.upper_bound, found.status) == (optimum, optimum, "optimal")
    assert found.schedule.peak_bytes <= memory
    assert found.schedule.cost <= found.max_cost * (1 + 1e-9)
    assert found.schedule.graph.sizes[0] == graph.sizes[0] * optimum
    bracket = max_batch(graph, memory, overhead, options=SolveOptions(time_limit=0.5))
    assert bracket.upper_bound >= optimum >= bracket.batch_size


@pytest.mark.long
@needs_gurobi
@settings(max_examples=12, deadline=None)
@given(small_graphs(), st.integers(40, 400), st.integers(0, 4))
def test_both_forms_are_brute_force(graph, memory, extra):
    assume(graph.base_cost > 0 and keep_all(graph).peak_bytes > graph.constant_bytes)
    limit = graph.base_cost + extra
    optimum = best_batch(graph, memory, limit + 1e-9)
    for form in (max_batch_quadratic, max_batch_linear):
        found = form(graph, memory, extra / graph.base_cost, options=SolveOptions(time_limit=60.0))
        assert (found.batch_size, found.upper_bound) == (optimum, optimum)


@pytest.mark.long(only=("scip", "cp-sat"))
@pytest.mark.parametrize("solver", ["gurobi", "highs", "scip", "cp-sat"])
def test_every_solver_finds_the_least_peak(solver):
    if not GUROBI_RUNS if solver == "gurobi" else find_spec("ortools") is None:
        pytest.skip("not installed")
    graph = chain(4, constant_bytes=10)
    optimum = best_batch(graph, 500, cost_limit(graph, "one-forward"), fixed=4)
    found = max_batch_linear(graph, 500, fixed_bytes=4, options=SolveOptions(time_limit=60.0, solver=solver))
    assert (found.batch_size, found.upper_bound, found.schedule.solver) == (optimum, optimum, solver)
    assert found.schedule.graph.constant_bytes == 4 + 6 * optimum


@needs_gurobi
def test_constants_that_grow_count_in_every_row():
    graph = chain(3, constant_bytes=10)
    optimum = best_batch(graph, 500, cost_limit(graph, "one-forward"), fixed=4)
    found = max_batch_quadratic(graph, 500, fixed_bytes=4, options=SolveOptions(time_limit=60.0))
    assert (found.batch_size, found.upper_bound, found.schedule.solver) == (optimum, optimum, "gurobi")
    assert found.schedule.peak_bytes <= 500


@needs_gurobi
def test_bytes_and_flops_of_real_networks():
    graph = training([[], [0], [1]], [0.7e9 + 13, 3.1e9, 0.2e9 + 1], [64_749_568, 9_000_011, 64_000_393])
    found = [form(graph, 16 * 10**9, 0.2) for form in (max_batch_quadratic, max_batch_linear)]
    assert [f.batch_size for f in found] == [f.upper_bound for f in found]
    assert found[0].batch_size == found[1].batch_size
    assert found[0].schedule.solver == "gurobi"


def test_the_licence_that_does_not_fit_names_the_linear_form(monkeypatch):
    monkeypatch.setattr(programs, "licence_details", lambda: {"licence": "size-limited", "detail": ""})
    with pytest.raises(StrategyError, match=r"variables.*licence.*form=\"linear\""):
        max_batch_quadratic(resnet(10), 10**9)
    monkeypatch.setattr(programs, "licence_details", lambda: {"licence": "none", "detail": "no module"})
    with pytest.raises(StrategyError, match=r"needs Gurobi.*form=\"linear\""):
        max_batch_quadratic(chain(2), 100)


@pytest.mark.parametrize("form", FORMS)
def test_bad_input(form):
    graph = chain(2, constant_bytes=10)
    with pytest.raises(InfeasibleBudgetError, match="one sample needs"):
        form(graph, 12)
    with pytest.raises(InfeasibleBudgetError):
        form(graph, 5)
    with pytest.raises(BudgetError, match="fixed_bytes"):
        form(graph, 100, fixed_bytes=11)


def test_progress_tells_batches():
    told = []
    max_batch_linear(chain(4), 1000, options=SolveOptions(solver="highs", progress=lambda *a: told.append(a)))
    assert told and all(a[1] <= a[2] for a in told)


def test_other_solvers_refuse_products():
    rows = Products(0, np.array([[0.0, 1.0]]))
    program = Milp(np.ones(2), np.ones((1, 2)), np.ones(1), np.ones(1), np.zeros(2), np.ones(2), products=rows)
    with pytest.raises(StrategyError, match="products"):
        solve_milp(program, "highs")


@pytest.mark.long(only=("quadratic",))
@pytest.mark.parametrize("form", ["search", "linear", pytest.param("quadratic", marks=needs_gurobi)])
def test_the_forms_agree_from_python_and_the_command_line(form, tmp_path):
    graph = chain(3)
    optimum = best_batch(graph, 500, cost_limit(graph, "one-forward"))
    assert max_batch_size(graph, 500, form=form, time_limit=30.0).batch_size == optimum
    write_graph(graph, tmp_path / "chain.json")
    done = invoke("max-batch", tmp_path / "chain.json", "--memory", 500, "--form", form, "--time-limit", 30, "--json")
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["form"], told["batch_size"], told["status"]) == (form, optimum, "optimal")


def test_forms_that_cannot_be_are_refused(monkeypatch, tmp_path):
    with pytest.raises(StrategyError, match="choose one of search, linear, quadratic"):
        max_batch_size(chain(3), 500, form="cubic")
    write_graph(resnet(10), tmp_path / "resnet.json")
    done = invoke("max-batch", tmp_path / "resnet.json", "--memory", "1GB", "--form", "cubic")
    assert done.exit_code == 2 and "--form 'cubic' is unknown" in flat(done.stderr)
    monkeypatch.setattr(programs, "licence_details", lambda: {"licence": "size-limited", "detail": ""})
    done = invoke("max-batch", tmp_path / "resnet.json", "--memory", "1GB", "--form", "quadratic")
    assert done.exit_code == 2 and "licence here ends at 200" in flat(done.stderr)
