"""Schedules: an order of computation, its matrices R and S (Checkmate, section 4.2), and what was proved about it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .draw.plots import plot_schedule
from .errors import PlanError
from .evaluator import Evaluation, evaluate
from .files.schedules import read_schedule, schedule_fields, write_schedule
from .graph import Graph
from .plan import Plan, plan_from_sequence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Schedule", "keep_all", "schedule_from_dict"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """An order in which nodes are computed, some of them more than once.

    Parameters
    ----------
    graph : Graph
    sequence : sequence of int
        Nodes in the order of their computations. A computed value is kept until its last reader, or until the last one
        before the node is computed again.
    strategy, solver, status : str
        The strategy and the solver that made it. The status is "optimal" (the gap is closed) or "feasible".
    budget_bytes : int or None
        The budget that was asked for, constants included.
    lower_bound : float
        Proven least cost under the budget, in the graph's cost unit; 0 if nothing was proved.
    bound_order : "fixed", "stages" or "free"
        Which schedules the lower bound is about: those in the graph's order, those of them that are frontier-advancing
        (as problem (9) has them), or those in any order. The base cost holds for any.
    seconds : float
        Seconds that it took to find the schedule and to prove the bound.
    origin : str
        Where it was read from: a file's name, or "the cache"; empty if it was made here.

    Notes
    -----
    Most schedules are frontier-advancing (`frontier_advancing`): first computations come in the order of the graph.
    Stage t of such a schedule ends with the first computation of node t, and no node is computed twice in a stage. Its
    matrices R and S say what each stage computes and what it keeps. Other schedules choose their own order, or compute
    a node more than once in a stage. They have no R and S, but plans like all others.
    """

    graph: Graph
    sequence: NDArray[np.int64]
    strategy: str = "checkpoint-all"
    solver: str = ""
    status: str = "feasible"
    budget_bytes: int | None = None
    lower_bound: float = 0.0
    bound_order: str = "fixed"
    seconds: float = 0.0
    origin: str = ""

    def __post_init__(self) -> None:
        given = self.sequence if isinstance(self.sequence, np.ndarray) else list(self.sequence)
        sequence = np.array(given, dtype=np.int64)
        if sequence.ndim != 1:
            raise PlanError(f"a schedule is a sequence of nodes, not {sequence.ndim}-dimensional; see from_matrices")
        sequence.setflags(write=False)
        object.__setattr__(self, "sequence", sequence)

    @classmethod
    def from_matrices(cls, graph: Graph, R: NDArray[np.bool_], S: NDArray[np.bool_], **fields: Any) -> Schedule:
        """Make a schedule from R and S. Each stage computes its nodes in the order of the graph.

        Parameters
        ----------
        R : (n, n) bool
            R[t, i]: node i is computed in stage t. Lower triangular with ones on the diagonal (8a-8c).
        S : (n, n) bool
            S[t, i]: the value of i is kept from stage t - 1 into stage t. Strictly lower triangular. Values that it
            keeps without need are freed (section 4.7).
        **fields
            Further parameters of `Schedule`.

        Raises
        ------
        PlanError
            If a constraint is violated.
        """
        n = len(graph)
        for key, matrix in (("R", R), ("S", S)):
            if matrix.shape != (n, n):
                raise PlanError(f"{key} has shape {matrix.shape}, the graph has {n} nodes")
        if not R.diagonal().all() or np.triu(R, 1).any() or np.triu(S).any():
            raise PlanError("R must be lower triangular with a full diagonal, S strictly lower triangular (8a-8c)")
        if (S[1:] & ~(S[:-1] | R[:-1])).any():
            raise PlanError("S keeps a value that is not in memory (1c)")
        there = np.ascontiguousarray((R | S).T)
        computed = np.ascontiguousarray(R.T)
        for j, row in enumerate(graph.inputs):
            stages = np.flatnonzero(computed[j])
            for i in row:
                if not there[i, stages].all():
                    raise PlanError(f"{graph.names[j]} is computed without its input {graph.names[i]} (1b)")
        return cls(graph, np.nonzero(R)[1], **fields)  # row-major: stage by stage, each in the graph's order

    @cached_property
    def plan(self) -> Plan:
        """The plan by Algorithm 1, which frees each value as early as it can."""
        return plan_from_sequence(self.graph, self.sequence)

    @cached_property
    def evaluation(self) -> Evaluation:
        """Cost and peak, by the one evaluator."""
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

    @cached_property
    def frontier_advancing(self) -> bool:
        """Whether it has R and S: first computations in the graph's order, and no node twice in a stage."""
        try:
            return self.R is not None
        except PlanError:
            return False

    @cached_property
    def R(self) -> NDArray[np.bool_]:
        """(n, n) bool: R[t, i], node i is computed in stage t.

        Raises
        ------
        PlanError
            If the schedule is not frontier-advancing.
        """
        graph, n, stage = self.graph, len(self.graph), 0
        R = np.zeros((n, n), dtype=bool)
        for node in map(int, self.sequence):
            if stage >= n or node > stage or R[stage, node]:
                raise PlanError(f"computing {graph.names[node]} in stage {stage} is not frontier-advancing")
            R[stage, node] = True
            stage += node == stage
        if stage < n:
            raise PlanError(f"{graph.names[stage]} is never computed")
        R.setflags(write=False)
        return R

    @cached_property
    def S(self) -> NDArray[np.bool_]:
        """(n, n) bool: S[t, i], the value of i is kept from stage t - 1 into stage t, and no longer than it is needed.

        Raises
        ------
        PlanError
            If the schedule is not frontier-advancing.
        """
        graph, n = self.graph, len(self.graph)
        stages = [np.flatnonzero(row) for row in np.ascontiguousarray(self.R.T)]
        kept = np.zeros((n, n), dtype=bool)  # transposed
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
        S = kept.T
        S.setflags(write=False)
        return S

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule to a readable JSON file, all of it or nothing; see `files/schedules.py`.

        Raises
        ------
        OutputError
            If the folder is missing or cannot be written.
        PlanError
            If it is not a schedule of its graph.
        """
        write_schedule(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Schedule:
        """Read a schedule that `save` wrote, if it is one of this graph.

        The graph must have the structure, waits, kinds, sizes, workspaces and constant bytes of the one that was saved.
        Names and costs may differ. Under other costs, nothing is proved of the schedule.

        Raises
        ------
        PlanError
            If the file cannot be read, is no schedule, or is one of another graph. The message tells what differs.
        """
        return schedule_from_dict(read_schedule(path), graph, str(path))

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Draw R and S as matrices, beside the memory over the step; see `draw.plots.plot_schedule`.

        Parameters
        ----------
        path : path, optional
            Where to write the picture; its suffix tells the format.
        **options
            `size_inches` and `dpi`.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return plot_schedule(self, path, **options)


def keep_all(graph: Graph) -> Schedule:
    """The schedule that computes nothing twice (Checkpoint-all). Its peak is the peak without rematerialization."""
    return Schedule(graph, np.arange(graph.first_copy), status="optimal", lower_bound=graph.base_cost)


def schedule_from_dict(data: Any, graph: Graph, source: str = "schedule") -> Schedule:
    """Read a schedule from plain values, if it is one of this graph.

    Its plan is replayed: cost and peak are those of the replay. What it says was proved, its lower bound and status, is
    taken over if it agrees with that.

    Parameters
    ----------
    data : dict
        As `files.schedules.read_schedule` gives it.
    graph : Graph
    source : str
        Where it is from, for messages; the schedule's `origin`.

    Raises
    ------
    PlanError
        If this is no schedule, or one of another graph. The message names the place.
    """
    return Schedule(graph, **schedule_fields(data, graph, source))
