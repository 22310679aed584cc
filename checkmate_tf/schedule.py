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
        Nodes in the order of their computations. A value is kept until its last reader before it is computed again.
    strategy, solver, status : str
        Who made it; status is "optimal" (gap closed) or "feasible".
    budget_bytes : int or None
        What was asked, constants included.
    lower_bound : float
        Proven least cost under the budget, in the graph's cost unit; 0 if nothing was proved.
    seconds : float
        Time taken to find and prove it.
    origin : str
        Where it was read from: a file's name, or "the cache"; empty if it was made here.

    Notes
    -----
    Most schedules are frontier-advancing (`frontier_advancing`): first computations come in the order of the graph, and
    stage t ends with that of node t. Such a schedule has matrices R and S. Systems that choose their own order, or
    compute a node more than once a stage, have none, but the same plans.
    """

    graph: Graph
    sequence: NDArray[np.int64]
    strategy: str = "checkpoint-all"
    solver: str = ""
    status: str = "feasible"
    budget_bytes: int | None = None
    lower_bound: float = 0.0
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
        """The schedule of R and S, whose stages compute nodes in the order of the graph.

        Parameters
        ----------
        R : (n, n) bool
            R[t, i]: node i is computed in stage t. Lower triangular with ones on the diagonal (8a-8c).
        S : (n, n) bool
            S[t, i]: the value of i is kept from stage t - 1 into stage t. Strictly lower triangular. What it keeps
            without need is freed (section 4.7).
        **fields
            Of `Schedule`.

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
        """Algorithm 1, with early deallocation."""
        return plan_from_sequence(self.graph, self.sequence)

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

    @cached_property
    def frontier_advancing(self) -> bool:
        """Whether there are R and S: first computations in the graph's order, and no node twice in a stage."""
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
        """The schedule in a file that `save` wrote, if it is one of a graph.

        Structure, kinds, sizes, workspaces and constant bytes must be those of the graph that it was saved with. Names
        and costs may differ; under other costs nothing is proved of it.

        Raises
        ------
        PlanError
            If the file cannot be read, is no schedule, or is one of another graph: tells what differs.
        """
        return schedule_from_dict(read_schedule(path), graph, str(path))

    def plot(self, path: str | Path | None = None, **options: Any) -> Figure:
        """R and S as matrices beside the memory over the step; see `draw.plots.plot_schedule`.

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
    """Checkpoint-all: nothing is computed twice. The no-remat peak is this schedule's."""
    return Schedule(graph, np.arange(len(graph)), status="optimal", lower_bound=graph.base_cost)


def schedule_from_dict(data: Any, graph: Graph, source: str = "schedule") -> Schedule:
    """The schedule in plain values, if it is one of a graph. Its plan is replayed, its claims are not believed.

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
        If this is no schedule, or one of another graph; names the place.
    """
    return Schedule(graph, **schedule_fields(data, graph, source))
