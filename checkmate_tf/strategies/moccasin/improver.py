"""CP-SAT beside a search: it improves a schedule in one order of first computations, in a process of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ..options import SolveOptions
from ..ordering.renumbered import renumbered
from .cpsat_process import IntervalsProcess
from .moccasin import improve

__all__ = ["Improver", "by_stages"]

_ALONE = 3.0  # seconds after which the search leaves the processors to it, while its schedule is the best
_WAIT = 0.2  # seconds that a look at its news waits then
_HANDOVER = 10.0  # seconds after which it starts again from the search's schedule if it has none of its own


class Improver(ExitStack):
    """CP-SAT in one order of first computations.

    It starts from a schedule in that order, if that fits, or from nothing. If it finds nothing for a while then, it
    starts again from the search's schedule, if that is in its order.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions
    order : (n,) int array
        Of first computations.
    start : (length,) int array or None
        A schedule to start from.

    Attributes
    ----------
    ahead : bool
        Whether the best schedule so far is its own.
    cost : float
        Of its best, if that was the best of all.
    """

    def __init__(
        self, graph: Graph, budget_bytes: int, options: SolveOptions, order: np.ndarray, start: np.ndarray | None
    ) -> None:
        super().__init__()
        self._order, self._rank = order, np.argsort(order)
        self.ahead, self.cost = False, np.inf
        self._problem = (renumbered(graph, order), budget_bytes)
        self._options = options
        known = [] if start is None else self._known(start)
        self._started = bool(known)
        self._process: IntervalsProcess = self._start(known, options.time_limit)

    @property
    def running(self) -> bool:
        return self._process.running

    def alone(self, now: float) -> bool:
        """Whether it should have the processors to itself."""
        return self.running and self.ahead and now > _ALONE

    def news(self, now: float, best: np.ndarray | None) -> list[np.ndarray]:
        """Sequences that fit, found since the last call; waits a little for one while it has the processors."""
        if not self._started and best is not None and now > _HANDOVER and (known := self._known(best)):
            self._started = True
            self._process.__exit__()
            self._process = self._start(known, self._options.time_limit - now)
        messages = self._process.news(_WAIT if self.alone(now) else 0.0)
        found = [message["sequence"] for message in messages if "sequence" in message]
        found = [self._order[np.array(sequence)] for sequence in found if self._fits(sequence)]
        self._started |= bool(found)
        return found

    def _fits(self, sequence: Sequence[int]) -> bool:
        graph, budget_bytes = self._problem
        return evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes <= budget_bytes

    def _known(self, sequence: np.ndarray) -> list[int]:
        """The schedule by stages of the order, if it can be told so and fits; else none."""
        stages = by_stages(self._rank[sequence].tolist())
        return stages if stages and self._fits(stages) else []

    def _start(self, sequence: Sequence[int], time_limit: float) -> IntervalsProcess:
        return self.enter_context(improve(*self._problem, sequence, time_limit, self._options))


def by_stages(sequence: Sequence[int]) -> list[int]:
    """A sequence by stages: each in the order of the graph, with no node twice.

    Parameters
    ----------
    sequence : sequence of int
        Nodes in order of computation.

    Returns
    -------
    list of int
        Empty if first computations are not in the order of the graph.
    """
    stages: list[int] = []
    again: set[int] = set()
    frontier = 0
    for node in sequence:
        if node == frontier:
            stages += [*sorted(again), node]
            again.clear()
            frontier += 1
        elif node < frontier:
            again.add(node)
        else:
            return []
    return stages
