"""What is decided, on a simulated device with a simulated solver: hundreds of situations, no TensorFlow."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from checkmate_tf.allocator.memory import Placed
from checkmate_tf.emit.ordering import Strict, Within
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.fit.decide import decide
from checkmate_tf.fit.policy import POLICY, FitPolicy, Limits
from checkmate_tf.fit.state import (
    Candidate,
    Done,
    Found,
    Measure,
    Refuse,
    Solve,
    SolveLeast,
    State,
    begin,
    expected_cost,
)
from checkmate_tf.report import Attempt, Peak
from checkmate_tf.units import format_bytes

CONSTANT, PLAIN, LEAST, STEP = 100_000, 1_000_000, 300_000, 20_000  # bytes
BASE = 1000.0  # cost of the plain step
TRIES = 5


@dataclass(frozen=True, eq=False)
class Offer:
    """All that is decided by of a schedule."""

    peak_bytes: int
    cost: float
    number: int = 0

    @property
    def overhead(self):
        return self.cost / BASE - 1

    @property
    def sequence(self):
        return np.array([self.peak_bytes, self.number], dtype=np.int64)


def solver(target, number=0):
    """The cheapest schedule within a target: less memory costs more. Peaks come in steps, as those of tensors do."""
    if target < LEAST:
        least = offer(LEAST)
        return InfeasibleBudgetError("too small", target, LEAST, proven=True, sequence=least.sequence.tolist())
    return Found(offer(min(PLAIN, LEAST + (target - LEAST) // STEP * STEP), number))


def offer(peak, number=0):
    return Offer(peak, BASE * (1 + 0.4 * ((PLAIN - peak) / (PLAIN - LEAST)) ** 2), number)


@dataclass(frozen=True)
class Allocator:
    """Loses a share of the memory for activations to pieces, in each order another, and has a hard limit.

    `spread` is what steps differ by, out of order, as a share of their peak.
    """

    loose: float
    strict: float
    spread: float = 0.0
    slow: float = 1.05  # a step in strict order, over one out of order
    limit_bytes: int = 10**9
    seconds: float = 1.0  # of a step out of order

    def most(self, schedule, strict):
        return int(CONSTANT + (schedule.peak_bytes - CONSTANT) * (1 + (self.strict if strict else self.loose)))

    def run(self, action):
        most = self.most(action.schedule, action.strict)
        sure = most if action.strict else int(most * (1 + self.spread))
        if sure > self.limit_bytes:
            return None
        seconds = self.seconds * action.schedule.cost / BASE
        return Peak(most, sure, seconds * (self.slow if action.strict else 1.0))


@dataclass(frozen=True)
class Model:
    """What is known of an allocator: it says less than the truth by a share of what it says, in each order another."""

    allocator: Allocator
    strict: float = 0.0
    loose: float = 0.0
    step: int = STEP
    apart: float = 0.0  # what steps out of order differ by, as a share of their peak
    whole: float = 0.0  # what one chunk given whole may take beside it, as a share of it

    def error(self, strict):
        return self.strict if strict else self.loose

    def placed(self, schedule, strict):
        most = self.allocator.most(schedule, strict) / (1 + self.error(strict))
        apart = 0 if strict else int(self.apart * most)
        whole = 0 if strict else int(self.whole * most)
        return Placed(int(most), schedule.peak_bytes, out_of_memory=False, apart_bytes=apart, given_whole_bytes=whole)

    def found(self, schedule, strict):
        return Found(schedule, self.placed(schedule, strict))

    def solver(self, target, strict):
        """The cheapest schedule that takes no more than a target, by the model."""
        offers = [self.found(offer(peak), strict) for peak in range(PLAIN, LEAST - 1, -self.step)]
        fitting = (found for found in offers if found.sure_bytes <= target)
        least = offers[-1]
        none = InfeasibleBudgetError(
            "too small", target, least.sure_bytes, proven=False, sequence=least.schedule.sequence.tolist()
        )
        return next(fitting, none)


def carried_out(state, allocator, model=None):
    """All actions, the last one Done or Refuse, and the state at the end. With a model, it says what is placed."""
    actions = []
    while True:
        action = decide(state)
        actions.append(action)
        assert len(actions) < 60, "it goes on forever"
        if isinstance(action, Solve):
            assert action not in state.outcomes, "solved for twice"
            assert action.placed == state.modelled
            strict = action.strict
            outcome = model.solver(action.target_bytes, strict) if action.placed else solver(action.target_bytes)
            state = state.solved(action, outcome)
        elif isinstance(action, SolveLeast):
            assert action.placed == state.modelled
            peak = LEAST if action.placed else action.error.minimum_bytes
            least = offer(peak, action.seed)
            state = state.solved_least(action, model.found(least, action.strict) if action.placed else Found(least))
        elif isinstance(action, Measure):
            found, schedule = action.found, action.schedule
            tried = [(a.schedule.sequence.tolist(), a.strict) for a in actions[:-1] if isinstance(a, Measure)]
            assert (schedule.sequence.tolist(), action.strict) not in tried, "measured twice"
            attempt = Attempt(
                action.target_bytes,
                schedule.peak_bytes,
                allocator.run(action),
                schedule.overhead,
                action.strict,
                placed_bytes=None if found.placed is None else found.placed.peak_bytes,
            )
            state = state.measured(action, attempt)
        else:
            return actions, state


def measured(actions):
    return [a for a in actions if isinstance(a, Measure)]


def limits_for(budget, limit_bytes=10**9, **changes):
    return replace(Limits(budget, CONSTANT, limit_bytes, on_cpu=True, measured=True), **changes)


SITUATIONS = list(
    product(
        (0.25, 0.4, 0.6, 0.8, 1.1),  # the budget, between constants and the plain peak
        (0.0, 0.15, 0.6),  # lost out of order
        (0.0, 0.1, 0.3),  # lost in strict order
        (0.0, 0.1),  # spread
        (1.01, 1.3),  # slowness of strict order
        (None, 1.1),  # hard limit over the budget
    )
)


def _least_sure(state):
    return min((a.peak.sure_bytes for a in state.attempts if a.peak is not None), default=math.inf)


def _takes_least(found, state):
    """Of the plans that were measured, where none is as far within the budget as is wanted. Not near a hard limit."""
    limits = state.limits
    assert not limits.near_limit
    assert limits.most_bytes < found.measured.sure_bytes == _least_sure(state) <= limits.budget_bytes


@pytest.mark.parametrize(("share", "loose", "strict", "spread", "slow", "hard"), SITUATIONS)
def test_what_is_done_keeps_the_budget_and_what_is_refused_has_a_reason(share, loose, strict, spread, slow, hard):
    budget = int(CONSTANT + share * (PLAIN - CONSTANT))
    limit = int(hard * budget) if hard else 10**9
    limits = limits_for(budget, limit)
    allocator = Allocator(loose, strict, spread, slow, limit)
    actions, state = carried_out(begin(limits, TRIES), allocator)
    tried, end = measured(actions), actions[-1]
    peaks = [attempt.peak for attempt in state.attempts]
    fitting = [
        (expected_cost(a.schedule.cost, a.strict, state.strict_cost, POLICY), a)
        for a, peak in zip(tried, peaks, strict=True)
        if peak is not None and peak.sure_bytes <= limits.most_bytes
    ]
    assert len(tried) <= TRIES
    assert all(a.schedule.peak_bytes <= a.target_bytes <= budget for a in tried if a.schedule.number == 0)
    if hard:  # near a hard limit nothing runs out of order, and no first plan comes near it
        assert all(a.strict for a in tried)
        assert all(a.target_bytes <= max(POLICY.clear * limit, LEAST) for a in tried)
    if isinstance(end, Done):
        found = end.candidate
        cost = expected_cost(found.schedule.cost, found.strict, state.strict_cost, POLICY)
        if fitting:
            assert found.measured.sure_bytes <= limits.most_bytes <= POLICY.sure * budget
            assert cost == min(cost for cost, _ in fitting)
        else:
            _takes_least(found, state)
        assert found.strict_cost == state.strict_cost
    else:
        assert isinstance(end, Refuse) and not fitting and _least_sure(state) > limits.last_bytes
        assert end.error.minimum_bytes > budget or not tried
        least = Measure(Found(offer(LEAST)), Strict(), LEAST, needless=False)
        near = allocator.run(least)  # whoever refuses has tried the least, or nothing near it fits
        assert near is None or near.sure_bytes > 0.93 * limits.most_bytes or len(tried) == TRIES or budget < LEAST


def _fits(found, peak, limits):
    return peak.sure_bytes <= limits.most_bytes and found.most_bytes(peak) <= limits.budget_bytes


_MODELLED = (
    (0.25, 0.4, 0.6, 0.8, 1.1),  # the budget, between constants and the plain peak
    ((0.0, 0.0), (0.15, 0.05), (0.5, 0.2)),  # lost, out of order and in strict order
    (0.0, 0.03, -0.03, 0.12, -0.12, 0.4, -0.4),  # what the model errs by in strict order
    (0.0, 0.4),  # and out of order
)
MODELLED = [
    # what one chunk given whole may take, slowness of strict order, hard limit over the budget
    *product(*_MODELLED, (0.0,), (1.01, 1.3), (None, 1.0, 1.1)),
    *product(*_MODELLED, (0.07,), (1.01,), (None,)),
]


@pytest.mark.parametrize(("share", "lost", "strict", "loose", "whole", "slow", "hard"), MODELLED)
def test_what_is_done_by_a_model_keeps_the_budget_and_what_is_refused_has_a_reason(
    share, lost, strict, loose, whole, slow, hard
):
    budget = int(CONSTANT + share * (PLAIN - CONSTANT))
    limit = int(hard * budget) if hard else 10**9
    limits = limits_for(budget, limit, modelled=True)
    allocator = Allocator(*lost, spread=0.02, slow=slow, limit_bytes=limit)
    model = Model(allocator, strict, loose, whole=whole)
    actions, state = carried_out(begin(limits, TRIES), allocator, model)
    tried, end = measured(actions), actions[-1]
    fitting = [
        expected_cost(a.schedule.cost, a.strict, state.strict_cost, POLICY)
        for a, attempt in zip(tried, state.attempts, strict=True)
        if attempt.peak is not None and _fits(a.found, attempt.peak, limits)
    ]
    assert len(tried) <= TRIES
    assert not hard or all(a.strict for a in tried)
    for action in tried:
        assert action.found.predicted_bytes <= action.target_bytes or action.schedule.number
    known = [(a, attempt.peak) for a, attempt in zip(tried, state.attempts, strict=True) if attempt.peak is not None]
    telling = [a.strict for a, peak in known if a.strict or _fits(a.found, peak, limits)]
    wrong = [
        strict for strict in telling if abs(model.error(strict)) > (POLICY.wrong if strict else POLICY.wrong_loose)
    ]
    assert state.modelled == (not wrong)
    if isinstance(end, Done):
        found = end.candidate
        assert Found(found.schedule, found.placed).most_bytes(found.measured) <= budget
        if fitting:
            assert found.measured.sure_bytes <= limits.most_bytes <= POLICY.sure * budget
            assert expected_cost(found.schedule.cost, found.strict, state.strict_cost, POLICY) == min(fitting)
        else:
            _takes_least(found, state)
    else:
        assert isinstance(end, Refuse) and not fitting and _least_sure(state) > limits.last_bytes
        assert end.error.minimum_bytes > budget or (limits.limited and "limit" in str(end.error))
        least = offer(LEAST)
        needed = max(model.placed(least, strict=True).peak_bytes, allocator.most(least, strict=True))
        assert needed > 0.93 * limits.most_bytes or len(tried) == TRIES or budget < LEAST


@pytest.mark.parametrize("hard", [None, 1.1])
@pytest.mark.parametrize("error", [-0.03, -0.02, 0.0, 0.01, 0.02])
@pytest.mark.parametrize("share", [0.4, 0.5, 0.6, 0.7, 0.8])
def test_where_the_model_is_nearly_right_one_measurement_in_strict_order_is_enough(share, error, hard):
    budget = int(CONSTANT + share * (PLAIN - CONSTANT))
    limit = int(hard * budget) if hard else 10**9
    allocator = Allocator(0.8, 0.1, spread=0.1, slow=1.01, limit_bytes=limit)
    limits = limits_for(budget, limit, modelled=True)
    actions, state = carried_out(begin(limits, TRIES), allocator, Model(allocator, error, step=STEP // 5))
    assert isinstance(actions[-1], Done) and actions[-1].candidate.strict and state.modelled
    assert len(measured(actions)) == 1


@pytest.mark.parametrize("hard", [None, 1.1])
@pytest.mark.parametrize("error", [0.03, 0.06, 0.12])
def test_where_more_is_taken_than_the_model_says_the_second_measurement_is_enough(error, hard):
    limit = 770_000 if hard else 10**9
    allocator = Allocator(0.6, 0.1, slow=1.01, limit_bytes=limit)
    limits = limits_for(700_000, limit, modelled=True)
    actions, _ = carried_out(begin(limits, TRIES), allocator, Model(allocator, error))
    assert isinstance(actions[-1], Done) and len(measured(actions)) == 2


def test_with_a_model_the_order_that_is_expected_to_cost_less_comes_first():
    """Both are asked for, strict order first: what it costs is a bound for the other one."""
    for budget, lost, strict in ((700_000, 0.0, False), (700_000, 0.2, True), (2 * PLAIN, 0.0, False)):
        allocator = Allocator(lost, 0.0)
        actions, _ = carried_out(begin(limits_for(budget, modelled=True), TRIES), allocator, Model(allocator))
        solved = [a for a in actions if isinstance(a, Solve)]
        assert [a.strict for a in solved[:2]] == [True, False] and all(a.placed for a in solved)
        assert [a.target_bytes for a in solved[:2]] == [int(POLICY.placed * budget)] * 2
        assert [a.strict for a in measured(actions)] == [strict]


@pytest.mark.parametrize("apart, strict", [(0.015, False), (0.025, True)])
def test_steps_that_differ_much_have_to_save_what_a_measurement_is_worth(apart, strict):
    allocator = Allocator(0.05, 0.0)
    actions, _ = carried_out(begin(limits_for(700_000, modelled=True), TRIES), allocator, Model(allocator, apart=apart))
    assert [a.strict for a in measured(actions)] == [strict]


@pytest.mark.parametrize("seconds, slow, orders", [
    (0.01, 1.3, [True, False]), (0.01, 0.9, [True, False]), (0.1, 1.3, [True]),
])  # fmt: skip
def test_where_steps_are_short_the_clock_decides_between_the_orders(seconds, slow, orders):
    allocator = Allocator(loose=0.4, strict=0.1, slow=slow, seconds=seconds)
    actions, state = carried_out(begin(limits_for(900_000, modelled=True), TRIES), allocator, Model(allocator))
    tried = measured(actions)
    assert [a.strict for a in tried] == orders
    if len(tried) > 1:  # though it costs more
        assert tried[0].schedule.cost < tried[1].schedule.cost < POLICY.short_cost * tried[0].schedule.cost
    assert actions[-1].candidate.strict == (orders == [True] or slow < 1) and state.modelled


def test_an_order_that_is_over_the_budget_is_not_faster():
    """Steps out of order differ by more than the model says."""
    allocator = Allocator(loose=0.4, strict=0.1, spread=0.15, slow=1.3, seconds=0.01)
    actions, _ = carried_out(begin(limits_for(900_000, modelled=True), TRIES), allocator, Model(allocator))
    assert [a.strict for a in measured(actions)] == [True, False] and actions[-1].candidate.strict


def test_with_a_model_steps_out_of_order_get_one_chance():
    allocator = Allocator(0.1, 0.0)
    limits = limits_for(700_000, modelled=True)
    actions, _ = carried_out(begin(limits, TRIES), allocator, Model(allocator, 0.0, loose=0.12))
    assert [a.strict for a in measured(actions)] == [False, True]
    assert isinstance(actions[-1], Done) and actions[-1].candidate.strict


@pytest.mark.parametrize(("whole", "orders"), [(0.01, [False]), (0.2, [False, True])])
def test_out_of_order_a_plan_leaves_room_for_a_chunk_given_whole(whole, orders):
    """No step showed it, but it may come."""
    allocator = Allocator(0.0, 0.0, slow=1.02)
    limits = limits_for(700_000, modelled=True)
    actions, state = carried_out(begin(limits, TRIES), allocator, Model(allocator, whole=whole))
    assert [a.strict for a in measured(actions)] == orders
    found, measure = actions[-1].candidate, measured(actions)[-1]
    assert found.strict == orders[-1] and found.measured.sure_bytes <= limits.most_bytes and state.modelled
    assert measure.found.most_bytes(found.measured) <= limits.budget_bytes


def test_where_strict_order_is_slow_another_plan_out_of_order_leaves_that_room():
    allocator = Allocator(0.0, 0.0, slow=1.3)
    limits = limits_for(700_000, modelled=True)
    actions, _ = carried_out(begin(limits, TRIES), allocator, Model(allocator, whole=0.2))
    tried, found = measured(actions), actions[-1].candidate
    assert [a.strict for a in tried][:3] == [False, True, False] and not found.strict
    most = Found(found.schedule, found.placed).most_bytes(found.measured)
    assert most <= limits.budget_bytes < tried[0].found.most_bytes(allocator.run(tried[0]))


def test_what_strict_order_costs_follows_from_two_plans_that_cost_different():
    state = begin(limits_for(900_000, modelled=True), TRIES)
    for strict, overhead, seconds in ((False, 0.1, 2.2), (True, 0.3, 3.9)):
        schedule = Offer(600_000, BASE * (1 + overhead), number=strict)
        action = Measure(Found(schedule), Strict() if strict else Within(1), 600_000, needless=False)
        peak = Peak(600_000, 600_000, seconds)
        state = state.measured(action, Attempt(600_000, 600_000, peak, overhead, strict))
    assert state.strict_cost == pytest.approx(3.9 / 1.3 / (2.2 / 1.1))


@pytest.mark.parametrize("slow, orders", [(1.3, [False, True, False]), (1.02, [False, True])])
def test_they_get_another_where_strict_order_turns_out_to_be_slow(slow, orders):
    allocator = Allocator(0.1, 0.0, slow=slow)
    limits = limits_for(700_000, modelled=True)
    actions, state = carried_out(begin(limits, TRIES), allocator, Model(allocator, 0.0, loose=0.12))
    assert [a.strict for a in measured(actions)] == orders
    assert state.strict_cost == pytest.approx(slow)
    assert isinstance(actions[-1], Done) and actions[-1].candidate.strict == orders[-1]


def test_where_no_schedule_fits_by_the_model_the_least_is_measured_unless_that_may_run_out_of_memory():
    allocator = Allocator(0.3, 0.1)
    least = allocator.most(offer(LEAST), strict=True)
    actions, _ = carried_out(begin(limits_for(least - 1, modelled=True), TRIES), allocator, Model(allocator))
    assert len(measured(actions)) == 1 and isinstance(actions[-1], Refuse)
    limits = limits_for(int(0.9 * least), int(0.9 * least), modelled=True)
    actions, _ = carried_out(begin(limits, TRIES), allocator, Model(allocator))
    assert not measured(actions) and "as the device's allocator places them" in str(actions[-1].error)
    assert actions[-1].error.minimum_bytes == POLICY.needed_bytes(least)
    near = int(least / POLICY.sure) + 1  # above the goal by the model, and yet it may do
    actions, _ = carried_out(begin(limits_for(near, modelled=True), TRIES), allocator, Model(allocator))
    assert [a.strict for a in actions if isinstance(a, SolveLeast)] == [True]
    assert len(measured(actions)) == 1 and isinstance(actions[-1], Done)


@pytest.mark.parametrize(("hard", "alternative"), [(None, False), (1.1, False), (None, True)])
def test_what_only_just_keeps_the_budget_is_taken_where_nothing_else_does(hard, alternative):
    """But for near a hard limit, which ends training, and where another kind of step may do better."""
    allocator = Allocator(0.3, 0.1)
    budget = int(1.005 * allocator.most(offer(LEAST), strict=True))
    limits = limits_for(budget, int(hard * budget) if hard else 10**9, alternative=alternative)
    actions, _ = carried_out(begin(limits, TRIES), allocator)
    assert isinstance(actions[-1], Refuse if hard or alternative else Done)


def test_steps_out_of_order_that_take_far_more_leave_the_model_for_strict_order():
    """They took 15.0 MB where 11.0 were foreseen, and what went on without the model recomputed half as much again."""
    allocator = Allocator(0.6, 0.1, slow=1.01)
    actions, state = carried_out(
        begin(limits_for(700_000, modelled=True), TRIES), allocator, Model(allocator, 0.0, 0.5)
    )
    tried = measured(actions)
    assert [a.strict for a in tried] == [False, True] and state.modelled and tried[1].found.placed is not None
    assert isinstance(actions[-1], Done) and actions[-1].candidate.strict


def test_where_only_steps_out_of_order_are_searched_strict_order_follows_one_that_takes_far_more():
    """A plan that was out of order is made again for what is expected on the device."""
    allocator = Allocator(0.6, 0.1, slow=1.01)
    limits = limits_for(700_000, modelled=True)
    state = begin(limits, TRIES, limits.goal_bytes, strict=False)
    assert state.targets == {False: limits.goal_bytes}
    actions, state = carried_out(state, allocator, Model(allocator, 0.0, 0.5))
    assert [a.strict for a in measured(actions)] == [False, True] and actions[-1].candidate.strict


def test_after_a_wrong_model_the_old_way_goes_on():
    allocator = Allocator(0.6, 0.2)
    limits = limits_for(700_000, modelled=True)
    actions, state = carried_out(begin(limits, TRIES), allocator, Model(allocator, 0.4, 0.4))
    first, second = measured(actions)[:2]
    assert first.found.placed is not None and second.found.placed is None and not state.modelled
    lost = state.attempts[0].peak.sure_bytes - first.schedule.peak_bytes
    assert second.target_bytes == int(POLICY.goal * 700_000) - lost
    assert isinstance(actions[-1], Done)


def test_near_a_hard_limit_the_old_way_stays_away_from_it_after_a_wrong_model():
    limit = 1_300_000
    limits = limits_for(1_100_000, limit, modelled=True)
    state = begin(limits, TRIES)
    assert limits.near_limit and limits.goal_bytes > POLICY.clear * limit
    found = Found(offer(600_000), Placed(600_000, 600_000, out_of_memory=False))
    action = Measure(found, Strict(), 600_000, needless=False)
    attempt = Attempt(600_000, 600_000, Peak(900_000, 900_000, 1.0), 0.1, strict=True, placed_bytes=600_000)
    after = state.measured(action, attempt)
    assert not after.modelled and after.targets == {True: int(POLICY.clear * limit) - 300_000}


def test_without_loss_one_plan_is_measured_where_nothing_is_left_to_gain():
    actions, _ = carried_out(begin(limits_for(2 * PLAIN), TRIES), Allocator(0.0, 0.0))
    assert len(measured(actions)) == 1 and actions[-1].candidate.schedule.overhead == 0


def test_unmeasured_the_first_schedule_will_do():
    limits = limits_for(600_000, measured=False)
    actions, state = carried_out(begin(limits, TRIES), Allocator(1.0, 1.0))
    assert [type(a) for a in actions] == [Solve, Done] and not state.attempts
    found = actions[-1].candidate
    assert found.measured is None and found.order == Within(found.schedule.peak_bytes)


def test_below_the_least_it_is_refused_unmeasured():
    actions, _ = carried_out(begin(limits_for(LEAST - 1), TRIES), Allocator(0.0, 0.0))
    assert not measured(actions) and actions[-1].error.minimum_bytes == LEAST


def test_a_first_target_below_the_least_is_raised_to_it():
    budget = LEAST + 30_000
    state = begin(limits_for(budget), TRIES)
    assert state.first_target < LEAST
    actions, _ = carried_out(state, Allocator(0.0, 0.0))
    assert measured(actions)[0].target_bytes == LEAST


def test_a_target_that_is_given_is_the_first():
    state = begin(limits_for(700_000), TRIES, 450_000, strict=True)
    actions, _ = carried_out(state, Allocator(0.0, 0.0))
    first = measured(actions)[0]
    assert first.target_bytes == 450_000 and first.strict
    near = begin(limits_for(700_000, 700_000), TRIES, 690_000)
    assert near.first_target == CONSTANT + 300_000  # half of what a hard limit leaves


@pytest.mark.parametrize("strict", [True, False])
def test_with_a_model_a_target_that_is_given_is_asked_for_in_its_order(strict):
    """A plan that is made anew for the data of `fit` stays in loose order."""
    state = begin(limits_for(700_000, modelled=True), TRIES, 450_000, strict=strict)
    assert decide(state) == Solve(450_000, strict, placed=True)


def test_running_out_of_memory_lowers_the_target():
    limits = limits_for(700_000)
    state = begin(limits, TRIES)
    state = state.solved(Solve(state.first_target), solver(state.first_target))
    action = decide(state)
    none = Attempt(action.target_bytes, action.schedule.peak_bytes, None, action.schedule.overhead)
    after = state.measured(action, none)
    assert after.targets == {False: action.schedule.peak_bytes - 70_000} and after.best is None


def test_strict_order_is_measured_for_a_plan_that_is_unsteady():
    actions, state = carried_out(begin(limits_for(900_000), TRIES), Allocator(0.0, 0.0, spread=0.1))
    first, second = measured(actions)[:2]
    assert not first.strict and second.strict
    assert first.schedule is second.schedule and first.target_bytes == second.target_bytes
    assert state.strict_cost == 1.05


def test_strict_order_is_not_ours_to_choose_under_xla():
    actions, _ = carried_out(begin(limits_for(700_000, ordered=False), TRIES), Allocator(0.3, 0.0, spread=0.1))
    assert not any(a.strict for a in measured(actions))


def test_other_schedules_of_least_peak_are_tried_near_the_budget():
    """The least that is known takes a little more than the budget, in either order."""
    budget = int(LEAST * 1.02)
    actions, _ = carried_out(begin(limits_for(budget), TRIES), Allocator(0.08, 0.06))
    seeds = [a.seed for a in actions if isinstance(a, SolveLeast)]
    assert len(measured(actions)) == TRIES and len(set(seeds)) == len(seeds) > 1
    assert isinstance(actions[-1], Refuse) and "was kept by none of 5 measured plans" in str(actions[-1].error)


def test_a_solver_that_names_no_schedule_is_refused():
    """The allocator's model was wrong, the plan of least peak comes near the budget, and no error has a sequence."""
    budget = 1_000_000
    state = begin(limits_for(budget, modelled=True), TRIES)
    least = Found(Offer(budget, BASE), Placed(int(1.3 * budget), int(1.3 * budget), False))
    while not isinstance(action := decide(state), Refuse):
        if isinstance(action, Solve):
            sequence = [0] if action.placed else None
            error = InfeasibleBudgetError("none", action.target_bytes, 2 * budget, proven=False, sequence=sequence)
            state = state.solved(action, error)
        elif isinstance(action, SolveLeast):
            state = state.solved_least(action, least)
        else:
            peak = Peak(int(1.03 * budget), int(1.03 * budget), 0.1)
            placed = None if action.found.placed is None else action.found.placed.peak_bytes
            state = state.measured(action, Attempt(0, budget, peak, 0.0, strict=action.strict, placed_bytes=placed))
    assert "was kept by none" in str(action.error)


