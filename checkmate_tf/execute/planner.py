"""The pipeline: training step -> graph -> schedule -> plan -> measured plan.

A schedule that was solved before for the same question comes from the cache (`schedule_cache`), or from a file that the
user gives.

When the device's allocator can be watched, the plan is run on it. A peak over the budget (chunks that the allocator
cannot split, workspaces of kernels, other tenants of the device) takes the difference off the target and plans again.
"""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..costs import CostSpec, cost_unit, op_costs
from ..costs.workspace import op_workspaces
from ..errors import InfeasibleBudgetError, PlanError
from ..graph import Graph
from ..plan import Plan
from ..report import Attempt, Report
from ..schedule import Schedule, keep_all
from ..schedule_cache import lookup, store
from ..schedule_file import read_schedule, schedule_from_dict
from ..strategies import SolveOptions, solve
from ..trace.program import Program, build_program
from ..trace.static import StaticStep, with_static_batch
from ..trace.step import TracedStep, trace_step
from ..units import Budget, format_bytes, parse_budget
from .emit import emit
from .interrupts import noted_interrupts
from .measure import HOW_TO_MEASURE, Device, captured_variables, fed_as_by_fit, find_device, measure_peak
from .spec import example

__all__ = [
    "PlanOptions",
    "PlannedStep",
    "expected_peak_bytes",
    "near_limit",
    "plan_again",
    "plan_step",
    "step_graph",
]

log = logging.getLogger("checkmate_tf")

