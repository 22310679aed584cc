"""Execution plans (Checkmate, section 4.7): statements in order, made from an order of computation.

`statements.py` says what statements are, `evaluator.py` measures them. Both can be imported from here, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .evaluator import Evaluation, evaluate, workspaces
from .files.schedules import read_schedule, schedule_fields, write_schedule
from .graph import Graph
from .statements import ALLOCATE, COMPUTE, DEALLOCATE, Statement, statements_of

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
        """Write the plan to a readable JSON file, as `Schedule.save` does. The file holds its order of computation.

        Raises
        ------
        PlanError
            If it is not a plan of the graph.
        OutputError
            If the folder is missing or cannot be written.
        """
        evaluate(graph, self)
        again = plan_from_sequence(graph, self.sequence)
        write_schedule(_Saved(graph, again, evaluate(graph, again)), path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: Graph) -> Plan:
        """Read the plan in a file that `save` or `Schedule.save` wrote. Each value is freed as early as it can be.

        Raises
        ------
        PlanError
            As `Schedule.load`.
        """
        return plan_from_sequence(graph, schedule_fields(read_schedule(path), graph, str(path))["sequence"])

    def __str__(self) -> str:
        show = {
            ALLOCATE: lambda s: f"%{s.register} = allocate {s.node}",
            COMPUTE: lambda s: f"compute {s.node}, %{s.register}",
            DEALLOCATE: lambda s: f"deallocate %{s.register}",
        }
        return "\n".join(show[s.op](s) for s in self.statements)


@dataclass(frozen=True)
class _Saved:
    """A plan as its file tells of it: nobody says who made it, and nothing was proved of it."""

    graph: Graph
    plan: Plan
    evaluation: Evaluation
    strategy: str = "plan"
    solver: str = ""
    status: str = "feasible"
    budget_bytes: int | None = None
    lower_bound: float = 0.0
    bound_order: str = "fixed"
    seconds: float = 0.0


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
    statements = tuple(statements_of(graph, sequence))
    return Plan(statements, sum(statement.op == COMPUTE for statement in statements))
