"""The largest batch over problem (9), exactly: the published quadratic program, and the linear one that it comes to.

Checkmate (section 5.3 and figure 6) maximises the batch B with memory in B x M_i, in the rows of `formulation`:

    max B
    U[t, 0] = B (sum_i M_i S[t, i] + R[t, 0] M_0)
    U[t, k+1] = U[t, k] + B (R[t, k+1] M_{k+1} - sum_{i in inputs(k)} M_i FREE[t, i, k])
    U[t, k] <= memory - fixed,    sum C_i R[t, i] <= 2 x forward + backward,    (1b), (1c), (5), (6), (8a-8c)

B times a binary is not convex. But all of U grows with B, so that the largest B has the schedule of least peak:

    min z,    U[t, k] <= z for one sample, the rest as above;    B = floor((memory - fixed) / z)

Both are exact in the space of problem (9), where a stage computes each node at most once, in the graph's order. So they
agree, and `max_batch`, whose bound holds for any recomputation, brackets them. Peaks are whole bytes, which takes the
solvers' tolerances off the bound.

What they do badly: both grow as problem (9) does, and the licence in Gurobi's wheel ends the quadratic one at 200
variables (8 or 9 nodes). For networks use `max_batch`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...errors import StrategyError
from ...graph import Graph
from ...schedule import Schedule, keep_all
from ...solvers import Milp, Products, Solution, check_solver, solve_milp
from ...solvers.gurobi import LIMIT, QUADRATIC_LIMIT, licence_details
from ...solvers.tolerances import FEASIBLE, MARGIN
from ..options import SolveOptions
from ..programs.formulation import Formulation, problem9
from ..search.minimum_budget import proven_minimum
from .scaling import cost_limit, most_batch, one_sample, samples, scaled, too_small
from .values import MaxBatch

__all__ = ["max_batch_linear", "max_batch_quadratic"]

log = logging.getLogger(__name__)


def max_batch_quadratic(
    graph: Graph,
    memory_bytes: int,
    max_overhead: float | str = "one-forward",
    fixed_bytes: int | None = None,
    options: SolveOptions | None = None,
) -> MaxBatch:
    """The largest batch by the published quadratic program, in Gurobi.

    Parameters
    ----------
    graph : Graph
        Of one sample.
    memory_bytes : int
    max_overhead : float or "one-forward"
        See `scaling.cost_limit`.
    fixed_bytes : int, optional
        The part of `graph.constant_bytes` that does not grow with the batch. Default: all of it.
    options : SolveOptions, optional
        Of these, the limits of time and memory, and `progress`. The gap is 0.

    Returns
    -------
    MaxBatch
        Its upper bound holds where a stage computes each node at most once, in the graph's order.

    Raises
    ------
    StrategyError
        If Gurobi is not installed or licensed, or its licence does not allow the size.
    InfeasibleBudgetError
        If not even one sample fits.
    BudgetError, CostError
        As `max_batch`.
    """
    task = _task(graph, memory_bytes, max_overhead, fixed_bytes, replace(options or SolveOptions(), solver="gurobi"))
    return _run(task, _quadratic)


def max_batch_linear(
    graph: Graph,
    memory_bytes: int,
    max_overhead: float | str = "one-forward",
    fixed_bytes: int | None = None,
    options: SolveOptions | None = None,
) -> MaxBatch:
    """The largest batch by the least peak of one sample, in any solver for integer programs (`options.solver`).

    Parameters, result and errors are those of `max_batch_quadratic`.
    """
    return _run(_task(graph, memory_bytes, max_overhead, fixed_bytes, options or SolveOptions()), _linear)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is asked. `one` is the graph of all that grows, for one sample; `room` is the memory less what does not."""

    graph: Graph
    one: Graph
    memory: int
    fixed: int
    limit: float
    options: SolveOptions
    begun: float

    @property
    def room(self) -> int:
        return self.memory - self.fixed

    @property
    def most(self) -> int:
        return most_batch(self.one)


@dataclass(frozen=True, eq=False)
class _Program:
    """A program whose last variable stands for the batch or the peak.

    `start` makes a point of it from one of problem (9). `peak` makes bytes of one sample from its objective.
    """

    milp: Milp
    start: Callable[[NDArray[np.float64]], NDArray[np.float64] | None]
    peak: Callable[[float], float]


_Build = Callable[[_Task, Formulation, float, int, int], _Program]


def _task(
    graph: Graph, memory: int, max_overhead: float | str, fixed_bytes: int | None, options: SolveOptions
) -> _Task:
    check_solver(options.solver)
    one, fixed = one_sample(graph, fixed_bytes)
    return _Task(graph, one, int(memory), fixed, cost_limit(graph, max_overhead), options, time.perf_counter())


