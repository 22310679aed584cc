"""What to do next when a plan is fitted to a device: a pure function of what is known so far.

    state = begin(limits, tries)
    while True:
        action = decide(state)          # solve, measure, done or refused
        ...                             # whoever carries it out tells `state` what came of it

Computations may run out of order, or in one strict order. Strict order makes the allocator's peak lower and steadier
and costs parallelism, more in some networks than in others.

1. The first schedule fits the first target. Where no schedule does, the target is raised, but not above the budget.
2. The first schedule that is unsteady is measured in strict order, too. So is the first one that is over the budget
   while none that fits costs as little.
3. Each measurement corrects the target of its order: down when the peak is over the budget, up when much of the budget
   is left. The order whose next schedule costs less comes first, what strict order takes as measured included.
4. Once a plan fits, another is worth a measurement only where it saves a percent of the step, and a percent more for
   each that was measured in vain.
5. Where nothing fits a corrected target, the schedule of least peak comes next. If that is near the budget, other
   schedules with the least peak are tried.

No TensorFlow and no solver: a schedule is known here by its cost, its peak and its sequence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..emit.ordering import Order, Strict
from ..errors import InfeasibleBudgetError
from ..report import Attempt, Peak
from ..schedule import Schedule
from ..units import format_bytes
from .policy import FitPolicy, Limits

__all__ = [
    "Action",
    "Candidate",
    "Done",
    "Measure",
    "Outcome",
    "Refuse",
    "Solve",
    "SolveLeast",
    "State",
    "begin",
    "decide",
    "expected_cost",
]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule, how it is emitted, and what the device said of it.

    Attributes
    ----------
    schedule : Schedule
    order : Order
    measured : Peak or None
        By the device; None if it was not measured.
    strict_cost : float or None
        Seconds of a step in strict order over seconds of a step out of order, as measured; None if it was not.
    """

    schedule: Schedule
    order: Order
    measured: Peak | None
    strict_cost: float | None = None

    @property
    def strict(self) -> bool:
        """Whether computations keep one strict order."""
        return isinstance(self.order, Strict)


@dataclass(frozen=True)
class Solve:
    """Find a schedule that fits a target in bytes. Its outcome is for `State.solved`."""

    target_bytes: int


@dataclass(frozen=True, eq=False)
class SolveLeast:
    """Find the cheapest schedule with the least peak that an error names. It is for `State.solved_least`.

    A question is asked once: the first answer is used whenever it comes up again.

    `seed` is added to the seed of the search: another one finds another schedule with the same peak.
    """

    error: InfeasibleBudgetError
    seed: int = 0

    @property
    def key(self) -> tuple[int, int]:
        """What tells one such question from another."""
        return self.error.minimum_bytes, self.seed


@dataclass(frozen=True, eq=False)
class Measure:
    """Run a schedule on the device. What is measured is for `State.measured`.

    Attributes
    ----------
    schedule : Schedule
    order : Order
    target_bytes : int
        What the schedule had to fit.
    needless : bool
        Another plan fits already. So measuring ends after a few steps if one is over the budget.
    """

    schedule: Schedule
    order: Order
    target_bytes: int
    needless: bool

    @property
    def strict(self) -> bool:
        return isinstance(self.order, Strict)


@dataclass(frozen=True, eq=False)
class Done:
    """The cheapest plan whose steps are expected to stay within the budget."""

    candidate: Candidate


@dataclass(frozen=True, eq=False)
class Refuse:
    """No plan fits, or none that was measured stayed within the budget."""

    error: InfeasibleBudgetError


Action: TypeAlias = Solve | SolveLeast | Measure | Done | Refuse
Outcome: TypeAlias = Schedule | InfeasibleBudgetError


