"""The pipeline: training step -> graph -> schedule -> plan that was measured on the device (`fit`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..costs import CostSpec, cost_unit, op_costs
from ..costs.workspace import op_workspaces
from ..device.measure import HOW_TO_MEASURE, Device, find_device
from ..device.region import reserve
from ..device.reserves import keep_batch_reserves
from ..emit.emit import emit
from ..emit.xla import emit_compiled
from ..errors import InfeasibleBudgetError
from ..files.schedules import read_schedule
from ..graph import Graph
from ..keras.distribution import NOT_MEASURED, Distribution
from ..report import Report
from ..schedule import Schedule, keep_all
from ..trace.program import Program, build_program
from ..trace.replicas import Replicas, split_replicas
from ..trace.sizes.static import StaticStep, with_static_batch
from ..trace.step import TracedStep, trace_step
from ..units import Budget
from .encodings import Choice, choose_encodings
from .fit import WORTH, NotMeasurable, expected_cost, fit, fit_given
from .job import SURE, Candidate, Job, PlanOptions, timed
from .solving import solve_once, solving_seconds

__all__ = ["Known", "PlannedStep", "expected_peak_bytes", "plan_again", "plan_step", "step_graph"]

log = logging.getLogger("checkmate_tf")

_BATCHES = 8  # to have berths for: `fit` on arrays keeps six ready, and gradients of about the size lie there, too
_BERTHS = 0.2  # of the budget, at most
_TRIES = 2  # plans without codes to measure, where one with them fits


@dataclass(frozen=True, eq=False)
class Known:
    """A plan without its step, whose program holds variables: enough for another step with an equal graph."""

    schedule: Schedule
    report: Report
    limit_bytes: int
    jit_compile: bool


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A plan for one structure of data, ready to be emitted.

    Where gradients read codes, `without` is the step without them, for a budget that comes to be too small with them.
    """

    program: Program
    schedule: Schedule
    report: Report
    batch_size: int
    limit_bytes: int
    jit_compile: bool = False
    without: tuple[Program, Graph] | None = None

    @property
    def known(self) -> Known:
        """The plan without the step."""
        return Known(self.schedule, self.report, self.limit_bytes, self.jit_compile)

    def emit(self, inputs: Sequence[tf.Tensor], checks: Sequence[tf.Operation] = ()) -> Any:
        """Emit the planned step into the function being traced; none of its effects comes before `checks`."""
        if self.jit_compile:
            return emit_compiled(self.program, self.schedule.plan, inputs, checks)
        return emit(self.program, self.schedule.plan, self.limit_bytes, inputs, checks)