def _run(task: _Task, build: _Build) -> MaxBatch:
    """Solve, unless keeping everything is optimal or too much for any schedule."""
    one, room, options = task.one, task.room, task.options
    best, least = keep_all(one), float(proven_minimum(one)[0])
    if build is _quadratic:
        _check_licence(one)
    solver = "none needed"
    if samples(room, least, task.most) > samples(room, best.peak_bytes, task.most):
        program = problem9(one, best.peak_bytes, integral=options.solver == "cp-sat")
        first, solver = math.inf, ""
        for limit in (task.limit, task.limit * (1 - MARGIN)):
            solution, extended = _solve(task, build(task, program, limit, best.peak_bytes, int(least)), program, best)
            solver = solution.solver or solver
            first = min(first, _proven(solution, extended))
            found = _schedule(program, solution)
            if found is None or found.cost <= task.limit * (1 + 1e-12):
                break
            log.info("the solver's schedule is over the cost limit by its tolerances; solving again with a margin")
            found = None
        least = max(least, first) if first < math.inf else math.inf
        if found is not None and found.peak_bytes < best.peak_bytes:
            best = found
    return _result(task, best, least, solver)


def _solve(task: _Task, extended: _Program, program: Formulation, plain: Schedule) -> tuple[Solution, _Program]:
    """From the schedule that keeps everything, if that is a point."""
    options = task.options

    def told(_: float, objective: float, bound: float) -> None:
        if options.progress is None:
            return
        batch, upper = (samples(task.room, extended.peak(value), task.most) for value in (objective, bound))
        options.progress(time.perf_counter() - task.begun, batch, upper, upper / max(batch, 1) - 1)

    left = max(0.1, options.time_limit - (time.perf_counter() - task.begun))
    start = extended.start(program.pack(plain.R, plain.S))
    return solve_milp(extended.milp, options.solver, left, 0.0, options.memory_limit, start, told), extended


def _proven(solution: Solution, extended: _Program) -> float:
    """Bytes that one sample needs by the solver's bound; infinite if there is no schedule."""
    if solution.status == "infeasible":
        return math.inf
    if not np.isfinite(solution.bound):
        return 0.0
    return float(math.ceil(extended.peak(solution.bound) * (1 - FEASIBLE)))


def _schedule(program: Formulation, solution: Solution) -> Schedule | None:
    if solution.x is None:
        return None
    R, S = program.unpack(solution.x[:-1])
    return Schedule.from_matrices(program.graph, R > 0.5, S > 0.5)


def _result(task: _Task, best: Schedule, least: float, solver: str) -> MaxBatch:
    batch = samples(task.room, best.peak_bytes, task.most)
    upper = max(batch, samples(task.room, least, task.most) if least < math.inf else 0)
    if batch < 1:
        low = proven_minimum(task.one)[0]
        raise too_small(task.memory, task.fixed, best.peak_bytes, proven=samples(task.room, low) < 1)
    seconds = time.perf_counter() - task.begun
    schedule = Schedule(
        scaled(task.graph, batch, task.fixed), best.sequence, strategy="milp", solver=solver,
        status="optimal" if len(best.sequence) == len(best.graph) else "feasible", budget_bytes=task.memory,
        lower_bound=task.graph.base_cost * batch, seconds=seconds,
    )  # fmt: skip
    return MaxBatch(batch, upper, schedule, task.memory, task.fixed, task.limit * batch, seconds)


def _check_licence(graph: Graph) -> None:
    """Whether Gurobi's licence allows the quadratic program, before it is built."""
    n = len(graph)
    variables = n * (3 * n + 1) // 2 + sum(n - 1 - k for _, k in graph.edges) + 1
    found = licence_details()
    if found["licence"] == "none":
        raise StrategyError(
            f'the quadratic form needs Gurobi ({found["detail"]}); use the linear form (form="linear"), which has '
            "the same optimum"
        )
    if found["licence"] != "full" and variables > QUADRATIC_LIMIT:
        raise StrategyError(
            f"the quadratic form of {graph.name!r} has {variables:,} variables, but Gurobi's licence here ends at "
            f"{QUADRATIC_LIMIT} where rows are quadratic ({LIMIT:,} where they are linear): use the linear form "
            '(form="linear"), with the same optimum, or a full licence'
        )


# -- the two programs --------------------------------------------------------------------------------------------------