@dataclass(frozen=True, eq=False)
class State:
    """What is known so far.

    Attributes
    ----------
    limits : Limits
    tries : int
        Most plans to measure.
    first_target, first_strict : int, bool
        Bytes that the first schedule has to fit, and whether it is measured in strict order.
    targets : mapping of bool to int
        For each order that is searched (True: strict), the bytes that its next schedule has to fit.
    attempts : tuple of Attempt
        What was measured, in order.
    best : Candidate or None
        The cheapest plan whose steps are expected to stay within the budget.
    strict_cost : float or None
        As in `Candidate`; None before it is measured.
    vain : int
        Plans that were measured after one fitted, and turned out to be no better.
    again : Measure or None
        A measurement out of order that is to be repeated in strict order.
    tried : frozenset of (sequence, strict)
    outcomes : mapping of int to Schedule or InfeasibleBudgetError
        What came of each target.
    least : mapping of (bytes, seed) to Schedule
        What came of each question for the least peak.
    """

    limits: Limits
    tries: int
    first_target: int
    first_strict: bool
    targets: Mapping[bool, int]
    attempts: tuple[Attempt, ...] = ()
    best: Candidate | None = None
    strict_cost: float | None = None
    vain: int = 0
    again: Measure | None = None
    tried: frozenset[tuple[bytes, bool]] = frozenset()
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    least: Mapping[tuple[int, int], Schedule] = field(default_factory=dict)

    @property
    def policy(self) -> FitPolicy:
        return self.limits.policy

    def solved(self, action: Solve, outcome: Outcome) -> State:
        """With what came of a target: a schedule that fits it, or why there is none."""
        return replace(self, outcomes={**self.outcomes, action.target_bytes: outcome})

    def solved_least(self, action: SolveLeast, schedule: Schedule) -> State:
        """With a schedule of least peak."""
        return replace(self, least={**self.least, action.key: schedule})

    def measured(self, action: Measure, attempt: Attempt) -> State:
        """With what the device said of a schedule."""
        limits, policy, schedule, strict, peak = self.limits, self.policy, action.schedule, action.strict, attempt.peak
        before = self.attempts[-1].peak if self.again is not None else None
        targets = dict(self.targets)
        state = replace(
            self,
            attempts=(*self.attempts, attempt),
            tried=self.tried | {_tried(schedule, strict)},
            again=None,
        )
        if peak is None:
            lower = int(limits.budget_bytes * policy.out_of_memory)
            targets[strict] = min(schedule.peak_bytes, action.target_bytes) - lower
            return replace(state, targets=targets, vain=self.vain + (self.best is not None))
        if before is not None:
            state = replace(state, strict_cost=max(1.0, peak.seconds / before.seconds))
        fits = peak.sure_bytes <= limits.most_bytes
        if fits and _is_best(state, schedule, strict):
            state = replace(state, best=Candidate(schedule, action.order, peak))
        elif state.best is not None:
            state = replace(state, vain=state.vain + 1)
        unsteady = peak.sure_bytes - peak.bytes > policy.unsteady * peak.bytes
        doubtful = unsteady if fits else _pays(state, schedule, strict=True)
        if state.strict_cost is None and not strict and True in limits.orders and doubtful:
            state = replace(state, again=replace(action, order=Strict()))
        if fits and schedule.overhead < policy.worth:
            targets = {}
        elif fits and peak.sure_bytes >= policy.used * limits.goal_bytes:  # a larger target is not worth a plan
            targets.pop(strict, None)
        else:  # as much as may be where it is measured safely
            most = limits.most_bytes if fits and not limits.near_limit else limits.goal_bytes
            targets[strict] = most - (peak.sure_bytes - schedule.peak_bytes)
        return replace(state, targets=targets)


def begin(
    limits: Limits,
    tries: int,
    target_bytes: int | None = None,
    strict: bool = False,
    strict_cost: float | None = None,
) -> State:
    """The state in which nothing is known yet.

    Parameters
    ----------
    limits : Limits
    tries : int
        Most plans to measure.
    target_bytes : int, optional
        What the first schedule to be measured has to fit. By default it leaves what the allocator is expected to lose.
    strict : bool
        Begin with computations in strict order.
    strict_cost : float, optional
        As in `Candidate`, from an earlier measurement.
    """
    given = target_bytes is not None and limits.measured
    target = limits.with_room(target_bytes or 0) if given else limits.first_target_bytes
    strict = strict or limits.orders[0]
    return State(limits, tries, target, strict, {strict: target}, strict_cost=strict_cost)


def decide(state: State) -> Action:
    """What to do next."""
    if not state.attempts:
        action = _first(state)
        if isinstance(action, Measure) and not state.limits.measured:
            return Done(Candidate(action.schedule, action.order, None))
        return action
    if len(state.attempts) >= state.tries:
        return _end(state)
    if state.again is not None:
        return replace(state.again, needless=state.best is not None)
    found: list[tuple[float, bool, Schedule]] = []
    for strict, target in state.targets.items():
        schedule = state.outcomes.get(target)
        if schedule is None:
            return Solve(target)
        if isinstance(schedule, InfeasibleBudgetError) or _tried(schedule, strict) in state.tried:
            continue
        if _pays(state, schedule, strict):
            found.append((_cost(state, schedule, strict), not strict, schedule))
    if found:
        _, out_of_order, schedule = min(found, key=lambda f: f[:2])
        return _measure(state, schedule, not out_of_order, state.targets[not out_of_order])
    return (_instead(state) if state.best is None else None) or _end(state)


def expected_cost(cost: float, strict: bool, strict_cost: float | None, policy: FitPolicy) -> float:
    """What a schedule costs, strict order included. The policy's `strict_cost` counts until one was measured."""
    times = policy.strict_cost if strict_cost is None else strict_cost
    return cost * times if strict and times > policy.same_seconds else cost


def _cost(state: State, schedule: Schedule, strict: bool) -> float:
    return expected_cost(schedule.cost, strict, state.strict_cost, state.policy)


