"""Fits a plan to the device: solve, run on its allocator, correct the target, solve again.

When the device's allocator can be watched, the plan is run on it. Where its steps may take more than the budget (chunks
that the allocator cannot split, workspaces of kernels, other tenants of the device) the difference is taken off the
target, and the plan is made again.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import replace
from typing import Any

import tensorflow as tf

from ..device.measure import captured_variables, fed_as_by_fit, measure_peak, moved_by_steps
from ..emit.emit import emit
from ..emit.xla import emit_compiled
from ..errors import InfeasibleBudgetError, JitCompileError, PlanError
from ..keras.spec import examples
from ..plan import Plan
from ..report import Attempt, Peak
from ..schedule import Schedule, schedule_from_dict
from ..units import format_bytes
from .job import SURE, Candidate, Job, PlanOptions, timed
from .solving import solve_least, solve_once, solving_seconds

__all__ = ["WORTH", "NotMeasurable", "expected_cost", "fit", "fit_given"]

log = logging.getLogger("checkmate_tf")

_SHARE = 0.5  # of the seconds left for solving, for one target: measurements will ask for others
_USED = 0.94  # share of the goal that is worth no further plan
WORTH = 0.01  # of the cost of a step: what another plan has to save, as much again for each that was measured in vain
_LOWER = 0.98  # share of the least peak predicted so far below which another plan is worth a measurement
_NEAR = 1.1  # times the budget: other schedules with the least peak may lose less to the allocator's pieces
_STRICT_COST = 1.1  # times the cost of a step: what one strict order may cost in parallelism, until it is measured
_SAME = 1.03  # times the seconds of a step: no more than what the same step may take at another time
_UNSTEADY = 0.05  # of a peak: where steps differ by more, one strict order is worth a measurement


class NotMeasurable(Exception):
    """A step that cannot be run on made-up data, or must not be: the message says why."""


def fit(job: Job, target: int | None = None, strict: bool = False) -> Candidate:
    """The cheapest schedule found whose steps stay within the budget as measured; without measurement, the first.

    Parameters
    ----------
    job : Job
        Its `attempts` have what was measured.
    target : int, optional
        Bytes that the first schedule to be measured has to fit, constants included. By default it leaves what the
        allocator may be expected to lose.
    strict : bool
        Begin with computations in one strict order.

    Returns
    -------
    Candidate

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits, or none was measured within the budget; names the least that was.
    JitCompileError
        If XLA is to compile the step and cannot.
    NotMeasurable
        If the step cannot be run on made-up data.
    """
    target = job.first_target_bytes if target is None or not job.measure else job.with_room(target)
    search = _Search(job, target, strict or job.orders[0])
    for _ in range(job.options.tries if job.measure else 1):
        schedule = search.next()
        if schedule is None:
            break
        limit = 0 if search.strict else job.limit_bytes(schedule)
        if not job.measure:
            return Candidate(schedule, limit, None)
        number, needless = len(search.attempts), search.best is not None
        search.learn(schedule, _attempt(job, schedule, search.target, limit, number, needless), limit)
    job.options.tell("measure", 1, 1, "")
    if search.best is None:
        raise search.unkept()
    return replace(search.best, strict_cost=search.strict_cost)


def expected_cost(schedule: Schedule, strict: bool, strict_cost: float | None) -> float:
    """What a schedule costs, with what strict order takes: so many times the seconds of a step, or not measured yet."""
    times = _STRICT_COST if strict_cost is None else strict_cost
    return schedule.cost * times if strict and times > _SAME else schedule.cost


class _Search:
    """Which schedule is measured next, by what the device said of those before.

    Computations may run out of order, or in one strict order, which makes the allocator's peak lower and steadier and
    costs parallelism, more in some networks than in others. The first schedule that is unsteady, or over the budget and
    none that fits costs as little, is measured in strict order, too. From then on each measurement corrects the target
    of its order, down when the peak is over the budget and up when much of the budget is left, and the order whose next
    schedule costs less comes first, what strict order takes as measured included. When nothing that fits a corrected
    target is feasible, the least that is comes next; and if that is near, other schedules with the least peak are
    tried.

    Attributes
    ----------
    targets : dict of bool to int
        For each order that is searched (strict or not) the bytes that its next schedule has to fit, constants included.
    target, strict : int, bool
        Those of the schedule that is measured next.
    attempts : list of Attempt
        What was measured, in order.
    best : Candidate or None
        The cheapest whose steps are expected to stay within the budget.
    strict_cost : float or None
        Times the seconds of a step: what strict order was measured to take; None before.
    vain : int
        Schedules that were measured though one fits, and are no better.
    """

    def __init__(self, job: Job, target: int, strict: bool) -> None:
        self.job, self.target, self.strict = job, target, strict
        self.targets = {strict: target}
        self.attempts: list[Attempt] = []
        self.best: Candidate | None = None
        self.strict_cost = job.strict_cost
        self.vain = 0
        self._again: tuple[Schedule, Attempt] | None = None  # measured out of order, and now in strict order
        self._tried: set[tuple[bytes, bool]] = set()
        self._known: dict[int, Schedule | InfeasibleBudgetError] = {}  # target -> what came of it

    def next(self) -> Schedule | None:
        """The schedule to be measured next; None if there is none worth it.

        Raises
        ------
        InfeasibleBudgetError
            If nothing fits the budget, even by prediction.
        """
        if not self.attempts:
            return self._first()
        if self._again is not None:
            again, before = self._again
            self.strict, self.target = True, before.target_bytes
            return again
        found: list[tuple[float, bool, Schedule]] = []
        for strict, target in self.targets.items():
            schedule = self._at(target)
            if not isinstance(schedule, Schedule) or (schedule.sequence.tobytes(), strict) in self._tried:
                continue
            if self._pays(schedule, strict):
                found.append((self._cost(schedule, strict), not strict, schedule))
        if found:
            _, out_of_order, schedule = min(found, key=lambda f: f[:2])
            self.strict = not out_of_order
            self.target = self.targets[self.strict]
            return schedule
        return self._instead() if self.best is None else None

    def learn(self, schedule: Schedule, attempt: Attempt, limit: int) -> None:
        """What the device said of a schedule, emitted with that limit."""
        job, peak = self.job, attempt.peak
        before = self._again[1].peak if self._again is not None else None
        self._again = None
        self._tried.add((schedule.sequence.tobytes(), self.strict))
        self.attempts.append(attempt)
        if peak is None:
            self.vain += self.best is not None
            self.targets[self.strict] = min(schedule.peak_bytes, self.target) - job.budget_bytes // 10
            return
        if before is not None:
            self.strict_cost = max(1.0, peak.seconds / before.seconds)
        fits = peak.sure_bytes <= job.most_bytes
        if fits and self._is_best(schedule):
            self.best = Candidate(schedule, limit, peak)
        elif self.best is not None:
            self.vain += 1
        unsteady = peak.sure_bytes - peak.bytes > _UNSTEADY * peak.bytes
        doubtful = unsteady if fits else self._pays(schedule, strict=True)
        if self.strict_cost is None and not self.strict and True in job.orders and doubtful:
            self._again = schedule, attempt
        if fits and schedule.overhead < WORTH:
            self.targets = {}
        elif fits and peak.sure_bytes >= _USED * job.goal_bytes:  # a larger target is not worth a plan
            self.targets.pop(self.strict, None)
        else:  # as much as may be where it is measured safely
            most = job.most_bytes if fits and not job.near_limit else job.goal_bytes
            self.targets[self.strict] = most - (peak.sure_bytes - schedule.peak_bytes)

    def _cost(self, schedule: Schedule, strict: bool) -> float:
        return expected_cost(schedule, strict, self.strict_cost)

    def _pays(self, schedule: Schedule, strict: bool) -> bool:
        """Whether a schedule, if it fits, would cost enough less than the best so far to be worth a measurement."""
        if self.best is None:
            return True
        least = self._cost(self.best.schedule, not self.best.limit_bytes)
        return self._cost(schedule, strict) < (1 - (1 + self.vain) * WORTH) * least

    def _is_best(self, schedule: Schedule) -> bool:
        """Whether a schedule that fits costs less than the best so far, or no more and in strict order."""
        if self.best is None:
            return True
        cost, least = self._cost(schedule, self.strict), self._cost(self.best.schedule, not self.best.limit_bytes)
        return cost < least or (cost == least and self.strict)

    def unkept(self) -> InfeasibleBudgetError:
        """What to say when no plan was measured within the budget."""
        job = self.job
        least = int((self._least_sure() or job.budget_bytes) / SURE) + 1
        hard, what = "", "the budget to that"
        if job.limited:
            hard = f", too near its limit of {format_bytes(job.device.limit_bytes)}, of which pieces are lost"
            what = "the limit"
        return InfeasibleBudgetError(
            f"budget {format_bytes(job.budget_bytes)} was kept by none of {len(self.attempts)} plans: the least "
            f"predicted is {format_bytes(min(a.predicted_bytes for a in self.attempts))}, but the device's allocator "
            f"needs {format_bytes(least)}, what steps differ by included{hard}; raise {what} or lower the batch size",
            job.budget_bytes,
            least,
            proven=False,
        )

    def _at(self, target: int) -> Schedule | InfeasibleBudgetError:
        """A schedule for a target, or why there is none; solved for once."""
        if target not in self._known:
            try:
                with timed(self.job.seconds, "solve"):
                    self._known[target] = solve_once(self.job.graph, target, self._options(), self.job.seconds)
            except InfeasibleBudgetError as error:
                self._known[target] = _bare(error)
        return self._known[target]

    def _options(self) -> PlanOptions:
        """Options that leave some of the time for the targets that follow, if there may be any."""
        options, used = self.job.options, solving_seconds(self.job.seconds)
        if not self.job.measure:
            return options
        return replace(options, time_limit=used + _SHARE * max(0.0, options.time_limit - used))

    def _first(self) -> Schedule:
        """A schedule for the first target, which is raised where there is none, but not above the budget."""
        job, raised = self.job, False
        while isinstance(found := self._at(self.target), InfeasibleBudgetError):
            if self.target >= job.budget_bytes:
                raise _bare(found)
            between = self.target < found.minimum_bytes < job.budget_bytes
            if between and found.sequence is not None:
                return self._least(found)
            self.target = found.minimum_bytes if between and not raised else job.budget_bytes
            raised = True
        return found

    def _instead(self) -> Schedule | None:
        """What to measure when nothing fits any target and nothing kept the budget yet."""
        job = self.job
        errors = {k: e for k, t in self.targets.items() if isinstance(e := self._at(t), InfeasibleBudgetError)}
        if not errors:  # the rest was tried, and found no better
            return None
        if self.strict not in errors:
            self.strict = not self.strict
        error = errors[self.strict]
        predicted = [a.predicted_bytes for a in self.attempts if a.strict == self.strict]
        if error.minimum_bytes < _LOWER * min(predicted):
            return self._least(error)
        if True not in job.orders:
            return None
        if not self.strict:
            self.strict, self.target = True, max(job.goal_bytes, error.minimum_bytes)
            found = self._at(self.target)
            if isinstance(found, InfeasibleBudgetError):
                return self._least(found)
            if (found.sequence.tobytes(), True) not in self._tried:
                return found
        if self._least_sure() > _NEAR * job.budget_bytes:
            return None
        return self._least(self._least_known(), seed=len(self.attempts))

    def _least_known(self) -> InfeasibleBudgetError:
        """The least peak that a search named, or found: the last one may have had too few seconds to come near it."""
        named = [
            (found.peak_bytes if isinstance(found, Schedule) else found.minimum_bytes, list(found.sequence))
            for found in self._known.values()
            if found.sequence is not None
        ]
        peak, sequence = min(named, key=lambda n: n[0])
        return InfeasibleBudgetError("the least that is known", peak, peak, proven=False, sequence=sequence)

    def _least_sure(self) -> int:
        """The least that steps of a plan are expected to take, 0 if all ran out of memory."""
        return min((a.peak.sure_bytes for a in self.attempts if a.peak is not None), default=0)

    def _least(self, error: InfeasibleBudgetError, seed: int = 0) -> Schedule:
        """The schedule of least peak, and that peak as the target."""
        self.target = error.minimum_bytes
        options = replace(self.job.options, seed=self.job.options.seed + seed)
        with timed(self.job.seconds, "solve"):
            return solve_least(self.job.graph, error, options, self.job.seconds)


def _bare(error: InfeasibleBudgetError) -> InfeasibleBudgetError:
    """The same error without its traceback, whose frames reach up to the caller's and keep the data of `fit`."""
    return InfeasibleBudgetError(str(error), error.budget_bytes, error.minimum_bytes, error.proven, error.sequence)


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


