"""The one evaluator of a plan's cost and peak memory, and how near two costs must be."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .graph import Graph
from .paging import timeline
from .statements import ALLOCATE, COMPUTE, DEALLOCATE, Statement, brought_back, reads_of

__all__ = ["CLOSED_GAP", "COST_TOLERANCE", "Evaluation", "evaluate", "workspaces"]

COST_TOLERANCE = 1e-6
"""Two costs that differ by less than this share are the same. Adding up the same costs in another order, or writing
them with fewer digits, gives a slightly different sum."""

CLOSED_GAP = 1e-5
"""A schedule is optimal if its cost is above what is proved by no more than this share of it. Solvers' tolerances leave
such a gap open, even where they say that there is none."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a plan costs and needs.

    Attributes
    ----------
    cost : float
        Sum of the costs of all computations, in the graph's unit. Where values are copied to the host, waiting for
        copies is part of it (`paging.timeline`).
    base_cost : float
        The same with every node computed once.
    peak_bytes : int
        Most memory at any statement, constants included.
    peak_node : int
        The node being computed then.
    memory : (number of COMPUTE statements,) int64
        Bytes while each computation runs: constants, live values (inputs not yet freed), its value and workspace.
    counts : (n,) int
        How often each node is computed. To bring a value back from the host is not to compute it.
    """

    cost: float
    base_cost: float
    peak_bytes: int
    peak_node: int
    memory: NDArray[np.int64]
    counts: NDArray[np.int64]

    @property
    def overhead(self) -> float:
        """Cost over the cost of computing everything once, minus 1; 0 when nothing is recomputed."""
        return self.cost / self.base_cost - 1 if self.base_cost else 0.0


def workspaces(graph: Graph, plan: Iterable[Statement]) -> list[int]:
    """Workspace bytes of each COMPUTE statement: the node's, plus `held` if an input that only it reads stays alive.

    What is brought back from the host needs none.
    """
    statements, found = tuple(plan), []
    fetched = brought_back(graph, statements)
    for begin, statement in enumerate(statements):
        if statement.op != COMPUTE:
            continue
        if statement.register in fetched:
            found.append(0)
            continue
        at, node, extra = begin, statement.node, 0
        if graph.held[node]:
            freed = set()
            while at + 1 < len(statements) and statements[at + 1].op == DEALLOCATE:
                at += 1
                freed.add(statements[at].node)
            own = (i for i in graph.inputs[node] if graph.readers[i] == (node,))
            extra = 0 if freed.issuperset(own) else int(graph.held[node])
        found.append(int(graph.workspace[node]) + extra)
    return found


def evaluate(graph: Graph, plan: Iterable[Statement]) -> Evaluation:
    """Check a plan and measure it: the only place where cost and peak of a schedule are computed.

    Parameters
    ----------
    graph : Graph
    plan : Plan or iterable of Statement
        Statements in execution order.

    Raises
    ------
    PlanError
        If a statement reads, computes or frees a register that is not live, a node is never computed (one that copies
        to the host may be left out), comes before one that it waits for, or is computed again after its
        `recompute_until`.
    """
    n, statements = len(graph), tuple(plan)
    holder: dict[int, int] = {}
    ready, computed = set[int](), set[int]()
    counts = np.zeros(n, dtype=np.int64)
    sizes, workspace = graph.sizes.tolist(), iter(workspaces(graph, statements))
    until = graph.recompute_until.tolist()
    live = graph.constant_bytes
    memory: list[int] = []
    peak, peak_node, stage = live, 0, 0
    for at, (op, node, register, reads) in enumerate(statements):
        if op == ALLOCATE:
            if register in holder:
                raise PlanError(f"statement {at}: register %{register} is allocated twice")
            holder[register] = node
            live += sizes[node]
        elif op == COMPUTE:
            if holder.get(register) != node or register in ready:
                raise PlanError(
                    f"statement {at}: {graph.names[node]} is computed into %{register}, which is not allocated for it"
                )
            wanted = reads_of(graph, node, computed)
            if tuple(holder.get(r) for r in reads) != wanted or not ready.issuperset(reads):
                raise PlanError(f"statement {at}: an input of {graph.names[node]} is not in memory")
            if not counts[node] and not all(counts[i] for i in graph.waits[node]):
                raise PlanError(f"statement {at}: {graph.names[node]} comes before a node that it waits for")
            if counts[node] and stage >= until[node] and wanted is graph.inputs[node]:
                raise PlanError(f"statement {at}: {graph.names[node]} may not be computed again in stage {stage}")
            while stage < n and (counts[stage] or stage == node):
                stage += 1
            counts[node] += wanted is graph.inputs[node]
            computed.add(node)
            ready.add(register)
            memory.append(live + next(workspace))
            if memory[-1] > peak:
                peak, peak_node = memory[-1], node
        elif op == DEALLOCATE:
            if holder.pop(register, None) != node:
                raise PlanError(f"statement {at}: %{register} is freed but not allocated")
            ready.discard(register)
            live -= sizes[node]
        else:
            raise PlanError(f"statement {at}: {op!r} is not a statement")
    missing = np.flatnonzero(counts[: graph.first_copy] == 0)
    if missing.size:
        raise PlanError(f"{graph.names[int(missing[0])]} is never computed")
    cost = float((graph.costs * counts).sum())  # rounds as base_cost does: nothing recomputed is an overhead of 0.0
    if counts[graph.first_copy :].any():
        times = timeline(graph, statements)
        cost += times.cost - times.computing
    return Evaluation(cost, graph.base_cost, int(peak), peak_node, np.array(memory, dtype=np.int64), counts)
