"""Where a schedule waits for its copies to the host, and where it brings values back.

A schedule says which values are brought back, and when each is read. To wait for a copy later, and to bring a value
back earlier, hides more of the copy behind computations, and takes memory meanwhile. So both are moved as far as they
are of use, while there is room. Copies to the host come first, in the order of the engine. Then come those back, from
the last to the first, so that each is done when the next one has to begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...evaluator import evaluate
from ...graph import Graph
from ...plan import plan_from_sequence

__all__ = ["with_windows"]


@dataclass
class _Value:
    """A value that is brought back: places in the sequence without copies.

    Attributes
    ----------
    node : int
    made, last : int
        Of its first computation, and of the last one that reads it before it leaves.
    waited : int
        Its copy is waited for before this place.
    fetched : list of int
        Where it is brought back.
    """

    node: int
    made: int
    last: int
    waited: int
    fetched: list[int]


def with_windows(graph: Graph, sequence: Sequence[int], hosted: NDArray[np.bool_], budget_bytes: int) -> list[int]:
    """The sequence with copies to the host, at places where computations wait little for them.

    Parameters
    ----------
    graph : Graph
        With copies (`paging.with_host`).
    sequence : sequence of int
        Without the nodes that copy. Where a value in `hosted` occurs again, it is to be brought back.
    hosted : (n,) bool
    budget_bytes : int
        Constants included.

    Returns
    -------
    list of int
        Within the budget if the shortest windows are, and no dearer than with these.
    """
    windows = _Windows(graph, np.asarray(sequence, np.int64), hosted, budget_bytes)
    shortest = windows.merged()
    windows.wait_late()
    windows.fetch_early()
    found = windows.merged()
    short, wide = (evaluate(graph, plan_from_sequence(graph, one)) for one in (shortest, found))
    return found if wide.peak_bytes <= budget_bytes and wide.cost <= short.cost else shortest


class _Windows:
    def __init__(self, graph: Graph, sequence: NDArray[np.int64], hosted: NDArray[np.bool_], budget: int) -> None:
        self.graph, self.sequence, self.budget = graph, sequence, budget
        self.values: dict[int, _Value] = {}
        self._read(hosted)
        self.moved: dict[int, int] = {}  # place of a value that is brought back -> place before which it is instead
        begun = self.merged()
        memory = evaluate(graph, plan_from_sequence(graph, begun)).memory
        self.memory = memory[np.array(begun) < graph.first_copy]
        costs = graph.costs[sequence].copy()
        costs[[q for value in self.values.values() for q in value.fetched]] = 0.0
        self.starts = np.append(0.0, np.cumsum(costs))

    def _read(self, hosted: NDArray[np.bool_]) -> None:
        """Note the values that are brought back, and who reads which of their copies."""
        newest: dict[int, int] = {}
        self.last_read = np.arange(len(self.sequence))
        self.first_read = np.full(len(self.sequence), len(self.sequence))
        for q, node in enumerate(self.sequence.tolist()):
            again = node in newest and hosted[node]
            for i in () if again else self.graph.inputs[node]:
                made = newest[i]
                self.last_read[made] = q
                self.first_read[made] = min(self.first_read[made], q)
            if again:
                if node not in self.values:
                    made = newest[node]
                    self.values[node] = _Value(node, made, int(self.last_read[made]), 0, [])
                self.values[node].fetched.append(q)
            newest[node] = q
        for value in self.values.values():
            value.waited = value.last if self._takes_over(value) else value.last + 1

    def _takes_over(self, value: _Value) -> bool:
        """Whether the last reader computes into the memory of the value. Its copy has to be complete then."""
        reader = int(self.sequence[value.last])
        alone = value.last > value.made and self.graph.readers[value.node] == (reader,)
        return alone and bool(self.graph.held[reader])

    def wait_late(self) -> None:
        """Wait for each copy when it is done, as far as there is room."""
        graph, host = self.graph, self.graph.host
        free = 0.0
        for value in sorted(self.values.values(), key=lambda v: v.made):
            assert host is not None
            size = int(graph.sizes[value.node])
            duration = float(host.to_host[graph.copies[value.node] - host.first])
            free = done = max(self.starts[value.made + 1], free) + duration
            held = int(graph.held[self.sequence[value.last]]) if value.waited == value.last else 0
            while value.waited < value.fetched[0] and self.starts[value.waited] < done:
                more = size if value.waited > value.last else held
                if self.memory[value.waited] + more > self.budget:
                    break
                self.memory[value.waited] += more
                value.waited += 1
            self.starts[value.waited :] += max(0.0, done - self.starts[value.waited])

    def fetch_early(self) -> None:
        """Bring each value back so early that it has come when it is read, as far as there is room."""
        graph, host = self.graph, self.graph.host
        places = sorted(((q, value) for value in self.values.values() for q in value.fetched), key=lambda p: -p[0])
        upcoming = np.inf
        for place, value in places:
            assert host is not None
            size = int(graph.sizes[value.node])
            duration = float(host.from_host[graph.copies[value.node] - host.first])
            latest = min(self.starts[min(self.first_read[place], len(self.sequence))], upcoming) - duration
            k = value.fetched.index(place)
            lowest = max(value.waited, self.last_read[value.fetched[k - 1]] + 1 if k else 0)
            q = place
            while q > lowest and self.starts[q] > latest and self.memory[q - 1] + size <= self.budget:
                q -= 1
                self.memory[q] += size
            self.moved[place] = q
            upcoming = max(latest, self.starts[q])

    def merged(self) -> list[int]:
        """The sequence with its copies."""
        waits: dict[int, list[int]] = {}
        fetches: dict[int, list[int]] = {}
        for value in self.values.values():
            waits.setdefault(value.waited, []).append(self.graph.copies[value.node])
            for place in value.fetched:
                fetches.setdefault(self.moved.get(place, place), []).append(place)
        moved = {place for place, q in self.moved.items() if q != place}
        found: list[int] = []
        for q in range(len(self.sequence) + 1):
            found += sorted(waits.get(q, ()))
            found += [int(self.sequence[place]) for place in sorted(fetches.get(q, ())) if place in moved]
            if q < len(self.sequence) and q not in moved:
                found.append(int(self.sequence[q]))
        return found
