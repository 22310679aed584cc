"""What to do next when a plan is fitted to a device: a pure function of what is known so far.

    state = begin(limits, tries)
    while True:
        action = decide(state)          # solve, measure, done or refused
        ...                             # whoever carries it out tells `state` what came of it

Computations may run out of order, or in one strict order. Strict order makes the allocator's peak lower and steadier
and costs parallelism, more in some networks than in others.

1. Where the allocator has a model, a target is what it will take. It is asked for both orders, and the schedule that
   is expected to cost less is measured. Mostly that is all. Steps out of order need more memory, and so cost more
   recomputation; where they may differ much, they have to save more. Once they exceed the budget, only strict order is
   tried, unless it turns out to be slow. If the model is found to be wrong in strict order, the rest goes on without
   it. If steps are short, the clock decides: threads gain more by running small operations side by side than costs
   tell. So after a plan in strict order one out of order is measured.
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

from dataclasses import replace

from ..errors import InfeasibleBudgetError
from ..units import format_bytes
from .state import Action, Candidate, Done, Found, Measure, Refuse, SolveLeast, State, cost_of, pays, tried_as

__all__ = ["decide"]


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
            if _in_question(state, strict):
                return asked
            continue
        if isinstance(outcome, InfeasibleBudgetError) or tried_as(outcome.schedule, strict) in state.tried:
            continue
        if pays(state, outcome.schedule, strict):
            found.append((cost_of(state, outcome.schedule, strict), not strict, outcome))
    if found:
        _, out_of_order, cheapest = min(found, key=lambda f: f[:2])
        return _measure(state, cheapest, not out_of_order, state.targets[not out_of_order])
    return (_instead(state) if state.best is None else None) or _end(state)


def _in_question(state: State, strict: bool) -> bool:
    """Whether to ask for schedules in that order; out of order after strict order, where both are searched."""
    if strict or not state.modelled or True not in state.targets:
        return True
    return isinstance(state.outcomes.get(state.question(state.targets[True], True)), Found)


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
        if outcome is None and not _in_question(state, strict):
            continue
        if outcome is None:
            return asked
        if isinstance(outcome, InfeasibleBudgetError):
            errors[strict] = outcome
        else:
            found.append((_cost_at_first(state, outcome, strict), not strict, outcome))
    if found:
        _, out_of_order, cheapest = min(found, key=lambda f: f[:2])
        return _measure(state, cheapest, not out_of_order, state.targets[not out_of_order])
    limits = state.limits
    if True not in state.targets and True in limits.orders:  # it takes less
        asked = state.question(state.targets[False], strict=True)
        outcome = state.outcomes.get(asked)
        if outcome is None:
            return asked
        if isinstance(outcome, Found):
            return _measure(state, outcome, True, asked.target_bytes)
        errors[True] = outcome
    strict, error = max(errors.items(), key=lambda e: e[0])  # strict order, where it is ours to choose
    last = not (limits.near_limit or limits.alternative)  # the last resort, and a safe one: it costs time only
    hope = last or error.minimum_bytes <= int(state.policy.hope * limits.most_bytes)
    near = error.minimum_bytes <= state.policy.near_budget * limits.budget_bytes
    if hope and (near or not error.proven):  # the model, or what a proof counts, may be wrong: measuring decides
        return _least(state, error, strict)
    if error.proven:
        return _proven_refusal(state, error)
    needed = state.policy.needed_bytes(error.minimum_bytes)
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


def _proven_refusal(state: State, error: InfeasibleBudgetError) -> Refuse:
    """No schedule has values that fit; and if a plan was measured, it took no less than that says."""
    needed = state.policy.needed_bytes(max(error.minimum_bytes, _least_sure(state)))
    text = (
        f"{error}; as the device's allocator places values, the least that is known takes "
        f"{format_bytes(error.minimum_bytes)}, and a budget of {format_bytes(needed)} leaves room for steps that "
        "take more"
    )
    return Refuse(InfeasibleBudgetError(text, state.limits.budget_bytes, needed, proven=True))


def _cost_at_first(state: State, found: Found, strict: bool) -> float:
    """What a schedule costs where none was measured yet: steps that differ may take more than is foreseen.

    That would cost another measurement. So they have to save what is worth one.
    """
    policy, cost, placed = state.policy, cost_of(state, found.schedule, strict), found.placed
    if placed is None or placed.apart_bytes <= policy.apart * placed.peak_bytes:
        return cost
    return (1 + policy.worth_placed) * cost


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
    outcomes = {strict: state.outcomes.get(state.question(target, strict)) for strict, target in state.targets.items()}
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
        if tried_as(outcome.schedule, True) not in state.tried:
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
    named += [(found.schedule.peak_bytes, found.schedule.sequence.tolist()) for found in state.least.values()]
    peak, sequence = min(named, key=lambda n: n[0])
    return InfeasibleBudgetError("the least that is known", peak, peak, proven=False, sequence=sequence)


def _least_sure(state: State) -> int:
    """The least that steps of a plan are expected to take, bytes; 0 if all ran out of memory."""
    return min((a.peak.sure_bytes for a in state.attempts if a.peak is not None), default=0)


def _end(state: State) -> Action:
    """The best plan, or what to say when none was measured within the budget."""
    best = state.best or state.nearest
    if best is not None:
        return Done(replace(best, strict_cost=state.strict_cost))
    sure = _least_sure(state)
    errors = [e for e in state.outcomes.values() if isinstance(e, InfeasibleBudgetError) and e.proven]
    for error in errors if state.modelled else ():
        if not 0 < sure < state.policy.lower * error.minimum_bytes:  # else what it counts is wrong
            return _proven_refusal(state, error)
    limits = state.limits
    least = int(state.policy.named * max(sure / state.policy.sure, limits.budget_bytes)) + 1
    raised = f"the budget to {format_bytes(least)}, which leaves room for steps that take more,"
    hard = ""
    if limits.limited:
        hard = f", too near the limit of {format_bytes(limits.device_bytes)}, some of which is lost to pieces"
        raised = "the limit"
    return Refuse(
        InfeasibleBudgetError(
            f"budget {format_bytes(limits.budget_bytes)} was {_by_what(state)}{hard}; raise {raised} or lower the "
            "batch size",
            limits.budget_bytes,
            least,
            proven=False,
        )
    )


def _by_what(state: State) -> str:
    """By which plans a budget was not kept, and what came of the one that took least."""
    count, ended = len(state.attempts), [(a, a.peak) for a in state.attempts if a.peak is not None]
    by = "not kept by the plan that was measured" if count == 1 else f"kept by none of {count} measured plans"
    if not ended:
        return f"{by}: {'it' if count == 1 else 'all'} ran out of memory"
    least, peak = min(ended, key=lambda e: e[1].sure_bytes)
    expected = least.placed_bytes or least.predicted_bytes
    found = ", the least that was found," if expected > state.limits.budget_bytes else ""
    which = "it" if count == 1 else "the one that took least"
    return f"{by}: {which} was expected to take {format_bytes(expected)}{found} and took {peak}"