def fit_given(job: Job, saved: dict[str, Any]) -> Candidate | None:
    """A saved schedule in an order in which its steps stay within the budget; None if they may exceed it in all.

    Raises
    ------
    PlanError
        If it is not one of the job's graph, or does not fit the budget by prediction.
    NotMeasurable
        As `fit`.
    """
    schedule = _given(saved, job)
    if not job.measure:
        return Candidate(schedule, schedule.peak_bytes, None)
    for strict in job.orders:
        limit = 0 if strict else job.limit_bytes(schedule)
        attempt = _attempt(job, schedule, schedule.budget_bytes or schedule.peak_bytes, limit, int(strict))
        if attempt.peak is not None and attempt.peak.sure_bytes <= job.most_bytes:
            return Candidate(schedule, limit, attempt.peak)
    log.warning("steps of the schedule in %s may exceed the budget, as measured here: planning anew", schedule.origin)
    return None


def _attempt(job: Job, schedule: Schedule, target: int, limit: int, number: int, needless: bool = False) -> Attempt:
    """Run a schedule on the device. `limit` is that of `emit`; 0 for one strict order.

    If it is `needless`, since another fits, fewer steps will do once they are over the budget.
    """
    with timed(job.seconds, "emit and measure"):
        text = f"predicted {format_bytes(schedule.peak_bytes)}"
        job.options.tell("measure", min(number, job.options.tries), job.options.tries, text)
        peak = _measure(job, schedule.plan, limit, job.most_bytes if needless else None)
    overhead = job.overhead(schedule)
    job.attempts.append(Attempt(target, schedule.peak_bytes, peak, overhead, not limit, job.codes))
    return job.attempts[-1]


