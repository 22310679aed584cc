"""Fits a plan to the device: solve, run on its allocator, correct the target, solve again.

A schedule that was solved before for the same question comes from the cache (`schedule_cache`).

When the device's allocator can be watched, the plan is run on it. A peak over the budget (chunks that the allocator
cannot split, workspaces of kernels, other tenants of the device) takes the difference off the target and plans again.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from ..costs import CostSpec
from ..errors import InfeasibleBudgetError, JitCompileError, PlanError
from ..graph import Graph
from ..plan import Plan
from ..report import Attempt
from ..schedule import Schedule
from ..schedule_cache import lookup, store
from ..schedule_file import schedule_from_dict
from ..strategies import SolveOptions, solve
from ..trace.program import Program
from ..units import Budget, format_bytes, parse_budget
from .emit import emit
from .interrupts import noted_interrupts
from .measure import Device, captured_variables, fed_as_by_fit, measure_peak
from .spec import example
from .xla import emit_compiled

__all__ = ["SURE", "Candidate", "Job", "PlanOptions", "fit", "fit_given", "near_limit", "solving_seconds", "timed"]

log = logging.getLogger("checkmate_tf")

# Share of the budget to aim for, since peaks differ from step to step; and of that, what is worth no further plan.
_GOAL, _USED = 0.92, 0.94
SURE, _SURE_STRICT = 0.95, 0.96  # share of the budget that a measured peak may take; a strict order varies less
_NEAR = 1.1  # times the budget: other schedules with the least peak may lose less to the allocator's pieces
_LOWER = 0.98  # share of the least peak predicted so far below which another plan is worth a measurement
_CHEAPER = 8.0  # seconds at least to make the schedule with the least known peak cheaper
_FREE = 0.005  # an overhead not worth another plan
_STRICT_COST = 1.1  # times the cost of a step: what one strict order may cost in parallelism
_WASTE = 0.25  # of the memory for activations, what the allocator's pieces are expected to lose, until it is measured
_TIGHT = 1.25  # a hard limit of the allocator is near when it is below this many times the budget
_CLEAR = 0.72  # share of such a limit that a plan may be measured at: a quarter is lost to pieces too small to use
_ROOM = 0.6  # share of such a limit that the first plan to be measured may take, by prediction
_MOST = 0.88  # share of such a limit above which a plan is refused: sooner or later a step would run out of memory
_LOOSE = 1.15  # of a predicted peak: what computations out of order may need; they seldom do, and it is measured
_PIECES = 0.1  # of the memory for activations, what pieces take at least: left free by computations out of order too
_REUSED = "solved before"  # a stage: the seconds that schedules from the cache took when they were made


@dataclass(frozen=True)
class PlanOptions:
    """How to plan.

    Attributes
    ----------
    budget : Budget
    strategy : str
    costs : str, callable or array
        See `checkmate_tf.costs`.
    time_limit : float
        Seconds for the solver, over all its runs.
    gap : float
        Stop solving at this proven gap.
    seed : int
    verify : bool
        Measure the peak on the device, if it can be.
    tries : int
        Most plans to measure.
    progress : callable (stage, done, total, text) or None
    cache : bool
        Use a schedule that was solved before, and keep those that are solved now.
    schedule : path or None
        A saved schedule for the first structure of data, to be used instead of solving.
    jit_compile : bool
        Let XLA compile the planned step.
    operators : str
        "default", or "choose": gradients may read codes of forward values instead of the values; see
        `trace.encodings`.
    """

    budget: Budget = field(default_factory=lambda: parse_budget("auto"))
    strategy: str = "checkmate"
    costs: CostSpec = "profile"
    time_limit: float = 60.0
    gap: float = 0.01
    seed: int = 0
    verify: bool = True
    tries: int = 5
    progress: Callable[[str, float, float, str], None] | None = None
    cache: bool = True
    schedule: str | os.PathLike[str] | None = None
    jit_compile: bool = False
    operators: str = "default"

    def tell(self, stage: str, done: float, total: float, text: str = "") -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(stage, done, total, text)


def near_limit(device: Device, budget_bytes: int) -> bool:
    """Whether the CPU's allocator has a hard limit little above a budget."""
    return device.name.startswith("CPU") and device.limit_bytes < _TIGHT * budget_bytes


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be fitted into how much.

    Attributes
    ----------
    program : Program
    graph : Graph
        With costs.
    budget_bytes : int
        Of the device, all in all.
    device : Device
    options : PlanOptions
    seconds : dict of str to float
        By stage; added to.
    places : tuple of str
        The devices of all replicas, each with its part of the inputs; none if all is on `device`.
    """

    program: Program
    graph: Graph
    budget_bytes: int
    device: Device
    options: PlanOptions
    seconds: dict[str, float]
    places: tuple[str, ...] = ()

    @property
    def measure(self) -> bool:
        """Whether plans are run on the device."""
        return self.options.verify and self.device.measurable

    def most_bytes(self, strict: bool) -> int:
        """The most that a plan may be measured at: the budget, less what peaks differ by from step to step."""
        most = int((_SURE_STRICT if strict else SURE) * self.budget_bytes)
        return min(most, int(_MOST * self.device.limit_bytes)) if self.near_limit else most

    @property
    def near_limit(self) -> bool:
        """Whether a plan that needs more than was predicted may run out of memory."""
        return self.measure and near_limit(self.device, self.budget_bytes)

    @property
    def goal_bytes(self) -> int:
        """What a plan's measured peak should come near.

        Where the CPU's allocator has a hard limit near the budget, to run out of memory while measuring can be a crash:
        oneDNN does not check all allocations. So stay away from the limit.
        """
        goal = int(_GOAL * self.budget_bytes)
        return min(goal, int(_CLEAR * self.device.limit_bytes)) if self.near_limit else goal

    @property
    def first_target_bytes(self) -> int:
        """What the first schedule has to fit: the goal, less what the allocator may be expected to lose."""
        if not self.measure:
            return self.budget_bytes
        target = int(_GOAL * self.budget_bytes) - int(_WASTE * max(0, self.budget_bytes - self.graph.constant_bytes))
        return self.with_room(target)

    def with_room(self, target: int) -> int:
        """A target that leaves room for what was not predicted, where to run out of memory can be a crash."""
        return min(target, int(_ROOM * self.device.limit_bytes)) if self.near_limit else target

    def limit_bytes(self, schedule: Schedule) -> int:
        """What computations may need that do not keep the schedule's order; see `emit`.

        The worst order may come in any step, though the measured ones did not show it: the allocator's pieces have to
        fit beside it.
        """
        peak = schedule.peak_bytes
        if not self.measure or self.near_limit:
            return peak
        pieces = _PIECES * max(0, self.budget_bytes - self.graph.constant_bytes)
        return max(peak, min(int(_LOOSE * peak), int(SURE * self.budget_bytes - pieces)))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule, how it is emitted, and what the device said of it.

    Attributes
    ----------
    schedule : Schedule
    limit_bytes : int
        As `emit` takes it; 0 for one strict order.
    measured_bytes : int or None
        Peak of the device; None if it was not measured.
    """

    schedule: Schedule
    limit_bytes: int
    measured_bytes: int | None


