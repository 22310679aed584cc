"""The same step, whose values may wait in the host's memory: where that can be, and what copies take there.

Paging is off where nothing is known of it, or it has not been tried:

- the device is the host, XLA compiles the step, or replicas run side by side;
- a schedule or a strategy was asked for, or gradients may read codes (the two are not combined yet);
- costs are no times, so copies cannot be compared with computations;
- plans are to be measured and cannot be.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from ...costs import cost_unit
from ...costs.copies import copy_rates
from ...emit.paging import Pages, pageable
from ...machine import host_bytes
from ...paging import with_host
from ...report import paged_of
from ...schedule import Schedule
from ...units import format_bytes
from ..job import Job, Ledger
from ..policy import POLICY
from ..solving import SEARCHED

__all__ = ["fits_host", "with_pages"]

_TENSORFLOW = 1 << 16  # MiB of the host's memory that TensorFlow takes for copies at most, if nothing else is said

log = logging.getLogger("checkmate_tf")


def with_pages(job: Job, ledger: Ledger) -> Job | None:
    """The same job, of the step whose values may wait on the host. None where paging is off, or nothing is to copy.

    Notes
    -----
    Copies are measured the first time.
    """
    options, device, subject = job.options, job.device, job.subject
    host = device.host if options.page == "auto" else None
    asked = options.strategy == SEARCHED and options.schedule is None and options.operators == "default"
    known = cost_unit(options.costs) == "us" and (job.measure or not options.verify)
    if host is None or not asked or not known or options.jit_compile or job.places or subject.encodings:
        return None
    here = f"/device:{device.name}"
    with ledger.timed("costs"):
        rates = copy_rates(here, host)
    if rates is None:
        return None
    may = pageable(subject.program)
    graph = with_host(subject.graph, rates.to_host, rates.from_host, latency=rates.latency_us, only=may)
    if not graph.copies:
        return None
    paged = replace(subject, graph=graph, pages=Pages(here, host))
    return replace(job, subject=paged, memory=None)


def fits_host(schedule: Schedule) -> bool:
    """Whether the host has memory for what a schedule copies there."""
    paged = paged_of(schedule)
    given = os.environ.get("TF_GPU_HOST_MEM_LIMIT_IN_MB", "")
    most = min(int(POLICY.host_share * host_bytes()), (int(given) if given.isdigit() else _TENSORFLOW) << 20)
    if paged is None or paged.host_bytes <= most:
        return True
    log.info("a plan copies %s to the host, which is to hold %s", format_bytes(paged.host_bytes), format_bytes(most))
    return False
