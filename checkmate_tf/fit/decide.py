"""What to do next when a plan is fitted to a device: a pure function of what is known so far.

    state = begin(limits, tries)
    while True:
        action = decide(state)          # solve, measure, done or refused
        ...                             # whoever carries it out tells `state` what came of it

Computations may run out of order, or in one strict order. Strict order makes the allocator's peak lower and steadier
and costs parallelism, more in some networks than in others.

1. Where the allocator has a model, a target is what it will take, in either order. The order whose schedule costs less
   is measured, what strict order is expected to take included. Mostly that is all. If the model is found to be wrong,
   the rest goes on without it.
2. Else a target is the bytes of a schedule. The first schedule that is unsteady is measured in strict order, too. So is
   the first one that is over the budget while none that fits costs as little.
3. Where no schedule fits the first target, it is raised, but not above the budget.
   Each measurement corrects the target of its order: down when the peak is over the budget, up when much of the budget
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

from ..allocator.memory import Placed
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
    "Found",
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
class Found:
    """A schedule, and what it takes in the order that was asked for, as the allocator's model has it."""

    schedule: Schedule
    placed: Placed | None = None

    @property
    def predicted_bytes(self) -> int:
        """What its steps are expected to take; without a model, the bytes of its values."""
        return self.schedule.peak_bytes if self.placed is None else self.placed.peak_bytes


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
    strict_cost : float or None
        As in `Candidate`; None before it is measured.
    vain : int
        Plans that were measured after one fitted, and turned out to be no better.
    again : Measure or None
        A measurement out of order that is to be repeated in strict order.
    modelled : bool
        Whether targets are what the allocator's model says. It ends when a measurement shows that the model is wrong.
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
    strict_cost: float | None = None
    vain: int = 0
    again: Measure | None = None
    modelled: bool = False
    tried: frozenset[tuple[bytes, bool]] = frozenset()
    outcomes: Mapping[Solve, Outcome] = field(default_factory=dict)
    least: Mapping[tuple[int, int, bool, bool], Found] = field(default_factory=dict)

    @property
    def policy(self) -> FitPolicy:
        return self.limits.policy

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
            tried=self.tried | {_tried(schedule, strict)},
            again=None,
        )
        if peak is None:
            lower = int(limits.budget_bytes * policy.out_of_memory)
            targets[strict] = min(action.found.predicted_bytes, action.target_bytes) - lower
            return replace(state, targets=targets, vain=self.vain + (self.best is not None))
        if before is not None:
            state = replace(state, strict_cost=max(1.0, peak.seconds / before.seconds))
        fits = peak.sure_bytes <= limits.most_bytes
        if fits and _is_best(state, schedule, strict):
            state = replace(state, best=Candidate(schedule, action.order, peak, placed=action.found.placed))
        elif state.best is not None:
            state = replace(state, vain=state.vain + 1)
        if self.modelled and policy.wrong_model(action.found.predicted_bytes, peak.bytes, strict):
            limits = replace(limits, modelled=False)  # what it allows without a model
            state = replace(state, limits=limits, modelled=False)
            targets = {strict: 0}
        elif not self.modelled:
            unsteady = peak.sure_bytes - peak.bytes > policy.unsteady * peak.bytes
            doubtful = unsteady if fits else _pays(state, schedule, strict=True)
            if state.strict_cost is None and not strict and True in limits.orders and doubtful:
                state = replace(state, again=replace(action, order=Strict()))
        if fits and schedule.overhead < policy.worth:
            targets = {}
        elif fits and peak.sure_bytes >= policy.used * limits.goal_bytes:  # a larger target is not worth a plan
            targets.pop(strict, None)
        elif state.modelled and not fits and not strict and True in targets:  # steps out of order are hard to foresee
            targets.pop(strict)
        else:  # as much as may be where it is measured safely
            most = limits.most_bytes if fits and not limits.near_limit else limits.goal_bytes
            predicted = action.found.predicted_bytes if state.modelled else schedule.peak_bytes
            targets[strict] = most - (peak.sure_bytes - predicted)
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


def decide(state: State) -> Action:
    """What to do next."""
    if not state.attempts:
        action = _first_placed(state) if state.modelled else _first(state)
        if isinstance(action, Measure) and not state.limits.measured:
            return Done(Candidate(action.schedule, action.order, None))
        return action
    if len(state.attempts) >= state.tries:
        return _end(state)
    if state.again is not None:
        return replace(state.again, needless=state.best is not None)
    found: list[tuple[float, bool, Found]] = []
    for strict, target in state.targets.items():
        asked = state.question(target, strict)
        outcome = state.outcomes.get(asked)
        if outcome is None:
            return asked
        if isinstance(outcome, InfeasibleBudgetError) or _tried(outcome.schedule, strict) in state.tried:
            continue
        if _pays(state, outcome.schedule, strict):
            found.append((_cost(state, outcome.schedule, strict), not strict, outcome))
    if found:
        _, out_of_order, cheapest = min(found, key=lambda f: f[:2])
        return _measure(state, cheapest, not out_of_order, state.targets[not out_of_order])
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
    worth = state.policy.worth_placed if state.modelled else state.policy.worth
    return _cost(state, schedule, strict) < (1 - (1 + state.vain) * worth) * least