def _given(saved: dict[str, Any], job: Job) -> Schedule:
    """The schedule that the user gave, if it is one of the graph and fits the budget."""
    source = str(job.options.schedule)
    schedule = schedule_from_dict(saved, job.graph, source)
    if schedule.peak_bytes > job.budget_bytes:
        raise PlanError(
            f"the schedule in {source} needs {format_bytes(schedule.peak_bytes)} by prediction, over the budget of "
            f"{format_bytes(job.budget_bytes)}; raise the budget, or save a schedule that was made for it"
        )
    return schedule


def fit_given(job: Job, saved: dict[str, Any]) -> tuple[Candidate | None, list[Attempt]]:
    """A saved schedule, loosely ordered or else in one strict order; None if it is measured over the budget in both.

    Raises
    ------
    PlanError
        If it is not one of the job's graph, or does not fit the budget by prediction.
    """
    schedule = _given(saved, job)
    if not job.measure:
        return Candidate(schedule, schedule.peak_bytes, None), []
    attempts: list[Attempt] = []
    for strict in (False,) if job.options.jit_compile else (False, True):
        limit = 0 if strict else job.limit_bytes(schedule)
        attempts.append(_attempt(job, schedule, schedule.budget_bytes or schedule.peak_bytes, limit, int(strict)))
        measured = attempts[-1].measured_bytes
        if measured is not None and measured <= job.most_bytes(strict):
            return Candidate(schedule, limit, measured), attempts
    log.warning("the schedule in %s is over the budget as it is measured here: planning anew", schedule.origin)
    return None, attempts


def _attempt(job: Job, schedule: Schedule, target: int, limit: int, attempt: int) -> Attempt:
    """Run a schedule on the device. `limit` is that of `emit`; 0 for one strict order."""
    with timed(job.seconds, "emit and measure"):
        text = f"predicted {format_bytes(schedule.peak_bytes)}"
        job.options.tell("measure", min(attempt, job.options.tries), job.options.tries, text)
        measured = _measure(job, schedule.plan, limit)
    return Attempt(target, schedule.peak_bytes, measured, schedule.overhead, not limit)


