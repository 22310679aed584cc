"""Fits a plan to the device: carries out what `decide` says.

When the device's allocator can be watched, each plan is run on it. Where its steps may take more than the budget
(chunks that the allocator cannot split, workspaces of kernels, other tenants of the device) the plan is made again.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from ..allocator.compiled import PLACING
from ..costs.calls import may_not_end
from ..device.before import memory_before
from ..device.effects import left_out, moved_by_steps
from ..device.feeding import Fed, examples, fed_as_by_fit, fed_by_caller, is_alike
from ..device.measure import captured_variables, measure_peak
from ..emit.emit import Copies
from ..emit.ordering import Order, Within
from ..errors import InfeasibleBudgetError, JitCompileError, PlanError
from ..numba_jit.beforehand import compile_once
from ..plan import Plan
from ..report import Attempt, Peak, paged_of
from ..schedule import Schedule, keep_all, schedule_from_dict
from ..strategies.compiled import SEARCH
from ..trace.kernels import kernels_of
from ..trace.program import Program
from ..trace.sizes.folded import OPEN, Folded, constants_of, folded_of
from ..trace.sizes.loops import LOOPS
from ..units import format_bytes
from .decide import decide
from .finding import Finder, bare, placed_as
from .job import Job, Ledger
from .policy import POLICY
from .solving import SEARCHED
from .state import Candidate, Found, Measure, Refuse, Solve, SolveLeast, begin

__all__ = ["NotMeasurable", "fit", "fit_given", "folded_constants", "runnable", "with_memory"]

log = logging.getLogger("checkmate_tf")


class NotMeasurable(Exception):
    """A step that cannot be run on made-up data, or must not be: the message says why."""


def fit(
    job: Job, ledger: Ledger, target: int | None = None, strict: bool = False, strict_cost: float | None = None
) -> Candidate:
    """Find the cheapest schedule whose steps stay within the budget as measured. Without measurement, the first counts.

    Parameters
    ----------
    job : Job
    ledger : Ledger
        What is measured, and the seconds that it takes, are written down there.
    target : int, optional
        Bytes that the first schedule to be measured has to fit, constants included. By default it leaves what the
        allocator may be expected to lose.
    strict : bool
        Begin with computations in one strict order.
    strict_cost : float, optional
        As in `Candidate`, from an earlier measurement.

    Returns
    -------
    Candidate

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits, or none was measured within the budget. The error names the least budget that would do.
    JitCompileError
        If XLA is to compile the step and cannot.
    NotMeasurable
        If the step cannot be run on made-up data.
    """
    finder = Finder(job, ledger)
    state = begin(job.limits, job.options.tries, target, strict, strict_cost)
    while True:
        action = decide(state)
        if isinstance(action, Solve):
            state = state.solved(action, finder.find(action.target_bytes, action.strict, action.placed))
        elif isinstance(action, SolveLeast):
            found = finder.least(action.error, action.seed, action.strict, action.placed)
            state = state.solved_least(action, found)
        elif isinstance(action, Measure):
            state = state.measured(action, _attempt(job, ledger, action, len(state.attempts)))
        else:
            if state.attempts:
                job.options.tell("measure", 1, 1, "")
            if isinstance(action, Refuse):
                raise _refusal(job, action.error)  # an error of `state` would hold this frame, and be held by it
            return action.candidate


def _refusal(job: Job, error: InfeasibleBudgetError) -> InfeasibleBudgetError:
    """The error, with what else would help (to free what is not the model's, to keep fewer batches ready), or not."""
    if not job.measure or (error.proven and job.memory is None):  # what is proven counts the model's own alone
        return bare(error)
    program, least = job.subject.program, error.minimum_bytes
    more = POLICY.not_ours(job.device.foreign_bytes(program.variable_bytes), job.budget_bytes, least)
    if job.options.prefetch is None and job.device.is_cpu:
        more += POLICY.kept_ready(program.input_bytes, job.budget_bytes, least)
    if job.memory is not None:
        plain = job.memory.placed(keep_all(job.subject.graph).sequence)
        more += POLICY.nothing_again(plain.taken_bytes, least)
    return InfeasibleBudgetError(
        f"{error}{more}", error.budget_bytes, least, error.proven, error.sequence, error.bound_order
    )


def with_memory(job: Job) -> Job:
    """The same job, with the memory that its steps will find, if that can be known. Copies are not modelled."""
    if not job.measure or job.options.jit_compile or job.subject.pages is not None:
        return replace(job, memory=None)
    _compile(job)
    program = job.subject.program
    on_cpu, given = job.device.is_cpu, job.options.given
    made = on_cpu and not given  # one batch comes in the step itself
    batches = POLICY.held_batches(job.options.prefetch) if on_cpu else POLICY.batches_on_device
    coming = program.batch_bytes * (batches - (made or (on_cpu and given == "tensors")))  # such ones are there
    folded = folded_constants(program, job.budget_bytes, job.options.came is not None)
    first = len(program.nodes) if made else None
    kernels = kernels_of(program, made, folded.operations)
    coming = [*coming, *constants_of(program), *folded.sizes]
    return replace(job, memory=memory_before(job.device, kernels, coming, first))


def _compile(job: Job) -> None:
    """Let Numba compile what will be called, at once: the search, too, if keeping all takes more than the budget."""
    searched = job.options.strategy == SEARCHED and keep_all(job.subject.graph).peak_bytes > job.budget_bytes
    compile_once(*([SEARCH] if searched else []), PLACING)


def folded_constants(program: Program, budget_bytes: int, differ: bool = False) -> Folded:
    """What a known batch size lets TensorFlow compute beforehand; nothing if plans are measured with an open one.

    With an open one loops take more. And what has several sizes can only be measured in all of them with an open one
    (`differ`). So where that is so, and these constants are small, it is open.
    """
    folded = folded_of(program)
    if all(t.shape.is_fully_defined() for t in program.step.inputs):
        return folded
    opened = differ or any(op.type in LOOPS for op in program.step.operations)
    return folded if sum(folded.sizes) > (POLICY.folded * budget_bytes if opened else 0) else OPEN


def fit_given(job: Job, ledger: Ledger, saved: dict[str, Any]) -> Candidate | None:
    """Find an order in which the steps of a saved schedule stay within the budget; None if there is none.

    Raises
    ------
    PlanError
        If it is not one of the job's graph, or does not fit the budget by prediction.
    NotMeasurable
        As `fit`.
    """
    schedule = _given(saved, job)
    if not job.measure:
        return Candidate(schedule, Within(schedule.peak_bytes), None)
    limits, nearest = job.limits, None
    for strict in limits.orders:
        order = limits.order(schedule.peak_bytes, strict)
        found = Found(schedule, placed_as(job, schedule, order))
        if not strict and found.placed is not None and found.placed.most_bytes > limits.budget_bytes:
            continue
        action = Measure(found, order, schedule.budget_bytes or schedule.peak_bytes, needless=False)
        peak = _attempt(job, ledger, action, int(strict)).peak
        if peak is None:
            continue
        candidate = Candidate(schedule, order, peak, placed=found.placed)
        if found.most_bytes(peak) > limits.budget_bytes:
            continue
        if peak.sure_bytes <= limits.most_bytes:
            return candidate
        if nearest is None and peak.sure_bytes <= limits.last_bytes:
            nearest = candidate
    if nearest is not None:  # a new schedule is for one that is over the budget
        return nearest
    log.warning("steps of the schedule in %s may exceed the budget here: planning anew", schedule.origin)
    return None


def _given(saved: dict[str, Any], job: Job) -> Schedule:
    """The schedule that the user gave, if it is one of the graph and fits the budget."""
    source = str(job.options.schedule)
    schedule = schedule_from_dict(saved, job.subject.graph, source)
    if schedule.peak_bytes > job.budget_bytes:
        raise PlanError(
            f"the schedule in {source} needs {format_bytes(schedule.peak_bytes)} by prediction, over the budget of "
            f"{format_bytes(job.budget_bytes)}; raise the budget, or save a schedule that was made for it"
        )
    return schedule


def _attempt(job: Job, ledger: Ledger, action: Measure, number: int) -> Attempt:
    """Run a schedule on the device, and write down what came of it."""
    schedule, options = action.schedule, job.options
    with ledger.timed("emit and measure"):
        text = f"predicted {format_bytes(schedule.peak_bytes)}"
        options.tell("measure", min(number, options.tries), options.tries, text)
        peak = measure(job, schedule.plan, action.order, action.needless)
    overhead = job.subject.overhead(schedule)
    log.info(
        "%s order: %s of values, %s placed, %s measured, overhead %.1f%%",
        "strict" if action.strict else "loose",
        format_bytes(schedule.peak_bytes),
        "unknown" if action.found.placed is None else format_bytes(action.found.placed.peak_bytes),
        "out of memory" if peak is None else str(peak),
        1e2 * overhead,
    )
    attempt = Attempt(
        action.target_bytes,
        schedule.peak_bytes,
        peak,
        overhead,
        strict=action.strict,
        codes=job.subject.codes,
        copies=0 if (paged := paged_of(schedule)) is None else paged.values,
        placed_bytes=None if action.found.placed is None else action.found.placed.peak_bytes,
    )
    ledger.attempts.append(attempt)
    return attempt


def measure(job: Job, plan: Plan, order: Order, needless: bool) -> Peak | None:
    """The allocator's peak over steps of a plan; None if it ran out of memory.

    Parameters
    ----------
    needless : bool
        As in `Measure`.

    Raises
    ------
    JitCompileError
        If XLA is to compile the step and cannot.
    NotMeasurable
        If the step cannot be run on made-up data, or must not be.
    """
    program, device, xla = job.subject.program, job.device, job.options.jit_compile
    step = runnable(job, plan, order)
    try:
        variables = captured_variables(program.step.captures)
        peak, reason = measure_peak(device, step, variables, job.limits.most_bytes, needless, step.kinds)
    except tf.errors.OpError as error:
        why = str(error.message).strip().splitlines()[0][:300]
        if xla and isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)):
            what = f"XLA cannot compile the step of {program.graph.name!r}"
            raise JitCompileError(f"{what} ({why}): compile the model with jit_compile=False") from error
        raise NotMeasurable(f"the step fails on made-up data ({why}): give compile a batch with data=") from error
    del step
    gc.collect()  # functions lie in cycles, and hold batches
    if peak is None:
        log.warning("a plan ran out of memory while it was measured: %s", reason)
    return peak


