"""How much order a plan needs: for each computation, how many of those before it must have finished when it starts.

TensorFlow runs an operation as soon as its inputs are there, on as many threads as it has. A plan fixes the order by
control edges, and each costs parallelism. Where the plan is below its peak less order will do.

Look at any moment. Let j be the last computation in plan order that has started. It waited for the first w
computations, so these have finished, and so has all that j depends on. Then memory may hold what the plan has there
when it computes j. Of the computations from w to j that j does not depend on, it may also hold

- the workspaces, since they may be running, and
- the values that the plan has freed by then, since a reader may not have finished.

So j waits for the fewest computations for which all this fits the limit. At any moment some computation is the last one
that has started, so no interleaving exceeds the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..graph import Graph
from ..plan import ALLOCATE, COMPUTE, DEALLOCATE, Plan, workspaces

__all__ = ["Order", "Strict", "Within", "needed_waits"]


@dataclass(frozen=True)
class Strict:
    """Computations come one after another, in the plan's own order."""


@dataclass(frozen=True)
class Within:
    """Computations come in any order that needs no more memory than `bytes`.

    Attributes
    ----------
    bytes : int
        Constants included. The plan's own peak gives all the freedom that costs no memory.
    """

    bytes: int


Order: TypeAlias = Strict | Within


def needed_waits(graph: Graph, plan: Plan, order: Order) -> list[int]:
    """For each computation of a plan, how many of the plan's first computations must finish before it starts.

    Parameters
    ----------
    order : Order
        What interleavings are allowed. A computation that needs more than `Within` allows, even in the plan's own
        order, waits for all before it.

    Returns
    -------
    list of int
        One for each COMPUTE statement, below or equal to its position: 0, 0, 1, 3, ... A computation of a node comes
        after all earlier ones of the same node.

    Notes
    -----
    O(length x reads) time, and length^2 bits.
    """
    limit_bytes = order.bytes if isinstance(order, Within) else 0
    computations = [s for s in plan if s.op == COMPUTE]
    length = len(computations)
    position = {s.register: k for k, s in enumerate(computations)}
    workspace = np.array(workspaces(graph, plan), dtype=np.int64)
    values = _Values(graph, plan, position)
    before = np.zeros((length, (length + 7) // 8), dtype=np.uint8)  # bit k of row j: k has finished when j starts
    newest: dict[int, int] = {}  # node -> its last computation so far
    waits: list[int] = []
    for j, statement in enumerate(computations):
        reads = [position[r] for r in statement.reads]
        row = np.bitwise_or.reduce(before[reads], axis=0) if reads else before[j]
        finished = np.unpackbits(row, count=length).astype(bool)
        finished[reads] = True
        least = max([waits[r] for r in reads], default=0)  # what it reads has waited for these
        least = max(least, newest.get(statement.node, -1) + 1)
        more = np.where(finished[:j], 0, workspace[:j]) + values.unfreed(j, finished)
        room = limit_bytes - values.peak_bytes[j] - int(workspace[j])
        fits = np.cumsum(more[least:][::-1]) <= room if room >= 0 else np.zeros(j - least, dtype=bool)
        wait = j - int(np.argmin(fits) if not fits.all() else len(fits))
        waits.append(wait)
        newest[statement.node] = j
        finished[:wait] = True
        before[j] = np.packbits(finished)
    return waits


class _Values:
    """The values of a plan: who reads each, when it is freed, and what is there in the plan's own order."""

    def __init__(self, graph: Graph, plan: Plan, position: dict[int, int]) -> None:
        readers: dict[int, list[int]] = {}
        freed: list[int] = []
        self.peak_bytes: list[int] = []  # while each computation runs, its workspace apart
        self.count_freed: list[int] = []  # before it
        live = graph.constant_bytes
        for s in plan:
            if s.op == ALLOCATE:
                live += int(graph.sizes[s.node])
            elif s.op == COMPUTE:
                self.peak_bytes.append(live)
                self.count_freed.append(len(freed))
                for register in s.reads:
                    readers.setdefault(register, []).append(position[s.register])
            elif s.op == DEALLOCATE:
                live -= int(graph.sizes[s.node])
                freed.append(s.register)
        node = {s.register: s.node for s in plan if s.op == COMPUTE}
        ends = [readers.get(register, [position[register]]) for register in freed]
        self._ends = np.array([k for row in ends for k in row], dtype=np.int64)
        self._starts = np.cumsum([0, *map(len, ends)])
        self._sizes = graph.sizes[[node[register] for register in freed]]

    def unfreed(self, j: int, finished: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(j,) bytes of the values freed before computation j that may be alive still, at the last reader that may."""
        count = self.count_freed[j]
        if not count:
            return np.zeros(j, dtype=np.int64)
        ends = self._ends[: self._starts[count]]
        last = np.maximum.reduceat(np.where(finished[ends], -1, ends), self._starts[:count])
        late = last >= 0
        return np.bincount(last[late], weights=self._sizes[:count][late], minlength=j)[:j].astype(np.int64)