# Share of the budget to aim for, since peaks differ from step to step; and of that, what is worth no further plan.
_GOAL, _USED = 0.92, 0.94
_SURE, _SURE_STRICT = 0.95, 0.98  # share of the budget that a measured peak may take; a strict order varies less
_LOWER = 0.98  # share of the least peak predicted so far below which another plan is worth a measurement
_CHEAPER = 8.0  # seconds at least to make the schedule with the least known peak cheaper
_FREE = 0.005  # an overhead not worth another plan
_WASTE = 0.1  # of the memory for activations, what the allocator's pieces are expected to lose, until it is measured
_TIGHT = 1.25  # a hard limit of the allocator is near when it is below this many times the budget
_CLEAR = 0.72  # share of such a limit that a plan may be measured at: a quarter is lost to pieces too small to use
_ROOM = 0.6  # share of such a limit that the first plan to be measured may take, by prediction
_MOST = 0.88  # share of such a limit above which a plan is refused: sooner or later a step would run out of memory
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

    def tell(self, stage: str, done: float, total: float, text: str = "") -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(stage, done, total, text)


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A plan for one structure of data, ready to be emitted."""

    program: Program
    schedule: Schedule
    report: Report
    batch_size: int
    limit_bytes: int

    def emit(self, inputs: Sequence[tf.Tensor], checks: Sequence[tf.Operation] = ()) -> Any:
        """Emit the planned step into the function being traced; none of its effects comes before `checks`."""
        return emit(self.program, self.schedule.plan, self.limit_bytes, inputs, checks)


def plan_step(
    step: Callable[[Any], Any],
    spec: Any,
    batch_size: int,
    options: PlanOptions,
    name: str,
    earlier: Sequence[PlannedStep] = (),
) -> PlannedStep:
    """Plan a training step.

    Parameters
    ----------
    step : callable of one argument
    spec : nest of tf.TensorSpec
        Of its argument, the batch dimension None.
    batch_size : int
        What None stands for when sizes are counted.
    name : str
        Of the model, for messages.
    earlier : sequence of PlannedStep
        Plans for other structures of data; a schedule for an equal graph is used again.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits the budget, by proof, by search or by measurement.
    PlanError
        If the given schedule cannot be read, is one of another graph, or does not fit the budget by prediction.
    CheckmateError
        As `trace_step`, `build_program` and `op_costs` raise.
    """
    seconds: dict[str, float] = {}
    saved = None if options.schedule is None or earlier else read_schedule(options.schedule)
    with _timed(seconds, "trace"):
        options.tell("trace", 0, 1, name)
        traced = trace_step(step, spec)
        shapes = [tf.TensorShape([batch_size if d is None else d for d in t.shape]) for t in traced.inputs]
        static = with_static_batch(traced, shapes)
    device = find_device()
    with _timed(seconds, "costs"):
        costs, scratch = _costs(traced, static, device, options)
    with _timed(seconds, "trace"):
        program = build_program(traced, static, name, scratch=scratch)
        graph = program.graph.with_costs(program.node_costs(traced.operations, costs), cost_unit(options.costs))
        options.tell("trace", 1, 1, f"{len(graph)} nodes of {len(traced.operations)} operations")
    plain = keep_all(graph)
    budget_bytes = _budget_bytes(options.budget, plain, device)
    for other in earlier:
        if _equal(other.schedule.graph, graph) and other.report.budget_bytes == budget_bytes:
            return PlannedStep(program, other.schedule, other.report, batch_size, other.limit_bytes)
    waste = int(_WASTE * max(0, budget_bytes - graph.constant_bytes))
    job = _Job(program, graph, budget_bytes, device, options, seconds)
    best, attempts = (None, []) if saved is None else _fit_given(job, _given(saved, job))
    if best is None:
        best, more = _fit(job, int(_GOAL * budget_bytes) - waste)
        attempts += more
    schedule = best.schedule
    why = "" if attempts else HOW_TO_MEASURE if options.verify else "verify=False"
    report = Report(
        model=name,
        device=device.name,
        batch_size=batch_size,
        asked=str(options.budget),
        budget_bytes=budget_bytes,
        plain_peak_bytes=plain.peak_bytes,
        predicted_peak_bytes=schedule.peak_bytes,
        measured_peak_bytes=best.measured_bytes,
        not_measured=why,
        foreign_bytes=_foreign_bytes(program, device),
        variable_bytes=program.variable_bytes,
        input_bytes=program.input_bytes,
        costs=options.costs if isinstance(options.costs, str) else "given",
        attempts=tuple(attempts),
        seconds=seconds,
        schedule=schedule,
    )
    log.info("%s", report)
    return PlannedStep(program, schedule, report, batch_size, best.limit_bytes)


def step_graph(step: Callable[[Any], Any], spec: Any, batch_size: int, costs: CostSpec, name: str) -> Graph:
    """The graph that `plan_step` would plan, without planning it. Arguments and errors as there."""
    traced = trace_step(step, spec)
    shapes = [tf.TensorShape([batch_size if d is None else d for d in t.shape]) for t in traced.inputs]
    static = with_static_batch(traced, shapes)
    found, scratch = _costs(traced, static, find_device(), PlanOptions(costs=costs, verify=False))
    program = build_program(traced, static, name, scratch=scratch)
    return program.graph.with_costs(program.node_costs(traced.operations, found), cost_unit(costs))


def plan_again(planned: PlannedStep, peak_bytes: int, options: PlanOptions) -> PlannedStep:
    """A plan that leaves room for what shares the device while training: input pipeline, callbacks, evaluation.

    Parameters
    ----------
    planned : PlannedStep
        Measured within the budget, but
    peak_bytes : int
        was allocated while it trained.

    Raises
    ------
    InfeasibleBudgetError
        If nothing fits what is left of the budget.
    """
    program, report, graph, device = planned.program, planned.report, planned.schedule.graph, find_device()
    seconds = dict(report.seconds)
    options = replace(options, time_limit=_solving(seconds) + options.time_limit)
    resident = max(0, _foreign_bytes(program, device) - report.foreign_bytes)  # part of every measurement from now on
    reserve = max(0, peak_bytes - (report.measured_peak_bytes or 0) - resident)
    job = _Job(program, graph, report.budget_bytes - reserve, device, options, seconds)
    best, attempts = _fit(job, planned.schedule.peak_bytes - (peak_bytes - int(_SURE * report.budget_bytes)))
    again = replace(
        report,
        predicted_peak_bytes=best.schedule.peak_bytes,
        measured_peak_bytes=best.measured_bytes,
        foreign_bytes=_foreign_bytes(program, device),
        attempts=(*report.attempts, *attempts),
        seconds=seconds,
        schedule=best.schedule,
        training_peak_bytes=None,
        exceeded_bytes=(*report.exceeded_bytes, peak_bytes),
    )
    log.info("%s", again)
    return replace(planned, schedule=best.schedule, report=again, limit_bytes=best.limit_bytes)


def near_limit(device: Device, budget_bytes: int) -> bool:
    """Whether the CPU's allocator has a hard limit little above a budget."""
    return device.name.startswith("CPU") and device.limit_bytes < _TIGHT * budget_bytes


def expected_peak_bytes(planned: PlannedStep, device: Device) -> int:
    """The peak to expect with what lives on the device now: what was measured, and all that has come since.

    One batch of data was there when it was measured.
    """
    report = planned.report
    come = _foreign_bytes(planned.program, device) - report.foreign_bytes - report.input_bytes
    return (report.measured_peak_bytes or 0) + max(0, come)


def _foreign_bytes(program: Program, device: Device) -> int:
    return max(0, device.current_bytes() - program.variable_bytes) if device.measurable else 0


