"""What is known while a plan is fitted to a device, what came of each action, and what a schedule costs by that.

Each measurement corrects the target of its order: down when the peak is over the budget, up when much of the budget is
left. A measurement that shows the allocator's model to be wrong ends its use. Steps out of order that take more do not
show that: they are hard to foresee, and strict order is tried instead. `decide` chooses the next action.

No TensorFlow and no solver: a schedule is known here by its cost, its peak and its sequence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..allocator.memory import Placed
from ..emit.ordering import Order, Strict
from ..errors import InfeasibleBudgetError
from ..report import Attempt, Peak
from ..schedule import Schedule
from .policy import FitPolicy, Limits

__all__ = [
    "Action",
    "Candidate",
    "Done",
    "Found",
    "Measure",
    "Outcome",
    "Refuse",
    "Solve",
    "SolveLeast",
    "State",
    "begin",
    "cost_of",
    "expected_cost",
    "pays",
    "tried_as",
]


@dataclass(frozen=True, eq=False)
class Found:
    """A schedule, and what it takes in the order that was asked for, as the allocator's model has it."""

    schedule: Schedule
    placed: Placed | None = None

    @property
    def predicted_bytes(self) -> int:
        """What its steps are expected to take; without a model, the bytes of its values."""
        return self.schedule.peak_bytes if self.placed is None else self.placed.peak_bytes

    @property
    def sure_bytes(self) -> int:
        """What no step is expected to exceed."""
        return self.schedule.peak_bytes if self.placed is None else self.placed.sure_bytes

    def most_bytes(self, measured: Peak) -> int:
        """What a step may take at most, if those that were measured took this."""
        seldom = 0 if self.placed is None else self.placed.most_bytes - self.placed.peak_bytes
        return max(measured.sure_bytes, measured.bytes + seldom)


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
        Seconds of a step in strict order over seconds of a step out of order, as measured: of one plan, or else of two,
        each over what it costs. None if all plans were measured in one order.
    placed : Placed or None
        As in `Found`.
    """

    schedule: Schedule
    order: Order
    measured: Peak | None
    strict_cost: float | None = None
    placed: Placed | None = None

    @property
    def strict(self) -> bool:
        """Whether computations keep one strict order."""
        return isinstance(self.order, Strict)


@dataclass(frozen=True)
class Solve:
    """Find a schedule that fits a target in bytes. Its outcome is for `State.solved`.

    With `placed`, these are bytes that the allocator's model says it takes, in the order that `strict` says.
    """

    target_bytes: int
    strict: bool = False
    placed: bool = False


@dataclass(frozen=True, eq=False)
class SolveLeast:
    """Find the cheapest schedule with the least peak that an error names. It is for `State.solved_least`.

    A question is asked once: the first answer is used whenever it comes up again.

    `seed` is added to the seed of the search: another one finds another schedule with the same peak. `strict` and
    `placed` are as in `Solve`.
    """

    error: InfeasibleBudgetError
    seed: int = 0
    strict: bool = False
    placed: bool = False

    @property
    def key(self) -> tuple[int, int, bool, bool]:
        """What tells one such question from another."""
        return self.error.minimum_bytes, self.seed, self.strict, self.placed


@dataclass(frozen=True, eq=False)
class Measure:
    """Run a schedule on the device. What is measured is for `State.measured`.

    Attributes
    ----------
    found : Found
    order : Order
    target_bytes : int
        What the schedule had to fit.
    needless : bool
        Another plan fits already. So measuring ends after a few steps if one is over the budget.
    """

    found: Found
    order: Order
    target_bytes: int
    needless: bool

    @property
    def schedule(self) -> Schedule:
        return self.found.schedule

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
Outcome: TypeAlias = Found | InfeasibleBudgetError


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
    nearest : Candidate or None
        The plan that was expected to take least, of those that may take more than is wanted, but not than the budget.
    strict_cost : float or None
        As in `Candidate`; None before it is measured.
    left : int or None
        The corrected target of a plan out of order that was over the budget. It is searched again if strict order
        turns out to cost much.
    vain : int
        Plans that were measured after one fitted, and turned out to be no better.
    again : Measure or None
        A measurement out of order that is to be repeated in strict order.
    modelled : bool
        Whether targets are what the allocator's model says. It ends when a measurement shows that the model is wrong;
        not by steps out of order that take more, where there is strict order instead.
    tried : frozenset of (sequence, strict)
    outcomes : mapping of Solve to Found or InfeasibleBudgetError
        What came of each target.
    least : mapping of `SolveLeast.key` to Found
        What came of each question for the least peak.
    """

    limits: Limits
    tries: int
    first_target: int
    first_strict: bool
    targets: Mapping[bool, int]
    attempts: tuple[Attempt, ...] = ()
    best: Candidate | None = None
    nearest: Candidate | None = None
    strict_cost: float | None = None
    left: int | None = None
    vain: int = 0
    again: Measure | None = None
    modelled: bool = False
    tried: frozenset[tuple[bytes, bool]] = frozenset()
    outcomes: Mapping[Solve, Outcome] = field(default_factory=dict)
    least: Mapping[tuple[int, int, bool, bool], Found] = field(default_factory=dict)

    @property
    def policy(self) -> FitPolicy:
        return self.limits.policy

    @property
    def nearest_bytes(self) -> float:
        """What steps of `nearest` are expected to take."""
        return math.inf if self.nearest is None or self.nearest.measured is None else self.nearest.measured.sure_bytes

    @property
    def in_doubt(self) -> bool:
        """Whether steps out of order may be faster than those of the best plan, whatever they cost: none was timed."""
        best, known = self.best, any(not attempt.strict for attempt in self.attempts)
        if best is None or best.measured is None or not self.modelled or known:
            return False
        return best.strict and best.measured.seconds < self.policy.short

    def solved(self, action: Solve, outcome: Outcome) -> State:
        """With what came of a target: a schedule that fits it, or why there is none."""
        return replace(self, outcomes={**self.outcomes, action: outcome})

    def solved_least(self, action: SolveLeast, found: Found) -> State:
        """With a schedule of least peak."""
        return replace(self, least={**self.least, action.key: found})

    def question(self, target: int, strict: bool) -> Solve:
        """What to ask for a schedule. Without a model the order makes no difference."""
        return Solve(target, strict and self.modelled, self.modelled)

    def measured(self, action: Measure, attempt: Attempt) -> State:
        """With what the device said of a schedule."""
        limits, policy, schedule, strict, peak = self.limits, self.policy, action.schedule, action.strict, attempt.peak
        before = self.attempts[-1].peak if self.again is not None else None
        targets = dict(self.targets)
        state = replace(
            self,
            attempts=(*self.attempts, attempt),
            tried=self.tried | {tried_as(schedule, strict)},
            again=None,
        )
        if peak is None:
            lower = int(limits.budget_bytes * policy.out_of_memory)
            targets[strict] = min(action.found.sure_bytes, action.target_bytes) - lower
            return replace(state, targets=targets, vain=self.vain + (self.best is not None))
        if before is not None:
            state = replace(state, strict_cost=max(1.0, peak.seconds / before.seconds))
        elif state.strict_cost is None:
            state = replace(state, strict_cost=_implied_strict_cost(state.attempts))
        over = max(0, action.found.most_bytes(peak) - limits.budget_bytes)
        fits = peak.sure_bytes <= limits.most_bytes and not over
        if peak.sure_bytes <= limits.last_bytes and not over and peak.sure_bytes < self.nearest_bytes:
            state = replace(state, nearest=Candidate(schedule, action.order, peak, placed=action.found.placed))
        if self.in_doubt and not strict:
            assert self.best is not None and self.best.measured is not None
            if fits and peak.seconds < self.best.measured.seconds:
                state = replace(state, best=Candidate(schedule, action.order, peak, placed=action.found.placed))
            return replace(state, targets={})
        if fits and is_best(state, schedule, strict):
            state = replace(state, best=Candidate(schedule, action.order, peak, placed=action.found.placed))
        elif state.best is not None:
            state = replace(state, vain=state.vain + 1)
        hard_to_foresee = not strict and not fits and True in limits.orders
        if (
            self.modelled
            and not hard_to_foresee
            and policy.wrong_model(action.found.predicted_bytes, peak.bytes, strict)
        ):
            limits = replace(limits, modelled=False)  # what it allows without a model
            state = replace(state, limits=limits, modelled=False)
            targets = {strict: 0}
        elif not self.modelled:
            unsteady = peak.sure_bytes - peak.bytes > policy.unsteady * peak.bytes
            doubtful = unsteady if fits else pays(state, schedule, strict=True)
            if state.strict_cost is None and not strict and True in limits.orders and doubtful:
                state = replace(state, again=replace(action, order=Strict()))
        if fits and schedule.overhead < policy.worth:
            targets = {}
        elif fits and peak.sure_bytes >= policy.used * limits.goal_bytes:  # a larger target is not worth a plan
            targets.pop(strict, None)
        else:  # as much as may be where it is measured safely
            most = limits.most_bytes if fits and not limits.near_limit else limits.goal_bytes
            expected = action.found.sure_bytes if state.modelled else schedule.peak_bytes
            room = over if peak.sure_bytes <= limits.most_bytes else 0
            targets[strict] = most - (peak.sure_bytes - expected) - room
            if state.modelled and hard_to_foresee and (True in targets or state.best is None):
                state = replace(state, left=targets.pop(strict))
                targets.setdefault(True, limits.goal_bytes)
        slow = (state.strict_cost or 1.0) > 1 + policy.worth_placed
        if state.modelled and fits and strict and slow and state.left is not None:
            targets[False], state = state.left, replace(state, left=None)
        if state.in_doubt and False in self.targets:
            targets[False] = self.targets[False]
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
    targets = {strict: target} if given else limits.first_targets(target)
    return State(limits, tries, target, strict, targets, strict_cost=strict_cost, modelled=limits.modelled)


