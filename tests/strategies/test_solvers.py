"""The registry of solvers: features as stated, and solvers of one's own. Each runs in a process of its own."""

from __future__ import annotations

import importlib
import inspect
import typing
from dataclasses import replace

import numpy as np
import pytest

from checkmate_tf.errors import StrategyError
from checkmate_tf.solvers import SOLVERS, Milp, Products, Solver, SolverFunction, register, solve_milp

INTEGER = np.ones(2, dtype=bool)
# min -3a -2b, 2a + 2b <= 3: -4 with a = 1, b = 1/2; -3 in integers.
KNAPSACK = Milp(
    np.array([-3.0, -2.0]), np.array([[2.0, 2.0]]), np.array([-np.inf]), np.array([3.0]), np.zeros(2), np.ones(2)
)  # fmt: skip
MODULE = """
import numpy as np
from checkmate_tf.solvers import Solution

def zeros(milp, time_limit, gap=0.0, start=None, report=None):
    \"\"\"All variables at 0; the bound is as good as the gap that was asked for.\"\"\"
    report(np.ones(2), -9.0)
    return Solution("feasible", np.zeros(2), 0.0, -gap)

def too_small(milp, time_limit, gap=0.0, start=None, report=None):
    raise ValueError("no more than one variable")

def load():
    return zeros

def load_too_small():
    return too_small

load_lambda = lambda: zeros
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module that only this process's `sys.path` leads to, and the registry as it was afterwards."""
    (tmp_path / "own_solver.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = dict(SOLVERS)
    yield importlib.import_module("own_solver")
    SOLVERS.clear()
    SOLVERS.update(before)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_solver_has_the_parameters_of_the_protocol(name):
    function = SOLVERS[name].load()
    wanted = inspect.signature(SolverFunction.__call__).parameters
    assert list(inspect.signature(function).parameters) == [p for p in wanted if p != "self"]
    assert set(typing.get_type_hints(function)) == set(typing.get_type_hints(SolverFunction.__call__))


@pytest.mark.parametrize("name", SOLVERS)
def test_where_leads_to_the_loader(name):
    module, _, function = SOLVERS[name].where.partition(":")
    assert getattr(importlib.import_module(module), function) is SOLVERS[name].load


def test_a_solver_of_ones_own_is_asked_by_its_name(module):
    register("own", Solver(module.load, "numpy", integer=True, linear=False))
    solution = solve_milp(replace(KNAPSACK, integer=INTEGER), "own", 60.0, gap=6.0)
    assert (solution.status, solution.solver, solution.objective) == ("feasible", "own", -5.0)  # what it reported
    assert solution.bound == -6.0  # the better of two


def test_features_are_minded(module):
    register("own", Solver(module.load, "numpy", integer=True, linear=False))
    register("absent", Solver(module.load, "no_such_package", integer=True, linear=True))
    register("small", Solver(module.load_too_small, "numpy", integer=True, linear=True))
    with pytest.raises(StrategyError, match="'own' does not solve linear programs; choose one of .*, absent, small"):
        solve_milp(KNAPSACK, "own")
    with pytest.raises(StrategyError, match="'absent' needs no_such_package"):
        solve_milp(KNAPSACK, "absent")
    with pytest.raises(StrategyError, match="'small' cannot solve this program: no more than one variable"):
        solve_milp(KNAPSACK, "small")
    with pytest.raises(StrategyError, match="'own' does not solve programs with products of variables; gurobi does"):
        solve_milp(replace(KNAPSACK, products=Products(0, np.ones((1, 2)))), "own")


def test_what_cannot_be_registered_is_refused(module):
    good = Solver(module.load, "numpy", integer=True, linear=True)
    before = dict(SOLVERS)
    for name, solver, message in [
        ("highs", good, "'highs' is there already"),
        ("auto", good, "'auto' is there already"),
        ("", good, "not empty"),
        ("own", module.load, "'own' is given as function; give a Solver"),
        ("own", replace(good, integer=False, linear=False), "neither integer nor linear"),
        ("own", replace(good, load=module.load_lambda), r"cannot import its loader \(own_solver:<lambda>\)"),
    ]:
        with pytest.raises(StrategyError, match=message):
            register(name, solver)
    module.load.__module__ = "__main__"
    with pytest.raises(StrategyError, match=r"__main__:load\); define the loader"):
        register("own", good)
    assert before == SOLVERS