def _is_best(state: State, schedule: Schedule, strict: bool) -> bool:
    """Whether a schedule that fits is better than the best so far: it costs less, or the same and in strict order."""
    if state.best is None:
        return True
    cost, least = _cost(state, schedule, strict), _cost(state, state.best.schedule, state.best.strict)
    return cost < least or (cost == least and strict)


def _tried(schedule: Schedule, strict: bool) -> tuple[bytes, bool]:
    return schedule.sequence.tobytes(), strict


def _measure(state: State, found: Found, strict: bool, target: int) -> Measure:
    order = state.limits.order(found.schedule.peak_bytes, strict)
    return Measure(found, order, target, needless=state.best is not None)


def _first_placed(state: State) -> Action:
    """The cheapest schedule in either order, by the allocator's model. If none fits, the one that takes least."""
    found: list[tuple[float, bool, Found]] = []
    errors: dict[bool, InfeasibleBudgetError] = {}
    for strict, target in state.targets.items():
        asked = state.question(target, strict)
        outcome = state.outcomes.get(asked)
        if outcome is None:
            return asked
        if isinstance(outcome, InfeasibleBudgetError):
            errors[strict] = outcome
        else:
            found.append((_cost(state, outcome.schedule, strict), not strict, outcome))
    if found:
        _, out_of_order, cheapest = min(found, key=lambda f: f[:2])
        return _measure(state, cheapest, not out_of_order, state.targets[not out_of_order])
    limits = state.limits
    strict, error = max(errors.items(), key=lambda e: e[0])  # strict order, where it is ours to choose
    hope = not limits.near_limit or error.minimum_bytes <= int(state.policy.hope * limits.most_bytes)
    if hope and not error.proven:
        return _least(state, error, strict)  # the model may be wrong: measuring decides
    needed = int(state.policy.named * error.minimum_bytes / state.policy.placed) + 1
    if error.proven:
        text = f"{error}; as the device's allocator places values, the least known to do is {format_bytes(needed)}"
        return Refuse(InfeasibleBudgetError(text, limits.budget_bytes, needed, proven=True))
    too_small, raised = "is too small", f"the budget to {format_bytes(needed)}"
    if limits.limited:
        too_small = f"comes too near the allocator's limit of {format_bytes(limits.device_bytes)}"
        raised = f"the limit to {format_bytes(int(error.minimum_bytes / state.policy.most) + 1)}"
    return Refuse(
        InfeasibleBudgetError(
            f"budget {format_bytes(limits.budget_bytes)} {too_small}: the values of no known schedule fit into less "
            f"than {format_bytes(error.minimum_bytes)} as the device's allocator places them; raise {raised} or lower "
            "the batch size",
            limits.budget_bytes,
            needed,
            proven=False,
        )
    )


def _first(state: State) -> Action:
    """A schedule for the first target. If none fits, the target is raised, but not above the budget."""
    budget, target, raised = state.limits.budget_bytes, state.first_target, False
    while True:
        asked = state.question(target, state.first_strict)
        found = state.outcomes.get(asked)
        if found is None:
            return asked
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
    ask = SolveLeast(error, seed, strict and state.modelled, state.modelled)
    found = state.least.get(ask.key)
    return ask if found is None else _measure(state, found, strict, error.minimum_bytes)


def _instead(state: State) -> Action | None:
    """What to measure when nothing fits any target and nothing kept the budget yet; None if there is nothing."""
    limits, policy = state.limits, state.policy
    outcomes = {strict: state.outcomes[state.question(target, strict)] for strict, target in state.targets.items()}
    errors = {strict: error for strict, error in outcomes.items() if isinstance(error, InfeasibleBudgetError)}
    if not errors:  # the rest was tried, and found no better
        return None
    last = state.attempts[-1].strict
    strict = last if last in errors else next(iter(errors))
    error = errors[strict]
    attempts = [a for a in state.attempts if a.strict == strict]
    predicted = [(a.placed_bytes if state.modelled else None) or a.predicted_bytes for a in attempts]
    if predicted and error.minimum_bytes < policy.lower * min(predicted):
        return _least(state, error, strict)
    if True not in limits.orders:
        return None
    if not strict:
        target = max(limits.goal_bytes, error.minimum_bytes)
        asked = state.question(target, strict=True)
        outcome = state.outcomes.get(asked)
        if outcome is None:
            return asked
        if isinstance(outcome, InfeasibleBudgetError):
            return _least(state, outcome, strict=True)
        if _tried(outcome.schedule, True) not in state.tried:
            return _measure(state, outcome, True, target)
    if state.modelled or _least_sure(state) > policy.near_budget * limits.budget_bytes:
        return None
    return _least(state, _least_known(state), strict=True, seed=len(state.attempts))


def _least_known(state: State) -> InfeasibleBudgetError:
    """The least peak that a search named, or found: the last one may have had too few seconds to come near it."""
    named: list[tuple[int, list[int]]] = []
    for asked, outcome in state.outcomes.items():
        if isinstance(outcome, Found):
            named.append((outcome.schedule.peak_bytes, outcome.schedule.sequence.tolist()))
        elif outcome.sequence is not None and not asked.placed:
            named.append((outcome.minimum_bytes, list(outcome.sequence)))
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
    least = int(state.policy.named * (_least_sure(state) or limits.budget_bytes) / state.policy.sure) + 1
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