def test_one_plan_is_not_called_many():
    actions, _ = carried_out(begin(limits_for(int(LEAST * 1.02)), 1), Allocator(0.08, 0.06))
    assert len(measured(actions)) == 1
    said = str(actions[-1].error)
    took = measured(actions)[0]
    assert "was not kept by the plan that was measured" in said
    expected = format_bytes(took.schedule.peak_bytes)
    assert f"it was expected to take {expected} and took {Allocator(0.08, 0.06).run(took)}; raise the budget" in said


def test_a_plan_that_was_expected_over_the_budget_is_said_to_be_the_least_that_was_found():
    budget = 1_000_000
    state = begin(limits_for(budget, modelled=True), 1)
    least = Found(Offer(budget, BASE), Placed(int(1.3 * budget), int(1.3 * budget), False))
    while not isinstance(action := decide(state), Refuse):
        if isinstance(action, Solve):
            error = InfeasibleBudgetError("none", action.target_bytes, 2 * budget, proven=False, sequence=[0])
            state = state.solved(action, error)
        elif isinstance(action, SolveLeast):
            state = state.solved_least(action, least)
        else:
            peak = Peak(int(1.3 * budget), int(1.3 * budget), 0.1)
            placed = action.found.placed.peak_bytes
            state = state.measured(action, Attempt(0, budget, peak, 0.0, strict=action.strict, placed_bytes=placed))
    said = "it was expected to take 1.30 MB, the least that was found, and took 1.30 MB; raise the budget to"
    assert said in str(action.error)


