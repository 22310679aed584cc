"""Checkmate's problem (9) solved as it is, by an integer programming solver (Jain et al., MLSys 2020, section 4).

The schedule of the eviction search is its start, so the answer is never worse than what a second of search finds. For
graphs of some dozens of nodes this proves the optimum; beyond, "checkmate" finds better schedules and better bounds.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace

import numpy as np

from ...errors import InfeasibleBudgetError
from ...graph import Graph
from ...schedule import Schedule
from ...solvers import Solution, check_solver, solve_milp
from ...solvers.tolerances import EXACT, MARGIN
from ...units import format_bytes
from ..compiled import compile_if_over
from ..options import SolveOptions
from ..search.minimum_budget import least_known, without_solving
from ..search.search import search
from .formulation import Formulation, problem9

__all__ = ["milp", "unpartitioned"]

log = logging.getLogger(__name__)

_SEARCH = 1.0  # seconds for the start


def milp(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The optimum of problem (9) in frontier-advancing stages, or the best found in time.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions
        All fields are used, `solver` and `memory_limit` too.

    Returns
    -------
    Schedule
        Its lower bound is the solver's, for schedules in stages that compute each node at most once, in the graph's
        order (`bound_order` "stages"). It is "optimal" if the gap is closed to 1e-9.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits, or none was found in time. The solver's proof is about such stages only. So it is `proven`
        only below what every schedule in the graph's order needs.
    StrategyError
        If the solver asked for does not exist, is not installed, or cannot solve this program.
    """
    check_solver(options.solver)
    compile_if_over(graph, budget_bytes)
    begun = time.perf_counter()
    done = without_solving(graph, budget_bytes, "milp", options)
    if done is not None:
        return done
    best = _start(graph, budget_bytes, min(_SEARCH, 0.25 * options.time_limit), options.seed)
    solution, found = _solve(graph, budget_bytes, budget_bytes, options, best, begun)
    if solution.x is not None and found is None:
        # The point fits only within the solver's tolerances: ask for one that fits with them.
        inner = int(graph.constant_bytes + (1 - MARGIN) * (budget_bytes - graph.constant_bytes))
        log.info("the solver's schedule is over the budget by its tolerances; solving again with a margin")
        found = _solve(graph, budget_bytes, inner, options, best, begun)[1]
    if found is not None and (best is None or found.cost < best.cost):
        best = found
    if best is None:
        known, sequence = least_known(graph, options, begun)
        if known > budget_bytes:
            raise _infeasible(graph, budget_bytes, known, solution)
        best = Schedule(graph, sequence)
    lower = graph.base_cost
    if np.isfinite(solution.bound):
        lower = min(best.cost, max(lower, solution.bound * (graph.base_cost or 1.0)))
    status = "optimal" if best.cost - lower <= EXACT * best.cost else "feasible"
    return replace(
        best, strategy="milp", solver=solution.solver, status=status, budget_bytes=budget_bytes, lower_bound=lower,
        bound_order="stages", seconds=time.perf_counter() - begun,
    )  # fmt: skip


def unpartitioned(graph: Graph, budget_bytes: int, options: SolveOptions) -> Solution:
    """The general form (1d, 1e), whose n stages may compute any nodes: the paper's comparison, not a strategy.

    First computations in its solution need not come in the order of the graph, and a node may occur more than once
    between two of them. So the solution has no frontier-advancing `Schedule`.

    Returns
    -------
    Solution
        Costs in the graph's unit. Its optimum is at most that of the frontier-advancing form.
    """
    program = problem9(graph, budget_bytes, partitioned=False, integral=options.solver == "cp-sat")
    solution = solve_milp(program.milp, options.solver, options.time_limit, options.gap, options.memory_limit)
    unit = graph.base_cost or 1.0
    return replace(solution, objective=solution.objective * unit, bound=solution.bound * unit)


def _start(graph: Graph, budget_bytes: int, seconds: float, seed: int) -> Schedule | None:
    """What the eviction search finds at once."""
    begun, best = time.perf_counter(), None
    for sequence in search(graph, budget_bytes, seed):
        best = sequence if sequence is not None else best
        if time.perf_counter() - begun > seconds:
            break
    if best is None:
        return None
    schedule = Schedule(graph, best)
    return schedule if schedule.peak_bytes <= budget_bytes else None


def _solve(
    graph: Graph, budget_bytes: int, inner_bytes: int, options: SolveOptions, start: Schedule | None, begun: float
) -> tuple[Solution, Schedule | None]:
    """Solve under `inner_bytes`; the solution, and its schedule if that fits `budget_bytes`."""
    program = problem9(graph, inner_bytes, integral=options.solver == "cp-sat")
    unit = graph.base_cost or 1.0
    point = program.pack(start.R, start.S) if start is not None and start.peak_bytes <= inner_bytes else None

    def told(_: float, objective: float, bound: float) -> None:
        if options.progress is not None:
            cost, lower = objective * unit, max(graph.base_cost, bound * unit)
            gap = max(0.0, 1.0 - lower / cost) if cost else 0.0
            options.progress(time.perf_counter() - begun, cost, lower, gap)

    left = max(0.1, options.time_limit - (time.perf_counter() - begun))
    solution = solve_milp(program.milp, options.solver, left, options.gap, options.memory_limit, point, told)
    return solution, _schedule(program, solution, budget_bytes)


def _schedule(program: Formulation, solution: Solution, budget_bytes: int) -> Schedule | None:
    if solution.x is None:
        return None
    R, S = program.unpack(solution.x)
    schedule = Schedule.from_matrices(program.graph, R > 0.5, S > 0.5)
    return schedule if schedule.peak_bytes <= budget_bytes else None


def _infeasible(graph: Graph, budget_bytes: int, known_bytes: int, solution: Solution) -> InfeasibleBudgetError:
    asked, known = format_bytes(budget_bytes), format_bytes(known_bytes)
    why = (
        "no schedule in stages, each in the graph's order and with each node once at most, fits it (proven), though "
        "another one may"
        if solution.status == "infeasible"
        else f"{solution.solver} found no schedule ({solution.detail or 'in time'}), though one may exist"
    )
    return InfeasibleBudgetError(
        f"budget {asked} is too small: {why}; the least budget with a known schedule is {known}; raise the budget to "
        "that or lower the batch size",
        budget_bytes,
        known_bytes,
        proven=False,
    )
