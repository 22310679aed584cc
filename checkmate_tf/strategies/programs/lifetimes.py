"""The exact program by lifetimes: no FREE, no U, one memory row for each computation.

Recomputation happens only in chosen stages, the grid g_0 < g_1 < ... With all stages the program is problem (9) of
Checkmate (Jain et al., MLSys 2020) for schedules that compute a node at most once a stage; with a coarse grid it is a
restriction, small enough for large graphs, whose solutions are good schedules. For grid stage a and nodes i < g_a:

    P[a, i] = 1   the value of i is there when stage g_a begins
    R[a, i] = 1   i is computed again in stage g_a, in the order of the graph, before node g_a
    E[a, i]       it is there when stage g_a is over: 1 if a stage before g_{a+1} reads it, else P[a+1, i]
    L[a, i, u]    in stage g_a, i lives until its reader u < g_a:  L >= R[a, u],  L >= the same of its next reader, or E

    P[a+1, i] <= P[a, i] + R[a, i];   R[a, u] <= P[a, i] + R[a, i] for inputs i of u;   P + R <= 1
    P[a, i] + R[a, i] = 1 for what stages g_a to g_{a+1} - 1 read

and memory, while k is computed in stage g_a: values i > k that were kept, k, and values i < k that live until a reader
at or after k. Between grid stages a value dies at its last reader unless P[a+1] keeps it. `held` is left out: the
evaluator decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from ...graph import Graph
from ...solvers import Milp

__all__ = ["Lifetimes", "lifetimes"]

_ONE, _ZERO = -2, -1  # in tables of variables: what is 1 or 0 in every schedule


@dataclass(frozen=True, eq=False)
class Lifetimes:
    """The program for one grid.

    Attributes
    ----------
    milp : Milp
        Objective in units of the base cost, which is its constant.
    grid : (m,) int
    again : (m, n) int
        Variable of R[a, i], or -1.
    """

    milp: Milp
    grid: NDArray[np.int64]
    again: NDArray[np.int64]

    def sequence(self, x: NDArray[np.float64]) -> NDArray[np.int64]:
        """The order of computation of an integer solution."""
        order: list[int] = []
        at = 0
        for stage in range(self.again.shape[1]):
            if at < len(self.grid) and self.grid[at] == stage:
                row = self.again[at]
                order += [int(i) for i in np.flatnonzero(row >= 0) if x[row[i]] > 0.5]
                at += 1
            order.append(stage)
        return np.array(order, dtype=np.int64)


def lifetimes(graph: Graph, budget_bytes: int, grid: NDArray[np.int64], movable: NDArray[np.bool_]) -> Lifetimes | None:
    """Build the program.

    Parameters
    ----------
    budget_bytes : int
        Constants included.
    grid : (m,) int
        Stages that may recompute, ascending.
    movable : (n,) bool
        Nodes that may be recomputed (besides what `graph.recompute_until` forbids).

    Returns
    -------
    Lifetimes or None
        None if a stage between the grid's needs more than the budget whatever is kept.
    """
    return _Builder(graph, budget_bytes, grid, movable).build()


class _Builder:
    def __init__(self, graph: Graph, budget_bytes: int, grid: NDArray[np.int64], movable: NDArray[np.bool_]) -> None:
        self.graph, self.grid = graph, grid
        self.room = float(budget_bytes - graph.constant_bytes)
        self.scale = max(abs(self.room), 1.0)
        self.sizes = graph.sizes.astype(float)
        self.needs = (graph.sizes + graph.workspace).astype(float)
        n, m = len(graph), len(grid)
        self.n, self.m = n, m
        before = np.arange(n)[None, :] < grid[:, None]
        self.again = np.full((m, n), _ZERO, dtype=np.int64)
        can = before & movable[None, :] & (graph.recompute_until[None, :] > grid[:, None])
        self.again[can] = np.arange(can.sum())
        self.count = int(can.sum())
        self.rows: list[NDArray[np.int64]] = []
        self.columns: list[NDArray[np.int64]] = []
        self.values: list[NDArray[np.float64]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.fits = True

    # -- pieces ----------------------------------------------------------------------------------------------------
    def _row(self, terms: list[tuple[int, float]], least: float) -> None:
        """A row sum of coefficient x variable >= least; constants of the table are moved to the right."""
        cols, vals = [], []
        for variable, coefficient in terms:
            if variable >= 0:
                cols.append(variable)
                vals.append(coefficient)
            elif variable == _ONE:
                least -= coefficient
        if sum(min(v, 0.0) for v in vals) >= least - 1e-9:
            return
        self._append(np.array(cols, dtype=np.int64), np.array(vals), least, np.inf)

    def _memory(self, variables: NDArray[np.int64], bytes_: NDArray[np.float64], fixed: float) -> None:
        """A row fixed + sum of bytes x variable <= room."""
        fixed += float(bytes_[variables == _ONE].sum())
        use = variables >= 0
        cols, vals = variables[use], bytes_[use]
        if fixed > self.room + 1e-6:
            self.fits = False
        if fixed + vals[vals > 0].sum() > self.room:
            self._append(cols, vals / self.scale, -np.inf, (self.room - fixed) / self.scale)

    def _append(self, cols: NDArray[np.int64], vals: NDArray[np.float64], low: float, high: float) -> None:
        self.rows.append(np.full(len(cols), len(self.low)))
        self.columns.append(cols)
        self.values.append(vals)
        self.low.append(low)
        self.high.append(high)

    # -- the program -----------------------------------------------------------------------------------------------
    def build(self) -> Lifetimes | None:
        graph, grid, n, m = self.graph, self.grid, self.n, self.m
        edges = [*grid.tolist(), n]
        kept = self._kept(edges)
        self._plain_stages(0, edges[0], kept[0])
        for a in range(m):
            g, following = edges[a], edges[a + 1]
            between = np.zeros(n, dtype=bool)  # read after stage g and before the next of the grid
            for t in range(g + 1, following):
                between[list(graph.inputs[t])] = True
            end = np.where(between, _ONE, kept[a + 1])
            for i in range(g):
                has = [(int(kept[a, i]), 1.0), (int(self.again[a, i]), 1.0)]
                if self.again[a, i] >= 0 and kept[a, i] >= 0:
                    self._row([(v, -1.0) for v, _ in has], -1.0)
                if between[i] or i in graph.inputs[g]:
                    self._row(has, 1.0)
                else:
                    self._row([*has, (int(kept[a + 1, i]), -1.0)], 0.0)
                for u in graph.users[i]:
                    if u < g and self.again[a, u] >= 0:
                        self._row([*has, (int(self.again[a, u]), -1.0)], 0.0)
            self._grid_stage(a, g, end, kept[a])
            self._plain_stages(g + 1, following, kept[a + 1])
        if not self.fits:
            return None
        unit = graph.base_cost or 1.0
        objective = np.zeros(self.count)
        used = self.again >= 0
        objective[self.again[used]] = graph.costs[np.nonzero(used)[1]] / unit
        matrix = sp.csr_matrix(
            (_joined(self.values, float), (_joined(self.rows, np.int64), _joined(self.columns, np.int64))),
            shape=(len(self.low), self.count),
        )
        milp = Milp(
            objective, matrix, np.array(self.low), np.array(self.high), np.zeros(self.count), np.ones(self.count),
            constant=graph.base_cost / unit, integer=np.arange(self.count) < self.integers,
        )  # fmt: skip
        return Lifetimes(milp, grid, self.again)

    def _kept(self, edges: list[int]) -> NDArray[np.int64]:
        """(m + 1, n) variables P; the last row is the end of the step."""
        graph = self.graph
        last = np.zeros(self.n, dtype=np.int64)  # last stage that may read i, by a first computation or a recomputation
        for i in range(self.n - 1, -1, -1):
            users = graph.users[i]
            last[i] = self.n
            if users:
                last[i] = max(users)
                for u in users:
                    stages = self.grid[self.again[:, u] >= 0]
                    if len(stages) and last[u] > stages[0]:
                        last[i] = max(last[i], int(stages[stages <= last[u]][-1]))
        kept = np.full((self.m + 1, self.n), _ZERO, dtype=np.int64)
        for a, g in enumerate(edges):
            for i in range(min(g, self.n)):
                if last[i] >= g:
                    kept[a, i] = self.count
                    self.count += 1
        sinks = [i for i in range(self.n) if not graph.users[i]]
        kept[self.m, sinks] = _ONE
        self.integers = self.count
        return kept

    def _plain_stages(self, begin: int, end: int, kept: NDArray[np.int64]) -> None:
        """Memory rows of stages `begin` to `end - 1`, in which nothing is recomputed."""
        last = np.full(self.n, -1)
        for t in range(begin, end):
            last[list(self.graph.inputs[t])] = t
        for t in range(begin, end):
            live = np.where(last[:t] >= t, _ONE, kept[:t])
            self._memory(live, self.sizes[:t], float(self.needs[t]))

    def _grid_stage(self, a: int, g: int, end: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """Memory rows of the computations of stage g, and the lifetimes in it."""
        graph, again = self.graph, self.again[a]
        reads = np.zeros(self.n, dtype=bool)
        reads[list(graph.inputs[g])] = True
        final = np.where(reads, _ONE, end)
        chains: list[list[tuple[int, int]]] = [[] for _ in range(g)]  # (reader, variable), ascending
        for i in range(g):
            if final[i] == _ONE:
                continue
            after = int(final[i])
            for u in reversed(graph.users[i]):
                if u < g and again[u] >= 0:
                    variable, self.count = self.count, self.count + 1
                    self._row([(variable, 1.0), (int(again[u]), -1.0)], 0.0)
                    self._row([(variable, 1.0), (after, -1.0)], 0.0)
                    chains[i].append((u, variable))
                    after = variable
            chains[i].reverse()
        live = np.full(g, _ZERO, dtype=np.int64)  # of the values below k
        for k in range(g):
            if again[k] >= 0:
                variables = np.concatenate((live[:k], kept[k:g], [again[k]]))
                self._memory(variables, np.append(self.sizes[:g], self.needs[k]), 0.0)
            live[k] = chains[k][0][1] if chains[k] else final[k]
            for i in graph.inputs[k]:
                while chains[i] and chains[i][0][0] <= k:
                    chains[i].pop(0)
                live[i] = chains[i][0][1] if chains[i] else final[i]
        self._memory(final[:g], self.sizes[:g], float(self.needs[g]))


def _joined(parts: list[NDArray], dtype: type) -> NDArray:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
