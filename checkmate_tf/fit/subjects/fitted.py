"""Which kind of step is planned: in the order of late updates or as traced, with codes or without, with copies or not.

The plain step comes first, and with it the codes that were asked for. What else there is takes its place if nothing
fits, or if it costs less.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from ...errors import InfeasibleBudgetError
from ..finding import bare
from ..job import Job, Ledger, Subject
from ..policy import POLICY
from ..run import NotMeasurable, fit, fit_given, with_memory
from ..solving import solve_once
from ..state import Candidate, expected_cost
from .encodings import choose_encodings
from .paging import fits_host, with_pages
from .tracing import Tracing

__all__ = ["fitted", "with_time"]

log = logging.getLogger("checkmate_tf")


def fitted(
    job: Job, ledger: Ledger, tracing: Tracing, saved: dict[str, Any] | None, as_traced: Subject | None
) -> tuple[Job, Candidate]:
    """The plan. It copies values to the host where it costs less by that, or where nothing else fits."""
    try:
        plain, found = _ordered_and_fitted(job, ledger, tracing, saved, as_traced)
    except InfeasibleBudgetError as error:
        least = bare(error)
    else:
        return _paged_for_less(plain, found, ledger) or (plain, found)
    paged = with_pages(job, ledger)
    if paged is None:
        raise bare(least)  # one that this frame does not hold
    log.info("%s: values wait on the host, because there is no other plan: %s", tracing.name, least)
    try:
        found = fit(with_time(paged, ledger), ledger)
    except InfeasibleBudgetError as error:
        if job.memory is None and error.minimum_bytes < least.minimum_bytes:
            raise bare(error) from None
        raise bare(least) from None  # the model of the allocator knows what that needs
    if not fits_host(found.schedule):
        raise bare(least)
    return paged, found


def _paged_for_less(plain: Job, found: Candidate, ledger: Ledger) -> tuple[Job, Candidate] | None:
    """A plan with copies to the host that costs less than one without, by what is worth it; None if there is none.

    How long copies take is a model. So if both plans were measured, the seconds of their steps count as well.
    """
    most = (1 - POLICY.worth) * _cost(found)
    if expected_cost(plain.subject.graph.base_cost, True, found.strict_cost, POLICY) >= most:
        return None  # no plan costs less than that
    job = with_pages(plain, ledger)
    paged = None if job is None else _cheaper(job, found, ledger)
    if job is None or paged is None or _cost(paged) > most or not fits_host(paged.schedule):
        return None
    if paged.measured and found.measured and paged.measured.seconds > POLICY.same_seconds * found.measured.seconds:
        log.info("%s: steps with copies to the host took longer", plain.subject.graph.name)
        return None
    return job, paged


def _ordered_and_fitted(
    job: Job, ledger: Ledger, tracing: Tracing, saved: dict[str, Any] | None, as_traced: Subject | None
) -> tuple[Job, Candidate]:
    """The plan in the job's order. Where none fits in that, the one in the order traced: it may need a little less.

    A saved schedule is one of the job's order.
    """
    try:
        return _chosen_and_fitted(replace(job, alternative=as_traced is not None), ledger, tracing, saved)
    except InfeasibleBudgetError as error:
        if as_traced is None:
            raise
        least = bare(error)
    log.info("%s: updates come early, because there is no plan where some come late: %s", tracing.name, least)
    other = replace(job, subject=as_traced)
    try:
        return _chosen_and_fitted(with_time(with_memory(other), ledger), ledger, tracing, None)
    except InfeasibleBudgetError as error:
        raise min(least, bare(error), key=lambda e: e.minimum_bytes) from None


def _chosen_and_fitted(
    job: Job, ledger: Ledger, tracing: Tracing, saved: dict[str, Any] | None
) -> tuple[Job, Candidate]:
    """Which gradients read codes, and the plan: the saved one, if there is one that fits."""
    if saved is not None:
        found = fit_given(job, ledger, saved)
        if found is not None:
            return job, found
    coded = job
    if saved is None and job.options.operators == "choose":
        coded = with_memory(replace(job, subject=choose_encodings(job, ledger, tracing.subject)))
    if not coded.subject.encodings:
        return job, fit(job, ledger)
    try:
        found = fit(coded, ledger)
    except InfeasibleBudgetError as error:
        log.warning("%s: planning without codes, because there is no plan with them: %s", tracing.name, error)
        try:
            return job, fit(with_time(job, ledger), ledger)
        except InfeasibleBudgetError as without:
            raise min(error, without, key=lambda e: e.minimum_bytes) from None
    cheaper = _cheaper(job, found, ledger)
    return (coded, found) if cheaper is None else (job, cheaper)


def _cheaper(other: Job, fitting: Candidate, ledger: Ledger) -> Candidate | None:
    """Find a plan of another kind that costs less than one that fits; None if there is none.

    Codes were chosen for the first target. Since then, measurements may have raised the target, or shown that codes
    save less than was predicted. So a plan without codes is considered, and likewise one with copies to the host, if it
    would cost less on a device that loses no memory to pieces. Then a few are measured.
    """
    job, limits, strict_cost = with_time(other, ledger), other.limits, fitting.strict_cost
    room, worth = (limits.most_bytes, POLICY.worth) if job.measure else (job.budget_bytes, 0.0)
    most = (1 - worth) * _cost(fitting)
    if job.subject.graph.base_cost >= most:
        return None
    try:
        found = solve_once(job.subject.graph, room, job.options, ledger)
        if expected_cost(found.cost, limits.orders == (True,), strict_cost, POLICY) >= most:
            return None
        if not job.measure:
            return Candidate(found, limits.order(found.peak_bytes, limits.orders[0]), None)
        few = replace(job, options=replace(job.options, tries=POLICY.tries_instead))
        cheaper = fit(few, ledger, strict_cost=strict_cost)
    except (InfeasibleBudgetError, NotMeasurable):
        return None
    return cheaper if _cost(cheaper) < _cost(fitting) else None


def _cost(found: Candidate) -> float:
    return expected_cost(found.schedule.cost, found.strict, found.strict_cost, POLICY)


def with_time(job: Job, ledger: Ledger) -> Job:
    """The same job, with as many seconds left for solving as it began with."""
    return job.with_seconds(ledger.solving_seconds + job.options.time_limit)
