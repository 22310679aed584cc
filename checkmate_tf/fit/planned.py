"""A plan for one structure of data, ready to be emitted, and the report on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

from ..allocator.memory import Placed
from ..allocator.workspace import Workspace
from ..device.distribution import Distribution
from ..device.measure import Device
from ..emit.ordering import Order
from ..emit.paging import Pages
from ..graph import Graph
from ..report import Report
from ..report.placing import placed_fields
from ..schedule import Schedule
from ..trace.program import Program
from .job import Job, Ledger, Subject
from .options import Given
from .state import Candidate

__all__ = ["Known", "PlannedStep", "expected_peak_bytes", "first_report", "report_again", "same_graph"]


@dataclass(frozen=True, eq=False)
class Known:
    """A plan without its step, whose program would hold variables. It serves another step with an equal graph.

    Attributes
    ----------
    schedule : Schedule
    order : Order
    report : Report
    jit_compile : bool
    learned : tuple of Workspace
        What each operation takes for itself, in the order traced, if that was learned from a recorded step.
    pages : Pages or None
        Where values are copied, if some are.
    same_size : bool
        As in `PlannedStep`.
    placed : Placed or None
        As in `PlannedStep`.
    """

    schedule: Schedule
    order: Order
    report: Report
    jit_compile: bool
    learned: tuple[Workspace, ...] = ()
    pages: Pages | None = None
    same_size: bool = False
    placed: Placed | None = None


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A plan for one structure of data, ready to be emitted.

    Attributes
    ----------
    subject : Subject
        The step, with codes if its gradients read some.
    schedule : Schedule
    order : Order
    report : Report
    batch_size : int
    jit_compile : bool
        Whether XLA compiles it.
    without : Subject or None
        The step without codes, if gradients read some; or else in the order traced, if some updates come later. It is
        planned when the budget becomes too small for that.
    given : "", "arrays" or "tensors"
        As in `PlanOptions`, when it was planned.
    placed : Placed or None
        What it takes in its order, as the allocator was modelled when it was measured; None if it was found without.
    """

    subject: Subject
    schedule: Schedule
    order: Order
    report: Report
    batch_size: int
    jit_compile: bool = False
    without: Subject | None = None
    given: Given = ""
    placed: Placed | None = None

    @property
    def same_size(self) -> bool:
        """Whether it was traced for batches of one size, and serves no smaller ones."""
        sizes = [t.shape[0] for t in self.program.step.inputs if t.shape.rank]
        return bool(sizes) and None not in sizes

    @property
    def program(self) -> Program:
        return self.subject.program

    @property
    def known(self) -> Known:
        """The plan without the step."""
        learned: Mapping[tf.Operation, Workspace] = self.subject.learned or {}
        in_order = tuple(learned[op] for op in self.subject.op_costs) if learned else ()
        pages = self.subject.pages
        return Known(
            self.schedule, self.order, self.report, self.jit_compile, in_order, pages, self.same_size, self.placed
        )

    def emit(self, inputs: Sequence[tf.Tensor], checks: Sequence[tf.Operation] = ()) -> Any:
        """Emit the planned step into the function being traced; none of its effects comes before `checks`."""
        return self.subject.emit(self.schedule.plan, self.order, inputs, checks, self.jit_compile)


def first_report(
    job: Job,
    ledger: Ledger,
    found: Candidate,
    *,
    plain_peak_bytes: int,
    batch_size: int,
    reason: str,
    distribution: Distribution | None,
) -> Report:
    """What `compile` says of a new plan.

    Parameters
    ----------
    job : Job
        Whose subject was planned.
    plain_peak_bytes : int
        Predicted, of the step without codes.
    reason : str
        Why plans were not measured, if they were not.
    """
    options, program = job.options, job.subject.program
    return Report(
        model=program.graph.name,
        device=job.device.name,
        replicas=1 if distribution is None else distribution.replicas,
        batch_size=batch_size,
        asked=str(options.budget),
        budget_bytes=job.budget_bytes,
        plain_peak_bytes=plain_peak_bytes,
        not_measured="" if ledger.attempts else reason,
        variable_bytes=program.variable_bytes,
        input_bytes=program.input_bytes,
        costs=options.costs if isinstance(options.costs, str) else "given",
        attempts=tuple(ledger.attempts),
        **_found(job, ledger, found),
    )


def report_again(before: Report, job: Job, ledger: Ledger, found: Candidate, peak_bytes: int, expected: bool) -> Report:
    """Report on a plan that replaces another one, because so much was allocated or is expected to be."""
    return replace(
        before,
        training_peak_bytes=None,
        expected_bytes=(*before.expected_bytes, *[peak_bytes] * expected),
        exceeded_bytes=(*before.exceeded_bytes, *[peak_bytes] * (not expected)),
        attempts=(*before.attempts, *ledger.attempts),
        **_found(job, ledger, found),
    )


def _found(job: Job, ledger: Ledger, found: Candidate) -> dict[str, Any]:
    """What every report says of the plan that was found."""
    return {
        "schedule": found.schedule,
        "predicted_peak_bytes": found.schedule.peak_bytes,
        "measured_peak_bytes": found.measured and found.measured.bytes,
        "sure_bytes": found.measured and found.measured.sure_bytes,
        "strict": found.strict,
        "strict_cost": found.strict_cost,
        "foreign_bytes": job.device.foreign_bytes(job.subject.program.variable_bytes),
        "encodings": dict(job.subject.encodings),
        "plain_cost": job.subject.plain_cost,
        "seconds": ledger.seconds,
        **placed_fields(job.memory, found.schedule),
        **({} if found.placed is None else {"placed_peak_bytes": found.placed.peak_bytes}),  # in the order of the plan
    }


def expected_peak_bytes(planned: PlannedStep, device: Device) -> int:
    """Bytes that no step is expected to exceed now: as measured, plus all that came to the device since.

    One batch of data was there when the plan was measured: the caller's own, where that holds tensors.
    """
    report = planned.report
    come = device.foreign_bytes(planned.program.variable_bytes) - report.foreign_bytes
    come -= 0 if planned.given == "tensors" else report.input_bytes
    return (report.sure_bytes or 0) + max(0, come)


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs have the same schedules, at the same costs."""
    same = a.inputs == b.inputs and a.waits == b.waits and a.constant_bytes == b.constant_bytes
    columns = ("kinds", "sizes", "workspace", "held", "recompute_until", "costs")
    return same and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)