def _measure(job: Job, plan: Plan, limit_bytes: int, most_bytes: int | None) -> Peak | None:
    program, device = job.program, job.device

    def planned(*inputs: tf.Tensor) -> Any:
        return emit_compiled(program, plan, inputs) if xla else emit(program, plan, limit_bytes, inputs)

    xla = job.options.jit_compile
    moved = moved_by_steps(program.step)
    if moved:
        raise NotMeasurable(f"steps read from or write to more than variables ({moved}), which cannot be undone")
    batch = []
    inputs = [program.static.tensors[id(t)] for t in program.step.inputs]
    for k, make in enumerate(examples(inputs, job.options.sample)):
        with tf.device(job.places[k * len(job.places) // len(inputs)] if job.places else None):
            batch.append(make())
    step = fed_as_by_fit(planned, batch, device, job.options.prefetch)
    try:
        peak, reason = measure_peak(device, step, captured_variables(program.step.captures), most_bytes)
    except tf.errors.OpError as error:
        why = str(error.message).strip().splitlines()[0][:300]
        if xla and isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)):
            what = f"XLA cannot compile the step of {program.graph.name!r}"
            raise JitCompileError(f"{what} ({why}): compile the model with jit_compile=False") from error
        raise NotMeasurable(f"the step fails on made-up data, and compile was given none (data=): {why}") from error
    del step
    gc.collect()  # functions lie in cycles, and hold batches
    if peak is None:
        log.warning("a plan ran out of memory while it was measured: %s", reason)
    return peak
