"""What is to be fitted into how much: the step, the job, and the ledger of what was done for it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..device.measure import Device
from ..graph import Graph
from ..report import Attempt
from ..schedule import Schedule
from ..trace.program import Program
from .options import PlanOptions
from .policy import POLICY, Limits

__all__ = ["Job", "Ledger", "Subject"]

_REUSED = "solved before"  # a stage: the seconds that schedules from the cache took when they were made


@dataclass(frozen=True, eq=False)
class Subject:
    """A step that can be planned.

    Attributes
    ----------
    program : Program
    graph : Graph
        With costs.
    encodings : mapping from kind to int
        How many of its gradients read codes of forward values; see `trace.encodings`.
    plain_cost : float or None
        Of the plain step, where this is not that step: with codes.
    """

    program: Program
    graph: Graph
    encodings: Mapping[str, int] = field(default_factory=dict)
    plain_cost: float | None = None

    @property
    def codes(self) -> int:
        """How many gradients read codes."""
        return sum(self.encodings.values())

    def overhead(self, schedule: Schedule) -> float:
        """More cost than the plain step's, relative."""
        base = self.graph.base_cost if self.plain_cost is None else self.plain_cost
        return schedule.cost / base - 1 if base else 0.0


@dataclass(frozen=True, eq=False)
class Job:
    """What is to be fitted into how much.

    Attributes
    ----------
    subject : Subject
    budget_bytes : int
        Of the device, all in all.
    device : Device
    options : PlanOptions
    places : tuple of str
        The devices of all replicas, each with its part of the inputs; none if all is on `device`.
    """

    subject: Subject
    budget_bytes: int
    device: Device
    options: PlanOptions
    places: tuple[str, ...] = ()

    @property
    def measure(self) -> bool:
        """Whether plans are run on the device."""
        return self.options.verify and self.device.measurable

    @property
    def limits(self) -> Limits:
        """What its plans may take."""
        return Limits(
            self.budget_bytes,
            self.subject.graph.constant_bytes,
            self.device.limit_bytes,
            self.device.is_cpu,
            self.measure,
            ordered=not self.options.jit_compile,
            policy=POLICY,
        )

    def with_seconds(self, time_limit: float) -> Job:
        """The same job with another limit of seconds for solving."""
        return replace(self, options=replace(self.options, time_limit=time_limit))

    def unmeasured(self) -> Job:
        """The same job, to be planned by prediction alone."""
        return replace(self, options=replace(self.options, verify=False))


@dataclass
class Ledger:
    """What was done for one call of `compile`, written down as it goes; the only thing here that changes.

    Attributes
    ----------
    seconds : dict of str to float
        By stage.
    attempts : list of Attempt
        What was measured, in order.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the seconds that the block takes to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start

    def reused(self, seconds: float) -> None:
        """Add what a schedule from the cache took when it was made."""
        self.seconds[_REUSED] = self.seconds.get(_REUSED, 0.0) + seconds

    @property
    def solving_seconds(self) -> float:
        """Of the time limit, what is used up: a schedule from the cache counts as if it had been solved for now."""
        return self.seconds.get("solve", 0.0) + self.seconds.get(_REUSED, 0.0)
