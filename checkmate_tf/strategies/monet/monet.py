"""MONeT: implementations of operators and recomputation chosen at once (Shah et al., ICLR 2021).

`monet` solves the paper's 0-1 program on an operator graph, `monet_noop` (MONeT-NoOp in the paper) on a graph that has
one way a node. The schedule of the eviction search in the default ways is the start, where the program can express it.

What it does badly: for what is computed again, the program counts more memory than is needed, and it never computes
gradients again. So its least budget is above that of "checkmate". Without Gurobi, a program of this size is slow beyond
some dozens of forward nodes.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasibleBudgetError, PlanError
from ...graph import Graph
from ...operators import Chosen, OperatorGraph
from ...schedule import Schedule, keep_all
from ...solvers import Solution, check_solver, solve_milp
from ...solvers.tolerances import MARGIN
from ...units import format_bytes
from ..compiled import compile_if_over, compile_search
from ..options import SolveOptions
from ..search.minimum_budget import infeasible, least_known, without_solving
from ..search.search import search
from .formulation import monet_program, split
from .program import MonetProgram

__all__ = ["monet", "monet_noop"]

_SEARCH = 1.0  # seconds for the start
_SHARES = (1.0, 0.95, 0.85)  # of the budget: the program's memory is more than the schedule's


def monet(
    operators: OperatorGraph, budget_bytes: int, options: SolveOptions | None = None, *, inexact: bool = False
) -> Chosen:
    """The optimum of MONeT's program, or the best found in time.

    Parameters
    ----------
    operators : OperatorGraph
        Forward nodes before backward nodes.
    budget_bytes : int
        Constants included.
    options : SolveOptions, optional
        Used are `time_limit`, `gap`, `seed`, `solver`, `memory_limit` and `progress`.
    inexact : bool
        Whether ways may be chosen whose values have other bits, as in the paper (batch normalisation from its output).

    Returns
    -------
    Chosen
        `bound` is the solver's, for the program. It does not hold for other strategies, because the program counts
        more memory than is needed. So the schedule's own lower bound is what it costs to compute each node once, in
        its cheapest way.

    Raises
    ------
    StrategyError
        If there are no forward or no backward nodes, or the solver that was asked for cannot be used.
    InfeasibleBudgetError
        If the program has no solution, or none was found in time.
    PlanError
        If the evaluator finds more memory than the budget. That is a bug: please report it.
    """
    options = options or SolveOptions()
    given, operators = operators, operators if inexact else operators.exact()
    split(operators.graph)
    check_solver(options.solver)
    default = operators.choose({})
    graph, unit = default.graph, default.graph.base_cost
    compile_search()
    begun = time.perf_counter()
    if budget_bytes <= graph.constant_bytes:
        raise infeasible(graph, budget_bytes, keep_all(graph).peak_bytes)
    room = budget_bytes - graph.constant_bytes
    program = monet_program(operators, budget_bytes - int(MARGIN * room), integral=options.solver == "cp-sat")
    point = _start(program, graph, default.nodes, budget_bytes, options)

    def told(_: float, objective: float, bound: float) -> None:
        if options.progress is not None:
            cost, lower = objective * program.unit_cost, max(0.0, bound * program.unit_cost)
            gap = max(0.0, 1.0 - lower / cost) if cost else 0.0
            options.progress(time.perf_counter() - begun, cost, lower, gap)

    left = max(0.1, options.time_limit - (time.perf_counter() - begun))
    solution = solve_milp(program.milp, options.solver, left, options.gap, options.memory_limit, point, told)
    if solution.x is None:
        raise _infeasible(graph, budget_bytes, solution, options, begun)
    choice, order = program.unpack(solution.x)
    names = {i: operators.ways(i)[at].name for i, at in choice.items()}
    chosen = given.choose({i: [way.name for way in given.ways(i)].index(name) for i, name in names.items()})
    place = {int(node): at for at, node in enumerate(chosen.nodes)}
    sequence = np.array([place[node] for node in order if node in place])
    least = float(sum(min(way.cost for way in operators.ways(i)) for i in default.nodes if i not in operators.optional))
    schedule = Schedule(chosen.graph, sequence, "monet", solution.solver, budget_bytes=budget_bytes)
    if schedule.peak_bytes > budget_bytes:
        raise PlanError(
            f"MONeT's program gave a schedule of {schedule.peak_bytes} bytes for a budget of {budget_bytes}; "
            "please report this"
        )
    schedule = replace(schedule, lower_bound=min(least, schedule.cost), seconds=time.perf_counter() - begun)
    return Chosen(schedule, chosen, unit, solution.status, solution.bound * program.unit_cost)


def monet_noop(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """MONeT without other implementations: which forward values to keep and which to compute again.

    Parameters
    ----------
    graph : Graph
        Any with forward nodes before backward nodes.
    budget_bytes : int
        Constants included.
    options : SolveOptions
        As for `monet`.

    Returns
    -------
    Schedule
        It is "optimal" only if nothing is computed twice: the program's bound does not hold in the evaluator's model.

    Raises
    ------
    StrategyError, InfeasibleBudgetError
        As `monet`.
    """
    split(graph)
    check_solver(options.solver)
    compile_if_over(graph, budget_bytes)
    begun = time.perf_counter()
    done = without_solving(graph, budget_bytes, "monet-noop", options)
    if done is not None:
        return done
    schedule = monet(OperatorGraph(graph, {}), budget_bytes, options).schedule
    status = "optimal" if schedule.cost <= graph.base_cost else "feasible"
    return replace(
        schedule, strategy="monet-noop", status=status, lower_bound=graph.base_cost,
        seconds=time.perf_counter() - begun,
    )  # fmt: skip


def _start(
    program: MonetProgram, graph: Graph, nodes: NDArray[np.int64], budget_bytes: int, options: SolveOptions
) -> NDArray[np.float64] | None:
    """A point of the program from what the eviction search finds at once."""
    point = program.pack({}, nodes.tolist())
    seconds = min(_SEARCH, 0.25 * options.time_limit) / len(_SHARES)
    for share in _SHARES:
        if point is not None:
            break
        begun, best = time.perf_counter(), None
        room = int(share * (budget_bytes - graph.constant_bytes))
        for sequence in search(graph, graph.constant_bytes + room, options.seed):
            best = sequence if sequence is not None else best
            if time.perf_counter() - begun > seconds:
                break
        point = None if best is None else program.pack({}, nodes[best].tolist())
    return point


def _infeasible(
    graph: Graph, budget_bytes: int, solution: Solution, options: SolveOptions, begun: float
) -> InfeasibleBudgetError:
    known = least_known(graph, options, begun)[0]
    asked, least = format_bytes(budget_bytes), format_bytes(known)
    why = (
        "MONeT's program, which counts more memory than is needed, has no solution"
        if solution.status == "infeasible"
        else f"{solution.solver} found no schedule ({solution.detail or 'in time'}), though one may exist"
    )
    return InfeasibleBudgetError(
        f'budget {asked} is too small: {why}; strategy="checkmate" has a schedule for {least} in the default ways; '
        "raise the budget or use that",
        budget_bytes,
        known,
        proven=False,
    )