def _pays(state: State, schedule: Schedule, strict: bool) -> bool:
    """Whether a schedule, if it fits, would cost enough less than the best so far to be worth a measurement."""
    if state.best is None:
        return True
    least = _cost(state, state.best.schedule, state.best.strict)
    return _cost(state, schedule, strict) < (1 - (1 + state.vain) * state.policy.worth) * least


def _is_best(state: State, schedule: Schedule, strict: bool) -> bool:
    """Whether a schedule that fits is better than the best so far: it costs less, or the same and in strict order."""
    if state.best is None:
        return True
    cost, least = _cost(state, schedule, strict), _cost(state, state.best.schedule, state.best.strict)
    return cost < least or (cost == least and strict)


def _tried(schedule: Schedule, strict: bool) -> tuple[bytes, bool]:
    return schedule.sequence.tobytes(), strict


def _measure(state: State, schedule: Schedule, strict: bool, target: int) -> Measure:
    order = state.limits.order(schedule.peak_bytes, strict)
    return Measure(schedule, order, target, needless=state.best is not None)


def _first(state: State) -> Action:
    """A schedule for the first target. If none fits, the target is raised, but not above the budget."""
    budget, target, raised = state.limits.budget_bytes, state.first_target, False
    while True:
        found = state.outcomes.get(target)
        if found is None:
            return Solve(target)
        if not isinstance(found, InfeasibleBudgetError):
            return _measure(state, found, state.first_strict, target)
        if target >= budget:
            return Refuse(found)
        between = target < found.minimum_bytes < budget
        if between and found.sequence is not None:
            return _least(state, found, state.first_strict)
        target = found.minimum_bytes if between and not raised else budget
        raised = True


def _least(state: State, error: InfeasibleBudgetError, strict: bool, seed: int = 0) -> Action:
    """The schedule of least peak, and that peak as the target."""
    ask = SolveLeast(error, seed)
    schedule = state.least.get(ask.key)
    return ask if schedule is None else _measure(state, schedule, strict, error.minimum_bytes)


def _instead(state: State) -> Action | None:
    """What to measure when nothing fits any target and nothing kept the budget yet; None if there is nothing."""
    limits, policy = state.limits, state.policy
    found = {strict: state.outcomes[target] for strict, target in state.targets.items()}
    errors = {strict: error for strict, error in found.items() if isinstance(error, InfeasibleBudgetError)}
    if not errors:  # the rest was tried, and found no better
        return None
    last = state.attempts[-1].strict
    strict = last if last in errors else not last
    error = errors[strict]
    predicted = [a.predicted_bytes for a in state.attempts if a.strict == strict]
    if error.minimum_bytes < policy.lower * min(predicted):
        return _least(state, error, strict)
    if True not in limits.orders:
        return None
    if not strict:
        target = max(limits.goal_bytes, error.minimum_bytes)
        outcome = state.outcomes.get(target)
        if outcome is None:
            return Solve(target)
        if isinstance(outcome, InfeasibleBudgetError):
            return _least(state, outcome, strict=True)
        if _tried(outcome, True) not in state.tried:
            return _measure(state, outcome, True, target)
    if _least_sure(state) > policy.near_budget * limits.budget_bytes:
        return None
    return _least(state, _least_known(state), strict=True, seed=len(state.attempts))


def _least_known(state: State) -> InfeasibleBudgetError:
    """The least peak that a search named, or found: the last one may have had too few seconds to come near it."""
    named = [
        (found.minimum_bytes if isinstance(found, InfeasibleBudgetError) else found.peak_bytes, list(found.sequence))
        for found in state.outcomes.values()
        if found.sequence is not None
    ]
    peak, sequence = min(named, key=lambda n: n[0])
    return InfeasibleBudgetError("the least that is known", peak, peak, proven=False, sequence=sequence)


def _least_sure(state: State) -> int:
    """The least that steps of a plan are expected to take, bytes; 0 if all ran out of memory."""
    return min((a.peak.sure_bytes for a in state.attempts if a.peak is not None), default=0)


def _end(state: State) -> Action:
    """The best plan, or what to say when none was measured within the budget."""
    if state.best is not None:
        return Done(replace(state.best, strict_cost=state.strict_cost))
    limits = state.limits
    least = int((_least_sure(state) or limits.budget_bytes) / state.policy.sure) + 1
    hard, what = "", "the budget to that"
    if limits.limited:
        hard = f", too near its limit of {format_bytes(limits.device_bytes)}, some of which it loses to pieces"
        what = "the limit"
    return Refuse(
        InfeasibleBudgetError(
            f"budget {format_bytes(limits.budget_bytes)} was kept by none of {len(state.attempts)} plans: the least "
            f"predicted is {format_bytes(min(a.predicted_bytes for a in state.attempts))}, but the device's allocator "
            f"needs {format_bytes(least)} for the steps that take most{hard}; raise {what} or lower the batch size",
            limits.budget_bytes,
            least,
            proven=False,
        )
    )
