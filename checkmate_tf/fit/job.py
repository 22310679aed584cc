"""What is to be fitted into how much: options, the job with its targets, and what comes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..costs import CostSpec
from ..device.measure import Device
from ..graph import Graph
from ..report import Attempt, Peak
from ..schedule import Schedule
from ..trace.program import Program
from ..units import Budget, parse_budget

__all__ = ["SURE", "Candidate", "Job", "PlanOptions", "beyond_limit", "timed"]

_GOAL, SURE = 0.95, 0.98  # shares of the budget: to aim for; and that steps may be expected to take
_WASTE = 0.25  # of the memory for activations, what the allocator's pieces are expected to lose, until it is measured
_TIGHT = 1.25  # a hard limit of the allocator is near when it is below this many times the budget
_CLEAR = 0.8  # share of such a limit to aim for: the rest is lost to pieces too small to use
_ROOM = 0.5  # share of what such a limit leaves beside constants that the first plan may take, by prediction
_MOST = 0.92  # share of such a limit above which a plan is refused: sooner or later a step would run out of memory
_LOOSE = 1.15  # of a predicted peak: what computations out of order may need; they seldom do, and it is measured
_PIECES = 0.1  # of the memory for activations, what pieces take at least: left free by computations out of order too


@dataclass(frozen=True)
class PlanOptions:
    """How to plan.

    Attributes
    ----------
    budget : Budget
    strategy : str
    costs : str, callable or array
        See `checkmate_tf.costs`.
    time_limit : float
        Seconds for the solver, over all its runs.
    gap : float
        Stop solving at this proven gap.
    seed : int
    verify : bool
        Measure the peak on the device, if it can be.
    tries : int
        Most plans to measure.
    progress : callable (stage, done, total, text) or None
    cache : bool
        Use a schedule that was solved before, and keep those that are solved now.
    schedule : path or None
        A saved schedule for the first structure of data, to be used instead of solving.
    jit_compile : bool
        Let XLA compile the planned step.
    operators : str
        "default", or "choose": gradients may read codes of forward values instead of the values; see
        `trace.encodings`.
    prefetch : int or None
        Batches that the input pipeline keeps ready beside the one in use, on a CPU; None: as `fit` on arrays does.
    sample : sequence of arrays or None
        A batch of the user's data, flattened, to measure with.
    """

    budget: Budget = field(default_factory=lambda: parse_budget("auto"))
    strategy: str = "checkmate"
    costs: CostSpec = "profile"
    time_limit: float = 60.0
    gap: float = 0.01
    seed: int = 0
    verify: bool = True
    tries: int = 5
    progress: Callable[[str, float, float, str], None] | None = None
    cache: bool = True
    schedule: str | os.PathLike[str] | None = None
    jit_compile: bool = False
    operators: str = "default"
    prefetch: int | None = None
    sample: Sequence[Any] | None = None

    def tell(self, stage: str, done: float, total: float, text: str = "") -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(stage, done, total, text)


def beyond_limit(device: Device, peak_bytes: int) -> bool:
    """Whether steps that take so much may run out of memory, below a hard limit of the CPU's allocator."""
    return device.is_cpu and peak_bytes > _MOST * device.limit_bytes


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be fitted into how much.

    Attributes
    ----------
    program : Program
    graph : Graph
        With costs.
    budget_bytes : int
        Of the device, all in all.
    device : Device
    options : PlanOptions
    seconds : dict of str to float
        By stage; added to.
    places : tuple of str
        The devices of all replicas, each with its part of the inputs; none if all is on `device`.
    codes : int
        How many gradients of the program read codes; see `trace.encodings`.
    plain_cost : float or None
        Of the plain step, where the graph is not that step's: with codes.
    strict_cost : float or None
        Times the seconds of a step: what one strict order was measured to take before.
    attempts : list of Attempt
        What was measured for it, in order; added to.
    """

    program: Program
    graph: Graph
    budget_bytes: int
    device: Device
    options: PlanOptions
    seconds: dict[str, float]
    places: tuple[str, ...] = ()
    codes: int = 0
    plain_cost: float | None = None
    strict_cost: float | None = None
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def measure(self) -> bool:
        """Whether plans are run on the device."""
        return self.options.verify and self.device.measurable

    @property
    def most_bytes(self) -> int:
        """The most that steps of a plan may be expected to take (`Peak.sure_bytes`)."""
        most = int(SURE * self.budget_bytes)
        return min(most, int(_MOST * self.device.limit_bytes)) if self.near_limit else most

    @property
    def limited(self) -> bool:
        """Whether it is a hard limit that allows no higher peak, not the budget."""
        return self.near_limit and _MOST * self.device.limit_bytes < SURE * self.budget_bytes

    @property
    def near_limit(self) -> bool:
        """Whether a plan that needs more than was predicted may run out of memory."""
        return self.measure and self.device.is_cpu and self.device.limit_bytes < _TIGHT * self.budget_bytes

    def overhead(self, schedule: Schedule) -> float:
        """More cost than the plain step's, relative."""
        base = self.graph.base_cost if self.plain_cost is None else self.plain_cost
        return schedule.cost / base - 1 if base else 0.0

    @property
    def orders(self) -> tuple[bool, ...]:
        """Whether plans are measured in one strict order, or not, and which comes first.

        Out of order a step can take far more than the one before, and near a hard limit that can be a crash. XLA has an
        order of its own.
        """
        if self.options.jit_compile:
            return (False,)
        return (True,) if self.near_limit else (False, True)

    @property
    def goal_bytes(self) -> int:
        """What steps of a plan should be expected to come near.

        Where the CPU's allocator has a hard limit near the budget, to run out of memory while measuring can be a crash:
        oneDNN does not check all allocations. So stay away from the limit.
        """
        goal = int(_GOAL * self.budget_bytes)
        return min(goal, int(_CLEAR * self.device.limit_bytes)) if self.near_limit else goal

    @property
    def first_target_bytes(self) -> int:
        """What the first schedule has to fit: the goal, less what the allocator may be expected to lose."""
        if not self.measure:
            return self.budget_bytes
        target = int(_GOAL * self.budget_bytes) - int(_WASTE * max(0, self.budget_bytes - self.graph.constant_bytes))
        return self.with_room(target)

    def with_room(self, target: int) -> int:
        """A target that leaves room for what was not predicted, where to run out of memory can be a crash."""
        constant = self.graph.constant_bytes
        room = constant + int(_ROOM * max(0, self.device.limit_bytes - constant))
        return min(target, room) if self.near_limit else target

    def limit_bytes(self, schedule: Schedule) -> int:
        """What computations may need that do not keep the schedule's order; see `emit`.

        The worst order may come in any step, though the measured ones did not show it: the allocator's pieces have to
        fit beside it.
        """
        peak = schedule.peak_bytes
        if not self.measure:
            return peak
        pieces = _PIECES * max(0, self.budget_bytes - self.graph.constant_bytes)
        return max(peak, min(int(_LOOSE * peak), int(SURE * self.budget_bytes - pieces)))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule, how it is emitted, and what the device said of it.

    Attributes
    ----------
    schedule : Schedule
    limit_bytes : int
        As `emit` takes it; 0 for one strict order.
    measured : Peak or None
        Of the device; None if it was not measured.
    strict_cost : float or None
        Times the seconds of a step: what one strict order was measured to take.
    """

    schedule: Schedule
    limit_bytes: int
    measured: Peak | None
    strict_cost: float | None = None


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start
