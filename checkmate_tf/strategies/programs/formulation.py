"""Problem (9) of Checkmate (Jain et al., MLSys 2020, section 4) as a sparse mixed integer program.

Stages t and nodes i from 0, T = n stages; R[t, i] = 1 if i is computed in stage t, S[t, i] = 1 if its value is kept
from stage t - 1 into t, U[t, k] the memory when k has been computed in stage t and nothing freed for it yet,
FREE[t, i, k] = 1 if the value of i, an input of k, is freed after k:

    min sum C_i R[t, i]
    R[t, j] <= R[t, i] + S[t, i]                     for edges (i, j)                                          (1b)
    S[t, i] <= R[t-1, i] + S[t-1, i]                                                                           (1c)
    U[t, 0] = const + sum_i M_i S[t, i] + R[t, 0] M_0                                                          (2)
    U[t, k+1] = U[t, k] - sum_{i in inputs(k)} M_i FREE[t, i, k] + R[t, k+1] M_{k+1}                           (3)
    hazards(t, i, k) = 1 - R[t, k] + S[t+1, i] + sum_{j in users(i), j > k} R[t, j]                            (5)
    1 - FREE[t, i, k] <= hazards <= kappa (1 - FREE[t, i, k])                                                  (6)
    U[t, k] + workspace_k R[t, k] <= budget

Frontier-advancing (8a-8c): R[t, t] = 1, R[t, i] = 0 for i > t, S[t, i] = 0 for i >= t. Unpartitioned (1d, 1e): S[0] = 0
and sum_t R[t, i] >= 1 for every sink i, so that the solver chooses the order, too.

What is left out is implied by optimality (section 4.6): FREE[t, k, k] (a value that nobody uses need not be computed;
in the frontier-advancing form the early deallocation of `Schedule.plan` recovers it), and FREE that no U follows. kappa
is the number of terms of each row's hazards, the paper's number of users + 2 at most.

What a `Graph` has beyond the paper's: sinks are outputs and stay to the end; workspace; `recompute_until`; and `held`,
added where an input that only k reads is kept into the next stage: U[t, k] + (workspace_k + held_k) R[t, k] +
held_k S[t+1, i] <= budget + held_k. So the integer points are what `plan.evaluate` accepts, where a node is computed at
most once a stage, and superfluous S aside.

What it does badly: kappa makes the relaxation of FREE weak, so the bound is far below the optimum and large graphs are
out of reach of free solvers: use "checkmate" for those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...solvers import Milp, Rows

__all__ = ["Formulation", "problem9"]

_Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Formulation:
    """Problem (9) for one graph and budget.

    Attributes
    ----------
    milp : Milp
        Objective in units of the base cost; U in units of the budget without constants, or of bytes.
    graph : Graph
    partitioned : bool
    R, S, U : (n, n) int
        The variable of each entry, -1 where it is 0.
    free : (n, edges) int
        Of FREE[t, i, k] for the edge (i, k), in the order of `graph.edges`; -1 where it is left out.
    unit_bytes : float
        Bytes in one unit of U.
    balances, limits : (rows of each,) int
        The rows of equations (2) and (3); those that hold U, workspace and `held` below the budget. Where a node has
        neither, the upper bound of U does. `max_batch_quadratic` makes the budget, or the sizes, variable.
    """

    milp: Milp
    graph: Graph
    partitioned: bool
    R: _Ids
    S: _Ids
    U: _Ids
    free: _Ids
    unit_bytes: float
    balances: _Ids
    limits: _Ids

    def unpack(self, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """R and S as (n, n) arrays, as fractional as x is."""
        table = np.append(x, 0.0)
        return table[self.R], table[self.S]

    def pack(self, R: NDArray[np.bool_], S: NDArray[np.bool_]) -> NDArray[np.float64]:
        """x of a schedule: FREE and U follow from R and S (equations 4, 2 and 3)."""
        n = len(self.graph)
        x = np.zeros(len(self.milp.objective))
        kept = np.vstack([S[1:], np.zeros((1, n), dtype=bool)])
        freed = np.zeros((n, n))  # bytes freed after k in stage t
        for e, (i, k) in enumerate(self.graph.edges):
            later = [j for j in self.graph.users[i] if j > k]
            gone = R[:, k] & ~kept[:, i] & ~R[:, later].any(axis=1)
            has = self.free[:, e] >= 0
            x[self.free[has, e]] = gone[has]
            freed[has, k] += self.graph.sizes[i] * gone[has]
        sizes = self.graph.sizes.astype(float)
        memory = (S @ sizes)[:, None] + np.cumsum(R * sizes, axis=1)
        memory[:, 1:] -= np.cumsum(freed, axis=1)[:, :-1]
        for ids, values in ((self.R, R), (self.S, S), (self.U, memory / self.unit_bytes)):
            x[ids[ids >= 0]] = values[ids >= 0]
        return x


def problem9(graph: Graph, budget_bytes: int, *, partitioned: bool = True, integral: bool = False) -> Formulation:
    """Build problem (9).

    Parameters
    ----------
    graph : Graph
        `recompute_until` needs stages that end with a first computation, so the unpartitioned form leaves it out: its
        optimum is then a lower bound.
    budget_bytes : int
        Constants included; more than the constants.
    partitioned : bool
        Frontier-advancing stages (8a-8c), or not (1d, 1e).
    integral : bool
        U and the rows of memory are in units of the budget without constants, so that all numbers are about 1; or,
        if true, of the greatest common divisor of all bytes: then they are integers, and U an integer variable.

    Notes
    -----
    O(n (edges + n)) variables and rows; terms of the hazards O(n sum_i degree(i)^2).
    """
    n, room = len(graph), float(budget_bytes - graph.constant_bytes)
    unit = room
    if integral:
        unit = float(np.gcd.reduce(np.concatenate([graph.sizes, graph.workspace, graph.held])) or 1)
        room = unit * (room // unit)
    sizes, workspace, held = graph.sizes / unit, graph.workspace / unit, graph.held / unit
    edges = np.array(graph.edges, dtype=np.int64).reshape(-1, 2)
    source, target = edges[:, 0], edges[:, 1]
    stage = np.arange(n)
    R, S, U, free, count = _variables(n, target, partitioned)
    rows = Rows()

    t, e = np.nonzero(R[:, target] >= 0)  # (1b)
    row = rows.add(len(t), 0.0, np.inf)
    rows.put(row, R[t, source[e]], 1.0)
    rows.put(row, S[t, source[e]], 1.0)
    rows.put(row, R[t, target[e]], -1.0)

    t, i = np.nonzero(S >= 0)  # (1c)
    row = rows.add(len(t), 0.0, np.inf)
    rows.put(row, R[t - 1, i], 1.0)
    rows.put(row, S[t - 1, i], 1.0)
    rows.put(row, S[t, i], -1.0)

    sinks = np.array([i for i in range(n) if not graph.users[i]])
    if not partitioned:  # (1e)
        row = rows.add(len(sinks), 1.0, np.inf)
        rows.put(np.tile(row, n), R[:, sinks].ravel(), 1.0)
    kept = sinks if len(sinks) > 1 else sinks[:0]  # the only sink is the last thing to be computed
    row = rows.add(len(kept), 1.0, np.inf)
    rows.put(row, R[n - 1, kept], 1.0)
    rows.put(row, S[n - 1, kept], 1.0)

    balances = _memory(rows, graph.edges, R, S, U, free, sizes)
    _hazards(rows, graph, R, S, free)

    t, k = np.nonzero((U >= 0) & (workspace != 0)[None, :])
    first = rows.count
    row = rows.add(len(t), -np.inf, room / unit)
    rows.put(row, U[t, k], 1.0)
    rows.put(row, R[t, k], workspace[k])
    own = np.array([(i, k) for i, k in graph.edges if len(graph.users[i]) == 1 and graph.held[k]], dtype=np.int64)
    i, k = own.reshape(-1, 2).T
    t, p = np.nonzero(U[:-1, k] >= 0)
    i, k = i[p], k[p]
    row = rows.add(len(t), -np.inf, room / unit + held[k])
    rows.put(row, U[t, k], 1.0)
    rows.put(row, R[t, k], workspace[k] + held[k])
    rows.put(row, S[t + 1, i], held[k])
    limits = np.arange(first, rows.count)

    lower, upper = np.zeros(count), np.ones(count)
    if partitioned:
        lower[R[stage, stage]] = 1.0
        late = (R >= 0) & (stage[:, None] > stage[None, :]) & (stage[:, None] >= graph.recompute_until[None, :])
        upper[R[late]] = 0.0
    t, k = np.nonzero(U >= 0)
    upper[U[t, k]] = room / unit + np.maximum(0.0, -workspace[k])
    objective = np.zeros(count)
    objective[R[R >= 0]] = (graph.costs / (graph.base_cost or 1.0))[np.nonzero(R >= 0)[1]]
    integer = np.ones(count, dtype=bool)
    if not integral:
        integer[U[t, k]] = False
    sides = np.concatenate(rows.lower), np.concatenate(rows.upper)
    milp = Milp(objective, rows.matrix(count), *sides, lower, upper, integer=integer)
    return Formulation(milp, graph, partitioned, R, S, U, free, unit, balances, limits)


def _variables(n: int, target: _Ids, partitioned: bool) -> tuple[_Ids, _Ids, _Ids, _Ids, int]:
    """Number the variables."""
    stage = np.arange(n)
    there = stage[:, None] >= stage[None, :] if partitioned else np.ones((n, n), dtype=bool)
    kept = there & (stage[:, None] > stage[None, :]) if partitioned else there & (stage[:, None] > 0)
    # A U must follow in the stage.
    after = np.hstack([there[:, 1:], np.zeros((n, 1), dtype=bool)])[:, target]
    count, numbered = 0, []
    for mask in (there, kept, there, after):
        ids = np.full(mask.shape, -1, dtype=np.int64)
        ids[mask] = count + np.arange(mask.sum())
        count += int(mask.sum())
        numbered.append(ids)
    return numbered[0], numbered[1], numbered[2], numbered[3], count


def _memory(
    rows: Rows, edges: list[tuple[int, int]], R: _Ids, S: _Ids, U: _Ids, free: _Ids, sizes: NDArray[np.float64]
) -> _Ids:
    """Equations (2) and (3); their rows."""
    n = len(sizes)
    index = np.full((n, n), -1, dtype=np.int64)
    t, k = np.nonzero(U >= 0)
    index[t, k] = row = rows.add(len(t), 0.0, 0.0)
    rows.put(row, U[t, k], 1.0)
    rows.put(row, R[t, k], -sizes[k])
    first = np.repeat(index[:, 0], n).reshape(n, n)
    rows.put(first, S, np.broadcast_to(-sizes, (n, n)))
    later = k > 0
    rows.put(row[later], U[t[later], k[later] - 1], -1.0)
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    t, e = np.nonzero(free >= 0)
    rows.put(index[t, target[e] + 1], free[t, e], sizes[source[e]])
    return row


def _hazards(rows: Rows, graph: Graph, R: _Ids, S: _Ids, free: _Ids) -> None:
    """Equations (5) and (6), the constants on the right."""
    n, edges = len(graph), graph.edges
    source, target = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    t, e = np.nonzero(free >= 0)
    following = np.vstack([S[1:], np.full((1, n), -1)])[t, source[e]]
    pairs = np.array(
        [(at, j) for at, (i, k) in enumerate(edges) for j in graph.users[i] if j > k], dtype=np.int64
    ).reshape(-1, 2)
    edge, user = pairs.T
    pair_t, p = np.nonzero((free[:, edge] >= 0) & (R[:, user] >= 0))
    kappa = np.zeros(free.shape)
    kappa[t, e] = 1.0 + (following >= 0)
    np.add.at(kappa, (pair_t, edge[p]), 1.0)
    for weight, lower, upper in ((1.0, 0.0, np.inf), (kappa[t, e], -np.inf, kappa[t, e] - 1.0)):
        row = rows.add(len(t), lower, upper)
        index = np.full(free.shape, -1, dtype=np.int64)
        index[t, e] = row
        rows.put(row, free[t, e], weight)
        rows.put(row, R[t, target[e]], -1.0)
        rows.put(row, following, 1.0)
        rows.put(index[pair_t, edge[p]], R[pair_t, user[p]], 1.0)
