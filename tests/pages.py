"""Schedules that page, made without a search: for tests of what becomes of them."""

from __future__ import annotations

from checkmate_tf.emit.paging import Pages, pageable
from checkmate_tf.graph import BACKWARD, Graph
from checkmate_tf.paging import with_host
from checkmate_tf.schedule import Schedule
from checkmate_tf.trace.program import Program

__all__ = ["PAGES", "paged_graph", "paged_schedule"]

PAGES = Pages("/device:CPU:0", "/device:CPU:1")


def paged_graph(program: Program, rate: float = 1e4, least_bytes: int = 16384) -> Graph:
    """The program's graph, whose large values can wait on the host."""
    return with_host(program.graph, rate, rate, least_bytes=least_bytes, only=pageable(program))


def paged_schedule(graph: Graph, ahead: int = 0, every: int = 1) -> Schedule:
    """Pages every so many-th value between its last forward and its first backward reader, recomputes the others.

    Copies come back `ahead` computations before they are read.
    """
    before: dict[int, list[int]] = {}  # position -> what comes before what is first computed there
    until = graph.recompute_until
    for k, (value, copy) in enumerate(sorted(graph.copies.items())):
        readers = graph.readers[value]
        forward = [j for j in readers if graph.kinds[j] != BACKWARD]
        backward = [j for j in readers if graph.kinds[j] == BACKWARD]
        if not backward:
            continue
        if k % every == 0:
            left = max([value, *forward]) + 1
            before.setdefault(left, []).append(copy)
            before.setdefault(max(left, backward[0] - ahead), []).append(value)
        elif until[value] > backward[0]:
            before.setdefault(backward[0], []).append(value)
    first = len(graph) if graph.host is None else graph.host.first
    sequence = [node for place in range(first) for node in (*sorted(before.get(place, []), reverse=True), place)]
    return Schedule(graph, sequence, strategy="paging")
