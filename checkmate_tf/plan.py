"""Execution plans (Checkmate, section 4.7, Algorithm 1) and the one evaluator of their cost and peak memory.

A plan is a list of statements over virtual registers:

    %r = allocate v      compute v, %r      deallocate %r

It is made from the order in which nodes are computed. A register lives from its allocation to the last statement
that reads it before its node is computed again, so every deallocation is as early as it can be: Algorithm 1 with the
code motion of section 4.7.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import PlanError
from .graph import Graph

__all__ = [
    "ALLOCATE",
    "COMPUTE",
    "DEALLOCATE",
    "Evaluation",
    "Plan",
    "Statement",
    "evaluate",
    "plan_from_sequence",
    "workspaces",
]

ALLOCATE, COMPUTE, DEALLOCATE = "allocate", "compute", "deallocate"


class Statement(NamedTuple):
    """One step of a plan.

    Attributes
    ----------
    op : str
        `ALLOCATE`, `COMPUTE` or `DEALLOCATE`.
    node : int
    register : int
        The virtual register of this copy of the node's value.
    reads : tuple of int
        For `COMPUTE`: the registers read, one for each of the node's inputs, in their order.
    """

    op: str
    node: int
    register: int
    reads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Statements in execution order, and how many registers they use."""

    statements: tuple[Statement, ...]
    registers: int

    def __len__(self) -> int:
        return len(self.statements)

    def __iter__(self) -> Iterator[Statement]:
        return iter(self.statements)

    @property
    def sequence(self) -> list[int]:
        """The nodes in the order in which they are computed, repetitions included."""
        return [s.node for s in self.statements if s.op == COMPUTE]

    def save(self, path: str | os.PathLike[str], graph: Graph) -> None:
        """Write the plan of a graph to a readable JSON file, as `Schedule.save` does: as its order of computation.

        Raises
        ------
        PlanError
            If it is not a plan of the graph.
        OutputError
            If the folder is missing or cannot be written.
        """
        from .schedule import Schedule

        evaluate(graph, self)
        Schedule(graph, np.array(self.sequence, dtype=np.int64), strategy="plan").save(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Plan:
        """The plan in a file of `save` or `Schedule.save`, each value freed as early as it can be.

        Raises
        ------
        PlanError
            As `Schedule.load`.
        """
        from .schedule import Schedule

        return Schedule.load(path, graph).plan

    def __str__(self) -> str:
        show = {
            ALLOCATE: lambda s: f"%{s.register} = allocate {s.node}",
            COMPUTE: lambda s: f"compute {s.node}, %{s.register}",
            DEALLOCATE: lambda s: f"deallocate %{s.register}",
        }
        return "\n".join(show[s.op](s) for s in self.statements)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a plan costs and needs.

    Attributes
    ----------
    cost : float
        Sum of the costs of all computations, in the graph's unit.
    base_cost : float
        The same with every node computed once.
    peak_bytes : int
        Most memory at any statement, constants included.
    peak_node : int
        The node being computed then.
    memory : (number of COMPUTE statements,) int64
        Bytes while each computation runs: constants, live values (inputs not yet freed), its value and workspace.
    counts : (n,) int
        How often each node is computed.
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


def plan_from_sequence(graph: Graph, sequence: Iterable[int]) -> Plan:
    """Lower an order of computation to a plan.

    Parameters
    ----------
    graph : Graph
    sequence : iterable of int
        Nodes in the order to compute them. A repeated node gets a new register, and later readers read the newest.
        The value of a node that nobody reads (a sink) is kept to the end.

    Raises
    ------
    PlanError
        If a node is computed before one of its inputs was.

    Notes
    -----
    O(statements + edges).
    """
    order = [int(i) for i in sequence]
    current: dict[int, int] = {}
    reads: list[tuple[int, ...]] = []
    last_use: list[int] = []
    for register, node in enumerate(order):
        try:
            read = tuple(current[i] for i in graph.inputs[node])
        except KeyError as missing:
            i = missing.args[0]
            raise PlanError(f"{graph.names[node]} is computed before its input {graph.names[i]}") from None
        for r in read:
            last_use[r] = register
        reads.append(read)
        current[node] = register
        last_use.append(register)
    kept = {register for node, register in current.items() if not graph.users[node]}
    dies: list[list[int]] = [[] for _ in order]
    for register, last in enumerate(last_use):
        if register not in kept:
            dies[last].append(register)
    statements: list[Statement] = []
    for register, node in enumerate(order):
        statements.append(Statement(ALLOCATE, node, register))
        statements.append(Statement(COMPUTE, node, register, reads[register]))
        statements += [Statement(DEALLOCATE, order[r], r) for r in dies[register]]
    return Plan(tuple(statements), len(order))


def workspaces(graph: Graph, plan: Plan) -> list[int]:
    """Workspace bytes of each COMPUTE statement: the node's, plus `held` if an input that only it reads stays alive."""
    found = []
    for begin, statement in enumerate(plan.statements):
        if statement.op != COMPUTE:
            continue
        at, node, extra = begin, statement.node, 0
        if graph.held[node]:
            freed = set()
            while at + 1 < len(plan.statements) and plan.statements[at + 1].op == DEALLOCATE:
                at += 1
                freed.add(plan.statements[at].node)
            own = (i for i in graph.inputs[node] if graph.users[i] == (node,))
            extra = 0 if freed.issuperset(own) else int(graph.held[node])
        found.append(int(graph.workspace[node]) + extra)
    return found


def evaluate(graph: Graph, plan: Plan) -> Evaluation:
    """Check a plan and measure it: the only place where cost and peak of a schedule are computed.

    Raises
    ------
    PlanError
        If a statement reads, computes or frees a register that is not live, a node is never computed, or a node is
        computed again after its `recompute_until`.
    """
    n = len(graph)
    holder: dict[int, int] = {}
    ready: set[int] = set()
    counts = np.zeros(n, dtype=np.int64)
    sizes, workspace = graph.sizes.tolist(), iter(workspaces(graph, plan))
    until = graph.recompute_until.tolist()
    live = graph.constant_bytes
    memory: list[int] = []
    peak, peak_node, stage = live, 0, 0
    for at, (op, node, register, reads) in enumerate(plan.statements):
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
            if tuple(holder.get(r) for r in reads) != graph.inputs[node] or not ready.issuperset(reads):
                raise PlanError(f"statement {at}: an input of {graph.names[node]} is not in memory")
            if counts[node] and stage >= until[node]:
                raise PlanError(f"statement {at}: {graph.names[node]} may not be computed again in stage {stage}")
            while stage < n and (counts[stage] or stage == node):
                stage += 1
            counts[node] += 1
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
    missing = np.flatnonzero(counts == 0)
    if missing.size:
        raise PlanError(f"{graph.names[int(missing[0])]} is never computed")
    cost = float((graph.costs * counts).sum())  # rounds as base_cost does: nothing recomputed is an overhead of 0.0
    return Evaluation(cost, graph.base_cost, int(peak), peak_node, np.array(memory, dtype=np.int64), counts)