def _costs(
    step: TracedStep, static: StaticStep, device: Device, options: PlanOptions
) -> tuple[NDArray[np.float64], dict[tf.Operation, int]]:
    """Of each operation its cost, and the bytes that its kernel takes for itself where that can be measured."""
    copies = [static.operations[op] for op in step.operations]
    tell = None
    if options.progress is not None:
        tell = lambda done, total, text: options.tell("costs", done, total, text)  # noqa: E731 - a short callback
    extra: dict[str, Any] = {"progress": tell} if options.costs == "profile" else {}
    costs = op_costs(copies, options.costs, **extra)
    if not (device.measurable and (options.verify or options.costs == "profile")):
        return costs, {}
    found = op_workspaces(copies, device=f"/{device.name}", progress=tell)
    return costs, {op: int(b) for op, b in zip(step.operations, found, strict=True) if b}


def _budget_bytes(budget: Budget, plain: Schedule, device: Device) -> int:
    if budget.auto:
        return device.limit_bytes
    if budget.fraction is not None:
        return int(budget.fraction * plain.peak_bytes)
    return int(budget.size_bytes or 0)


def _equal(a: Graph, b: Graph) -> bool:
    same = a.inputs == b.inputs and a.constant_bytes == b.constant_bytes
    columns = ("kinds", "sizes", "workspace", "held", "recompute_until", "costs")
    return same and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)


