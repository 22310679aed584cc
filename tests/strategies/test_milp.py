"""Problem (9), its solvers and its rounding. OR-Tools is used in this process: no TensorFlow here."""

import contextlib
import importlib
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from bruteforce import least_cost, least_staged_cost
from graphs import chain, paper_chain, random_graphs, resnet, stages_turned, transformer
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import InfeasibleBudgetError, StrategyError
from checkmate_tf.graph import Graph
from checkmate_tf.plan import evaluate
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.solvers import Milp, Solution, cpsat, gurobi, mathopt, ortools, solve_milp
from checkmate_tf.solvers.rows import Rows
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.programs import rounding
from checkmate_tf.strategies.programs.formulation import problem9
from checkmate_tf.strategies.programs.milp import unpartitioned
from checkmate_tf.strategies.programs.rounding import (
    least_computation,
    round_naively,
    round_naively_at_random,
    violations,
)

interface = importlib.import_module("checkmate_tf.solvers.solve")


@st.composite
def full_graphs(draw, max_nodes=7):
    """Random graphs with all that a graph can have: workspace of either sign, held, nodes that run once."""
    graph = draw(random_graphs(max_nodes))
    n = len(graph)
    column = lambda low, high: np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))  # noqa: E731
    return replace(graph, workspace=np.maximum(column(-3, 2), -graph.sizes), held=column(0, 3))


def exact(program, method="highs"):
    """Optimum in the graph's unit, and the solution."""
    solution = mathopt.solve(program.milp, method, 30.0)
    return solution.objective * (program.graph.base_cost or 1.0), solution


# -- the formulation ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(full_graphs(), st.integers(0, 3))
def test_the_optimum_is_that_of_brute_force(graph, cut):
    budget = keep_all(graph).peak_bytes - cut
    if budget <= graph.constant_bytes:
        return
    expected = least_staged_cost(graph, budget)
    program = problem9(graph, budget)
    cost, solution = exact(program)
    assert cost == pytest.approx(expected, abs=1e-6)
    if solution.x is not None:
        R, S = program.unpack(solution.x)
        schedule = Schedule.from_matrices(graph, R > 0.5, S > 0.5)
        assert schedule.peak_bytes <= budget
        assert schedule.cost == pytest.approx(expected, abs=1e-6)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(full_graphs(6), st.integers(0, 3))
def test_unpartitioned_is_never_dearer(graph, cut):
    graph = replace(graph, recompute_until=None, held=None)
    budget = keep_all(graph).peak_bytes - cut
    if budget <= graph.constant_bytes:
        return
    cost, _ = exact(problem9(graph, budget, partitioned=False))
    assert cost <= least_staged_cost(graph, budget) + 1e-6


@settings(max_examples=60, deadline=None)
@given(full_graphs())
def test_schedules_are_points(graph):
    plain = keep_all(graph)
    if plain.peak_bytes <= graph.constant_bytes:
        return
    for integral in (False, True):
        program = problem9(graph, plain.peak_bytes, integral=integral)
        x, milp = program.pack(plain.R, plain.S), program.milp
        rows = milp.matrix @ x
        assert (rows >= milp.row_lower - 1e-9).all()
        assert (rows <= milp.row_upper + 1e-9).all()
        assert (x >= milp.lower - 1e-9).all()
        assert (x <= milp.upper + 1e-9).all()


def test_a_small_chain_in_every_form_and_solver():
    graph = chain(3)
    for budget in range(4, keep_all(graph).peak_bytes):
        expected = least_staged_cost(graph, budget)
        assert exact(problem9(graph, budget))[0] == pytest.approx(expected)
        assert exact(problem9(graph, budget), "scip")[0] == pytest.approx(expected)
        found = cpsat.solve(problem9(graph, budget, integral=True).milp, 30.0)
        assert found.objective * graph.base_cost == pytest.approx(expected)
        assert found.bound == pytest.approx(found.objective)
        general = exact(problem9(graph, budget, partitioned=False))[0]
        assert least_cost(graph, budget) - 1e-6 <= general <= expected + 1e-6


