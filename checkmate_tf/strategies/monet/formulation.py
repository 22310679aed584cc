"""MONeT's 0-1 program (Shah et al., ICLR 2021, sections 3 and 4, appendices B and C) in sparse form.

Forward nodes i are all before the first backward one, backward nodes k the rest, in order, from 0. The forward pass
computes every i; before each backward k some i are computed again, in order; no backward node is. With l an
implementation, tau its cost and c its workspace:

    s[0, i]        x_i is kept by the forward pass                                             (s^N of the paper)
    s[k+1, i]      x_i is kept, or made and kept, for when k is computed or later              (s^{k-1})
    r[k, i]        x_i is computed again before k
    delta[i, l]    the forward pass computes x_i in way l; again[k, i, l] before k; hat[k, l] computes k

    min sum tau delta + sum tau hat + sum tau again                                                               (9)
    sum_{l reads j} again[k, i, l] <= s[k+1, j] + r[k, j],     s[k+1, i] <= s[k, i] + r[k, i]                     (7)
    sum_{l reads i} hat[k, l] <= s[k+1, i] + r[k, i]                                                              (8)
    forward:    sum c delta + |x_i| + sum_{j in L_i} |x_j| + sum_{j < i, not in L_i} s[0, j] |x_j|         <= M   (1)
    backward:   sum c hat + |y_k| + |Y_k| + sum_i u[k, i] |x_i|                                            <= M  (10)
    again:      sum c again + |Y_k| + r[k, i] (|x_i| + sum_{j in L_i^k} |x_j|) + U[k, i]                   <= M  (12)

where u[k, i] = 1 if x_i is kept or read by the way in which k is computed, L_i what forward nodes from i on read, L_i^k
what those of them read that may be of use when computed again before k (appendix B's tighter bound, by reachability
instead of by position), Y_k the gradients that k or a later node reads, and U[k, i] = sum u[k, j] |x_j| over j < i not
in L_i^k + sum s[k, j] |x_j| over j > i. All products are of one pair, u - s = s (1 - sum_{l reads i} hat[k, l]),
linearised as in C.4 with the ways summed up; of its inequalities those that bound memory from above can be left out.

Beyond the paper: constants; outputs are kept to the end; what `recompute_until` forbids is not computed again. An
encoding, or whatever else a choice may leave out (`OperatorGraph.optional`), has a variable for whether the forward
pass computes it, and reading it there needs that.

Other than in the paper:
- A node is computed in one way in all places, as `ChosenGraph` is: chosen[i, l] >= delta[i, l], again[k, i, l].
- C.3: a node computes into its input's memory (a workspace below 0) unless it cannot, as in TensorFlow. z = 1 where it
  cannot: the input is kept, or has another reader; the paper's q is again - z. Its p, a value made and not overwritten,
  is r - q for the one reader, since `Graph` grants nothing where there are others.
- (13), memory where nothing is computed again, follows from (10), (12), (7) and (8).
- U runs from one i to the next, so rows are short; the paper writes out each sum.

What it does badly: memory is bounded from above. L_i^k takes all that may be computed again for it, what the previous
gradient read and nobody reads later is counted still in U, and gradients are kept until the last node that reads them
in any way. So a feasible budget may be called infeasible, and the optimum is no bound on what other strategies can do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import StrategyError
from ...graph import BACKWARD, Graph
from ...operators import OperatorGraph
from ...solvers import Milp, Rows
from .program import ONE, MonetProgram

__all__ = ["monet_program", "split"]

_Ids = NDArray[np.int64]


def split(graph: Graph) -> int:
    """How many nodes are forward: those before the first backward one.

    Raises
    ------
    StrategyError
        If there are no forward or no backward nodes.
    """
    backward = np.flatnonzero(graph.kinds == BACKWARD)
    if not backward.size or not backward[0]:
        what = "backward" if not backward.size else "forward"
        raise StrategyError(
            f"graph {graph.name!r} has no {what} nodes, and MONeT plans a forward and a backward pass; use "
            'strategy="checkmate", which takes any graph'
        )
    return int(backward[0])


def monet_program(operators: OperatorGraph, budget_bytes: int, *, integral: bool = False) -> MonetProgram:
    """Build the program.

    Parameters
    ----------
    operators : OperatorGraph
        Its graph has forward and backward nodes; see `split`.
    budget_bytes : int
        Constants included; more than the constants.
    integral : bool
        All numbers of bytes are in units of their greatest common divisor, and all variables integer, instead of units
        of the budget without constants.

    Raises
    ------
    StrategyError
        If there are no forward or no backward nodes.

    Notes
    -----
    O(N K) variables and rows for each way, O(K (N + edges)) terms, and N^2 for the forward pass.
    """
    return _Builder(operators, budget_bytes, integral).build()


class _Builder:
    """The program in the making. Forward nodes i, j; backward nodes k; any node u."""

    def __init__(self, operators: OperatorGraph, budget_bytes: int, integral: bool) -> None:
        graph = operators.graph
        self.operators, self.graph = operators, graph
        self.forward = split(graph)
        self.stages = len(graph) - self.forward
        self.room = self.unit = float(budget_bytes - graph.constant_bytes)
        self.integral = integral
        if integral:
            spaces = [way.workspace for u in range(len(graph)) for way in operators.ways(u)]
            self.unit = float(np.gcd.reduce(np.concatenate([graph.sizes, graph.held, spaces]).astype(np.int64)) or 1)
            self.room = self.unit * (self.room // self.unit)
        self.sizes = graph.sizes / self.unit
        self.rows = Rows()
        self.count, self.upper = 1, [np.ones(1)]
        self.least: list[tuple[_Ids, _Ids]] = []
        self.readers: list[dict[int, list[int]]] = [{} for _ in range(len(graph))]  # of i: u, and its ways that read i
        for u in range(len(graph)):
            for at, way in enumerate(operators.ways(u)):
                for i in way.inputs:
                    self.readers[i].setdefault(u, []).append(at)
        # Readers in every choice; without any, a value that is not optional may be an output and is kept to the end.
        self.certain = [{u for u in found if self._always(u, i)} for i, found in enumerate(self.readers)]
        self.output = [not c and i not in operators.optional for i, c in enumerate(self.certain)]

    def build(self) -> MonetProgram:
        """All variables and rows."""
        self._variables()
        self._availability()
        there, alive = self._backward_pass()
        self._forward_pass()
        running = self._recomputation(there, alive)
        objective, unit = np.zeros(self.count), self.operators.choose({}).graph.base_cost or 1.0
        for u in range(len(self.graph)):
            for at, way in enumerate(self.operators.ways(u)):
                ids = [self.chosen[u][at]] if u >= self.forward else [self.once[u][at], *self.ways_again[u][:, at]]
                np.add.at(objective, [i for i in ids if i >= 0], way.cost / unit)
        lower, integer = np.zeros(self.count), np.ones(self.count, dtype=bool)
        lower[ONE] = 1.0
        if not self.integral:
            integer[running[1]] = False
        matrix, upper = self.rows.matrix(self.count), np.concatenate(self.upper)
        sides = np.concatenate(self.rows.lower), np.concatenate(self.rows.upper)
        milp = Milp(objective, matrix, *sides, lower, upper, integer=integer)
        least = np.hstack([np.zeros((2, 0), dtype=np.int64), *map(np.vstack, self.least)])
        return MonetProgram(
            milp, self.operators, unit, self.chosen, self.once, self.ways_again, self.first, self.kept, self.again,
            least, running,
        )  # fmt: skip

    # -- variables -----------------------------------------------------------------------------------------------------
    def _variables(self) -> None:
        """s, r, and the ways of all nodes."""
        n, N, K, optional = len(self.graph), self.forward, self.stages, self.operators.optional
        stage = np.arange(K)[:, None]
        latest = self.graph.recompute_until[:N] - 1 - N  # stage in which a value may be computed again
        need = np.full(N, -1)  # the last in which it can be of use
        for i in reversed(range(N)):
            uses = [u - N if u >= N else min(latest[u], need[u]) for u in self.readers[i]]
            need[i] = K if self.output[i] else max([-1, *uses])
        self.first = self._new(np.isin(np.arange(N), list(optional)))
        self.first[self.first < 0] = ONE
        output = np.array(self.output[:N], dtype=bool)
        self.kept = self._new((np.vstack([np.zeros((1, 1)), stage]) <= need) & ~output)
        self.kept[:, output] = ONE
        self.again = self._new((stage <= np.minimum(latest, need)) & ~output)
        self.chosen: list[_Ids] = []
        self.once: list[_Ids] = []
        self.ways_again: list[_Ids] = []
        for u in range(n):
            ways, free = len(self.operators.ways(u)), u in optional and u < N
            chosen = self._new(np.ones(ways)) if free or ways > 1 else np.full(1, ONE)
            if ways > 1:
                self._row(1, -np.inf if free else 1.0, 1.0, (chosen[None, :], 1.0))
            self.chosen.append(chosen)
            if u >= N:
                continue
            once, again = chosen, self.again[:, [u]]
            if free:
                once = self._new(np.ones(ways)) if ways > 1 else self.first[[u]]
                self._row(ways, 0.0, np.inf, (chosen[:, None], 1.0), (once[:, None], -1.0))
            if ways > 1:
                there = self.again[:, u] >= 0
                again = self._new(np.repeat(there[:, None], ways, axis=1))
                self._row(int(there.sum()), 0.0, 0.0, (again[there], 1.0), (self.again[there, u][:, None], -1.0))
                if free:
                    self._row(1, 0.0, 0.0, (once[None, :], 1.0), (self.first[[u]][:, None], -1.0))
            if free or ways > 1:
                each, _ = np.nonzero(again.T >= 0)
                self._row(len(each), 0.0, np.inf, (chosen[each][:, None], 1.0), (again.T[again.T >= 0][:, None], -1.0))
            self.once.append(once)
            self.ways_again.append(again)

    # -- what is read is there -----------------------------------------------------------------------------------------
    def _availability(self) -> None:
        """Equations (7) and (8), and the same for the forward pass where it may leave a value out."""
        N = self.forward
        for i in range(N):
            if self.first[i] != ONE and self.kept[0, i] >= 0:
                self._row(1, 0.0, np.inf, (self.first[i].reshape(1, 1), 1.0), (self.kept[[[0]], i], -1.0))
            for u, ways in self.readers[i].items():
                if u >= N:
                    k = np.array([u - N])
                    read = self.chosen[u][ways][None, :]
                else:
                    k = np.flatnonzero(self.again[:, u] >= 0)
                    read = self.ways_again[u][np.ix_(k, np.array(ways))]
                    if self.first[i] != ONE:
                        once = self.once[u][ways][None, :]
                        self._row(1, 0.0, np.inf, (self.first[[i]][:, None], 1.0), (once, -1.0))
                if not self.output[i]:
                    there = np.stack([self.kept[k + 1, i], self.again[k, i]], axis=1)
                    self._row(len(k), 0.0, np.inf, (there, 1.0), (read, -1.0))
        at, of = np.nonzero(self.kept[1:] > ONE)
        before = np.stack([self.kept[at, of], self.again[at, of]], axis=1)
        self._row(len(at), 0.0, np.inf, (before, 1.0), (self.kept[at + 1, of][:, None], -1.0))

    # -- memory --------------------------------------------------------------------------------------------------------
    def _forward_pass(self) -> None:
        """Equation (1)."""
        N = self.forward
        there = np.full((N, N), -1)  # [i, j]: the variable that says whether x_j is in memory while x_i is computed
        for j in range(N):
            certain = max([j, *(u for u in self.certain[j] if u < N)])
            there[j + 1 : certain + 1, j] = ONE
            doubtful = [u for u in self.readers[j] if certain < u < N]
            for at, u in enumerate(doubtful):
                waits = self._new(np.ones(1))
                self._at_least(waits, 0.0, self.kept[0, j].reshape(1, 1))
                for later in doubtful[at:]:
                    self._at_least(waits, 0.0, self.once[later][self.readers[j][later]][None, :])
                there[certain + 1 : u + 1, j], certain = waits[0], u
            there[certain + 1 :, j] = self.kept[0, j]
        row = self._row(
            N, -np.inf, self.room / self.unit, (there, self.sizes[:N]), (self.first[:, None], self.sizes[:N, None])
        )
        for i in range(N):
            self._workspace(row[[i]], i, self.once[i][None, :], self.kept[[0]])

    def _backward_pass(self) -> tuple[_Ids, NDArray[np.float64]]:
        """Equation (10). The (K, N) variables of what each k has in memory, and bytes of earlier gradients, a stage."""
        N, K = self.forward, self.stages
        there = self.kept[1:].copy()
        for i in range(N):
            for u, ways in self.readers[i].items():
                if u < N or self.output[i]:
                    continue
                if len(ways) == len(self.chosen[u]):
                    there[u - N, i] = ONE
                else:
                    there[[u - N], i] = both = self._new(np.ones(1))
                    self._at_least(both, 0.0, self.kept[[[u - N + 1]], i])
                    self._at_least(both, 0.0, self.chosen[u][ways][None, :])
        alive = np.zeros(K)
        for k in range(K):
            last = K if self.output[N + k] else max([k, *(u - N for u in self.readers[N + k])])
            alive[k + 1 : last + 1] += self.sizes[N + k]
        row = self._row(K, -np.inf, self.room / self.unit - alive - self.sizes[N:], (there, self.sizes[:N]))
        following = np.vstack([self.kept[2:], np.full((1, N), -1)])
        for k in range(K):
            self._workspace(row[[k]], N + k, self.chosen[N + k][None, :], following[[k]])
        return there, alive

    def _recomputation(self, there: _Ids, alive: NDArray[np.float64]) -> _Ids:
        """Equation (12). The rows that define U, and its variables."""
        N, K = self.forward, self.stages
        does = self.again >= 0
        reach = np.tile(np.arange(N), (K, 1))  # the last node that may be computed again and reads x_j
        for j in range(N):
            for u in self.readers[j]:
                if u < N:
                    reach[does[:, u], j] = np.maximum(reach[does[:, u], j], u)
        local = np.zeros((K, N + 2))  # |L_i^k|
        stage, value = np.indices((K, N))
        sizes = self.sizes[value]
        np.add.at(local, (stage, value + 1), sizes)
        np.subtract.at(local, (stage, reach + 1), sizes)
        local = np.cumsum(local, axis=1)[:, :N]

        U = self._new(does, float(self.sizes.sum()))
        at, i = np.nonzero(does)
        row = self._row(len(at), 0.0, 0.0, (U[at, i][:, None], 1.0))
        table = np.full((K, N + 1), -1)  # the row of the next i to be computed again, from each
        table[at, i] = row
        for i_ in reversed(range(N)):
            table[:, i_] = np.where(table[:, i_] >= 0, table[:, i_], table[:, i_ + 1])
        begins = np.flatnonzero(np.diff(at, prepend=-1))
        previous = np.concatenate([[-1], U[at, i][:-1]])[: len(at)]
        previous[begins] = -1
        self.rows.put(row, previous, -1.0)
        self._move(np.broadcast_to(table[:, :1], (K, N)), self.kept[:-1], -sizes)
        self._move(table[stage, value], self.kept[:-1], sizes)
        self._move(table[stage, reach + 1], there, -sizes)

        room = self.room / self.unit - alive[at]
        weight = (self.sizes[i] + local[at, i])[:, None]
        row = self._row(len(at), -np.inf, room, (U[at, i][:, None], 1.0), (self.again[at, i][:, None], weight))
        for i_ in range(N):
            mine = i == i_
            self._workspace(row[mine], i_, self.ways_again[i_][at[mine]], self.kept[at[mine] + 1])
        return np.stack([table[at, i], U[at, i]])

    def _workspace(self, row: _Ids, u: int, ways: _Ids, after: _Ids) -> None:
        """Add c of node u to rows, one a computation.

        Parameters
        ----------
        ways : (rows, ways) int
            Whether it is computed so.
        after : (rows, N) int
            Whether each forward value outlives the computation.
        """
        for at, way in enumerate(self.operators.ways(u)):
            # What nobody else need read, and what its own way takes over in the graph.
            large = self.operators.taken_over(way) if at else way.inputs
            inputs = [p for p in large if self.certain[p] <= {u}]
            own = [p for p in inputs if at or self.operators.default_readers[p] == (u,)]
            over = max(0, -way.workspace) if at else int(self.graph.held[u])
            if at and not inputs:
                self.rows.put(row, ways[:, at], max(0, way.workspace) / self.unit)
                continue
            self.rows.put(row, ways[:, at], way.workspace / self.unit)
            outlive = [after[:, [p]] for p in inputs if p < self.forward and (after[:, p] >= 0).any()]
            others = [self.chosen[v][found][None, :] for p in own for v, found in self.readers[p].items() if v != u]
            if over and (outlive or others):
                lost = self._new(ways[:, at] >= 0)  # z
                for reason in [*outlive, *others]:
                    self._at_least(lost, -1.0, ways[:, [at]], reason)
                self.rows.put(row, lost, over / self.unit)

    # -- pieces --------------------------------------------------------------------------------------------------------
    def _always(self, u: int, i: int) -> bool:
        """Whether node u reads x_i whatever is chosen."""
        return u not in self.operators.optional and len(self.readers[i][u]) == len(self.operators.ways(u))

    def _new(self, mask: object, most: float = 1.0) -> _Ids:
        """New variables where a mask is true, -1 elsewhere."""
        there = np.asarray(mask, dtype=bool)
        ids = np.full(there.shape, -1, dtype=np.int64)
        ids[there] = self.count + np.arange(there.sum())
        self.count += int(there.sum())
        self.upper.append(np.full(int(there.sum()), most))
        return ids

    def _row(self, count: int, lower: object, upper: object, *terms: tuple[_Ids, object]) -> _Ids:
        """New rows; terms are variables, (rows or 1, any number), and what multiplies them."""
        row = self.rows.add(count, lower, upper)
        for ids, value in terms:
            shape = (count, ids.shape[1])
            self.rows.put(np.broadcast_to(row[:, None], shape), np.broadcast_to(ids, shape), value)
        return row

    def _at_least(self, ids: _Ids, side: float, *terms: _Ids) -> None:
        """Auxiliary variables are at least `side` and the sum of terms, (variables or 1, any number)."""
        use = ids >= 0
        parts = [(np.broadcast_to(t, (len(ids), t.shape[1]))[use], -1.0) for t in terms]
        self.least.append((self._row(int(use.sum()), side, np.inf, (ids[use][:, None], 1.0), *parts), ids[use]))

    def _move(self, row: _Ids, ids: _Ids, values: NDArray[np.float64]) -> None:
        """Add terms to rows; none where a row is -1."""
        use = row >= 0
        self.rows.put(row[use], ids[use], values[use])