def test_a_refusal_below_a_hard_limit_names_the_limit():
    limits = limits_for(LEAST + 5000, LEAST + 5000)
    actions, _ = carried_out(begin(limits, TRIES), Allocator(0.0, 0.0, limit_bytes=LEAST + 5000))
    assert limits.limited and "too near the limit" in str(actions[-1].error)


def test_a_policy_of_ones_own_decides():
    """Every share is the policy's: one that aims lower measures lower."""
    shares = {"goal": 0.5, "waste": 0.0}
    limits = limits_for(800_000, policy=FitPolicy(**shares))
    assert begin(limits, TRIES).first_target == 400_000
    assert FitPolicy().beyond_limit(93, 100, on_cpu=True) and not FitPolicy().beyond_limit(93, 100, on_cpu=False)
    assert [FitPolicy().reserved_batches(n) for n in (None, 0, 3)] == [8, 0, 5]


def test_the_core_needs_no_tensorflow():
    code = "import sys, checkmate_tf.fit.decide; print(sorted({'tensorflow', 'keras', 'ortools'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def over(schedule, strict):
    """A measurement of a schedule that took twice the budget."""
    return Attempt(schedule.peak_bytes, schedule.peak_bytes, Peak(1_600_000, 1_600_000, 1.0), 0.0, strict)