@pytest.mark.parametrize(("graph", "budget"), [(chain(3), 5), (chain(4), 6), (paper_chain(4), 4)])
def test_gurobi_agrees_with_highs(graph, budget):
    milp = problem9(graph, budget).milp
    assert max(milp.matrix.shape) <= gurobi.LIMIT
    try:
        found = gurobi.solve(milp, 30.0)
    except Exception as error:  # noqa: BLE001 - no licence, or an expired one
        pytest.skip(f"Gurobi does not run here: {error}")
    expected = mathopt.solve(milp, "highs", 30.0)
    assert found.status == expected.status
    assert found.objective == pytest.approx(expected.objective, abs=1e-6)


def test_the_integrality_gaps_of_the_paper():
    """Checkmate, appendix A: 8 layers, n = 17, unit cost and memory, budget 4: 21.56, and 1.18 with stages."""
    graph = paper_chain(8)
    optimum = least_staged_cost(graph, 4)
    assert optimum == least_cost(graph, 4) == 26.0  # so the unpartitioned optimum, in between, is 26 too
    for partitioned, gap in ((True, 1.18), (False, 21.56)):
        milp = problem9(graph, 4, partitioned=partitioned).milp
        relaxed = ortools.solve(replace(milp, integer=None), "glop", 30.0)
        assert relaxed.status == "optimal"
        assert round(optimum / (relaxed.objective * graph.base_cost), 2) == gap