def _quadratic(task: _Task, program: Formulation, limit: float, plain_peak: int, least: int) -> _Program:
    """max B. U in units of the room; the last variable is b = B x unit / room, so that b M_i / unit is B M_i / room."""
    base, room = program.milp, float(task.room)
    count, unit = len(base.objective), program.unit_bytes
    is_memory = np.zeros(count, dtype=bool)
    is_memory[program.U[program.U >= 0]] = True
    cells = sp.coo_matrix(base.matrix)
    grows = np.isin(cells.row, np.concatenate([program.balances, program.limits])) & ~is_memory[cells.col]
    linear = sp.csr_matrix((cells.data[~grows], (cells.row[~grows], cells.col[~grows])), shape=cells.shape)
    growing = task.one.constant_bytes / unit
    column = np.zeros(cells.shape[0])
    column[program.limits] = growing - (base.row_upper[program.limits] - 1.0)  # beyond the budget: held
    capped = _capped(program)
    matrix = _rows(linear, column, capped, growing, base.objective)
    upper = base.row_upper.copy()
    upper[program.limits] = 1.0
    most = unit / max(least, 1)
    box = base.upper.copy()
    t, k = np.nonzero(program.U >= 0)
    box[program.U[t, k]] = 1.0 + most * np.maximum(0.0, -task.one.workspace[k] / unit)
    products = sp.csr_matrix((cells.data[grows], (cells.row[grows], cells.col[grows])), shape=matrix.shape)
    assert base.integer is not None
    milp = Milp(
        objective=np.append(np.zeros(count), -1.0),
        matrix=matrix,
        row_lower=np.concatenate([base.row_lower, np.full(len(capped) + 1, -np.inf)]),
        row_upper=np.concatenate([upper, np.ones(len(capped)), [limit / (task.one.base_cost or 1.0)]]),
        lower=np.append(base.lower, unit / room),
        upper=np.append(box, most),
        integer=np.append(base.integer, False),
        products=Products(count, products),
    )

    def start(x: NDArray[np.float64]) -> NDArray[np.float64] | None:
        b = unit / plain_peak
        return np.append(np.where(is_memory, b * x, x), b) if plain_peak <= room else None

    return _Program(milp, start, lambda objective: unit / -objective if objective < 0 else math.inf)


def _linear(task: _Task, program: Formulation, limit: float, plain_peak: int, least: int) -> _Program:
    """min z. The last variable is the peak of one sample without constants, in the unit of U."""
    base, unit, constant = program.milp, program.unit_bytes, task.one.constant_bytes
    count, budget = len(base.objective), (plain_peak - constant) // unit if task.options.solver == "cp-sat" else 1.0
    assert base.integer is not None
    integral = bool(base.integer.all())
    column = np.zeros(base.matrix.shape[0])
    column[program.limits] = -1.0
    capped = _capped(program)
    costs, side = base.objective, limit / (task.one.base_cost or 1.0)
    if integral and (task.one.costs == np.round(task.one.costs)).all():  # CP-SAT is exact with integers
        costs, side = base.objective.copy(), math.floor(limit * (1 + 1e-12))
        costs[program.R[program.R >= 0]] = task.one.costs[np.nonzero(program.R >= 0)[1]]
    upper = base.row_upper.copy()
    upper[program.limits] -= budget
    lower = max(0, least - constant) / unit
    milp = Milp(
        objective=np.append(np.zeros(count), 1.0),
        matrix=_rows(base.matrix, column, capped, -1.0, costs),
        row_lower=np.concatenate([base.row_lower, np.full(len(capped) + 1, -np.inf)]),
        row_upper=np.concatenate([upper, np.zeros(len(capped)), [side]]),
        lower=np.append(base.lower, math.floor(lower) if integral else lower),
        upper=np.append(base.upper, float(budget)),
        integer=np.append(base.integer, integral),
    )
    return _Program(milp, lambda x: np.append(x, float(budget)), lambda objective: constant + unit * objective)


def _capped(program: Formulation) -> NDArray[np.int64]:
    """The U that only their upper bounds limit."""
    return program.U[:, program.graph.workspace == 0][program.U[:, program.graph.workspace == 0] >= 0]


def _rows(
    matrix: sp.spmatrix,
    column: NDArray[np.float64],
    capped: NDArray[np.int64],
    factor: float,
    costs: NDArray[np.float64],
) -> sp.csr_matrix:
    """One variable more, with these coefficients; and new rows: U + factor x the variable, and the cost."""
    count, new = matrix.shape[1], len(capped)
    caps = sp.coo_matrix((np.ones(new), (np.arange(new), capped)), shape=(new, count))
    blocks = [
        [matrix, sp.coo_matrix(column[:, None])],
        [caps, sp.coo_matrix(np.full((new, 1), factor))],
        [sp.coo_matrix(costs[None, :]), sp.coo_matrix((1, 1))],
    ]
    whole = sp.csr_matrix(sp.bmat(blocks))
    whole.eliminate_zeros()
    return whole