def fit(job: Job, target: int | None = None) -> tuple[Candidate, list[Attempt]]:
    """The cheapest schedule found whose measured peak is within the budget; without measurement, the first.

    The first schedule to be measured fits `target`, or leaves what the allocator may be expected to lose. Each
    measurement corrects the target of the next one, down when the peak is over the budget and up when much of the
    budget is left. When nothing that fits the corrected target is feasible, the least that is comes next; then
    computations are put in one strict order, which costs parallelism and makes the allocator's peak lower and steadier;
    and if that is near, other schedules with the least peak are tried. A plan that fits only because much is recomputed
    gives way to a cheaper one that was over the budget, if that keeps it in one strict order.

    Parameters
    ----------
    job : Job
    target : int, optional
        Bytes, constants included.

    Returns
    -------
    Candidate
    list of Attempt
        All that was measured, in order.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits, or none was measured within the budget; names the least that was.
    JitCompileError
        If XLA is to compile the step and cannot.
    """
    graph, budget_bytes, options, seconds = job.graph, job.budget_bytes, job.options, job.seconds
    attempts: list[Attempt] = []
    best: Candidate | None = None
    over: list[Schedule] = []  # too much, with computations out of order
    again: Schedule | None = None  # one of these, to be measured in one strict order
    goal, strict, settled = job.goal_bytes, False, False
    target = job.first_target_bytes if target is None or not job.measure else job.with_room(target)
    least: int | None = None  # measured
    needed: int | None = None  # the least budget that a plan would have kept
    tried: set[tuple[bytes, bool]] = set()
    for attempt in range(options.tries if job.measure else 1):
        schedule, again = again, None
        if schedule is None and not settled:
            with timed(seconds, "solve"):
                try:
                    schedule = _solve(graph, target, options, seconds)
                except InfeasibleBudgetError as error:
                    known = error.minimum_bytes
                    if not attempts:
                        if target >= budget_bytes:
                            raise
                        between = target < known < budget_bytes
                        if error.sequence is None or not between:
                            target = known if between and not attempt else budget_bytes
                            continue
                        target, schedule = known, _least(graph, error, options, seconds)
                    elif best is not None:
                        pass
                    elif known < _LOWER * min(a.predicted_bytes for a in attempts if a.strict == strict):
                        target, schedule = known, _least(graph, error, options, seconds)
                    elif options.jit_compile:  # XLA has an order of its own
                        pass
                    elif not strict:
                        strict, target = True, max(goal, known)
                        schedule = _solve(graph, target, options, seconds)
                    elif (least or 0) <= _NEAR * budget_bytes:
                        target = known
                        schedule = _least(graph, error, replace(options, seed=options.seed + attempt), seconds)
        if schedule is None or (schedule.sequence.tobytes(), strict) in tried:
            again = None if best is None or strict else _cheaper(over, best)
            if again is None:
                break
            strict, settled, target = True, False, again.peak_bytes
            continue
        limit = 0 if strict else job.limit_bytes(schedule)
        if not job.measure:
            return Candidate(schedule, limit, None), attempts
        tried.add((schedule.sequence.tobytes(), strict))
        attempts.append(_attempt(job, schedule, target, limit, attempt))
        measured = attempts[-1].measured_bytes
        if measured is None:
            target = min(schedule.peak_bytes, target) - budget_bytes // 10
            continue
        least = min(measured, least or measured)
        needs = int(measured / (_SURE_STRICT if strict else SURE)) + 1
        needed = min(needs, needed or needs)
        fits = measured <= job.most_bytes(strict)
        if fits and (best is None or schedule.cost < best.schedule.cost):
            best = Candidate(schedule, limit, measured)
        if not (fits or strict or options.jit_compile):
            over.append(schedule)
        target = goal - (measured - schedule.peak_bytes)
        enough = measured >= _USED * goal or schedule.overhead < _FREE
        settled = fits and best is not None and (enough or target <= best.schedule.peak_bytes)
    options.tell("measure", 1, 1, "")
    if best is None:
        raise _unkept(job, attempts, needed or int(budget_bytes / _SURE_STRICT) + 1)
    return best, attempts