@dataclass(frozen=True, eq=False)
class _Job:
    """What is to be fitted into how much."""

    program: Program
    graph: Graph
    budget_bytes: int
    device: Device
    options: PlanOptions
    seconds: dict[str, float]

    @property
    def measure(self) -> bool:
        return self.options.verify and self.device.measurable

    @property
    def most_bytes(self) -> int:
        """The most that a plan may be measured at."""
        near = self.measure and near_limit(self.device, self.budget_bytes)
        return min(self.budget_bytes, int(_MOST * self.device.limit_bytes)) if near else self.budget_bytes


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A schedule, how it is emitted, and what the device said of it."""

    schedule: Schedule
    limit_bytes: int
    measured_bytes: int | None


def _given(saved: dict[str, Any], job: _Job) -> Schedule:
    """The schedule that the user gave, if it is one of the graph and fits the budget."""
    source = str(job.options.schedule)
    schedule = schedule_from_dict(saved, job.graph, source)
    if schedule.peak_bytes > job.budget_bytes:
        raise PlanError(
            f"the schedule in {source} needs {format_bytes(schedule.peak_bytes)} by prediction, over the budget of "
            f"{format_bytes(job.budget_bytes)}; raise the budget, or save a schedule that was made for it"
        )
    return schedule


def _fit_given(job: _Job, schedule: Schedule) -> tuple[_Candidate | None, list[Attempt]]:
    """A given schedule, loosely ordered or else in one strict order; None if it is measured over the budget in both."""
    if not job.measure:
        return _Candidate(schedule, schedule.peak_bytes, None), []
    attempts: list[Attempt] = []
    for strict in (False, True):
        limit = 0 if strict else schedule.peak_bytes
        attempts.append(_attempt(job, schedule, schedule.budget_bytes or schedule.peak_bytes, limit, int(strict)))
        measured = attempts[-1].measured_bytes
        if measured is not None and measured <= job.most_bytes:
            return _Candidate(schedule, limit, measured), attempts
    log.warning("the schedule in %s is over the budget as it is measured here: planning anew", schedule.origin)
    return None, attempts


def _attempt(job: _Job, schedule: Schedule, target: int, limit: int, attempt: int) -> Attempt:
    """Run a schedule on the device. `limit` is that of `emit`; 0 for one strict order."""
    with _timed(job.seconds, "emit and measure"):
        text = f"predicted {format_bytes(schedule.peak_bytes)}"
        job.options.tell("measure", min(attempt, job.options.tries), job.options.tries, text)
        measured = _measure(job.program, schedule.plan, limit, job.device)
    return Attempt(target, schedule.peak_bytes, measured, schedule.overhead, not limit)


def _fit(job: _Job, target: int) -> tuple[_Candidate, list[Attempt]]:
    """The cheapest schedule found whose measured peak is within the budget; without measurement, the first.

    The first schedule to be measured fits `target`. Each measurement corrects the target of the next one, down when the
    peak is over the budget and up when much of the budget is left. When nothing that fits the corrected target is
    feasible, the least that is comes next; then computations are put in one strict order, which costs parallelism and
    makes the allocator's peak lower and steadier.
    """
    graph, budget_bytes, device, options, seconds = job.graph, job.budget_bytes, job.device, job.options, job.seconds
    attempts: list[Attempt] = []
    best: _Candidate | None = None
    close: _Candidate | None = None  # within the budget, but by less than peaks differ
    goal, most, strict = int(_GOAL * budget_bytes), job.most_bytes, False
    if not job.measure:
        target = budget_bytes
    # Where the CPU's allocator has a hard limit near the budget, to run out of memory while measuring can be a crash:
    # oneDNN does not check all allocations. Start with room to spare, and stay away from the limit.
    if job.measure and near_limit(device, budget_bytes):
        target = min(target, int(_ROOM * device.limit_bytes))
        goal = min(goal, int(_CLEAR * device.limit_bytes))
    least: int | None = None
    tried: set[tuple[int, bool]] = set()
    for attempt in range(options.tries if job.measure else 1):
        with _timed(seconds, "solve"):
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
                    break
                elif known < _LOWER * min(a.predicted_bytes for a in attempts if a.strict == strict):
                    target, schedule = known, _least(graph, error, options, seconds)
                elif strict:
                    break
                else:
                    strict, target = True, max(goal, known)
                    schedule = _solve(graph, target, options, seconds)
        limit = 0 if strict else schedule.peak_bytes
        if not job.measure:
            return _Candidate(schedule, limit, None), attempts
        if (schedule.peak_bytes, strict) in tried:
            break
        tried.add((schedule.peak_bytes, strict))
        attempts.append(_attempt(job, schedule, target, limit, attempt))
        measured = attempts[-1].measured_bytes
        if measured is None:
            target = min(schedule.peak_bytes, target) - budget_bytes // 10
            continue
        least = min(measured, least or measured)
        fits = measured <= min(most, (_SURE_STRICT if strict else _SURE) * budget_bytes)
        if fits and (best is None or schedule.cost < best.schedule.cost):
            best = _Candidate(schedule, limit, measured)
        elif measured <= most and (close is None or measured < (close.measured_bytes or measured)):
            close = _Candidate(schedule, limit, measured)
        if fits and (measured >= _USED * goal or schedule.overhead < _FREE):
            break
        target = goal - (measured - schedule.peak_bytes)
        if fits and best is not None and target <= best.schedule.peak_bytes:
            break
    options.tell("measure", 1, 1, "")
    best = best or close
    if best is None:
        hard, what = "", "the budget to that"
        if most < budget_bytes:
            hard = f", too near its limit of {format_bytes(device.limit_bytes)}, of which pieces are lost"
            what = "the limit"
        raise InfeasibleBudgetError(
            f"budget {format_bytes(budget_bytes)} was kept by none of {len(attempts)} plans: the least predicted is "
            f"{format_bytes(min(a.predicted_bytes for a in attempts))}, but the device's allocator needed "
            f"{format_bytes(least or budget_bytes)}{hard}; raise {what} or lower the batch size",
            budget_bytes,
            least or budget_bytes,
            proven=False,
        )
    return best, attempts


def _solving(seconds: dict[str, float]) -> float:
    """Seconds of the time limit that are used up: a schedule from the cache counts as if it had been solved for now."""
    return seconds.get("solve", 0.0) + seconds.get(_REUSED, 0.0)


def _solve(graph: Graph, target: int, options: PlanOptions, seconds: dict[str, float]) -> Schedule:
    """The schedule that was solved before for the same question, or a new one."""
    begun, left = time.perf_counter(), max(1.0, options.time_limit - _solving(seconds))

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
    cheaper = replace(options, time_limit=max(options.time_limit, _solving(seconds) + _CHEAPER))
    if error.sequence is None:
        return _solve(graph, error.minimum_bytes, cheaper, seconds)
    sequence = np.array(error.sequence, dtype=np.int64)
    known = Schedule(graph, sequence, strategy=options.strategy, budget_bytes=error.minimum_bytes)
    try:
        return min(known, _solve(graph, error.minimum_bytes, cheaper, seconds), key=lambda schedule: schedule.cost)
    except InfeasibleBudgetError:  # found sooner or later, and now later
        return known


def _measure(program: Program, plan: Plan, limit_bytes: int, device: Device) -> int | None:
    batch = [example(program.static.tensors[id(t)]) for t in program.step.inputs]
    step = fed_as_by_fit(lambda *inputs: emit(program, plan, limit_bytes, inputs), batch, device)
    peak, reason = measure_peak(device, step, captured_variables(program.step.captures))
    del step
    gc.collect()  # functions lie in cycles, and hold batches
    if peak is None:
        log.warning("a plan ran out of memory while it was measured: %s", reason)
    return peak


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
