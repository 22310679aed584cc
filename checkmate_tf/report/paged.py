"""What a plan copies to the host, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ..paging import timeline
from ..schedule import Schedule
from ..statements import COMPUTE, brought_back

__all__ = ["Paged", "paged_of"]


@dataclass(frozen=True)
class Paged:
    """What a plan copies to the host.

    Attributes
    ----------
    values : int
        How many are copied there.
    fetches : int
        How often one is brought back.
    host_bytes : int
        Most of them in the host's memory at any time. A value is there from when its copy begins until it is brought
        back for the last time.
    waiting : float
        Share of the step's time in which computations wait for copies.
    """

    values: int
    fetches: int
    host_bytes: int
    waiting: float


def paged_of(schedule: Schedule) -> Paged | None:
    """What a schedule copies to the host; None if it copies nothing."""
    graph = schedule.graph
    computations = [s for s in schedule.plan if s.op == COMPUTE]
    copies = [s for s in computations if s.node >= graph.first_copy]
    if not copies:
        return None
    registers = brought_back(graph, computations)
    fetches = [s for s in computations if s.register in registers]
    begins = {s.reads[0] for s in copies}  # registers of what is copied
    ends = {s.node: s.register for s in fetches}  # of each value the last time that it is brought back
    live = most = 0
    for s in computations:
        if s.register in begins:
            live += int(graph.sizes[s.node])
            most = max(most, live)
        elif ends.get(s.node) == s.register:
            live -= int(graph.sizes[s.node])
    when = timeline(graph, schedule.plan)
    waiting = 1 - when.computing / when.cost if when.cost else 0.0
    return Paged(len(copies), len(fetches), most, waiting)
