"""Chooses which gradients read codes, together with the schedule.

A code is smaller than the value that it stands for, such as a bit for each sign. An encoding is the operation that
makes it. `trace.encodings` knows which gradients can read codes.

The step with every encoding contains the plain step. A schedule that keeps a value, and encodes it when its code is
needed, differs from the plain step only by the cost of encoding. So one schedule of that step, compared with one of the
plain step, tells which encodings pay: those whose value is no longer in memory when the code is read. The others are
taken back, and what remains is solved again.

`strategies.monet.choose_operators` makes the same kind of choice in a graph that lists the ways of each operator. That
serves layer graphs. Here each choice is another traced step: which operations merge into a node, and what its kernels
take, is known only when it is built. So steps are built and compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import tensorflow as tf

from ...allocator.workspace import Workspace
from ...errors import InfeasibleBudgetError
from ...plan import ALLOCATE, COMPUTE, DEALLOCATE
from ...schedule import Schedule
from ...strategies import SolveOptions, solve
from ...trace.encodings import EncodedStep, Encoding, encoded, find_encodings
from ...trace.program import Program
from ...trace.step import TracedStep
from ..job import Job, Ledger, Subject
from ..policy import POLICY

__all__ = ["choose_encodings"]


class Build(Protocol):
    """Makes of a traced step what can be planned. `Tracing.subject` is one."""

    def __call__(self, traced: TracedStep, *, known: Mapping[tf.Operation, Workspace]) -> Subject:
        """Where it is `known` what operations take for themselves, that counts."""
        ...


def choose_encodings(job: Job, ledger: Ledger, build: Build) -> Subject:
    """The step with the encodings for which the first schedule costs least, or needs least memory if none fits.

    Parameters
    ----------
    job : Job
        Of the plain step.
    ledger : Ledger
    build : Build
    """
    step, rounds = job.subject.program.step, POLICY.code_rounds
    best, left = job.subject, tuple(find_encodings(step, pools=job.device.is_cpu))
    job.options.tell("codes", 0, rounds + 1, f"{len(left)} gradients can read some")
    target = max(0, job.limits.first_target_bytes)  # of the plain step: all choices are compared within it
    rank, _ = _first(job, ledger, target)
    for number in range(1, rounds + 1):
        if not left:
            break
        job.options.tell("codes", number, rounds + 1, f"{len(left)} gradients read some")
        candidate = encoded(step, left)
        kinds = Counter(e.kind for e in left)
        coded = build(candidate.step, known=_carried_over(job.subject, candidate, left))
        coded = replace(coded, encodings=dict(kinds), plain_cost=job.subject.graph.base_cost)
        found, schedule = _first(replace(job, subject=coded), ledger, target)
        if found < rank:
            best, rank = coded, found
        kept = () if schedule is None else _paying(coded.program, schedule, candidate, left)
        if len(kept) == len(left):
            break
        left = kept
    job.options.tell("codes", 1, 1, f"{best.codes} gradients read some")
    return best


def _carried_over(
    plain: Subject, candidate: EncodedStep, encodings: Sequence[Encoding]
) -> dict[tf.Operation, Workspace]:
    """What was learned of the plain step's operations, for their copies; not of gradients that read codes now."""
    new = {e.gradient for e in encodings}
    copies = candidate.operations
    return {copies[op]: own for op, own in (plain.learned or {}).items() if op in copies and op not in new}


def _first(job: Job, ledger: Ledger, target: int) -> tuple[tuple[int, float], Schedule | None]:
    """How good the first schedule is, less is better: (0, cost) if it fits, else (bytes that are needed, 0)."""
    options = job.options
    seconds = POLICY.code_share * options.time_limit / (POLICY.code_rounds + 1)
    limits = SolveOptions(time_limit=seconds, gap=options.gap, seed=options.seed, settle=True)
    with ledger.timed("solve"):
        try:
            schedule = solve(job.subject.graph, target, options.strategy, limits)
        except InfeasibleBudgetError as error:
            return (error.minimum_bytes, 0.0), None
    return (0, schedule.cost), schedule


def _paying(
    program: Program, schedule: Schedule, candidate: EncodedStep, encodings: Sequence[Encoding]
) -> tuple[Encoding, ...]:
    """The encodings that pay: without them, the gradient would read something that is no longer in memory."""
    readers: dict[int, list[Encoding]] = {}
    paying: dict[Encoding, None] = {}
    for e in encodings:
        node = program.node_of.get(candidate.operations[e.gradient])
        if node is None:  # a view of the code: it is read by others, later
            paying[e] = None
        else:
            readers.setdefault(node, []).append(e)
    owner = lambda t: program.source_of(candidate.tensors[id(t)]).op  # noqa: E731 - a short callback
    spared = {e: [program.node_of.get(owner(t), -1) for t in e.spared] for e in encodings}
    alive: Counter[int] = Counter()
    for op, node, *_ in schedule.plan.statements:
        if op == ALLOCATE:
            alive[node] += 1
        elif op == DEALLOCATE:
            alive[node] -= 1
        elif op == COMPUTE:
            paying |= {e: None for e in readers.get(node, ()) if any(k >= 0 and not alive[k] for k in spared[e])}
    return tuple(e for e in encodings if e in paying)
