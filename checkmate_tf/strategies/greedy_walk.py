"""XLA's greedy rematerialization (GreedyRemat of the TWRemat paper), one walk of it.

The training order is walked through with a memory limit. If a computation exceeds it, the value is given up whose
recomputation lowers memory there the most. That is repeated until the limit is met or nothing lowers memory. Then the
walk goes on. A value that was given up is computed again right before its next reader. The walk goes through that
computation, too, when its turn comes.

One value is given up at a time, and its inputs are not. An input that is in memory stays until the recomputation. An
input that is dead by now has to be kept from its last reader on, and its bytes count against the gain. So the heuristic
ends at half of the memory in a plain chain. It finds next to nothing where every value was made from one that is dead
(section 4.1 of [1]_: "modest" savings that grow linearly).

Where the paper is brief, or plans have rules of their own:

- The gain is bytes, not bytes for cost: so says the paper, and XLA's code. Ties go to the lower cost.
- Recomputations read the newest copy of their inputs, as in all plans here. In XLA they read the copy that the value
  was first made from, even if a newer one will be there.
- XLA does not look whether an input that has to be kept raises memory where the walk has been. Here such a choice is
  not made if an earlier step would exceed the limit.
- XLA recomputes before the next reader of any input, if that is sooner. Here the next reader of the value decides.
- A recomputed value is not given up again before it was read: else two of them could give up each other for ever.

References
----------
.. [1] R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. R. Wang. Efficient rematerialization for deep networks.
   NeurIPS 2019, section 4.
.. [2] XLA's HloRematerialization pass as of 2019, https://www.tensorflow.org/xla.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

from ..graph import Graph
from .orders import legalise, without_dead

__all__ = ["greedy_sequence"]

_MOST_COPIES = 64  # nothing more is given up once there are this many computations for each node


def greedy_sequence(graph: Graph, limit_bytes: int) -> list[int]:
    """The order of computation that the walk makes. It may need more than the limit, constants included.

    Notes
    -----
    O(computations * values in memory * inputs) at worst. Values are tried from the largest, and mostly few are.
    """
    return legalise(graph, without_dead(graph, _Walk(graph, limit_bytes).run()))


class _Walk:
    """The computations that are done, and those to come: the graph's nodes and the recomputations planned so far.

    A computation is a number: that of its node, or above for a recomputation. Its key (stage, rank) says when its turn
    comes: recomputations come before the node of their stage, by rank.
    """

    def __init__(self, graph: Graph, limit_bytes: int) -> None:
        n = len(graph)
        self.graph, self.limit = graph, limit_bytes
        self.inputs = graph.inputs
        self.sizes, self.costs = graph.sizes.tolist(), graph.costs.tolist()
        self.until = graph.recompute_until.tolist()
        self.node = list(range(n))  # of each computation
        self.keys: list[tuple[int, float]] = [(t, np.inf) for t in range(n)]
        self.planned: list[list[int]] = [[] for _ in range(n)]  # recomputations to come in each stage
        self.readers: list[list[int]] = [list(users) for users in graph.users]  # of each node, to come, in order
        self.again: list[list[int]] = [[] for _ in range(n)]  # recomputations of each node to come, in order
        self.made = [-1] * n  # step of the newest copy
        self.used = [-1] * n  # last step that read it, or made it
        self.fresh = [False] * n  # the newest copy is a recomputation that nobody has read
        order = sorted(range(n), key=lambda v: (-self.sizes[v], self.costs[v], v))
        self.by_rank, self.rank = order, [0] * n
        for position, v in enumerate(order):
            self.rank[v] = position
        self.candidates: list[int] = []  # ranks of values in memory that may be given up
        self.live = graph.constant_bytes
        self.memory = np.zeros(2 * n, dtype=np.int64)  # bytes at each step
        self.steps = 0

    def run(self) -> list[int]:
        """The nodes in the order of their computations; `memory[k]` is then what step k needs, constants included."""
        sequence = []
        for t in range(len(self.graph)):
            while self.planned[t]:
                computation = self.planned[t].pop(0)
                sequence.append(self.node[computation])
                self._step(computation)
            sequence.append(t)
            self._step(t)
        return sequence

    def _step(self, computation: int) -> None:
        """Do the next computation."""
        v = self.node[computation]
        if computation != v:
            self.again[v].pop(0)
            self.keys[computation] = (self.keys[computation][0], -np.inf)  # before all others, whose ranks may change
        self.made[v] = self.used[v] = self.steps
        self.fresh[v] = computation != v
        self.live += self.sizes[v]
        extra = int(self.graph.workspace[v]) + self._held(v)
        while self.live + extra > self.limit and len(self.node) < _MOST_COPIES * len(self.graph):
            if not self._give_up_one(v):
                break
        if self.steps == len(self.memory):
            self.memory = np.concatenate([self.memory, np.zeros_like(self.memory)])
        self.memory[self.steps] = self.live + extra
        for p in self.inputs[v]:
            self.readers[p].pop(0)  # this computation
            self.used[p] = self.steps
            self.fresh[p] = False
            if self._in_memory(p):
                self._consider(p)
            else:
                self.live -= self.sizes[p]
                self._forget(p)
        if not self._in_memory(v):
            self.live -= self.sizes[v]
        self._consider_with_users(v)
        self.steps += 1

    def _held(self, v: int) -> int:
        """What the computation in progress needs more because an input of its own outlives it."""
        after = [(p, self.readers[p][1]) for p in self._own_inputs(v) if len(self.readers[p]) > 1]
        return int(self.graph.held[v]) if any(self._reads_this_copy(*entry) for entry in after) else 0

    def _reads_this_copy(self, p: int, computation: int) -> bool:
        return not self.again[p] or self.keys[computation] < self.keys[self.again[p][0]]

    def _in_memory(self, p: int) -> bool:
        """Whether the newest copy has readers to come. A value without any readers is a result and stays."""
        if self.made[p] < 0:
            return False
        return self._reads_this_copy(p, self.readers[p][0]) if self.readers[p] else not self.graph.users[p]

    def _consider(self, p: int) -> None:
        """Whatever may have changed for a value: it may be given up, if it can be at all."""
        if not (self.sizes[p] and self.until[p] and self.readers[p] and self._in_memory(p)):
            return
        at = bisect_left(self.candidates, self.rank[p])
        if at == len(self.candidates) or self.candidates[at] != self.rank[p]:
            self.candidates.insert(at, self.rank[p])

    def _consider_with_users(self, p: int) -> None:
        """p can be had: what is computed from it may be given up, too."""
        for v in (p, *self.graph.users[p]):
            self._consider(v)

    def _forget(self, p: int) -> None:
        at = bisect_left(self.candidates, self.rank[p])
        if at < len(self.candidates) and self.candidates[at] == self.rank[p]:
            self.candidates.pop(at)

    def _give_up_one(self, current: int) -> bool:
        """Plan the recomputation that lowers memory the most now, while `current` is computed; False if none does."""
        best, most, cheapest = -1, 0, np.inf  # candidates come by size, and those of equal size by cost
        hopeless = []  # until an input can be had again, or the next reader is another one
        for rank in self.candidates:
            v = self.by_rank[rank]
            if self.sizes[v] < most or self.sizes[v] == most and self.costs[v] >= cheapest:
                break
            if v == current or v in self.inputs[current] or self.fresh[v]:
                continue
            reader = self.readers[v][0]
            revived = self._revived(v, reader)
            gain = self.sizes[v] - sum(self.sizes[p] for p in revived)
            if gain <= 0 or self.keys[reader][0] >= self.until[v]:
                hopeless.append(v)
                continue
            if (gain, -self.costs[v]) > (most, -cheapest) and self._past_allows(v, revived):
                best, most, cheapest = v, gain, self.costs[v]
        for v in hopeless:
            self._forget(v)
        if best < 0:
            return False
        self._plan(best)
        return True

    def _revived(self, v: int, reader: int) -> list[int]:
        """Inputs that are dead now and would have to be kept, for v to be recomputed right before `reader`."""
        return [
            p
            for p in self.inputs[v]
            if not self._in_memory(p) and not (self.again[p] and self.keys[self.again[p][0]] < self.keys[reader])
        ]

    def _past_change(self, v: int, revived: list[int]) -> tuple[int, np.ndarray]:
        """From which step on, and by how much, memory changes if v is freed after its last reader so far."""
        begin = min((self.used[p] for p in [v, *revived]), default=self.steps)
        change = np.zeros(self.steps - begin, dtype=np.int64)
        change[self.used[v] + 1 - begin :] -= self.sizes[v]
        for p in revived:
            change[self.used[p] + 1 - begin :] += self.sizes[p]
        own = self._own_inputs(v)
        if not set(own).isdisjoint(revived):  # v took over their memory when it was made, unless one lived on
            change[self.made[v] - begin] += 0 if self._lives_on(own, self.made[v]) else self.graph.held[v]
        if self.used[v] > self.made[v] and len(self.graph.users[v]) == 1:
            others = [p for p in self._own_inputs(self.graph.users[v][0]) if p != v]
            if not self._lives_on(others, self.used[v]):  # now the reader of v can take over its memory
                change[self.used[v] - begin] -= self.graph.held[self.graph.users[v][0]]
        return begin, change

    def _own_inputs(self, v: int) -> list[int]:
        """What only v reads, if it needs more when one of these outlives it."""
        return [p for p in self.inputs[v] if self.graph.users[p] == (v,)] if self.graph.held[v] else []

    def _lives_on(self, nodes: list[int], step: int) -> bool:
        """Whether one of the values was in memory at the step, and still is."""
        return any(self.made[p] < step and self._in_memory(p) for p in nodes)

    def _past_allows(self, v: int, revived: list[int]) -> bool:
        if not revived:
            return True
        begin, change = self._past_change(v, revived)
        new = self.memory[begin : self.steps] + change
        return not ((change > 0) & (new > self.limit)).any()

    def _plan(self, v: int) -> None:
        """Give v up, and plan to compute it again right before its next reader."""
        reader = self.readers[v][0]
        begin, change = self._past_change(v, self._revived(v, reader))
        self.memory[begin : self.steps] += change
        computation, stage = len(self.node), self.keys[reader][0]
        self.node.append(v)
        self.keys.append((stage, self._rank_before(reader)))
        dead = [p for p in self.inputs[v] if not self._in_memory(p)]
        insort(self.planned[stage], computation, key=self.keys.__getitem__)
        insort(self.again[v], computation, key=self.keys.__getitem__)
        for p in self.inputs[v]:
            insort(self.readers[p], computation, key=self.keys.__getitem__)
        self.live -= self.sizes[v]
        self._forget(v)
        self._consider_with_users(v)
        for p in self.inputs[v]:
            if p not in dead:
                self._consider(p)  # its next reader may be another one
            elif self._in_memory(p):
                self.live += self.sizes[p]
                self._consider_with_users(p)

    def _rank_before(self, reader: int) -> float:
        """A rank right before the reader's, after those of all computations before it in its stage."""
        stage, rank = self.keys[reader]
        row = self.planned[stage]
        if rank == np.inf:
            return self.keys[row[-1]][1] + 1.0 if row else 0.0
        at = row.index(reader)
        for position, computation in enumerate(row):  # make room
            self.keys[computation] = (stage, float(position + (position >= at)))
        return float(at)
