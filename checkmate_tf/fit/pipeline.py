"""The pipeline: training step -> graph -> schedule -> plan that was measured on the device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..allocator.kernel import GRAIN
from ..allocator.sequence import small_bytes
from ..allocator.workspace import Workspace
from ..costs import CostSpec
from ..device.distribution import NOT_MEASURED, Distribution
from ..device.effects import drawn_by_kernels
from ..device.layout.region import reserve
from ..device.layout.reserves import SMALL_BYTES, keep_batch_reserves
from ..device.measure import HOW_TO_MEASURE, Device, find_device
from ..errors import InfeasibleBudgetError, PlanError
from ..files.schedules import read_schedule
from ..graph import Graph
from ..paging import without_host
from ..schedule import Schedule, keep_all, schedule_from_dict
from ..strategies.search.minimum_budget import proven_minimum
from ..trace.kernels import kernels_of
from ..trace.program import Program
from ..units import Budget, format_bytes
from .finding import bare, placed_as
from .job import Job, Ledger, Subject
from .options import PlanOptions
from .planned import Known, PlannedStep, expected_peak_bytes, first_report, report_again, same_graph
from .policy import POLICY
from .run import NotMeasurable, fit, with_memory
from .solving import SEARCHED
from .state import Candidate
from .subjects.fitted import fitted, with_time
from .subjects.learned import can_learn, learn
from .subjects.tracing import Tracing, with_workspaces

__all__ = ["placed_bytes", "plan_again", "plan_step", "step_graph"]

log = logging.getLogger("checkmate_tf")


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
        What the argument looks like; its batch dimension is None.
    batch_size : int
        The size of a batch, for counting bytes.
    name : str
        The model's, for messages.
    earlier : sequence of Known
        Plans for other structures of data, or from before the model was compiled again. If one has an equal graph, it
        is used again, unless so much came to the device since that its steps would fill the budget.
    distribution : Distribution, optional
        If given, the replicas' steps run side by side. Budget, batch size and costs are those of one replica.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits the budget, by proof, by search or by measurement.
    PlanError
        If the given schedule cannot be read, is one of another graph, or does not fit the budget by prediction.
    CheckmateError
        As `trace_step`, `build_program` and `op_costs` raise.
    """
    ledger = Ledger()
    saved = None if options.schedule is None or earlier else read_schedule(options.schedule)
    device = _device(distribution)
    tracing = Tracing(batch_size, options, name, device, ledger)
    options = _with_order(options, distribution)
    free = options.strategy == SEARCHED and options.order == "free"
    make = tracing.orders if free else lambda *traced: [tracing.subject(*traced)]
    subjects = make(*tracing.trace(step, spec, distribution))
    reserve(device, _budget_bytes(options.budget, keep_all(subjects[-1].graph), device))
    known = list[PlannedStep]()
    for one in _known(earlier, subjects, batch_size, device, options):
        if _still_fits(one, device):
            return one
        known.append(one)
    try:
        planned = _planned(tracing, subjects, saved, options, distribution)
    except InfeasibleBudgetError as error:
        if not known or POLICY.beyond_limit(expected_peak_bytes(known[0], device), device.limit_bytes, device.is_cpu):
            raise
        log.warning("%s: no plan leaves room for what shares the device: %s", name, error)
        return known[0]
    if earlier:
        _warn_of_draws(planned.program)
    return planned


