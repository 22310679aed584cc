"""Schedules: Checkmate's 0/1 matrices R and S (section 4.2), with what was proved about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .graph import Graph
from .plan import Evaluation, Plan, evaluate, plan_from_sequence

__all__ = ["Schedule", "keep_all", "schedule_from_sequence"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule in n frontier-advancing stages.

    Parameters
    ----------
    graph : Graph
    R : (n, n) bool
        R[t, i]: node i is computed in stage t. Lower triangular with ones on the diagonal (8a-8c).
    S : (n, n) bool
        S[t, i]: the value of i is kept from stage t - 1 into stage t. Strictly lower triangular.
    strategy, solver, status : str
        Who made it; status is "optimal" (gap closed) or "feasible".
    budget_bytes : int or None
        What was asked, constants included.
    lower_bound : float
        Proven least cost under the budget, in the graph's cost unit; 0 if nothing was proved.
    seconds : float
        Time taken to find and prove it.
    """

    graph: Graph
    R: NDArray[np.bool_]
    S: NDArray[np.bool_]
    strategy: str = "checkpoint-all"
    solver: str = ""
    status: str = "feasible"
    budget_bytes: int | None = None
    lower_bound: float = 0.0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        n = len(self.graph)
        for key in "RS":
            matrix = np.array(getattr(self, key), dtype=bool, order="C")
            if matrix.shape != (n, n):
                raise PlanError(f"{key} has shape {matrix.shape}, the graph has {n} nodes")
            matrix.setflags(write=False)
            object.__setattr__(self, key, matrix)
        if not self.R.diagonal().all() or np.triu(self.R, 1).any() or np.triu(self.S).any():
            raise PlanError("R must be lower triangular with a full diagonal, S strictly lower triangular (8a-8c)")
        if (self.S[1:] & ~(self.S[:-1] | self.R[:-1])).any():
            raise PlanError("S keeps a value that is not in memory (1c)")
        there = np.ascontiguousarray((self.R | self.S).T)
        computed = np.ascontiguousarray(self.R.T)
        for j, row in enumerate(self.graph.inputs):
            stages = np.flatnonzero(computed[j])
            for i in row:
                if not there[i, stages].all():
                    raise PlanError(f"{self.graph.names[j]} is computed without its input {self.graph.names[i]} (1b)")

    @cached_property
    def plan(self) -> Plan:
        """Algorithm 1, with early deallocation."""
        stages, nodes = np.nonzero(self.R)  # row-major: stage by stage, each in topological order
        del stages
        return plan_from_sequence(self.graph, nodes)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Cost and peak, from the one evaluator."""
        return evaluate(self.graph, self.plan)

    @property
    def cost(self) -> float:
        return self.evaluation.cost

    @property
    def peak_bytes(self) -> int:
        return self.evaluation.peak_bytes

    @property
    def overhead(self) -> float:
        return self.evaluation.overhead

    @property
    def gap(self) -> float:
        """Proven gap: (cost - lower bound) / cost."""
        return max(0.0, 1.0 - max(self.lower_bound, self.graph.base_cost) / self.cost) if self.cost else 0.0


def keep_all(graph: Graph) -> Schedule:
    """Checkpoint-all: nothing is computed twice. The no-remat peak is this schedule's."""
    n = len(graph)
    last = np.array([max(users, default=n - 1) for users in graph.users], dtype=np.int64)
    t = np.arange(n)[:, None]
    S = (t > np.arange(n)[None, :]) & (t <= last[None, :])
    return Schedule(graph, np.eye(n, dtype=bool), S, status="optimal", lower_bound=graph.base_cost)


def schedule_from_sequence(graph: Graph, sequence: NDArray[np.int64] | list[int], **fields: object) -> Schedule:
    """R and S of an order of computation whose first occurrences are in the graph's order.

    Parameters
    ----------
    sequence : sequence of int
        Within a stage (up to and including the first computation of node t) a node occurs at most once.

    Raises
    ------
    PlanError
        If the order is not frontier-advancing, or repeats a node within a stage.
    """
    n = len(graph)
    R = np.zeros((n, n), dtype=bool)
    stage = 0
    for node in map(int, sequence):
        if stage >= n or node > stage or R[stage, node]:
            raise PlanError(f"computing {graph.names[node]} in stage {stage} is not frontier-advancing")
        R[stage, node] = True
        stage += node == stage
    if stage < n:
        raise PlanError(f"{graph.names[stage]} is never computed")
    # A value is kept from its computation to its last reader before it is computed again.
    stages = [np.flatnonzero(row) for row in np.ascontiguousarray(R.T)]
    kept = np.zeros((n, n), dtype=bool)  # S, transposed
    for i in range(n):
        made = stages[i]
        if not graph.users[i]:
            kept[i, made[-1] + 1 :] = True
            continue
        used = np.unique(np.concatenate([stages[j] for j in graph.users[i]]))
        for this, after in zip(made, [*made[1:], n], strict=True):
            last = np.searchsorted(used, after) - 1
            if last >= 0 and used[last] >= this:
                kept[i, this + 1 : used[last] + 1] = True
    return Schedule(graph, R, kept.T, **fields)  # type: ignore[arg-type]