def _implied_strict_cost(attempts: Sequence[Attempt]) -> float | None:
    """What strict order costs by the times of the last plans in both orders, each over what it costs; None without."""
    last = {attempt.strict: attempt for attempt in attempts if attempt.peak is not None}
    if len(last) < 2:
        return None
    times = {strict: a.peak.seconds / (1 + a.overhead) for strict, a in last.items() if a.peak is not None}
    return max(1.0, times[True] / times[False]) if times[False] > 0 else None


def expected_cost(cost: float, strict: bool, strict_cost: float | None, policy: FitPolicy) -> float:
    """What a schedule costs, strict order included. The policy's `strict_cost` counts until one was measured."""
    times = policy.strict_cost if strict_cost is None else strict_cost
    return cost * times if strict and times > policy.same_seconds else cost


def cost_of(state: State, schedule: Schedule, strict: bool) -> float:
    return expected_cost(schedule.cost, strict, state.strict_cost, state.policy)


def pays(state: State, schedule: Schedule, strict: bool) -> bool:
    """Whether a schedule, if it fits, would cost enough less than the best so far to be worth a measurement."""
    if state.best is None:
        return True
    if state.in_doubt and not strict:
        return schedule.cost < state.policy.short_cost * state.best.schedule.cost
    least = cost_of(state, state.best.schedule, state.best.strict)
    worth = state.policy.worth_placed if state.modelled else state.policy.worth
    return cost_of(state, schedule, strict) < (1 - (1 + state.vain) * worth) * least


def is_best(state: State, schedule: Schedule, strict: bool) -> bool:
    """Whether a schedule that fits is better than the best so far: it costs less, or the same and in strict order."""
    if state.best is None:
        return True
    cost, least = cost_of(state, schedule, strict), cost_of(state, state.best.schedule, state.best.strict)
    return cost < least or (cost == least and strict)


def tried_as(schedule: Schedule, strict: bool) -> tuple[bytes, bool]:
    return schedule.sequence.tobytes(), strict
