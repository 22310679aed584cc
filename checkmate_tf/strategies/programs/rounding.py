"""Checkmate's approximation: two-phase rounding of the linear relaxation of problem (9) (Jain et al., MLSys 2020).

Solve the relaxation under (1 - eps) of the budget, with eps = 0.1 to make up for what rounding adds, giving R*, S* in
[0, 1]. Phase one: S = [S* > 1/2], or S = 1 with probability S*. Phase two: the least R for that S: R = I, then
R[t-1, i] where S[t, i] needs it (1c), then R[t, i] where an edge needs it (1b), until nothing is violated. Then look
whether the schedule fits the budget. Other thresholds than 1/2 are tried, too, as the authors' own program does.

A relaxation has many optima. Where memory allows it, a value may be kept in part or in whole for nothing, and a
first-order solver ends somewhere between: of ResNet50's S*, two fifths are above 0 and below 1/2. Then nearly
everything is computed again in every stage. So the relaxation is also solved with a reward for keeping values, and
with less of the budget left free, as rounding adds less then. The relaxation under the whole budget is solved for its
bound, and rounded, too.

A third phase is ours. A rounded schedule that fits may leave room: the relaxation had less, and counts memory in
another way. So what is computed again though there is room to keep it is kept (`keep_where_room`). The cheapest
schedule is taken.

Rounding R* and S* entry by entry instead gives schedules that compute nodes without their inputs: `round_naively` and
`round_naively_at_random` are here to show it.

What it does badly: nothing makes the rounded schedule fit. Where memory is scarce it may not, since kappa makes the
relaxation blind to when values are freed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasibleBudgetError
from ...graph import Graph
from ...schedule import Schedule, keep_all
from ...solvers import Solution, check_solver, solve_milp
from ...solvers.tolerances import EXACT
from ...units import format_bytes
from ..compiled import compile_if_over
from ..options import SolveOptions
from ..search.arrays import flatten
from ..search.minimum_budget import least_known, without_solving
from ..search.sequences.keep_where_room import keep_where_room
from .formulation import problem9

__all__ = [
    "ACCURACY",
    "AGAIN",
    "EPSILON",
    "THRESHOLDS",
    "least_computation",
    "lp_rounding",
    "lp_rounding_random",
    "round_naively",
    "round_naively_at_random",
    "violations",
]

log = logging.getLogger(__name__)

EPSILON = 0.1
"""Part of the budget that the relaxation has to leave free."""

ACCURACY = 1e-4
"""Relative error of large relaxations. Their bound is safe with any error. Compared with 1e-6, the rounded schedule of
MobileNet at 12 GB changed by 0.1% in cost and 9% in peak, in a tenth of the time."""

AGAIN = ((EPSILON, 0.01), (0.05, 0.03))
"""Parts of the budget to leave free, and rewards for keeping a value into a stage, in parts of its cost: relaxations
that are solved, too, as far as there is time. The first is the safer one. The second took ResNet50 (V100 costs, batch
256) from 1.41 to 1.18 times the plain cost in 16 GB, 1.56 to 1.43 in 10."""

THRESHOLDS = (0.5, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9)
"""Above which S* is rounded up: the cheapest schedule that fits is taken. The paper has 1/2; its authors' program tries
tenths. A first-order solver also ends at points where a value is kept by a hundredth only."""

_BETWEEN = 7  # more thresholds, between the best one and the next lower one
_WHOLE = (0.0, 0.0)  # this relaxation's bound is one on all schedules in stages
_DRAWS = 64
_LEAST_SECONDS = 0.1  # with less nothing is begun

Fractions = NDArray[np.float64]
Matrix = NDArray[np.bool_]


def lp_rounding(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Two-phase deterministic rounding, at each of `THRESHOLDS`: the cheapest schedule that fits, its room used.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions

    Returns
    -------
    Schedule
        Its lower bound is that of the relaxation under the whole budget, over schedules in stages that compute each
        node at most once, in the graph's order (`bound_order` "stages").

    Raises
    ------
    InfeasibleBudgetError
        If the relaxation has no solution or none in time, or the rounded schedule does not fit.
    StrategyError
        If the solver asked for does not exist, is not installed, or cannot solve this program.
    """
    return _strategy(graph, budget_bytes, options, "lp-rounding", at_random=False)