def plan_again(
    planned: PlannedStep,
    peak_bytes: int,
    options: PlanOptions,
    distribution: Distribution | None = None,
    expected: bool = False,
    batch_bytes: int = 0,
    placed: bool = False,
) -> PlannedStep:
    """Make a plan that leaves room for what shares the device in training: input pipeline, what callbacks hold.

    After a peak over the budget the new plan keeps one strict order, because steps out of order differed by more than
    was measured.

    Parameters
    ----------
    planned : PlannedStep
        A plan that was measured within the budget.
    peak_bytes : int
        What the device took while it trained, or is expected to take.
    options : PlanOptions
    distribution : Distribution, optional
    expected : bool
        Whether `peak_bytes` is expected, and no step has taken it yet.
    batch_bytes : int
        What of it is for batches that are kept ready, more than the plan was made for. The new plan is made with them.
    placed : bool
        Whether `peak_bytes` is of `placed_bytes`. Nothing is unknown to it that room would have to be left for.

    Raises
    ------
    InfeasibleBudgetError
        If nothing fits what is left of the budget.
    """
    report, device, options = planned.report, _device(distribution), _with_order(options, distribution)
    ledger = Ledger(dict(report.seconds))
    come = device.foreign_bytes(planned.program.variable_bytes)
    resident = max(0, come - report.foreign_bytes)  # part of every measurement from now on
    foreseen = batch_bytes + (report.sure_bytes or report.predicted_peak_bytes) + resident
    if not expected and distribution is None:  # values may lie in other chunks than when it was measured
        foreseen = max(foreseen, placed_bytes(planned, options) or 0)
    reserved = 0 if placed else max(0, peak_bytes - foreseen)
    if reserved >= report.budget_bytes:
        raise InfeasibleBudgetError(
            f"what else is on the device takes {format_bytes(reserved)}, and the budget is "
            f"{format_bytes(report.budget_bytes)}: raise it to {format_bytes(peak_bytes)}, or let other work free more",
            report.budget_bytes,
            peak_bytes,
            proven=False,
        )
    job = Job(planned.subject, report.budget_bytes - reserved, device, options, _places(distribution))
    if batch_bytes and distribution is None:
        _keep_reserves(job)
    target = planned.schedule.peak_bytes - (peak_bytes - int(POLICY.sure * report.budget_bytes))
    in_order = expected and not report.strict  # steps out of order took no more than expected so far
    least: InfeasibleBudgetError | None = None
    for one in _jobs_again(job, planned, distribution, come, by_order=not (expected or report.strict)):
        try:
            found = _fitted_again(one, ledger, None if placed else target, not in_order, report.strict_cost)
        except InfeasibleBudgetError as error:
            least = bare(error)
            continue
        again = report_again(report, one, ledger, found, peak_bytes, expected)
        log.info("%s", again)
        _warn_of_draws(planned.program)
        return replace(
            planned, subject=one.subject, schedule=found.schedule, order=found.order, report=again,
            without=planned.without if one.subject is planned.subject else None, given=options.given,
            placed=found.placed,
        )  # fmt: skip
    assert least is not None
    if least.budget_bytes < report.budget_bytes:
        least = InfeasibleBudgetError(
            f"{format_bytes(reserved)} of the budget of {format_bytes(report.budget_bytes)} are left for what was not "
            f"foreseen, and then {least}",
            report.budget_bytes,
            least.minimum_bytes + reserved,
            least.proven,
        )
    raise bare(least)  # one that this frame does not hold


def _jobs_again(
    job: Job, planned: PlannedStep, distribution: Distribution | None, foreign_bytes: int, by_order: bool
) -> Iterator[Job]:
    """What to plan again: the same step in what is left of the budget, or else without codes, or as it was traced.

    Parameters
    ----------
    foreign_bytes : int
        What is on the device and not the model's.
    by_order : bool
        What was not foreseen may come of the order of steps alone. In strict order it does not come again, so where
        nothing fits beside it, a plan in strict order has the whole budget, if the allocator's model tells what it
        takes.
    """
    subjects = [subject for subject in (planned.subject, planned.without) if subject is not None]

    def jobs(budget_bytes: int) -> list[Job]:
        given = [replace(job, subject=subject, budget_bytes=budget_bytes) for subject in subjects]
        return given if distribution is not None else [with_memory(one) for one in given]

    whole = planned.report.budget_bytes
    in_order = [one for one in jobs(whole) if one.limits.modelled] if by_order and job.budget_bytes < whole else []
    for one in jobs(job.budget_bytes):
        least, _ = proven_minimum(one.subject.graph, one.options.order)
        if least + foreign_bytes <= one.budget_bytes or not in_order:  # a refusal takes seconds, and is not needed
            yield one
    yield from in_order


