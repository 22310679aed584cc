"""Finds the cheapest schedule whose steps fit, as the allocator's model places them.

A solver takes a budget in bytes of values. What the allocator makes of a schedule differs: a schedule of fewer bytes
can take more memory. So a solved schedule is varied (`strategies.search.variants`), and each variant is placed. What is
known after that is a front: cost against placed peak. The cheapest schedule that fits is taken from it. If it lies far
from what was solved, the solver is asked again, for its bytes.

Where there is no model of the allocator, a target is what the solver is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..allocator.memory import Memory, Placed
from ..emit.ordering import Order, Strict, needed_waits
from ..errors import InfeasibleBudgetError
from ..graph import Graph
from ..plan import plan_from_sequence
from ..schedule import Schedule, keep_all
from ..strategies.ordering.links import Links, links
from ..strategies.ordering.ready import when_ready
from ..strategies.programs.any_order import any_order_bound
from ..strategies.search.measured import in_time, refill, squeeze
from ..strategies.search.minimum_budget import infeasible, proven_minimum
from ..strategies.search.variants import variants
from ..trace.assigned import assigned_later
from ..trace.ungated import ungated
from .job import Job, Ledger
from .options import PlanOptions
from .policy import POLICY
from .solving import SEARCHED, least_schedule, solve_least, solve_once
from .state import Found, Outcome

__all__ = ["Finder", "bare", "placed_as"]

_SHARES = np.linspace(0.86, 1.07, 43)  # of a schedule's bytes, that its variants have to fit
_WORK = 25_000  # nodes times budgets: larger graphs are varied for fewer budgets
_FEWEST = 8  # budgets
_NEAR = 0.015  # of a schedule's bytes: a solved one as near as that is not worth solving again
_SOLVES = 3  # for each question, at most
_BETWEEN, _GAIN = 3, 0.05  # for bytes between two answers, at most; and what the cheaper one saves at least
_CHANGED = 3  # schedules that are changed with placing in the loop, the best first
_REFILLING = _PACKING = 0.5  # seconds for each, to keep more, and to turn parts of it round
_NEARLY = 1.01  # times a target: what takes more is not made to compute a little more
_SQUEEZING, _TURNED = 1.5, 0.5  # as these two; and the share of turns, where more is computed again
_SQUEEZED = 0.3  # of what a step may take beside what is there: what takes more than that too much is not changed
_LOOKING = 1.0  # seconds, in which schedules are placed out of order one after the other, the cheapest first
_WORTH = 0.01  # gap: nearer to what is proven, a schedule in the graph's order is not asked for, too
_CHEAPER = 2e-3  # of the cost: what a schedule has to save to be worth that
_GRAIN = 400  # parts of the budget: targets are multiples of one, so that the cache knows them again


@dataclass(frozen=True, eq=False)
class _Known:
    """A schedule, what it costs and what it takes in strict order."""

    sequence: NDArray[np.int64]
    cost: float
    placed: Placed
    solved: Schedule  # it is this one, or a variant of it


class Finder:
    """Schedules of one job, and what is known of them. What was found for one target serves the next."""

    def __init__(self, job: Job, ledger: Ledger) -> None:
        self.job, self.ledger = job, ledger
        self.graph: Graph = job.subject.graph
        program = job.subject.program
        self.assigned = {} if program is None else assigned_later(program)
        self.ungated = _ungated(job)
        self.known: dict[bytes, _Known] = {}
        self.loose: dict[bytes, Placed] = {}
        self.solved: dict[int, Schedule | InfeasibleBudgetError] = {}
        self.failed: set[tuple[bytes, int]] = set()  # sequences that no other order made fit a target

    def find(self, target: int, strict: bool, placed: bool = True) -> Outcome:
        """The cheapest schedule found for a target.

        Parameters
        ----------
        target : int
            Bytes. What the allocator takes, with `placed`, or else the schedule's own.
        strict : bool
            Whether computations are to keep one strict order.
        placed : bool
            Whether to ask the allocator's model, if the job has one.
        """
        memory = self.job.memory if placed else None
        try:
            if memory is None:
                return Found(self._in_place(solve_once(self.graph, target, self._options(), self.ledger)))
            return self._find(memory, target, strict)
        except InfeasibleBudgetError as error:
            return bare(error)

    def least(self, error: InfeasibleBudgetError, seed: int, strict: bool, placed: bool = True) -> Found:
        """The cheapest schedule with the least peak that an error names."""
        options = replace(self.job.options, seed=self.job.options.seed + seed)
        memory = self.job.memory if placed else None
        if memory is None:
            return Found(self._in_place(solve_least(self.graph, error, options, self.ledger)))
        return self._found(memory, self._least(), strict)

    def _as_run(self, sequence: NDArray[np.int64]) -> NDArray[np.int64]:
        """The sequence with all that has no gate where it runs."""
        return when_ready(self.graph, self._links, sequence, self.ungated) if self.ungated.any() else sequence

    @cached_property
    def _links(self) -> Links:
        return links(self.graph)

    def _in_place(self, schedule: Schedule) -> Schedule:
        """The schedule with all that has no gate where it runs, if it is still within its budget then."""
        sequence = self._as_run(schedule.sequence)
        if sequence is schedule.sequence:
            return schedule
        moved = replace(schedule, sequence=sequence)
        return moved if moved.peak_bytes <= max(schedule.peak_bytes, schedule.budget_bytes or 0) else schedule

    # -- with a model of the allocator -----------------------------------------------------------------------------
    def _find(self, memory: Memory, target: int, strict: bool) -> Found:
        order, budget = self.job.options.order, self.job.budget_bytes
        possible = proven_minimum(self.graph, order)[0]
        proven = possible > budget
        if proven and self.job.options.strategy == SEARCHED:
            self._solve_least(memory, possible)
        elif strict or not self.solved:
            self._solve_for(memory, target)
            self._pack(memory, target)
            self._solve_between(memory, target)
            self._refill(memory, target)
        known = self._cheapest(memory, target, strict)
        if known is None and strict and not proven and self._squeeze(memory, target):
            known = self._cheapest(memory, target, strict)
        if known is not None:
            return self._found(memory, known, strict)
        least = self._least()
        taken = least.placed.taken_bytes
        if proven:  # what is not proven is measured, in strict order
            reason = str(infeasible(self.graph, budget, self._schedule(least).peak_bytes, order=order))
            least, taken = self._least_in_any_order(memory, least)
        else:
            reason = f"no schedule was found whose values fit into {target} bytes as the device's allocator places them"
        raise InfeasibleBudgetError(reason, target, taken, proven, least.sequence.tolist())

    def _least_in_any_order(self, memory: Memory, least: _Known) -> tuple[_Known, int]:
        """What takes least, and how much: the one that does in strict order, or all values kept, out of order."""
        taken = least.placed.taken_bytes
        if False not in self.job.limits.orders:
            return least, taken
        plain = self._add(memory, keep_all(self.graph))
        loosely = self._loosely(memory, plain)
        return (least, taken) if loosely.most_bytes >= taken or loosely.out_of_memory else (plain, loosely.most_bytes)

    def _solve_least(self, memory: Memory, possible: int) -> None:
        """Look for the least that does, where nothing fits the budget: that is what its refusal names."""
        self._add(memory, keep_all(self.graph))
        if possible not in self.solved:
            self.solved[possible] = least = least_schedule(self.graph, self.job.options, self.ledger)
            self._add_with_variants(memory, least)

    def _solve_for(self, memory: Memory, target: int) -> None:
        """Ask the solver until the cheapest schedule that fits, in strict order, is one of about as many bytes."""
        plain = self._add(memory, keep_all(self.graph))
        asked, possible = self._first_target(plain, target), proven_minimum(self.graph, self.job.options.order)[0]
        for _ in range(_SOLVES):
            known = self._cheapest(memory, target, strict=True)
            if known is plain:
                return
            if known is None and self.solved and self._pack(memory, target):  # soon done, where solving may find none
                known = self._cheapest(memory, target, strict=True)
            if known is not None:
                asked = self._schedule(known).peak_bytes
                if self._is_solved(asked, known.cost):
                    return
            elif self.solved:
                least = self._least()
                asked = min(asked, self._schedule(least).peak_bytes) * target // max(target, least.placed.taken_bytes)
            if not self._solve(memory, max(asked, possible)):
                return

    def _solve_between(self, memory: Memory, target: int) -> None:
        """Ask for fewer bytes than those for which a cheaper schedule does not fit, and more than for those that do.

        Near the least budget a few percent of the bytes decide about a tenth of the cost.
        """
        possible = proven_minimum(self.graph, self.job.options.order)[0]
        for _ in range(_BETWEEN):
            known = self._cheapest(memory, target, strict=True)
            if known is None or self.ledger.solving_seconds >= self.job.options.time_limit:
                return
            most = (1 - _GAIN) * known.cost
            cheaper = [b for b, s in self.solved.items() if isinstance(s, Schedule) and s.cost < most]
            if not cheaper:
                return
            high = min(cheaper)
            lower, answers = [b for b in self.solved if b < high], len(self.solved)
            asked = (max(lower) + high) // 2 if lower else max(possible, int((1 - 4 * _NEAR) * high))
            if high - asked < _NEAR * high:
                return
            self._solve(memory, asked)
            if len(self.solved) == answers:  # it was asked before
                return
            self._pack(memory, target)

    def _pack(self, memory: Memory, target: int) -> bool:
        """Change the order of schedules that would be cheaper and ask for no more than fits; whether one fits then.

        Those that nearly fit then may compute a little more again, as long as they are cheaper than what fits.
        """
        if self.job.options.strategy != SEARCHED or self.job.options.order != "free":
            return False
        front, fits = self._cheaper(target), False
        low, high = 0, len(front)  # dearer ones ask for less, and mostly fit sooner
        while low < high:
            middle = (low + high) // 2
            key = front[middle].sequence.tobytes(), target
            if key not in self.failed and self._squeezed(memory, front[middle], target, _PACKING, turns=1.0):
                high, fits = middle, True
            else:
                self.failed.add(key)
                low = middle + 1
        for known in [k for k in self._cheaper(target) if k.placed.taken_bytes <= _NEARLY * target][:_CHANGED]:
            fits |= self._squeezed(memory, known, target, _PACKING, _TURNED, self._worth(target))
        return fits

    def _cheaper(self, target: int) -> list[_Known]:
        """Schedules that cost less than all that fit, but ask for no more than that, the cheapest first.

        Each asks for less than those before it.
        """
        most = self._worth(target)
        near = [k for k in self.known.values() if k.cost < most and k.placed.taken_bytes > target]
        front, asked = list[_Known](), target + 1
        for known in sorted(near, key=lambda k: (k.cost, k.placed.asked_bytes, k.placed.taken_bytes)):
            if known.placed.asked_bytes < asked and known.cost > (1 + _CHEAPER) * (front[-1].cost if front else 0.0):
                front.append(known)
                asked = known.placed.asked_bytes
        return front

    def _worth(self, target: int) -> float:
        """What a schedule may cost to be worth having beside those that fit a target; infinite if none does."""
        return (1 - _CHEAPER) * min((known.cost for known in self._fitting(target)), default=np.inf)

    def _squeeze(self, memory: Memory, target: int) -> bool:
        """Change what takes least, more recomputation included, until something fits; whether it does."""
        if self.job.options.strategy != SEARCHED:
            return False
        there = memory.state.bytes_in_use  # before a step: no order changes that
        near = [k for k in self.known.values() if 0 < k.placed.taken_bytes - target <= _SQUEEZED * (target - there)]
        turns = _TURNED if self.job.options.order == "free" else 0.0
        nearest = sorted(near, key=lambda k: (k.placed.taken_bytes, k.cost))[:_CHANGED]
        return any(self._squeezed(memory, known, target, _SQUEEZING, turns) for known in nearest)

    def _squeezed(
        self, memory: Memory, known: _Known, target: int, seconds: float, turns: float, most_cost: float = np.inf
    ) -> bool:
        """Change a schedule until it fits, or as far as that goes. What comes of it is known then, as well."""

        def taken(sequence: NDArray[np.int64]) -> int:
            return memory.placed(self._as_run(sequence)).taken_bytes

        with self.ledger.timed("solve"):
            sequence = squeeze(
                self.graph, known.sequence, taken, target, seconds, turns, self.job.options.seed, most_cost
            )
            most = max(target, taken(sequence))
            if turns < 1:
                sequence = refill(self.graph, sequence, lambda other: taken(other) <= most, _REFILLING)
            placed = self._add(memory, known.solved, sequence).placed  # without what would come too late
            return placed.taken_bytes <= target and not placed.out_of_memory

    def _refill(self, memory: Memory, target: int) -> None:
        """Keep what the cheapest schedules that fit have room for, as the allocator places it."""
        if self.job.options.strategy != SEARCHED:
            return

        def fits(sequence: NDArray[np.int64]) -> bool:
            placed = memory.placed(self._as_run(sequence))
            return placed.peak_bytes <= target and not placed.out_of_memory

        with self.ledger.timed("solve"):
            for known in self._fitting(target)[:_CHANGED]:
                sequence = refill(self.graph, known.sequence, fits, _REFILLING)
                self._add(memory, known.solved, sequence)

    def _first_target(self, plain: _Known, target: int) -> int:
        """Bytes to solve for at first: as if the allocator lost as large a share as it does of the plain step."""
        values, placed = plain.solved.peak_bytes, plain.placed
        foreign = placed.asked_bytes - values
        lost = placed.taken_bytes / max(1, placed.asked_bytes)
        return int(target / lost) - foreign

    def _solve(self, memory: Memory, asked: int) -> bool:
        """Ask the solver, and vary what it says. Returns whether anything new is known."""
        grain = max(1, self.job.budget_bytes // _GRAIN)
        target = asked // grain * grain
        if target in self.solved:
            return False
        before, begun = len(self.known), self.ledger.solving_seconds
        solved = self.solved[target] = self._solved(target)
        spent = self.ledger.solving_seconds - begun
        for schedule in (solved, self._as_traced(target, solved, spent)):
            if isinstance(schedule, Schedule):
                self._add_with_variants(memory, schedule)
        return len(self.known) > before

    def _add_with_variants(self, memory: Memory, schedule: Schedule) -> None:
        self._add(memory, schedule)
        if self.job.options.strategy == SEARCHED:
            with self.ledger.timed("solve"):
                for sequence in self._variants(schedule):
                    self._add(memory, schedule, sequence)

    def _as_traced(self, target: int, solved: Schedule | InfeasibleBudgetError, seconds: float) -> Schedule | None:
        """A schedule in the graph's order, where a free one was asked for and may be dearer than it has to be.

        To search for orders, too, takes longer, and orders differ in what the allocator makes of them.
        """
        options = self._options()
        if options.strategy != SEARCHED or options.order != "free":
            return None
        if isinstance(solved, Schedule) and solved.gap <= max(options.gap, _WORTH):
            return None
        limit = min(options.time_limit, self.ledger.solving_seconds + max(1.0, seconds))
        other = self._solved(target, again=False, order="fixed", time_limit=limit)
        if isinstance(other, InfeasibleBudgetError):
            return None
        bound = any_order_bound(self.graph, other.budget_bytes or other.peak_bytes)
        if isinstance(solved, Schedule) and solved.budget_bytes == other.budget_bytes:
            bound = max(bound, solved.lower_bound)
        return replace(other, status="feasible", lower_bound=min(bound, other.cost), bound_order="free")

    def _solved(self, target: int, again: bool = True, **changes: Any) -> Schedule | InfeasibleBudgetError:
        """A schedule for so many bytes, or else for the least that is known; the error if there is none.

        `changes` are those of the options that are left by now.
        """
        options = replace(self._options(), **changes)
        try:
            return solve_once(self.graph, target, options, self.ledger)
        except InfeasibleBudgetError as error:
            if error.sequence is not None:
                sequence = np.array(error.sequence, np.int64)
                return Schedule(self.graph, sequence, options.strategy, budget_bytes=error.minimum_bytes)
            more = again and error.minimum_bytes > target
            return self._solved(error.minimum_bytes, again=False, **changes) if more else bare(error)

    def _variants(self, schedule: Schedule) -> Iterator[NDArray[np.int64]]:
        count = max(_FEWEST, min(len(_SHARES), _WORK // max(1, len(self.graph))))
        shares = _SHARES[np.linspace(0, len(_SHARES) - 1, count).astype(int)]
        budgets = [int(share * schedule.peak_bytes) for share in shares]
        return variants(self.graph, schedule.sequence.tolist(), budgets)

    def _add(self, memory: Memory, solved: Schedule, sequence: NDArray[np.int64] | None = None) -> _Known:
        if sequence is None:
            solved = self._in_place(solved)
        sequence = in_time(self.graph, solved.sequence if sequence is None else sequence, self.assigned)
        sequence = self._as_run(sequence)
        key = sequence.tobytes()
        if key not in self.known or sequence is solved.sequence:
            cost = float(self.graph.costs[sequence].sum())
            self.known[key] = _Known(sequence, cost, memory.placed(sequence), solved)
        return self.known[key]

    def _cheapest(self, memory: Memory, target: int, strict: bool) -> _Known | None:
        """The cheapest schedule known that fits; None if none does."""
        fitting = self._fitting(target)
        if not strict:
            return self._cheapest_loosely(memory, fitting, target)
        return fitting[0] if fitting else None

    def _cheapest_loosely(self, memory: Memory, fitting: list[_Known], target: int) -> _Known | None:
        """The first of these schedules that fits out of order, too.

        They are placed one after the other, since one that takes less in strict order may take more out of order. Where
        that takes long, the rest is bisected.
        """
        until = time.perf_counter() + _LOOKING
        front, lowest = list[_Known](), target + 1
        for known in fitting:
            if time.perf_counter() < until:
                if self._fits_loosely(memory, known, target):
                    return known
            elif known.placed.peak_bytes < lowest:
                lowest = known.placed.peak_bytes
                front.append(known)
        low, high = 0, len(front)  # dearer ones take less in strict order, and mostly out of order, too
        while low < high:
            middle = (low + high) // 2
            if self._fits_loosely(memory, front[middle], target):
                high = middle
            else:
                low = middle + 1
        return front[low] if low < len(front) else None

    def _fitting(self, target: int) -> list[_Known]:
        """Schedules that fit in strict order, the cheapest first."""
        fitting = [k for k in self.known.values() if k.placed.peak_bytes <= target and not k.placed.out_of_memory]
        return sorted(fitting, key=lambda k: (k.cost, k.placed.peak_bytes))

    def _fits_loosely(self, memory: Memory, known: _Known, target: int) -> bool:
        """Within the target; and with what seldom comes, within what steps may take.

        The room to the budget is for a step that takes more than its place, when it is measured.
        """
        placed, most = self._loosely(memory, known), self.job.limits.most_bytes
        return placed.sure_bytes <= target and placed.most_bytes <= most and not placed.out_of_memory

    def _loosely(self, memory: Memory, known: _Known) -> Placed:
        key = known.sequence.tobytes()
        if key not in self.loose:
            with self.ledger.timed("solve"):
                order = self.job.limits.order(self._schedule(known).peak_bytes, strict=False)
                self.loose[key] = _placed_as(memory, self.graph, self.ungated, known.sequence, order)
        return self.loose[key]

    def _found(self, memory: Memory, known: _Known, strict: bool) -> Found:
        placed = known.placed if strict else self._loosely(memory, known)
        return Found(self._schedule(known), placed)

    def _schedule(self, known: _Known) -> Schedule:
        """With what the solver proved, as far as that holds for a schedule of as many bytes."""
        solved = known.solved
        if known.sequence is solved.sequence:
            return solved
        schedule = replace(solved, sequence=known.sequence, status="feasible", budget_bytes=None, lower_bound=0.0)
        near = [s for s in self.solved.values() if isinstance(s, Schedule) and s.budget_bytes is not None]
        above = [s for s in near if (s.budget_bytes or 0) >= schedule.peak_bytes]
        if above:
            best = max(above, key=lambda s: s.lower_bound)
            most, bound, order = best.budget_bytes, best.lower_bound, best.bound_order
        else:
            most, order = schedule.peak_bytes, "free"
            bound = any_order_bound(self.graph, most)
        bound = max(self.graph.base_cost, min(bound, known.cost))
        return replace(schedule, budget_bytes=most, lower_bound=bound, bound_order=order)

    def _is_solved(self, asked: int, cost: float) -> bool:
        """Whether the solver was asked for about as many bytes, or found nothing much cheaper for more bytes."""
        found = [s for s in self.solved.values() if isinstance(s, Schedule) and (s.budget_bytes or 0) >= asked]
        near = any(abs(target - asked) <= _NEAR * asked for target in self.solved)
        return near or any(s.cost >= (1 - _CHEAPER) * cost for s in found)

    def _least(self) -> _Known:
        """What takes the least memory."""
        return min(self.known.values(), key=lambda k: (k.placed.taken_bytes, k.cost))

    def _options(self) -> PlanOptions:
        """Options that leave some of the time for targets that may follow."""
        options = self.job.options
        if not self.job.measure:
            return options
        used, limit = self.ledger.solving_seconds, options.time_limit
        return replace(options, time_limit=used + POLICY.solve_share * max(0.0, limit - used))


def placed_as(job: Job, schedule: Schedule, order: Order) -> Placed | None:
    """What steps of a plan take in its order, in the job's memory; None if that is not known."""
    if job.memory is None:
        return None
    return _placed_as(job.memory, job.subject.graph, _ungated(job), schedule.sequence, order)


def _ungated(job: Job) -> NDArray[np.bool_]:
    """(n,) which nodes run as soon as what they read is there."""
    graph, program = job.subject.graph, job.subject.program
    copied = graph.host is not None  # what is read then may have come back from the host
    stays = copied or job.options.jit_compile  # XLA has an order of its own
    return np.zeros(len(graph), bool) if program is None or stays else ungated(program)


def _placed_as(
    memory: Memory, graph: Graph, free: NDArray[np.bool_], sequence: NDArray[np.int64], order: Order
) -> Placed:
    if isinstance(order, Strict):
        return memory.placed(sequence)
    waits = np.where(free[sequence], 0, needed_waits(graph, plan_from_sequence(graph, sequence.tolist()), order))
    seconds = graph.costs / max(graph.base_cost, 1e-12)  # of a step that takes one
    return memory.placed_loose(sequence, waits, seconds)


def bare(error: InfeasibleBudgetError) -> InfeasibleBudgetError:
    """The same error without its traceback, whose frames would keep the data of `fit` in memory."""
    return InfeasibleBudgetError(
        str(error), error.budget_bytes, error.minimum_bytes, error.proven, error.sequence, error.bound_order
    )