def _cheaper(schedules: list[Schedule], best: Candidate) -> Schedule | None:
    """Of some schedules the one of least peak that is cheaper than the best one, even in one strict order."""
    found = [s for s in schedules if _STRICT_COST * s.cost < best.schedule.cost]
    return min(found, key=lambda s: s.peak_bytes, default=None)


def _unkept(job: Job, attempts: list[Attempt], least: int) -> InfeasibleBudgetError:
    """What to say when no plan was measured within the budget; the least budget that one keeps is `least`."""
    hard, what = "", "the budget to that"
    if job.near_limit and _MOST * job.device.limit_bytes < SURE * job.budget_bytes:
        hard = f", too near its limit of {format_bytes(job.device.limit_bytes)}, of which pieces are lost"
        what = "the limit"
    return InfeasibleBudgetError(
        f"budget {format_bytes(job.budget_bytes)} was kept by none of {len(attempts)} plans: the least predicted is "
        f"{format_bytes(min(a.predicted_bytes for a in attempts))}, but the device's allocator needs "
        f"{format_bytes(least)}, what steps differ by included{hard}; raise {what} or lower the batch size",
        job.budget_bytes,
        least,
        proven=False,
    )


def solving_seconds(seconds: dict[str, float]) -> float:
    """Seconds of the time limit that are used up: a schedule from the cache counts as if it had been solved for now."""
    return seconds.get("solve", 0.0) + seconds.get(_REUSED, 0.0)


def _solve(graph: Graph, target: int, options: PlanOptions, seconds: dict[str, float]) -> Schedule:
    """The schedule that was solved before for the same question, or a new one."""
    begun, left = time.perf_counter(), max(1.0, options.time_limit - solving_seconds(seconds))

    def progress(elapsed: float, cost: float, bound: float, gap: float) -> None:
        text = f"overhead {cost / graph.base_cost - 1:.2%}, gap {gap:.2%}" if np.isfinite(cost) else "searching"
        options.tell("solve", min(elapsed, left), left, text)

    chosen = SolveOptions(time_limit=left, gap=options.gap, seed=options.seed, settle=True, progress=progress)
    if not options.cache:
        return solve(graph, target, options.strategy, chosen)
    known = lookup(graph, target, options.strategy, chosen)
    if known is not None:
        seconds[_REUSED] = seconds.get(_REUSED, 0.0) + known.seconds
        options.tell("solve", left, left, f"overhead {known.overhead:.2%}, gap {known.gap:.2%}, from the cache")
        return known
    with noted_interrupts() as interrupted:
        schedule = solve(graph, target, options.strategy, chosen)
    if not interrupted():  # else it is not the best that the time limit allows
        store(replace(schedule, seconds=time.perf_counter() - begun), target, options.strategy, chosen)
    return schedule


def _least(graph: Graph, error: InfeasibleBudgetError, options: PlanOptions, seconds: dict[str, float]) -> Schedule:
    """A schedule for the least budget that an error names: the cheapest found in a while, or else the error's own."""
    cheaper = replace(options, time_limit=max(options.time_limit, solving_seconds(seconds) + _CHEAPER))
    if error.sequence is None:
        return _solve(graph, error.minimum_bytes, cheaper, seconds)
    sequence = np.array(error.sequence, dtype=np.int64)
    known = Schedule(graph, sequence, strategy=options.strategy, budget_bytes=error.minimum_bytes)
    try:
        return min(known, _solve(graph, error.minimum_bytes, cheaper, seconds), key=lambda schedule: schedule.cost)
    except InfeasibleBudgetError:  # found sooner or later, and now later
        return known


def _measure(job: Job, plan: Plan, limit_bytes: int) -> int | None:
    program, device = job.program, job.device

    def planned(*inputs: tf.Tensor) -> Any:
        return emit_compiled(program, plan, inputs) if xla else emit(program, plan, limit_bytes, inputs)

    xla = job.options.jit_compile
    batch = []
    for k, t in enumerate(program.step.inputs):
        with tf.device(job.places[k * len(job.places) // len(program.step.inputs)] if job.places else None):
            batch.append(example(program.static.tensors[id(t)]))
    step = fed_as_by_fit(planned, batch, device)
    try:
        peak, reason = measure_peak(device, step, captured_variables(program.step.captures))
    except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
        if not xla:
            raise
        why = str(error.message).strip().splitlines()[0][:300]
        what = f"XLA cannot compile the step of {program.graph.name!r}"
        raise JitCompileError(f"{what} ({why}): compile the model with jit_compile=False") from error
    del step
    gc.collect()  # functions lie in cycles, and hold batches
    if peak is None:
        log.warning("a plan ran out of memory while it was measured: %s", reason)
    return peak


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