def _fitted_again(job: Job, ledger: Ledger, target: int | None, strict: bool, strict_cost: float | None) -> Candidate:
    """The plan. Where the allocator has a model, what came lies in the memory that it sees, or is reserved.

    Without a target it is planned as if there had been no other, in both orders.
    """
    goal = target if target is None or not job.limits.modelled else job.limits.goal_bytes
    strict = target is not None and strict and True in job.limits.orders
    job = with_time(job, ledger)
    try:
        return fit(job, ledger, goal, strict, strict_cost)
    except NotMeasurable as error:
        return fit(_unmeasured(job, error), ledger, goal, strict, strict_cost)


def placed_bytes(planned: PlannedStep, options: PlanOptions) -> int | None:
    """What no step of a plan is expected to exceed beside what lies on the device now, as its allocator is modelled.

    That is what was expected when it was measured, and by how much the model now says more than it said then. Or it is
    the most that a step may take, seldom, if that is over the budget. None if the allocator has no model, or the plan
    was found without it.

    Parameters
    ----------
    planned : PlannedStep
    options : PlanOptions
        As they are by now: batches may be given in another way than when the plan was made.
    """
    report = planned.report
    then = report.placed_peak_bytes if planned.placed is None else planned.placed.taken_bytes
    if planned.placed is None and not report.strict:  # the report has it of strict order
        return None
    if then is None or report.sure_bytes is None or report.measured_peak_bytes is None:
        return None
    job = with_memory(Job(planned.subject, report.budget_bytes, _device(None), options))
    placed = placed_as(job, planned.schedule, planned.order)
    if placed is None:
        return None
    expected = report.sure_bytes - then + placed.taken_bytes
    most = report.measured_peak_bytes - then + placed.most_bytes
    return max(most, expected) if not report.strict and most > report.budget_bytes else expected


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
    tracing = Tracing(batch_size, options, name, _device(distribution), Ledger())
    return tracing.subject(*tracing.trace(step, spec, distribution)).graph


def _planned(
    tracing: Tracing,
    subjects: Sequence[Subject],
    saved: dict[str, Any] | None,
    options: PlanOptions,
    distribution: Distribution | None,
) -> PlannedStep:
    """A new plan for the first of the subjects, or for the one that a saved schedule is of. Errors as `plan_step`."""
    device, ledger, plain = tracing.device, tracing.ledger, keep_all(subjects[-1].graph)
    subject = subjects[0] if saved is None else _of_saved(saved, subjects)
    budget_bytes = _budget_bytes(options.budget, plain, device)
    job = Job(subject, budget_bytes, device, options, _places(distribution))
    if distribution is None:
        _keep_reserves(job)
        job = with_memory(job)
        if can_learn(device, options) and not (saved is not None and _is_of(saved, subject)):
            learned = learn(job, ledger)
            if learned is not None:
                subjects = [with_workspaces(one, learned) for one in subjects]
                subject = subjects[0] if saved is None else _of_saved(saved, subjects)
                plain = keep_all(subjects[-1].graph)
                budget_bytes = _budget_bytes(options.budget, plain, device)  # a share of what the plain step takes
            job = with_memory(replace(job, subject=subject, budget_bytes=budget_bytes))
    reason = HOW_TO_MEASURE if distribution is None else NOT_MEASURED
    as_traced = subjects[-1] if subjects[-1] is not subject else None
    try:
        job, found = fitted(job, ledger, tracing, saved, as_traced)
    except NotMeasurable as error:
        reason = str(error)
        ledger.attempts.clear()
        job, found = fitted(_unmeasured(job, error), ledger, tracing, saved, as_traced)
    report = first_report(
        job, ledger, found, plain_peak_bytes=plain.peak_bytes, batch_size=tracing.batch_size, distribution=distribution,
        reason=reason if options.verify else "verify=False",
    )  # fmt: skip
    log.info("%s", report)
    without = subject if job.subject.encodings else as_traced if job.subject is subject else None
    if job.subject.pages is not None:
        without = next(one for one in subjects if one.program is job.subject.program)
    return PlannedStep(
        job.subject, found.schedule, found.order, report, tracing.batch_size, options.jit_compile, without,
        options.given, found.placed,
    )  # fmt: skip


def _with_order(options: PlanOptions, distribution: Distribution | None) -> PlanOptions:
    """The options, with the order traced where no other can be had.

    XLA has an order of its own, and control edges of a replica's step reach the steps of the others.
    """
    return replace(options, order="fixed") if distribution is not None or options.jit_compile else options


