"""How much order a plan needs: groups of computations that may run in any order without exceeding its peak.

TensorFlow runs an operation as soon as its inputs are there, on as many threads as it has. A plan fixes the order by
control edges, and each costs parallelism. Where the plan is far below its peak no order is needed: a group is a run of
computations whose values, workspaces and everything live at its start fit the limit together, so that no interleaving
can exceed it. Only groups are ordered.
"""

from __future__ import annotations

from .graph import Graph
from .plan import ALLOCATE, COMPUTE, DEALLOCATE, Plan, workspaces

__all__ = ["group_computations"]


def group_computations(graph: Graph, plan: Plan, limit_bytes: int) -> list[int]:
    """Partition the computations of a plan, in order, into the fewest greedy groups.

    Parameters
    ----------
    limit_bytes : int
        No interleaving within a group may need more, constants included. A single computation that needs more by
        itself is a group of its own.

    Returns
    -------
    list of int
        For each COMPUTE statement its group: 0, 0, 0, 1, 1, ... A node and its recomputation are in different groups.
    """
    groups: list[int] = []
    live = bound = graph.constant_bytes  # in plan order; and the most that any interleaving of the group can reach
    members: set[int] = set()
    group, workspace = 0, iter(workspaces(graph, plan))
    for statement in plan:
        size = int(graph.sizes[statement.node])
        if statement.op == ALLOCATE:
            live += size
        elif statement.op == COMPUTE:
            more = size + next(workspace)
            if members and (bound + more > limit_bytes or statement.node in members):
                group, members = group + 1, set()
                bound = live - size
            bound += more
            members.add(statement.node)
            groups.append(group)
        elif statement.op == DEALLOCATE:
            live -= size
    return groups
