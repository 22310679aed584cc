"""The search for cheap sequences: several walks at once, the caller's own and one for each core beyond two.

The others are threads: compiled code lets them run side by side. They take what the caller, and the process that looks
for a bound, leave idle. Each takes a course of its own, by its seed, and nothing is told from one to another: in
trials nothing was gained by that.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...machine import cores
from .arrays import Hosted
from .walk import KeepSet, Walk

__all__ = ["KeepSet", "search"]

_MOST = 8  # walks at once: each has its own arrays
_NICE = 10  # of the threads: beside other work they have a tenth of a core, and so seldom keep others waiting
_END = 0.5  # seconds that their end is waited for; then they end by themselves


def search(
    graph: Graph,
    budget_bytes: int,
    seed: int = 0,
    keep_sets: Callable[[], list[KeepSet]] = list,
    free: bool = False,
    orders: Sequence[NDArray[np.int64]] = (),
    host: Hosted | None = None,
    walks: int = 0,
) -> Iterator[NDArray[np.int64] | None]:
    """Look for cheap sequences, for as long as it is asked.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    seed : int
    keep_sets : callable
        Asked now and then for new keep-sets of a relaxation to start from; each is used once.
    free : bool
        Whether first computations may come in any order, effects aside (`orders.before_effects`). Else they come in
        the order of the graph.
    orders : sequence of (n,) int arrays
        Orders to start from, besides that of the graph.
    host : Hosted, optional
        Values that are brought back from the host instead of being computed again, and what that costs here.
    walks : int
        At once, each but the first in a thread. 0: one for each core but one, eight at most. That one is for the bound.

    Yields
    ------
    (length,) int array or None
        A better sequence than all before, or None after a fraction of a second without one. Never ends, unless nothing
        can be recomputed. The threads end with the iterator.
    """
    room, best = budget_bytes - graph.constant_bytes, np.inf
    own = Walk(graph, room, seed, free, orders, host)
    with _Threads(own, seed, (walks or min(max(cores() - 1, 1), _MOST)) - 1) as threads:
        for found in own.run(keep_sets):
            better = own.refiner.best < best
            best = min(best, own.refiner.best)
            yield found if better else None
            for other, cost in threads.news():
                if cost < best:
                    best = cost
                    yield other


class _Threads:
    """Walks beside another one, each in a thread, until the context is left."""

    def __init__(self, walk: Walk, seed: int, count: int) -> None:
        seeds = np.random.SeedSequence(seed).generate_state(count).tolist()
        self._found: queue.SimpleQueue[tuple[NDArray[np.int64], float] | Exception] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._go, args=(walk.another(own, k),), daemon=True, name="checkmate_tf walk")
            for k, own in enumerate(seeds, 1)
        ]

    def __enter__(self) -> _Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        until = time.perf_counter() + _END
        for thread in self._threads:
            thread.join(max(0.0, until - time.perf_counter()))

    def news(self) -> Iterator[tuple[NDArray[np.int64], float]]:
        """Sequences that they have found since the last call, and their costs. An error of theirs is raised."""
        while not self._found.empty():
            found = self._found.get()
            if isinstance(found, Exception):
                raise found
            yield found

    def _go(self, walk: Walk) -> None:
        try:
            _give_way()
            for found in walk.run(list):
                if self._ended.is_set():
                    return
                if found is not None:
                    self._found.put((found, walk.refiner.best))
        except Exception as error:  # noqa: BLE001 (the caller would not know of it)
            self._found.put(error)


def _give_way() -> None:
    """Lower the priority of this thread, where the system lets a thread have one of its own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # forbidden in some containers
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