def _of_saved(saved: dict[str, Any], subjects: Sequence[Subject]) -> Subject:
    """The subject whose graph a saved schedule is of; the first if it is of none, which is an error later."""
    return next((subject for subject in subjects if _is_of(saved, subject)), subjects[0])


def _is_of(saved: dict[str, Any], subject: Subject) -> bool:
    """Whether a saved schedule is of a subject's graph."""
    with contextlib.suppress(PlanError):
        schedule_from_dict(saved, subject.graph)
        return True
    return False


def _known(
    earlier: Sequence[Known], subjects: Sequence[Subject], batch_size: int, device: Device, options: PlanOptions
) -> Iterator[PlannedStep]:
    """The earlier plans that serve one of the subjects, the latest first."""
    for other in reversed(earlier):
        planned = _taken_over(other, subjects, batch_size, device, options)
        if planned is not None:
            yield planned


def _taken_over(
    other: Known, subjects: Sequence[Subject], batch_size: int, device: Device, options: PlanOptions
) -> PlannedStep | None:
    """An earlier plan for the first of the subjects that it serves; None if it serves none."""
    alike = [_as_learned(one, other.learned) for one in subjects]
    budget_bytes = _budget_bytes(options.budget, keep_all(alike[-1].graph), device)
    if other.report.budget_bytes != budget_bytes or other.jit_compile != options.jit_compile:
        return None
    for one in alike:
        if same_graph(without_host(other.schedule.graph), one.graph):
            paged = None if other.pages is None else replace(one, graph=other.schedule.graph, pages=other.pages)
            return PlannedStep(
                paged or one, other.schedule, other.order, other.report, batch_size, options.jit_compile,
                one if paged else None, options.given, other.placed,
            )  # fmt: skip
    return None


def _still_fits(planned: PlannedStep, device: Device) -> bool:
    """Whether an earlier plan keeps the budget beside what came to the device since it was measured, if it was."""
    report = planned.report
    if report.sure_bytes is None:
        return True
    peak_bytes = expected_peak_bytes(planned, device)
    if POLICY.still_fits(peak_bytes, report.sure_bytes, report.budget_bytes):
        return True
    log.info("%s: %s are expected with the plan that it had", report.model, format_bytes(peak_bytes))
    return False


def _as_learned(subject: Subject, learned: Sequence[Workspace]) -> Subject:
    """The subject with workspaces that were learned before, of operations in the order traced, if there are any."""
    if not learned or len(learned) != len(subject.op_costs):
        return subject
    return with_workspaces(subject, dict(zip(subject.op_costs, learned, strict=True)))


def _warn_of_draws(program: Program) -> None:
    """Say of another plan for a model that random numbers begin anew with it, where they do."""
    drawn = drawn_by_kernels(program.step)
    if drawn:
        text = "%s: random numbers of %s begin anew with this plan; draw them from tf.random.Generator or keras.random"
        log.warning(text, program.graph.name, drawn)


def _keep_reserves(job: Job) -> None:
    """Keep free chunks for what comes and goes beside the values of a step: batches, and small values."""
    program = job.subject.program
    batches = POLICY.reserved_batches(job.options.prefetch)
    small = small_bytes(kernels_of(program), keep_all(job.subject.graph).sequence, SMALL_BYTES, GRAIN)
    keep_batch_reserves(job.device, program.batch_bytes, batches, int(POLICY.reserves * job.budget_bytes), small)


def _unmeasured(job: Job, error: NotMeasurable) -> Job:
    """The same job, to be planned by prediction alone."""
    log.warning("%s: peaks are predicted, not measured: %s", job.subject.program.graph.name, error)
    return job.unmeasured()


def _device(distribution: Distribution | None) -> Device:
    return find_device() if distribution is None else distribution.device


def _places(distribution: Distribution | None) -> tuple[str, ...]:
    return () if distribution is None else distribution.devices


def _budget_bytes(budget: Budget, plain: Schedule, device: Device) -> int:
    if budget.auto:
        return device.limit_bytes
    if budget.fraction is not None:
        return max(int(budget.fraction * plain.peak_bytes), budget.least_bytes)
    return int(budget.size_bytes or 0)