def lp_rounding_random(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Two-phase randomised rounding: the cheapest of several draws (from `options.seed`) that fits.

    Parameters, returns and raises as `lp_rounding`.
    """
    return _strategy(graph, budget_bytes, options, "lp-rounding-random", at_random=True)


def least_computation(graph: Graph, S: Matrix) -> tuple[Matrix, Matrix]:
    """Phase two: the least R for S.

    Parameters
    ----------
    S : (n, n) bool
        Strictly lower triangular.

    Returns
    -------
    R, S : (n, n) bool
        S is as given, but for values that would have to be computed again after their `recompute_until`: those are kept
        from the last stage where they can be computed. It is a solution of (1b), (1c) and (8a-8c).

    Notes
    -----
    O(n edges) for each such repair.
    """
    n, until, kept = len(graph), graph.recompute_until, np.array(S, dtype=bool)
    late = (np.arange(n)[:, None] > np.arange(n)[None, :]) & (np.arange(n)[:, None] >= until[None, :])
    while True:
        R = np.eye(n, dtype=bool)
        R[:-1] |= kept[1:] & ~kept[:-1]
        for i in range(n - 1):
            if not graph.users[i]:  # an output is there at the end
                R[-1, i] |= not kept[-1, i]
        for j in range(n - 1, -1, -1):
            for i in graph.inputs[j]:
                R[:, i] |= R[:, j] & ~kept[:, i]
        wrong = np.argwhere(R & late)
        if not len(wrong):
            return R, kept
        for t, i in wrong:
            kept[max(i + 1, until[i]) : t + 1, i] = True


def round_naively(R: Fractions, S: Fractions) -> tuple[Matrix, Matrix]:
    """Each entry to the nearest of 0 and 1; `violations` shows why not."""
    return R > 0.5, S > 0.5


def round_naively_at_random(R: Fractions, S: Fractions, random: np.random.Generator) -> tuple[Matrix, Matrix]:
    """Each entry to 1 with its value as probability; `violations` shows why not."""
    return random.random(R.shape) < R, random.random(S.shape) < S


def violations(graph: Graph, R: Matrix, S: Matrix) -> int:
    """How many of the constraints (1b), (1c) and R[t, t] = 1 do not hold."""
    count = int((~R.diagonal()).sum()) + int((S[1:] & ~(S[:-1] | R[:-1])).sum())
    for j, row in enumerate(graph.inputs):
        for i in row:
            count += int((R[:, j] & ~(R[:, i] | S[:, i])).sum())
    return count


def _strategy(graph: Graph, budget_bytes: int, options: SolveOptions, name: str, *, at_random: bool) -> Schedule:
    check_solver(options.solver)
    compile_if_over(graph, budget_bytes)
    begun = time.perf_counter()
    done = without_solving(graph, budget_bytes, name, options)
    if done is not None:
        return done
    best, lower, smallest, first = _cheapest_of_all(graph, budget_bytes, options, begun, at_random)
    if smallest is None:
        known = least_known(graph, options, begun)[0]
        solved = first.status == "infeasible"
        why = "has no solution" if solved else f"was not solved ({first.detail or 'in time'})"
        raise InfeasibleBudgetError(
            f"the linear relaxation {why} under {format_bytes(int((1 - EPSILON) * budget_bytes))}, {1 - EPSILON:.0%} "
            f"of the budget {format_bytes(budget_bytes)}, so there is nothing to round; the least budget with a known "
            f"schedule is {format_bytes(known)}; raise the {'budget' if solved else 'time limit'}, or use "
            'strategy="checkmate"',
            budget_bytes, known, proven=False,
        )  # fmt: skip
    if best is None:
        smallest = min(smallest, keep_all(graph).peak_bytes)
        raise InfeasibleBudgetError(
            f"the rounded schedule does not fit the budget {format_bytes(budget_bytes)}: the smallest "
            f"{'of the draws ' if at_random else ''}needs {format_bytes(smallest)}; raise the budget to "
            'that, or use strategy="checkmate"',
            budget_bytes, smallest, proven=False,
        )  # fmt: skip
    lower = min(lower, best.cost)
    status = "optimal" if best.cost - lower <= EXACT * best.cost else "feasible"
    seconds = time.perf_counter() - begun
    return replace(
        best, strategy=name, solver=first.solver, status=status, budget_bytes=budget_bytes, lower_bound=lower,
        bound_order="stages", seconds=seconds,
    )  # fmt: skip


def _cheapest_of_all(
    graph: Graph, budget_bytes: int, options: SolveOptions, begun: float, at_random: bool
) -> tuple[Schedule | None, float, int | None, Solution]:
    """Solve and round relaxations, as many as there is time for.

    Returns
    -------
    Schedule or None
        The cheapest that fits.
    float
        The bound that is proved.
    int or None
        The least peak of all that was rounded, bytes; None if nothing was.
    Solution
        Of the paper's relaxation.
    """
    seed = options.seed if at_random else None
    first, best, lower, smallest = None, None, graph.base_cost, None
    waiting = [(EPSILON, 0.0), _WHOLE, *AGAIN]
    while waiting:
        free, keeping = waiting.pop(0)
        left = options.time_limit - (time.perf_counter() - begun)
        if first is not None and left < _LEAST_SECONDS:
            break
        solution, S = _relaxed(graph, int((1 - free) * budget_bytes), options, max(left, _LEAST_SECONDS), keeping)
        if (free, keeping) == _WHOLE and solution.status != "infeasible":  # or a schedule would be known
            lower = max(lower, solution.bound * (graph.base_cost or 1.0))
        if S is not None:
            found, least = _cheapest(graph, S, budget_bytes, seed, begun + options.time_limit)
            smallest = least if smallest is None else min(smallest, least)
            if found is not None and (best is None or found.cost < best.cost):
                best = found
        if first is None:
            first = solution
            if best is None:  # the bound can wait, and what is impossible is not tried with a reward
                waiting = [one for one in AGAIN if S is not None or one[0] < EPSILON] + [_WHOLE]
        if best is not None and best.cost - lower <= EXACT * best.cost:
            break
    assert first is not None
    return best, lower, smallest, first


def _relaxed(
    graph: Graph, budget_bytes: int, options: SolveOptions, seconds: float, keeping: float = 0.0
) -> tuple[Solution, Fractions | None]:
    """Solve the linear relaxation of problem (9), with a reward for S of `keeping`. Returns its S*, too."""
    if budget_bytes <= graph.constant_bytes:
        return Solution("infeasible", None, np.inf, np.inf), None
    program = problem9(graph, budget_bytes)
    unit = graph.base_cost or 1.0

    def told(now: float, objective: float, bound: float) -> None:
        if options.progress is not None and not keeping:
            lower = max(graph.base_cost, bound * unit)
            options.progress(now, np.inf, lower, 1.0)

    objective = program.milp.objective.copy()
    kept = program.S >= 0
    objective[program.S[kept]] -= keeping * (graph.costs / unit)[np.nonzero(kept)[1]]
    milp = replace(program.milp, objective=objective, integer=None)
    solution = solve_milp(milp, options.solver, seconds, ACCURACY, options.memory_limit, progress=told)
    return solution, None if solution.x is None else program.unpack(solution.x)[1]


def _cheapest(
    graph: Graph, S: Fractions, budget_bytes: int, seed: int | None, until: float
) -> tuple[Schedule | None, int]:
    """The cheapest schedule that fits, if any does, of S* rounded; and the least peak of all, bytes.

    Thresholds between the best and the next one are tried if it is not yet `until`, by `time.perf_counter`.
    """
    if seed is not None:
        random = np.random.default_rng(seed)
        return _tried(graph, ((0.0, random.random(S.shape) < S) for _ in range(_DRAWS)), budget_bytes)[:2]
    counts = set[int]()
    best, smallest, at = _tried(graph, _above(S, THRESHOLDS, counts), budget_bytes)
    if best is None or time.perf_counter() > until:
        return best, smallest
    below = max((threshold for threshold in THRESHOLDS if threshold < at), default=0.0)
    between = np.linspace(below, at, _BETWEEN + 2)[1:-1].tolist()
    found, least, _ = _tried(graph, _above(S, between, counts), budget_bytes)
    return best if found is None or best.cost <= found.cost else found, min(smallest, least)


def _above(S: Fractions, thresholds: Iterable[float], counts: set[int]) -> Iterator[tuple[float, Matrix]]:
    """Thresholds and what S* rounds to, without what came before. `counts` tells: how many values each S keeps."""
    for threshold in thresholds:
        kept = threshold < S
        if (count := int(kept.sum())) not in counts:  # as thresholds rise some are left out, so each count is one S
            counts.add(count)
            yield threshold, kept


def _tried(
    graph: Graph, rounded: Iterable[tuple[float, Matrix]], budget_bytes: int
) -> tuple[Schedule | None, int, float]:
    """The cheapest schedule that fits, the least peak of all, and the threshold; one is in memory at a time."""
    best, smallest, at = None, np.iinfo(np.int64).max, 0.0
    problem, room = flatten(graph), budget_bytes - graph.constant_bytes
    for threshold, kept in rounded:
        schedule = Schedule.from_matrices(graph, *least_computation(graph, kept))
        smallest = min(smallest, schedule.peak_bytes)
        if schedule.peak_bytes > budget_bytes:
            continue
        kept_more = Schedule(graph, keep_where_room(problem, room, np.array(schedule.sequence)))
        if kept_more.peak_bytes <= budget_bytes:  # unless outputs are computed again, which are kept there
            schedule = kept_more
        if best is None or schedule.cost < best.cost:
            best, at = schedule, threshold
    return best, int(smallest), at
