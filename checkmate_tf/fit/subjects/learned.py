"""Learns what operations take for themselves from a step that was recorded on the device.

On a GPU an operation in a step is not what it is alone. Grappler turns convolutions to channels first, and cuDNN's
kernels then take memory to turn them back. It makes one kernel of a convolution, its bias and its ReLU. Some
operations cannot be run alone at all. So a first schedule is made with what was measured alone, and runs. The
allocator's record says what each operation held only while it ran (`allocator.held`). Plans are made with that.

A fused kernel has the name of the last operation in it. What it takes belongs to the first one: its inputs are still
there while it runs. So it counts there, if that one allocated nothing under its own name.

Operations that call functions keep what was measured alone. Their bodies have names of their own in the record.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from ...allocator.workspace import NOTHING, Workspace
from ...costs.counts import CALLS
from ...costs.workspace import LEAST_BYTES
from ...device.measure import Device, captured_variables, ran_out
from ...device.record import NotRecorded, Recorded, record_step
from ...emit.emit import Copies
from ...emit.ordering import Strict
from ...errors import InfeasibleBudgetError
from ...schedule import Schedule
from ...trace.ops import ELEMENTWISE
from ...trace.program import Program
from ...units import format_bytes
from ..finding import Finder
from ..job import Job, Ledger
from ..options import PlanOptions
from ..policy import POLICY
from ..run import NotMeasurable, runnable

__all__ = ["can_learn", "learn", "workspaces_by_operation"]

log = logging.getLogger("checkmate_tf")


def can_learn(device: Device, options: PlanOptions) -> bool:
    """Whether steps are worth a record, and may run. On a CPU steps take what is measured alone, within 0.2%."""
    return device.measurable and not device.is_cpu and options.verify and not options.jit_compile


def learn(job: Job, ledger: Ledger) -> dict[tf.Operation, Workspace] | None:
    """What each operation takes for itself in a step, from a schedule that runs on the device.

    Parameters
    ----------
    job : Job
        With what was measured alone. It is planned for a short time, for a first schedule.
    ledger : Ledger
        The seconds of stage "learn" are added to.

    Returns
    -------
    dict from operation to Workspace, or None
        For every operation of the step. None if that cannot be learned: no schedule comes near the budget, memory ran
        out, or steps cannot be run or recorded here. The log says why.
    """
    with ledger.timed("learn"):
        target = job.limits.first_target_bytes
        for _ in range(POLICY.learn_tries):
            gc.collect()  # what ran out of memory lies in cycles
            schedule = _first(job, target)
            if schedule is None:
                return None
            job.options.tell("learn", 0, 1, f"a step within {format_bytes(target)}")
            try:
                copies, recorded = _recorded(job, schedule)
            except (NotMeasurable, NotRecorded) as error:
                log.info("workspaces are not learned from a step: %s", error)
                return None
            except tf.errors.OpError as error:
                reason = str(error.message).strip().splitlines()[0][:300]
                if not ran_out(error):
                    log.info("workspaces are not learned from a step: it fails: %s", reason)
                    return None
                log.info("a step within %s ran out of memory: %s", format_bytes(target), reason)
                target -= int(POLICY.out_of_memory * job.budget_bytes)
                continue
            learned = workspaces_by_operation(job.subject.program, copies, recorded.workspaces)
            _tell(job.subject.program, learned)
            job.options.tell("learn", 1, 1, "")
            return learned
    return None


def workspaces_by_operation(
    program: Program, copies: Copies, workspaces: Mapping[str, Workspace]
) -> dict[tf.Operation, Workspace]:
    """What traced operations take for themselves, by what was recorded of their copies.

    Parameters
    ----------
    program : Program
        With what was measured alone. That counts for operations that call functions.
    copies : Copies
        The operations that were emitted for each.
    workspaces : mapping from name to Workspace
        As in `Recorded.workspaces`. Operations that are missing allocated nothing.

    Returns
    -------
    dict from operation to Workspace
        For every operation of the step: the most of its copies; nothing where that is not worth counting.
    """
    traced = {copy.name: op for op, many in copies.items() if op in program.node_of for copy in many}
    found = dict.fromkeys(program.step.operations, NOTHING)
    for op, many in copies.items():
        for copy in many if op in program.node_of else ():
            own = workspaces.get(copy.name, NOTHING)
            if own.bytes >= LEAST_BYTES:
                owner = traced[_begins(copy, traced, workspaces)]
                found[owner] = max(found[owner], own, key=lambda one: one.bytes)
    return found | {op: program.scratch.get(op, NOTHING) for op in found if op.type in CALLS}


def _begins(copy: tf.Operation, traced: Mapping[str, tf.Operation], workspaces: Mapping[str, Workspace]) -> str:
    """The name of the first operation of the kernel whose last one is given: most are alone."""
    first = copy
    while first.type in ELEMENTWISE and first.inputs:
        first = first.inputs[0].op
        if first.name not in traced or first.name in workspaces:  # it ran by itself
            return str(copy.name)
    return str(first.name)


def _first(job: Job, target: int) -> Schedule | None:
    """A schedule that fits, as far as is known, or nearly, made in short time; None if none was found."""
    quick = job.with_seconds(POLICY.learn_share * job.options.time_limit)
    found = Finder(quick, Ledger()).find(target, strict=True)
    if not isinstance(found, InfeasibleBudgetError):
        return found.schedule
    far = found.proven and found.minimum_bytes > POLICY.near_budget * job.budget_bytes
    if found.sequence is None or far:
        log.info("workspaces are not learned from a step: no schedule comes near the budget so far: %s", found)
        return None
    least = np.array(found.sequence, np.int64)  # kernels may take less in a step: what they take will decide
    return Schedule(job.subject.graph, least, job.options.strategy, budget_bytes=found.minimum_bytes)


def _recorded(job: Job, schedule: Schedule) -> tuple[Copies, Recorded]:
    """What a step of a schedule allocates in strict order, and what was emitted for it."""
    told: list[Copies] = []
    step = runnable(job, schedule.plan, Strict(), told.append)
    recorded = record_step(job.device, step, captured_variables(job.subject.program.step.captures))
    return told[-1], recorded


def _tell(program: Program, learned: Mapping[tf.Operation, Workspace]) -> None:
    """Log what was learned beside what was measured alone: a line each at level debug."""
    alone = {op: program.scratch.get(op, NOTHING).bytes for op in learned}
    found = {op: own.bytes for op, own in learned.items()}
    other = [op for op, size in found.items() if size != alone[op]]
    most = lambda sizes: format_bytes(max(sizes, default=0))  # noqa: E731 - a short callback
    log.info(
        "workspaces learned from a step: %d of %d operations take other memory than alone; the most is %s, alone %s",
        len(other), len(found), most(found.values()), most(alone.values()),
    )  # fmt: skip
    for op in sorted(other, key=lambda op: -found[op]):
        log.debug("%s %s takes %d bytes in a step, alone %d", op.type, op.name, found[op], alone[op])