@pytest.mark.parametrize(("vain", "action"), [(0, Measure), (1, Done)])
def test_each_measurement_in_vain_makes_the_next_plan_have_to_save_more(vain, action):
    """A percent and a half less is enough for the first other plan, and too little after one in vain."""
    best = Candidate(Offer(500_000, 1000.0), Within(500_000), Peak(500_000, 500_000, 1.0))
    attempts = (Attempt(500_000, 500_000, best.measured, 0.0),)
    state = State(limits_for(800_000), TRIES, 500_000, False, {False: 600_000}, attempts, best, vain=vain)
    assert isinstance(decide(state.solved(Solve(600_000), Found(Offer(600_000, 985.0)))), action)


def test_the_order_for_which_nothing_is_feasible_gets_its_least():
    """The last one measured was in strict order, and its next schedule was tried; out of order there is none."""
    loose, strict = offer(500_000), offer(450_000)
    attempts = (over(loose, False), over(strict, True))
    tried = frozenset({(strict.sequence.tobytes(), True)})
    state = State(limits_for(800_000), TRIES, 500_000, False, {False: 400_000, True: 460_000}, attempts, tried=tried)
    least = InfeasibleBudgetError("none", 400_000, 420_000, proven=False, sequence=[0])
    state = state.solved(Solve(400_000), least).solved(Solve(460_000), Found(strict))
    ask = decide(state)
    assert isinstance(ask, SolveLeast) and ask.key == (420_000, 0, False, False)
    action = decide(state.solved_least(ask, Found(offer(420_000))))
    assert isinstance(action, Measure) and not action.strict and action.target_bytes == 420_000


