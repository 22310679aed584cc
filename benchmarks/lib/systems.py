"""Systems side by side: each solves a graph within a budget in a process of its own, and its course is kept.

Used by `moccasin.py` and `side_by_side.py`. A cell is one JSON file, so both resume.

`problem9-...` is Checkmate's problem (9) given to a solver as it is, without the start from our search that strategy
"milp" adds. Its budget is smaller by the solver's tolerances, so that what it finds fits.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.lib.cells import ChildError, in_child, kept, progress_bar

SYSTEMS: dict[str, tuple[str, str, str]] = {
    "problem9-highs": ("problem (9), HiGHS", "", "highs"),
    "problem9-scip": ("problem (9), SCIP", "", "scip"),
    "problem9-gurobi": ("problem (9), Gurobi", "", "gurobi"),
    "milp": ("problem (9) from our search's schedule", "milp", "auto"),
    "moccasin": ("Moccasin", "moccasin", "auto"),
    "moccasin-free": ("Moccasin, free order", "moccasin-free", "auto"),
    "checkmate": ("ours", "checkmate", "auto"),
}
"""Name: title, strategy (problem (9) alone if there is none), solver."""

_MARGIN = 4e-6  # of the budget: above the solvers' tolerances
_QUIET = 1e-9  # relative: what is worth a line in the course

Course = list[tuple[float, float, float]]


def solve_cell(graph: Any, percent: float, system: str, time_limit: float) -> dict:
    """Solve to the optimum, or to the time limit.

    Parameters
    ----------
    graph : Graph
    percent : float
        Of the peak without recomputation, constants left out.
    system : str
        One of `SYSTEMS`.
    time_limit : float
        Seconds.

    Returns
    -------
    dict
        "course": (seconds, cost, the system's own bound) whenever one of them changed; and, if there is a schedule, its
        "cost", "overhead", "peak_bytes" by the evaluator, and "lower_bound" (proven for every schedule, or 0).
    """
    import resource

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import SolveOptions, solve

    plain = keep_all(graph).peak_bytes
    budget = graph.constant_bytes + int((plain - graph.constant_bytes) * percent / 100)
    course: Course = []

    def progress(seconds: float, cost: float, bound: float, _: float) -> None:
        if not course or differ(course[-1][1], cost) or differ(course[-1][2], bound):
            course.append((round(seconds, 2), cost, bound))

    _, strategy, solver = SYSTEMS[system]
    options = SolveOptions(time_limit=time_limit, gap=0.0, solver=solver, progress=progress)
    begun = time.perf_counter()
    cell = {
        "nodes": len(graph), "edges": len(graph.edges), "plain_bytes": plain, "constant_bytes": graph.constant_bytes,
        "budget_bytes": budget, "base_cost": graph.base_cost,
    }  # fmt: skip
    try:
        schedule = solve(graph, budget, strategy, options) if strategy else problem9_alone(graph, budget, options)
    except InfeasibleBudgetError as error:
        cell |= {"status": "infeasible, proven" if error.proven else "none found", "least_bytes": error.minimum_bytes}
    else:
        cell |= {
            "status": schedule.status, "solver": schedule.solver, "cost": schedule.cost, "overhead": schedule.overhead,
            "peak_bytes": schedule.peak_bytes, "lower_bound": schedule.lower_bound,
        }  # fmt: skip
        if not course or course[-1][1] > schedule.cost * (1 + _QUIET):
            course.append((round(time.perf_counter() - begun, 2), schedule.cost, max(schedule.lower_bound, 0.0)))
    cell["seconds"] = round(time.perf_counter() - begun, 2)
    memory = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return cell | {
        "solver_bytes": memory * 1024,
        "course": [[value if math.isfinite(value) else None for value in point] for point in course],
    }


def differ(a: float, b: float) -> bool:
    """Whether by more than rounding; infinities do not differ."""
    return a != b and not abs(a - b) <= _QUIET * abs(b)


def problem9_alone(graph: Any, budget_bytes: int, options: Any) -> Any:
    """Problem (9) in a solver, without a start.

    Raises
    ------
    InfeasibleBudgetError
        If there is no schedule, or none was found.
    """
    import numpy as np

    from checkmate_tf.errors import InfeasibleBudgetError
    from checkmate_tf.schedule import Schedule, keep_all
    from checkmate_tf.solvers import solve_milp
    from checkmate_tf.strategies.programs.formulation import problem9

    begun = time.perf_counter()
    plain = keep_all(graph)
    if plain.peak_bytes <= budget_bytes:
        return plain
    unit = graph.base_cost or 1.0
    program = problem9(graph, int(graph.constant_bytes + (1 - _MARGIN) * (budget_bytes - graph.constant_bytes)))

    def told(_: float, objective: float, bound: float) -> None:
        cost, lower = objective * unit, max(graph.base_cost, bound * unit)
        options.progress(time.perf_counter() - begun, cost, lower, 1 - lower / cost)

    left = max(1.0, options.time_limit - (time.perf_counter() - begun))
    solution = solve_milp(program.milp, options.solver, left, 0.0, progress=told)
    schedule = None
    if solution.x is not None:
        R, S = program.unpack(solution.x)
        lower = min(max(graph.base_cost, solution.bound * unit), solution.objective * unit)
        schedule = Schedule.from_matrices(
            graph, R > 0.5, S > 0.5, strategy="problem (9)", solver=solution.solver, status=solution.status,
            budget_bytes=budget_bytes, lower_bound=lower if np.isfinite(lower) else 0.0,
        )  # fmt: skip
    if schedule is None or schedule.peak_bytes > budget_bytes:
        proven = solution.status == "infeasible"
        raise InfeasibleBudgetError(solution.detail or "no schedule", budget_bytes, plain.peak_bytes, proven)
    return schedule


def run_systems(
    script: str, output: Path, requests: Sequence[dict], name: Callable[[dict], str], title: Callable[[dict], str]
) -> list[dict]:
    """Run `script --child REQUEST` for each request that nothing kept answers; all cells.

    Parameters
    ----------
    name, title : callable
        Of the request's file, without ".json", and for the progress bar.
    """
    cells = []
    with progress_bar() as bar:
        task = bar.add_task("", total=len(requests))
        for request in requests:
            bar.update(task, description=title(request))
            path = output / f"{name(request)}.json"
            cell = kept(path, request)
            if cell is None:
                cell = run_child(script, request)
                if "failed" not in cell:
                    path.write_text(json.dumps(cell, indent=1))
                bar.console.print(f"{title(request)}: {summary(cell)}")
            cells.append(cell)
            bar.advance(task)
    return cells


def run_child(script: str, request: dict) -> dict:
    """One cell in a child process."""
    try:
        return {**request, **in_child(script, request, None)}
    except ChildError as error:
        return {**request, "failed": error.stderr.strip().splitlines()[-3:]}


def summary(cell: dict) -> str:
    """A cell in a line."""
    if "failed" in cell:
        return f"failed: {cell['failed']}"
    if "cost" not in cell:
        return f"{cell['status']} ({cell['seconds']:.1f} s)"
    return f"{cell['overhead']:.3%}, {cell['status']} ({cell['seconds']:.1f} s)"


def within(cell: dict, bound: float, share: float = 0.01) -> float | None:
    """Seconds until the cost was at most (1 + share) of the bound; None if it never was."""
    return next((s for s, cost, _ in cell.get("course", []) if cost is not None and cost <= (1 + share) * bound), None)


def best_seconds(cell: dict) -> float | None:
    """Seconds until the cost that it ended with."""
    return within(cell, cell["cost"], 1e-9) if "cost" in cell else None
