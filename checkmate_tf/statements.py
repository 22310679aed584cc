"""Statements: what a plan is made of, and how an order of computation becomes statements.

    %r = allocate v      compute v, %r      deallocate %r

A register %r holds one copy of one node's value. It lives from its allocation to the last statement that reads it
before its node is computed again. So every deallocation is as early as it can be. This is Algorithm 1 of Checkmate with
the code motion of its section 4.7.

Where a value has been copied to the host, to compute it again is to bring it back: that reads the copy alone.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

from .errors import PlanError
from .graph import Graph

__all__ = ["ALLOCATE", "COMPUTE", "DEALLOCATE", "Statement", "brought_back", "reads_of", "statements_of"]

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
        For `COMPUTE`: the registers read, one for each of the node's inputs, in their order; or that of its copy.
    """

    op: str
    node: int
    register: int
    reads: tuple[int, ...] = ()


def reads_of(graph: Graph, node: int, computed: Container[int]) -> tuple[int, ...]:
    """The nodes that a computation reads, when those in `computed` have been computed.

    These are its inputs. Or, if it was computed and copied to the host before, it is its copy.
    """
    copy = graph.copies.get(node)
    return tuple(graph.inputs[node]) if copy is None or copy not in computed or node not in computed else (copy,)


def brought_back(graph: Graph, statements: Iterable[Statement]) -> set[int]:
    """The registers whose values are brought back from the host, and not computed."""
    first, copies, found = graph.first_copy, set[int](), set[int]()
    for s in statements if first < len(graph) else ():
        if s.op == COMPUTE and s.node >= first:
            copies.add(s.register)
        elif s.op == COMPUTE and copies.intersection(s.reads):
            found.add(s.register)
    return found


def statements_of(graph: Graph, sequence: Iterable[int]) -> list[Statement]:
    """Lower an order of computation to statements (Algorithm 1). Registers are numbered as they are allocated.

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
            read = tuple(current[i] for i in reads_of(graph, node, current))
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
    return statements