def test_after_a_wrong_model_the_least_is_not_measured_again():
    """What the model said of a schedule is no measure for the bytes of others."""
    least = offer(LEAST)
    attempts = (replace(over(least, True), placed_bytes=2 * LEAST),)
    tried = frozenset({(least.sequence.tobytes(), True)})
    state = State(limits_for(800_000), TRIES, 500_000, True, {True: 100_000}, attempts, tried=tried)
    assert isinstance(decide(state.solved(Solve(100_000), solver(100_000))), Refuse)


def test_a_refusal_names_two_mib_more_at_least():
    small, large = POLICY.needed_bytes(4 * 10**6), POLICY.needed_bytes(10**9)
    assert small - 4 * 10**6 / POLICY.placed == pytest.approx(2 * 2**20, abs=1)
    assert large == int(POLICY.named * 10**9 / POLICY.placed) + 1


@pytest.mark.parametrize("alternative", [False, True])
def test_where_there_is_another_kind_of_step_only_what_may_fit_by_the_model_is_measured(alternative):
    """Else the model may be wrong, and measuring is the last resort."""
    allocator = Allocator(0.4, 0.4)
    limits = replace(limits_for(int(1.2 * LEAST), modelled=True), alternative=alternative)
    actions, _ = carried_out(begin(limits, TRIES), allocator, Model(allocator))
    assert bool(measured(actions)) is not alternative
    assert isinstance(actions[-1], Refuse) and actions[-1].error.minimum_bytes > limits.budget_bytes


