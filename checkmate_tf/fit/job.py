"""What is to be planned (`Subject`), for which device and budget (`Job`), and what was done for it (`Ledger`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from ..allocator.memory import Memory
from ..allocator.workspace import Workspace
from ..device.measure import Device
from ..emit.emit import Copies, emit
from ..emit.ordering import Order
from ..emit.paging import Pages, emit_paged
from ..emit.xla import emit_compiled
from ..graph import Graph
from ..plan import Plan
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
        Its nodes, with costs; and nodes that copy to the host, if values may wait there.
    encodings : mapping from kind to int
        How many of its gradients read codes of forward values; see `trace.encodings`.
    plain_cost : float or None
        Cost of the plain step, if this step has codes; None if this is the plain step.
    op_costs : mapping from operation to cost
        Of each operation, in the order traced.
    learned : mapping from operation to Workspace, or None
        What operations take for themselves, as a recorded step showed it (`fit.subjects.learned`). None where each was
        measured alone. `program.scratch` is what counts.
    pages : Pages or None
        Where values are copied, if the graph has such nodes.
    """

    program: Program
    graph: Graph
    encodings: Mapping[str, int] = field(default_factory=dict)
    plain_cost: float | None = None
    op_costs: Mapping[tf.Operation, float] = field(default_factory=dict)
    learned: Mapping[tf.Operation, Workspace] | None = None
    pages: Pages | None = None

    @property
    def codes(self) -> int:
        """How many gradients read codes."""
        return sum(self.encodings.values())

    def overhead(self, schedule: Schedule) -> float:
        """How much more a schedule costs than the plain step, as a share of the plain step's cost."""
        base = self.graph.base_cost if self.plain_cost is None else self.plain_cost
        return schedule.cost / base - 1 if base else 0.0

    def emit(
        self,
        plan: Plan,
        order: Order,
        inputs: Sequence[tf.Tensor],
        checks: Sequence[tf.Operation] = (),
        jit_compile: bool = False,
        told: Callable[[Copies], None] | None = None,
    ) -> Any:
        """Emit a plan of this step into the function being traced; none of its effects comes before `checks`.

        `told` is as in `emit`: XLA and plans with copies to the host have no use for it.
        """
        if self.pages is not None:
            return emit_paged(self.program, self.graph, plan, self.pages, inputs, checks)
        if jit_compile:
            return emit_compiled(self.program, plan, inputs, checks)
        return emit(self.program, plan, order, inputs, checks, told)


@dataclass(frozen=True, eq=False)
class Job:
    """A step, and the budget and the device that it is to fit.

    Attributes
    ----------
    subject : Subject
    budget_bytes : int
        Most that the device may hold, everything included.
    device : Device
    options : PlanOptions
    places : tuple of str
        The devices of all replicas, each with its part of the inputs. Empty if all is on `device`.
    memory : Memory or None
        The device's memory before a step; None if its allocator has no model, or plans are not measured.
    alternative : bool
        Whether there is another kind of step to plan if no plan of this one fits.
    """

    subject: Subject
    budget_bytes: int
    device: Device
    options: PlanOptions
    places: tuple[str, ...] = ()
    memory: Memory | None = None
    alternative: bool = False

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
            modelled=self.memory is not None and self.measure and not self.options.jit_compile,
            strict=self.subject.pages is not None,
            alternative=self.alternative,
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
        By stage, such as "solve".
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
        """Add the seconds that a schedule from the cache took when it was made."""
        self.seconds[_REUSED] = self.seconds.get(_REUSED, 0.0) + seconds

    @property
    def solving_seconds(self) -> float:
        """Seconds of the time limit that are used up. A schedule from the cache counts as if it were solved for now."""
        return self.seconds.get("solve", 0.0) + self.seconds.get(_REUSED, 0.0)