def runnable(job: Job, plan: Plan, order: Order, told: Callable[[Copies], None] | None = None) -> Fed:
    """A step of a plan, fed as `fit` feeds it, with a batch of the user's data or with made-up data.

    `fit` leaves the batch dimension open, or not: for arrays, that depends on whether a smaller batch is left over at
    the end. TensorFlow keeps constants that it makes of a known dimension, and loops take more with an open one. See
    `folded_constants`.

    Parameters
    ----------
    told : callable, optional
        As in `Subject.emit`.

    Raises
    ------
    NotMeasurable
        If the step must not be run.
    """
    program = job.subject.program
    moved = moved_by_steps(program)
    if moved:
        raise NotMeasurable(f"steps do more than to read and to assign variables ({moved}), which cannot be undone")
    out = left_out(program)
    silent = replace(job.subject, program=replace(program, left_out=out))

    def planned(*inputs: tf.Tensor) -> Any:
        return silent.emit(plan, order, inputs, jit_compile=job.options.jit_compile, told=told)

    traced = program.step.inputs
    static = [program.static.tensors[id(t)] for t in traced]
    _check_ends(program, static, None if any(op.outputs for op in out) else job.options.sample)  # zeros are made up
    batch, came = examples(static, job.options.sample), job.options.came
    others = []
    ready = POLICY.ready_batches(job.options.prefetch)
    folded = folded_constants(program, job.budget_bytes, came is not None)
    shapes = [] if folded.sizes else [t.shape for t in traced]
    if came is not None and shapes and len(came) == len(batch):  # with known shapes only one size can be fed
        others = [[np.asarray(a).astype(b.dtype) for a, b in zip(came, batch, strict=True)]]
    given = job.options.given
    if given and batch and job.device.is_cpu:
        return fed_by_caller(planned, [batch, *others], shapes, are_there=given == "tensors")
    return fed_as_by_fit(planned, batch, job.device, ready, job.places, shapes, others)


def _check_ends(program: Program, tensors: Sequence[tf.Tensor], sample: Sequence[Any] | None) -> None:
    """Refuse a step whose loops may run for ever on made-up data, where there is no other."""
    if sample is not None and is_alike(sample, tensors):
        return
    loop = next((op.name for op in program.static.operations.values() if may_not_end(op)), "")
    if loop:
        raise NotMeasurable(
            f"data decides how often {loop} runs, and on made-up data it may never end: give compile a batch with data="
        )