def test_a_network_is_built():
    graph = resnet(58)
    program = problem9(graph, keep_all(graph).peak_bytes // 2)
    n = len(graph)
    assert program.milp.matrix.shape[1] == program.free.max() + 1
    assert (program.R >= 0).sum() == n * (n + 1) // 2
    assert np.isfinite(program.milp.upper).all()


# -- rounding ----------------------------------------------------------------------------------------------------------


def relaxed(graph, budget):
    program = problem9(graph, budget)
    return program.unpack(ortools.solve(replace(program.milp, integer=None), "glop", 30.0).x)


def test_naive_rounding_fails():
    """Checkmate: rounding entry by entry gives no schedule at all, at random practically never."""
    graph = paper_chain(8)
    R, S = relaxed(graph, 4)
    assert violations(graph, *round_naively(R, S)) > 0
    random = np.random.default_rng(0)
    assert all(violations(graph, *round_naively_at_random(R, S, random)) > 0 for _ in range(200))


@settings(max_examples=100, deadline=None)
@given(full_graphs(), st.integers(0, 2**32 - 1))
def test_two_phases_give_a_schedule_of_any_keep_set(graph, seed):
    n = len(graph)
    kept = np.tril(np.random.default_rng(seed).random((n, n)) < 0.5, -1)
    R, S = least_computation(graph, kept)
    assert violations(graph, R, S) == 0
    assert not (kept & ~S).any()
    evaluate(graph, Schedule.from_matrices(graph, R, S).plan)  # honours recompute_until


@pytest.mark.long(only=("lp-rounding-random",))
@pytest.mark.parametrize("strategy", ["lp-rounding", "lp-rounding-random"])
def test_rounded_schedules_fit_and_are_bounded(strategy):
    graph = paper_chain(8)
    schedule = solve(graph, 4, strategy, SolveOptions(time_limit=30.0, solver="glop"))
    assert schedule.peak_bytes <= 4
    assert schedule.lower_bound == pytest.approx(22.0)  # the relaxation; the optimum is 26
    assert schedule.cost >= 26.0
    assert schedule.solver == "glop"


@pytest.mark.long
@pytest.mark.parametrize(("graph", "share"), [(resnet(8), 0.8), (transformer(2), 0.7)], ids=["resnet", "transformer"])
def test_values_are_kept_where_the_rounded_optimum_does_not_fit(graph, share, monkeypatch):
    budget = int(share * keep_all(graph).peak_bytes)
    options = SolveOptions(time_limit=30.0, solver="glop")
    schedule = solve(graph, budget, "lp-rounding", options)
    assert schedule.peak_bytes <= budget
    best = solve(graph, budget, "checkmate", SolveOptions(time_limit=30.0, gap=1e-3))
    assert schedule.lower_bound <= best.cost <= schedule.cost
    for some in (rounding.AGAIN[:1], rounding.AGAIN[1:]):  # the cheapest that fits is taken
        monkeypatch.setattr(rounding, "AGAIN", some)
        with contextlib.suppress(InfeasibleBudgetError):
            assert schedule.cost <= solve(graph, budget, "lp-rounding", options).cost
    monkeypatch.setattr(rounding, "AGAIN", ())
    with pytest.raises(InfeasibleBudgetError, match="rounded schedule does not fit"):
        solve(graph, budget, "lp-rounding", options)


def test_room_that_rounding_leaves_is_used():
    """A keep-set of nothing: its schedule fits, and costs many times more than with what there is room to keep."""
    graph = paper_chain(8)
    nothing = np.zeros((len(graph), len(graph)))
    plain = Schedule.from_matrices(graph, *least_computation(graph, nothing > 0))
    for budget in range(plain.peak_bytes, keep_all(graph).peak_bytes + 1):
        found, least, _ = rounding._tried(graph, [(0.5, nothing > 0)], budget)
        assert found.peak_bytes <= budget and least == plain.peak_bytes
        assert graph.base_cost <= found.cost <= plain.cost
    assert found.cost == graph.base_cost
    assert rounding._tried(graph, [(0.5, nothing > 0)], plain.peak_bytes - 1)[0] is None


def test_an_output_that_is_computed_again_does_not_break_the_budget():
    """The first value is an output. It is dropped while the second is there, and computed again in the last stage."""
    graph = Graph("late", list("abcd"), np.zeros(4, int), [1] * 4, [5, 8, 1, 1], [[], [], [1], [2]])
    kept = np.zeros((4, 4), bool)
    kept[2, 1] = kept[3, 2] = True
    found, least, _ = rounding._tried(graph, [(0.5, kept)], 9)
    assert found.peak_bytes == least == 9 and found.cost == 5
    assert rounding._tried(graph, [(0.5, kept)], 14)[0].cost == 4  # there is room to keep it


def test_a_relaxation_is_rounded_where_that_of_the_paper_has_no_solution():
    """Nine tenths of the budget are less than the constants."""
    graph = replace(paper_chain(8), constant_bytes=1000)
    schedule = solve(graph, 1005, "lp-rounding", SolveOptions(time_limit=10.0, solver="glop"))
    assert schedule.peak_bytes <= 1005 and schedule.lower_bound <= schedule.cost


def test_a_rounded_schedule_that_does_not_fit_is_an_error(monkeypatch):
    options = SolveOptions(time_limit=10.0, solver="glop")
    with pytest.raises(InfeasibleBudgetError, match="rounded schedule does not fit the budget 7 B: .*needs") as caught:
        solve(chain(8), 7, "lp-rounding", options)
    assert not caught.value.proven
    assert caught.value.minimum_bytes > 7
    for status, says in (("infeasible", "has no solution"), ("unknown", "was not solved")):
        solution = Solution(status, None, np.inf, 0.0)
        monkeypatch.setattr(rounding, "_relaxed", lambda *_, solution=solution: (solution, None))
        with pytest.raises(InfeasibleBudgetError, match=f"the linear relaxation {says}.* under 904 B, 90% of"):
            solve(replace(paper_chain(8), constant_bytes=1000), 1005, "lp-rounding", options)


# -- the strategy ------------------------------------------------------------------------------------------------------


@pytest.mark.long(only=("cp-sat",))
@pytest.mark.parametrize("solver", ["auto", "cp-sat"])
def test_the_optimum_is_proved(solver):
    graph = paper_chain(4)
    calls = []
    options = SolveOptions(time_limit=30.0, gap=0.0, solver=solver, progress=lambda *call: calls.append(call))
    schedule = solve(graph, 4, "milp", options)
    assert (schedule.status, schedule.cost) == ("optimal", least_staged_cost(graph, 4))
    assert schedule.gap == pytest.approx(0.0, abs=1e-9)
    assert calls
    assert all(len(call) == 4 for call in calls)


def test_infeasible_names_the_least_known_budget():
    graph = paper_chain(8)
    with pytest.raises(InfeasibleBudgetError, match="least that any schedule|least budget with a known") as caught:
        solve(graph, 2, "milp", SolveOptions(time_limit=3.0))
    assert caught.value.minimum_bytes > 2


def test_what_stages_cannot_do_is_not_called_proven():
    graph, budget, sequence = stages_turned()
    assert Schedule(graph, sequence).peak_bytes == budget
    assert least_staged_cost(graph, budget) == np.inf
    with pytest.raises(
        InfeasibleBudgetError, match="no schedule in stages, each in the graph's order.*proven"
    ) as caught:
        solve(graph, budget, "milp", SolveOptions(time_limit=5.0, solver="highs"))
    assert not caught.value.proven


@pytest.mark.long(only=("lp-rounding",))
@pytest.mark.parametrize("strategy", ["milp", "lp-rounding"])
def test_bounds_say_that_they_are_about_stages(strategy):
    assert solve(chain(4), 8, strategy, SolveOptions(time_limit=5.0, solver="highs")).bound_order == "stages"


def test_unpartitioned_gives_cost_and_bound():
    found = unpartitioned(paper_chain(2), 4, SolveOptions(time_limit=30.0, gap=0.0, solver="highs"))
    assert found.status == "optimal"
    assert found.objective == pytest.approx(least_staged_cost(paper_chain(2), 4))


@pytest.mark.parametrize("strategy", ["milp", "lp-rounding"])
def test_an_unknown_solver_is_named_with_the_known(strategy):
    with pytest.raises(StrategyError, match="solver 'cplex' is unknown; choose one of auto, gurobi, highs"):
        solve(chain(3), 5, strategy, SolveOptions(solver="cplex"))


# -- the interface -----------------------------------------------------------------------------------------------------


def knapsack() -> Milp:
    # min -3a -2b, 2a + 2b <= 3: -4 with a = 1, b = 1/2; -3 in integers.
    return Milp(
        np.array([-3.0, -2.0]), np.array([[2.0, 2.0]]), np.array([-np.inf]), np.array([3.0]), np.zeros(2), np.ones(2),
        integer=np.ones(2, dtype=bool),
    )  # fmt: skip


def hard():
    """A program that no solver finishes soon, and a start."""
    graph = resnet(16)
    plain = keep_all(graph)
    from checkmate_tf.strategies.programs.milp import _start

    start = _start(graph, int(0.5 * plain.peak_bytes), 1.0, 0)
    assert start is not None
    program = problem9(graph, int(0.5 * plain.peak_bytes))
    return program.milp, program.pack(start.R, start.S)


@pytest.mark.parametrize("solver", ["highs", "scip", "cp-sat", "auto"])
def test_integer_programs(solver):
    solution = solve_milp(knapsack(), solver, 20.0)
    assert (solution.status, solution.objective) == ("optimal", pytest.approx(-3.0))
    assert solution.bound == pytest.approx(-3.0)


@pytest.mark.parametrize("solver", ["highs", "glop", "pdlp"])
def test_linear_programs(solver):
    solution = solve_milp(replace(knapsack(), integer=None), solver, 20.0)
    assert solution.objective == pytest.approx(-4.0, abs=1e-4)
    assert solution.bound <= -4.0 + 1e-9
    assert solution.bound == pytest.approx(-4.0, abs=1e-4)


@pytest.mark.long
def test_a_rough_answer_is_enough_for_a_large_linear_program():
    program = replace(problem9(paper_chain(8), 4).milp, integer=None)
    exact, rough = (solve_milp(program, "pdlp", 60.0, gap) for gap in (0.0, 1e-2))
    assert rough.status == "optimal"
    assert rough.bound < exact.bound <= exact.objective + 1e-6  # it stopped before, and its bound is a bound
    assert rough.objective == pytest.approx(exact.objective, rel=0.05)


@pytest.mark.long
def test_infeasible_programs():
    impossible = replace(knapsack(), row_lower=np.array([5.0]), row_upper=np.array([np.inf]))
    assert solve_milp(impossible, "highs", 20.0).status == "infeasible"


def test_solvers_that_do_not_serve():
    with pytest.raises(StrategyError, match="'pdlp' does not solve integer programs; choose one of gurobi, highs"):
        solve_milp(knapsack(), "pdlp")
    with pytest.raises(StrategyError, match="'cp-sat' does not solve linear programs"):
        solve_milp(replace(knapsack(), integer=None), "cp-sat")
    half = replace(knapsack(), integer=np.array([True, False]))
    with pytest.raises(StrategyError, match="'cp-sat' cannot solve this program: .*continuous"):
        solve_milp(half, "cp-sat", 20.0)


def test_a_solver_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(interface, "find_spec", lambda name: None)
    with pytest.raises(StrategyError, match="needs gurobipy: pip install gurobipy"):
        solve_milp(knapsack(), "gurobi")
    with pytest.raises(StrategyError, match="no solver for integer programs here: pip install ortools"):
        solve_milp(knapsack())


def test_cp_sat_claims_nothing_of_rounded_rows():
    odd = replace(knapsack(), matrix=np.array([[np.pi, np.e]]), row_upper=np.array([np.e]))
    found = cpsat.solve(odd, 10.0)  # b = 1 fits exactly, and is lost by rounding its size up
    assert (found.status, found.objective, found.bound) == ("feasible", 0.0, -np.inf)


@pytest.mark.long(only=("scip",))
@pytest.mark.parametrize("solver", ["highs", "scip"])
def test_the_time_limit_gives_the_start_or_better(solver):
    milp, start = hard()
    solution = solve_milp(milp, solver, 1.0, start=start)
    assert solution.status == "feasible"
    assert solution.objective <= milp.objective @ start + 1e-9


def test_a_schedule_that_is_known_to_fit_is_given_where_the_solver_finds_none(monkeypatch):
    """And not withheld in an error that names a least budget below the one asked for."""
    module = importlib.import_module("checkmate_tf.strategies.programs.milp")
    monkeypatch.setattr(module, "_start", lambda *_: None)
    monkeypatch.setattr(module, "_solve", lambda *_: (Solution("unknown", None, np.inf, -np.inf), None))
    graph = resnet(4)
    budget = keep_all(graph).peak_bytes * 9 // 10
    found = solve(graph, budget, "milp", SolveOptions(time_limit=2.0))
    assert found.peak_bytes <= budget and found.status == "feasible"
    monkeypatch.setattr(module, "least_known", lambda *_: (budget + 1, found.sequence))
    with pytest.raises(InfeasibleBudgetError, match="found no schedule") as caught:
        solve(graph, budget, "milp", SolveOptions(time_limit=2.0))
    assert caught.value.minimum_bytes == budget + 1


class Recorded(interface.JsonProcess):
    last = None

    def __init__(self, *arguments):
        super().__init__(*arguments)
        Recorded.last = self


def end(pid):
    with contextlib.suppress(ProcessLookupError):  # progress is told once more of a process that has ended
        os.kill(pid, signal.SIGKILL)


@pytest.mark.feature("Faults", "solver killed")
def test_a_killed_solver_gives_the_start(monkeypatch):
    milp, start = hard()
    monkeypatch.setattr(interface, "JsonProcess", Recorded)
    solution = solve_milp(milp, "highs", 60.0, start=start, progress=lambda *_: end(Recorded.last.pid))
    assert solution.status == "feasible"
    assert np.array_equal(solution.x, start)
    assert "signal 9" in solution.detail


@pytest.mark.feature("Faults", "solver killed")
def test_a_killed_solver_without_a_start_gives_nothing(monkeypatch):
    milp, _ = hard()
    monkeypatch.setattr(interface, "JsonProcess", Recorded)
    solution = solve_milp(milp, "highs", 60.0, progress=lambda *_: end(Recorded.last.pid))
    assert (solution.status, solution.x, solution.objective) == ("unknown", None, np.inf)


def test_a_solver_that_hangs_is_ended(monkeypatch):
    milp, start = hard()
    monkeypatch.setattr(interface, "_GRACE", -60.0)
    solution = solve_milp(milp, "highs", 60.0, start=start)
    assert "did not stop at the time limit" in solution.detail
    assert np.array_equal(solution.x, start)


def test_the_memory_limit_gives_the_start():
    milp, start = hard()
    solution = solve_milp(milp, "highs", 30.0, memory_limit=200_000_000, start=start)
    assert solution.status == "feasible"
    assert np.array_equal(solution.x, start)
    assert solution.detail


def test_an_interrupt_gives_the_start_or_goes_up():
    milp, start = hard()

    def interrupt(*_):
        raise KeyboardInterrupt

    solution = solve_milp(milp, "highs", 60.0, start=start, progress=interrupt)
    assert (solution.detail, solution.status) == ("interrupted", "feasible")
    with pytest.raises(KeyboardInterrupt):
        solve_milp(milp, "highs", 60.0, progress=interrupt)


def test_bounds_only_rise():
    graph = paper_chain(8)
    program = problem9(graph, 4, integral=True)
    seen = []
    solution = solve_milp(program.milp, "cp-sat", 20.0, progress=lambda _, objective, bound: seen.append(bound))
    assert solution.status == "optimal"
    assert solution.objective * graph.base_cost == pytest.approx(26.0)
    assert seen == sorted(seen)


def test_points_are_streamed(monkeypatch):
    """What a killed solver had found is not lost."""
    graph = paper_chain(12)
    program = problem9(graph, 5, integral=True)
    monkeypatch.setattr(interface, "JsonProcess", Recorded)

    def kill(_, objective, bound):
        if np.isfinite(objective) and Recorded.last.running:
            end(Recorded.last.pid)

    solution = solve_milp(program.milp, "cp-sat", 30.0, progress=kill)
    R, S = program.unpack(solution.x)
    assert Schedule.from_matrices(graph, R > 0.5, S > 0.5).peak_bytes <= 5
    assert solution.bound <= solution.objective


def test_highs_does_not_call_this_infeasible():
    """The presolve of HiGHS 1.12 does; so it is asked again without."""
    graph = Graph("apart", list("abcd"), np.zeros(4), np.zeros(4), np.array([0, 0, 1, 1]), [[], [], [], []])
    assert mathopt.solve(problem9(graph, 2, partitioned=False).milp, "highs", 20.0).status == "optimal"


def test_the_licence_is_one_of_three():
    assert gurobi.gurobi_licence() in ("none", "size-limited", "full")


def test_lines_of_highs():
    line = (
        " L       0       0         0   0.00%   1.044721035     1.149179345   9.09%   1633   1155    463   8990  16.1s"
    )
    assert mathopt._highs_bound(line) == pytest.approx(1.044721035)
    assert mathopt._highs_bound("  Primal bound       1.14917934503") is None


@pytest.mark.long(only=("glop",))
@pytest.mark.parametrize("solver", ["highs", "glop"])
def test_terms_of_one_cell_are_summed(solver):
    """At least 3 of x, said as one and two of it, in that order or not."""
    rows = Rows()
    (row,) = rows.add(1, 3.0, np.inf)
    for value in (1.0, 2.0, -1.0, 1.0):
        rows.put(np.array([row]), np.array([0]), value)
    matrix = rows.matrix(1)
    assert matrix.nnz == 1 and matrix.has_canonical_format
    milp = Milp(np.ones(1), matrix, np.array([3.0]), np.array([np.inf]), np.zeros(1), np.full(1, 9.0))
    doubled = sp.csr_matrix((np.array([1.0, 2.0]), np.array([0, 0]), np.array([0, 2])), shape=(1, 1))
    for asked in (milp, replace(milp, matrix=doubled)):
        assert solve_milp(asked, solver, 10.0).objective == pytest.approx(1.0)