def plan_step(
    step: Callable[[Any], Any],
    spec: Any,
    batch_size: int,
    options: PlanOptions,
    name: str,
    earlier: Sequence[Known] = (),
    distribution: Distribution | None = None,
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
    earlier : sequence of Known
        Plans for other structures of data, or of before the model was compiled again; one for an equal graph is used.
    distribution : Distribution, optional
        The step is that of all replicas side by side. Budget, batch size and costs are of one.

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
    device = _device(distribution)
    tracing = _Tracing(batch_size, options, name, device, seconds)
    traced, replicas = tracing.trace(step, spec, distribution)
    program, graph = tracing.program(traced, replicas)
    plain = keep_all(graph)
    budget_bytes = _budget_bytes(options.budget, plain, device)
    reserve(device, budget_bytes)
    for other in reversed(earlier):
        alike = other.report.budget_bytes == budget_bytes and other.jit_compile == options.jit_compile
        if alike and _equal(other.schedule.graph, graph):
            return PlannedStep(
                program, other.schedule, other.report, batch_size, other.limit_bytes, options.jit_compile
            )
    job = Job(program, graph, budget_bytes, device, options, seconds, _places(distribution))
    if distribution is None:
        keep_batch_reserves(device, program.batch_bytes, _batches(options.prefetch), int(_BERTHS * budget_bytes))
    reason = HOW_TO_MEASURE if distribution is None else NOT_MEASURED
    try:
        chosen, best = _chosen_and_fitted(job, tracing, saved)
    except NotMeasurable as error:
        job, reason = _unmeasured(job, error), str(error)
        chosen, best = _chosen_and_fitted(job, tracing, saved)
    program, schedule = chosen.job.program, best.schedule
    why = "" if job.attempts else reason if options.verify else "verify=False"
    report = Report(
        model=name,
        device=device.name,
        replicas=1 if distribution is None else distribution.replicas,
        batch_size=batch_size,
        asked=str(options.budget),
        budget_bytes=budget_bytes,
        plain_peak_bytes=plain.peak_bytes,
        predicted_peak_bytes=schedule.peak_bytes,
        **_measured(best),
        not_measured=why,
        foreign_bytes=_foreign_bytes(program, device),
        variable_bytes=program.variable_bytes,
        input_bytes=program.input_bytes,
        costs=options.costs if isinstance(options.costs, str) else "given",
        attempts=tuple(job.attempts),
        seconds=seconds,
        schedule=schedule,
        encodings=chosen.counts,
        plain_cost=graph.base_cost if chosen.encodings else None,
    )
    log.info("%s", report)
    without = (job.program, job.graph) if chosen.encodings else None
    return PlannedStep(program, schedule, report, batch_size, best.limit_bytes, options.jit_compile, without)


def _chosen_and_fitted(job: Job, tracing: _Tracing, saved: dict[str, Any] | None) -> tuple[Choice, Candidate]:
    """Which gradients read codes, and the plan: the saved one, if there is one that fits."""
    chosen = Choice(job, ())
    if saved is not None:
        best = fit_given(job, saved)
        if best is not None:
            return chosen, best
    elif job.options.operators == "choose":
        chosen = choose_encodings(job, tracing.program)
    if not chosen.encodings:
        return chosen, fit(job)
    try:
        best = fit(chosen.job)
    except InfeasibleBudgetError as error:
        log.warning("%s: planning without codes, since with them: %s", tracing.name, error)
        try:
            return Choice(job, ()), fit(_with_time(job))
        except InfeasibleBudgetError as without:
            raise min(error, without, key=lambda e: e.minimum_bytes) from None
    return _cheaper(chosen, best, Choice(job, ()))


def _cheaper(coded: Choice, best: Candidate, plain: Choice) -> tuple[Choice, Candidate]:
    """The plan with codes, or one without them that costs less.

    Codes were chosen for the first target, and measurements may have raised it since, or found that codes save less
    than was predicted. So where a plan without them might cost less, if the device lost nothing, a few are measured.
    """
    job = replace(_with_time(plain.job), strict_cost=best.strict_cost)
    room, worth = (job.most_bytes, WORTH) if job.measure else (job.budget_bytes, 0.0)
    most = (1 - worth) * _expected_cost(best)
    if job.graph.base_cost >= most:
        return coded, best
    try:
        with timed(job.seconds, "solve"):
            found = solve_once(job.graph, room, job.options, job.seconds)
        if expected_cost(found, job.orders == (True,), job.strict_cost) >= most:
            return coded, best
        if not job.measure:
            return plain, Candidate(found, job.limit_bytes(found), None)
        without = fit(replace(job, options=replace(job.options, tries=_TRIES)))
    except (InfeasibleBudgetError, NotMeasurable):
        return coded, best
    return (plain, without) if _expected_cost(without) < _expected_cost(best) else (coded, best)


def _expected_cost(best: Candidate) -> float:
    return expected_cost(best.schedule, not best.limit_bytes, best.strict_cost)


def _with_time(job: Job) -> Job:
    """The same job with as many seconds for solving as it began with, though others were spent."""
    limit = solving_seconds(job.seconds) + job.options.time_limit
    return replace(job, options=replace(job.options, time_limit=limit))


def _unmeasured(job: Job, error: NotMeasurable) -> Job:
    """The same job, to be planned by prediction alone."""
    log.warning("%s: peaks are predicted, not measured: %s", job.program.graph.name, error)
    return replace(job, options=replace(job.options, verify=False), attempts=[])


def step_graph(
    step: Callable[[Any], Any],
    spec: Any,
    batch_size: int,
    costs: CostSpec,
    name: str,
    distribution: Distribution | None = None,
) -> Graph:
    """The graph that `plan_step` would plan, without planning it. Arguments and errors as there."""
    options = PlanOptions(costs=costs, verify=False)
    tracing = _Tracing(batch_size, options, name, _device(distribution), {})
    return tracing.program(*tracing.trace(step, spec, distribution))[1]


def _batches(prefetch: int | None) -> int:
    """For how many batches to have berths: for none where each is made when it is asked for, before anything else."""
    if prefetch is None:
        return _BATCHES
    return prefetch + 2 if prefetch else 0


def _device(distribution: Distribution | None) -> Device:
    return find_device() if distribution is None else distribution.device


def _places(distribution: Distribution | None) -> tuple[str, ...]:
    return () if distribution is None else distribution.devices


def _measured(best: Candidate) -> dict[str, Any]:
    """What a report says of the plan as it was measured."""
    peak = best.measured
    values = {"measured_peak_bytes": peak and peak.bytes, "sure_bytes": peak and peak.sure_bytes}
    return {**values, "strict": not best.limit_bytes, "strict_cost": best.strict_cost}


def plan_again(
    planned: PlannedStep,
    peak_bytes: int,
    options: PlanOptions,
    distribution: Distribution | None = None,
    expected: bool = False,
) -> PlannedStep:
    """A plan that leaves room for what shares the device while training: input pipeline, callbacks, evaluation.

    After a peak over the budget it keeps one strict order: out of order, steps differ by more than was measured.

    Parameters
    ----------
    planned : PlannedStep
        Measured within the budget, but
    peak_bytes : int
        was allocated while it trained, or is
    expected : bool
        to be allocated once it trains.

    Raises
    ------
    InfeasibleBudgetError
        If nothing fits what is left of the budget.
    """
    program, report, graph, device = planned.program, planned.report, planned.schedule.graph, _device(distribution)
    seconds = dict(report.seconds)
    resident = max(0, _foreign_bytes(program, device) - report.foreign_bytes)  # part of every measurement from now on
    reserve = max(0, peak_bytes - (report.sure_bytes or report.predicted_peak_bytes) - resident)
    job = Job(
        program,
        graph,
        report.budget_bytes - reserve,
        device,
        options,
        seconds,
        _places(distribution),
        codes=sum(report.encodings.values()),
        plain_cost=report.plain_cost,
        strict_cost=report.strict_cost,
    )
    job = _with_time(job)
    target = planned.schedule.peak_bytes - (peak_bytes - int(SURE * report.budget_bytes))
    steady = True in job.orders and not (expected and planned.limit_bytes)  # out of order steps took more than expected

    def fitted(job: Job) -> Candidate:
        try:
            return fit(job, target, strict=steady)
        except NotMeasurable as error:
            return fit(_unmeasured(job, error))

    try:
        best = fitted(job)
    except InfeasibleBudgetError:
        if planned.without is None:
            raise
        program, graph = planned.without
        plain = replace(job, program=program, graph=graph, codes=0, plain_cost=None, options=options)
        best = fitted(_with_time(plain))
        report = replace(report, encodings={}, plain_cost=None)
        planned = replace(planned, program=program, without=None)
    again = replace(
        report,
        predicted_peak_bytes=best.schedule.peak_bytes,
        **_measured(best),
        foreign_bytes=_foreign_bytes(program, device),
        attempts=(*report.attempts, *job.attempts),
        seconds=seconds,
        schedule=best.schedule,
        training_peak_bytes=None,
        expected_bytes=(*report.expected_bytes, *[peak_bytes] * expected),
        exceeded_bytes=(*report.exceeded_bytes, *[peak_bytes] * (not expected)),
    )
    log.info("%s", again)
    return replace(planned, schedule=best.schedule, report=again, limit_bytes=best.limit_bytes)


def expected_peak_bytes(planned: PlannedStep, device: Device) -> int:
    """What no step is expected to exceed with what lives on the device now: as measured, and all that has come since.

    One batch of data was there when it was measured.
    """
    report = planned.report
    come = _foreign_bytes(planned.program, device) - report.foreign_bytes - report.input_bytes
    return (report.sure_bytes or 0) + max(0, come)


@dataclass(frozen=True)
class _Tracing:
    """From a step to its program, and its graph with costs."""

    batch_size: int
    options: PlanOptions
    name: str
    device: Device
    seconds: dict[str, float]

    def trace(
        self, step: Callable[[Any], Any], spec: Any, distribution: Distribution | None
    ) -> tuple[TracedStep, Replicas | None]:
        """The traced step: under a distribution that of the first replica, and how the others correspond."""
        with timed(self.seconds, "trace"):
            self.options.tell("trace", 0, 1, self.name)
            if distribution is None:
                return trace_step(step, spec, sums_of_two=not self.options.jit_compile), None
            every = len(distribution.devices)
            traced = trace_step(distribution.side_by_side(step), (spec,) * every, devices=every)
            replicas = split_replicas(traced, distribution.devices)
            return replicas.first, replicas

    def program(self, traced: TracedStep, replicas: Replicas | None = None) -> tuple[Program, Graph]:
        with timed(self.seconds, "trace"):
            batch = self.batch_size
            shapes = [tf.TensorShape([batch if d is None else d for d in t.shape]) for t in traced.inputs]
            static = with_static_batch(traced, shapes)
        with timed(self.seconds, "costs"):
            costs, scratch = _costs(traced, static, self.device, self.options)
        with timed(self.seconds, "trace"):
            program = build_program(traced, static, self.name, scratch=scratch)
            unit = cost_unit(self.options.costs)
            graph = program.graph.with_costs(program.node_costs(traced.operations, costs), unit)
            if replicas is not None:
                program = replicas.all_in(program)
            self.options.tell("trace", 1, 1, f"{len(graph)} nodes of {len(traced.operations)} operations")
        return program, graph


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