def test_a_refusal_by_proof_names_what_the_least_takes_and_what_leaves_room():
    error = InfeasibleBudgetError("budget is below the least", 3, 4 * 10**6, proven=True, sequence=[0])
    state = begin(limits_for(10**6, modelled=True), TRIES)
    while isinstance(action := decide(state), Solve):
        state = state.solved(action, error)
    assert isinstance(action, Refuse) and action.error.proven
    needed = POLICY.needed_bytes(4 * 10**6)
    assert action.error.minimum_bytes == needed
    for said in (str(error), "takes 4.00 MB", f"a budget of {format_bytes(needed)} leaves room"):
        assert said in str(action.error)


@pytest.mark.parametrize(("least", "takes"), [(1.2, None), (1.05, 1.04), (1.05, 1.01), (1.05, 0.9)])
def test_what_is_proven_not_to_fit_is_measured_once_if_it_nearly_does(least, takes):
    """A proof counts what kernels were measured to take for themselves: what they take in a step decides."""
    budget = 10**6
    error = InfeasibleBudgetError("below the least", budget, int(least * budget), proven=True, sequence=[0])
    placed = Placed(error.minimum_bytes, error.minimum_bytes, out_of_memory=False)
    state, count = begin(limits_for(budget, modelled=True), TRIES), 0
    while not isinstance(action := decide(state), (Done, Refuse)):
        if isinstance(action, Solve):
            state = state.solved(action, error)
        elif isinstance(action, SolveLeast):
            state = state.solved_least(action, Found(offer(error.minimum_bytes), placed))
        else:
            count += 1
            peak = Peak(int(takes * budget), int(takes * budget), 1.0)
            state = state.measured(action, Attempt(action.target_bytes, error.minimum_bytes, peak, 0.1, action.strict))
    assert count == (takes is not None)
    if takes == 0.9:
        assert isinstance(action, Done) and action.candidate.measured.bytes == 0.9 * budget
    else:
        proven = takes != 1.01  # there a step takes less than what is said to be needed at least
        assert isinstance(action, Refuse) and action.error.proven is proven
        assert ("below the least" in str(action.error)) is proven
