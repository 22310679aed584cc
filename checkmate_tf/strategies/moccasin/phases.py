"""Moccasin's two phases (section 2.4): least peak first, then least cost from what that found."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ...graph import Graph
from .retention import Retention

__all__ = ["two_phases"]

_PAUSE = 0.2  # seconds between two reports of a bound


def two_phases(
    graph: Graph,
    budget_bytes: int,
    copies: Sequence[int],
    *,
    free: bool,
    until: float,
    gap: float,
    workers: int,
    seed: int,
    start: Sequence[int],
    tell: Callable[..., None],
) -> None:
    """Run phase 1, and phase 2 if that found a schedule that fits. Not for a process that has loaded TensorFlow.

    Parameters
    ----------
    copies : (n,) int
    until : float
        When to stop, as `time.time` counts.
    start : sequence of int
        A schedule that fits. If it is given, phase 1 is left out.
    tell : callable
        Hears of solutions and bounds, as keywords: `phase`, and `sequence`, or `bound`, with `proved` at the end.
    """
    from ortools.sat.python import cp_model

    sequence = list(start) or list(range(len(graph)))
    for phase in (2,) if start else (1, 2):
        program = Retention(graph, budget_bytes, copies, free=free, phase=phase)
        program.hint(sequence)
        told = 0.0

        class Told(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self, program: Any = program, phase: int = phase) -> None:
                nonlocal sequence
                sequence = program.sequence(self.value)
                tell(phase=phase, sequence=sequence)

        def bounded(value: float, program: Any = program) -> None:
            nonlocal told
            if time.monotonic() - told > _PAUSE:
                told = time.monotonic()
                tell(phase=2, bound=program.cost(value))

        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.1, until - time.time())
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        if phase == 2:
            solver.parameters.relative_gap_limit = gap
            solver.best_bound_callback = bounded
        status: Any = solver.solve(program.model, Told())
        found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        if phase == 1 and (not found or round(solver.objective_value) > program.capacity):
            return
        if phase == 2:
            proved = found and solver.best_objective_bound >= solver.objective_value - 0.5
            tell(phase=2, bound=program.cost(solver.best_objective_bound), proved=bool(proved))
