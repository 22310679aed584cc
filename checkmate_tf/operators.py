"""Implementations of operators: the ways in which each node of a graph may be computed (MONeT, section 4).

MONeT (Shah et al., ICLR 2021) chooses for every operator one of several implementations that differ in cost, in
workspace and, for gradients, in the forward values that they read: a ReLU's gradient may read its input, its output or
a mask of signs. A mask is an encoding: a node like others, but of no use unless a chosen implementation reads it.

An `OperatorGraph` holds all ways at once. `OperatorGraph.choose` fixes one way a node and gives an ordinary `Graph`, so
every strategy, the evaluator and the executor work on what was chosen and know nothing of the alternatives.

Each of these words has one meaning throughout the package:

operator
    What a node computes: a convolution, the gradient of a ReLU. `compile(..., operators="choose")` lets each be
    implemented otherwise than TensorFlow does.
implementation
    How an operator may be computed: a name, a cost, the values that it reads, a workspace (`Implementation`).
way
    An implementation as one node has it, by its index: 0 is the graph's own (`OperatorGraph.ways`).
choice
    One way for each node, told as a dict of those that are not 0.
encoding
    A node that makes a code of another node's value. It is computed only if a chosen way reads the code.
code
    The value of an encoding: a mask of signs, a place in a window, the same value in fewer bits. Smaller than what it
    stands for.

What it does badly: a node is computed in one way wherever it is computed, in the forward pass and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .errors import CostError, GraphError
from .graph import Graph
from .schedule import Schedule

__all__ = ["DEFAULT", "OPERATORS", "Chosen", "ChosenGraph", "Implementation", "OperatorGraph"]

DEFAULT = "default"
"""Name of a graph's own way to compute a node."""

OPERATORS = (DEFAULT, "choose")
"""What `compile(..., operators=)` may be."""


@dataclass(frozen=True)
class Implementation:
    """One way to compute a node's value.

    Parameters
    ----------
    name : str
    cost : float
        In the graph's unit; finite and not negative.
    inputs : tuple of int
        Indices of the values that it reads, each below the node. Duplicates are dropped.
    workspace : int
        Bytes held only while it runs, beyond its inputs and its value; negative where it computes into the memory of
        inputs that nobody else reads, as in `Graph`.
    error : str
        Empty if the value has the same bits as the graph's own; else what differs, in words.
    """

    name: str
    cost: float
    inputs: tuple[int, ...]
    workspace: int = 0
    error: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(sorted(set(map(int, self.inputs)))))


@dataclass(frozen=True, eq=False)
class ChosenGraph:
    """A graph in which each node is computed in one way.

    Attributes
    ----------
    graph : Graph
        m nodes, in the order of the operator graph.
    nodes : (m,) int
        For each node of `graph`, its index in the operator graph.
    choice : dict
        For nodes of the operator graph that are not computed in their default way (0): the index of their way.
    """

    graph: Graph
    nodes: NDArray[np.int64]
    choice: Mapping[int, int]


@dataclass(frozen=True, eq=False)
class OperatorGraph:
    """A graph and further implementations of its operators.

    Parameters
    ----------
    graph : Graph
        All nodes, encodings too. Its inputs, costs and workspaces are those of each node's own way, "default".
    implementations : mapping of int to sequence of Implementation
        For a node, the ways that it has besides its own.
    encodings : frozenset of int
        Nodes that are computed only if a computed node reads them in its chosen way.

    Raises
    ------
    GraphError
        If a node does not exist, an implementation reads a node that is not before its own, a workspace is below minus
        the size of the value, or a node has two implementations of one name.
    CostError
        If a cost is negative or not finite.

    Examples
    --------
    >>> ways = {5: [Implementation("mask", 2.0, (2, 4))]}
    >>> operators = OperatorGraph(graph, ways, frozenset({2}))  # doctest: +SKIP
    >>> len(operators.choose({}).graph), len(operators.choose({5: 1}).graph)  # doctest: +SKIP
    (5, 6)
    """

    graph: Graph
    implementations: Mapping[int, Sequence[Implementation]]
    encodings: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        n = len(self.graph)
        given = {int(i): tuple(ways) for i, ways in self.implementations.items() if ways}
        encodings = frozenset(map(int, self.encodings))
        object.__setattr__(self, "implementations", dict(sorted(given.items())))
        object.__setattr__(self, "encodings", encodings)
        for i in [*given, *encodings]:
            if not 0 <= i < n:
                raise GraphError(f"graph {self.graph.name!r}: there is no node {i} to implement, only 0 to {n - 1}")
        for i, ways in given.items():
            for way in ways:
                self._check(i, way)
            names = [DEFAULT, *(way.name for way in ways)]
            if len(set(names)) < len(names):
                raise GraphError(f"{self._node(i)} has two implementations of one name: {', '.join(names)}")

    def __len__(self) -> int:
        return len(self.graph)

    def ways(self, i: int) -> tuple[Implementation, ...]:
        """All implementations of node i; the first is the graph's own."""
        return self._ways[i]

    @cached_property
    def optional(self) -> frozenset[int]:
        """Nodes that some choice leaves out: encodings, and nodes that every reader can do without.

        A node that nobody reads and that is no encoding is an output. A node that may not be computed again has
        effects. Neither is left out.
        """
        found: set[int] = set()
        readers: list[set[int]] = [set() for _ in range(len(self))]
        for j in range(len(self)):
            for i in {i for way in self.ways(j) for i in way.inputs}:
                readers[i].add(j)
        for i in reversed(range(len(self))):
            if self._may_go(i) and all(
                j in found or any(i not in way.inputs for way in self.ways(j)) for j in readers[i]
            ):
                found.add(i)
        return frozenset(found)

    @cached_property
    def least_bytes(self) -> int:
        """Bytes, constants included, that every schedule for every choice needs: some operation alone takes so many.

        That is what it reads, its value and its workspace, in its lightest way. Nodes that some choice leaves out do
        not count. A bound: no schedule need reach it.
        """
        sizes = self.graph.sizes
        alone = (
            min(int(sizes[list(way.inputs)].sum()) + way.workspace for way in self.ways(i)) + int(sizes[i])
            for i in range(len(self))
            if i not in self.optional
        )
        return self.graph.constant_bytes + max(alone, default=0)

    @cached_property
    def least_cost(self) -> float:
        """What every schedule for every choice costs at least: each node that none leaves out, in its cheapest way."""
        return float(
            sum(min(way.cost for way in self.ways(i)) for i in range(len(self)) if i not in self.optional)
        )  # fmt: skip

    def choose(self, choice: Mapping[int, int] | None = None) -> ChosenGraph:
        """The graph in which each node is computed in the chosen way.

        Parameters
        ----------
        choice : mapping of int to int
            From nodes to the index of their way in `ways`. Nodes that are not in it are computed in their own way (0).

        Returns
        -------
        ChosenGraph
            Encodings that nobody reads are left out. So is any other node that has lost its readers, unless it was an
            output or has effects. The choice of the result says nothing of nodes that are left out.

        Raises
        ------
        GraphError
            If there is no such node or way.

        Notes
        -----
        A workspace below 0 is kept as long as the node is the only reader of some input of at least that size. If a
        choice gives all these inputs other readers, nothing can be computed into their memory.
        """
        chosen = {int(i): int(way) for i, way in (choice or {}).items() if way}
        for i, way in chosen.items():
            if not 0 <= i < len(self) or not 0 <= way < len(self.ways(i)):
                known = ", ".join(w.name for w in self.ways(i)) if 0 <= i < len(self) else "no such node"
                raise GraphError(f"graph {self.graph.name!r}: node {i} has no way {way} to compute it ({known})")
        ways = [self.ways(i)[chosen.get(i, 0)] for i in range(len(self))]
        kept, readers = self._read(ways)
        nodes = np.flatnonzero(kept)
        order: list[int] = nodes.tolist()
        memory = [self._workspace(i, ways[i], i in chosen, readers) for i in order]
        place = np.concatenate([[0], np.cumsum(kept)])
        graph = replace(
            self.graph,
            names=[self.graph.names[i] for i in order],
            kinds=self.graph.kinds[nodes],
            costs=np.array([ways[i].cost for i in order]),
            sizes=self.graph.sizes[nodes],
            inputs=[[int(place[p]) for p in ways[i].inputs] for i in order],
            workspace=np.array([m[0] for m in memory], dtype=np.int64),
            held=np.array([m[1] for m in memory], dtype=np.int64),
            recompute_until=place[np.minimum(self.graph.recompute_until[nodes], len(self))],
            waits=[[int(place[k]) for k in self.graph.waits[i] if kept[k]] for i in order],
        )
        return ChosenGraph(graph, nodes, {i: way for i, way in sorted(chosen.items()) if kept[i]})

    def exact(self) -> OperatorGraph:
        """The same without the ways whose values have other bits (`Implementation.error`)."""
        ways = {i: [way for way in given if not way.error] for i, given in self.implementations.items()}
        return OperatorGraph(self.graph, ways, self.encodings)

    @cached_property
    def _ways(self) -> tuple[tuple[Implementation, ...], ...]:
        graph = self.graph
        return tuple(
            (
                Implementation(DEFAULT, float(graph.costs[i]), tuple(graph.inputs[i]), int(graph.workspace[i])),
                *self.implementations.get(i, ()),
            )
            for i in range(len(graph))
        )

    def _may_go(self, i: int) -> bool:
        """Whether node i is not computed if nobody reads it."""
        return i in self.encodings or (bool(self.graph.users[i]) and self.graph.recompute_until[i] > 0)

    def _read(self, ways: Sequence[Implementation]) -> tuple[NDArray[np.bool_], list[list[int]]]:
        """Which nodes are computed, and the computed readers of each, descending."""
        readers: list[list[int]] = [[] for _ in ways]
        kept = np.zeros(len(self), dtype=bool)
        for i in reversed(range(len(self))):
            kept[i] = bool(readers[i]) or not self._may_go(i)
            if kept[i]:
                for p in ways[i].inputs:
                    readers[p].append(i)
        return kept, readers

    @cached_property
    def default_readers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that read each value where every node is computed in its own way."""
        return tuple(tuple(reversed(row)) for row in self._read([self.ways(i)[0] for i in range(len(self))])[1])

    def taken_over(self, way: Implementation) -> list[int]:
        """Inputs that are large enough for what a way beyond the default computes into their memory."""
        return [p for p in way.inputs if self.graph.sizes[p] >= -way.workspace]

    def _workspace(self, i: int, way: Implementation, other: bool, readers: list[list[int]]) -> tuple[int, int]:
        """Workspace and `held` of node i. What its own way has taken over in the graph it may have lost."""
        own = {p for p in way.inputs if readers[p] == [i]}
        if other:
            over = max(0, -way.workspace)
            return (way.workspace, over) if own & set(self.taken_over(way)) or not over else (0, 0)
        held = int(self.graph.held[i])
        before = {p for p in way.inputs if self.default_readers[p] == (i,)}
        return (way.workspace, held) if own >= before else (way.workspace + held, 0)

    def _check(self, i: int, way: Implementation) -> None:
        which = f"{self._node(i)}: implementation {way.name!r}"
        if not all(0 <= p < i for p in way.inputs):
            wrong = next(p for p in way.inputs if not 0 <= p < i)
            raise GraphError(f"{which} reads node {wrong}, which is not before it")
        if not (np.isfinite(way.cost) and way.cost >= 0):
            raise CostError(f"{which} costs {way.cost}; costs must be finite and not negative")
        if way.workspace < -self.graph.sizes[i]:
            raise GraphError(f"{which} has a workspace of {way.workspace} bytes, below minus the size of its value")

    def _node(self, i: int) -> str:
        return f"graph {self.graph.name!r}: node {i} ({self.graph.names[i]})"


@dataclass(frozen=True, eq=False)
class Chosen:
    """A choice of implementations, and a schedule for it.

    Attributes
    ----------
    schedule : Schedule
        For `chosen.graph`. Its own `overhead` is over computing that graph once.
    chosen : ChosenGraph
    base_cost : float
        Cost of computing everything once in the default ways, in the graph's unit.
    status : str
        "optimal" if what was solved is proved to be the optimum, else "feasible".
    bound : float
        Proven least cost of what was solved, in the graph's unit; minus infinity if nothing was proved. Each function
        that gives a `Chosen` says what the bound is for.
    """

    schedule: Schedule
    chosen: ChosenGraph
    base_cost: float
    status: str
    bound: float

    @property
    def overhead(self) -> float:
        """Cost over that of the default ways without recomputation, minus 1. It is below 0 if a choice is cheaper."""
        return self.schedule.cost / self.base_cost - 1 if self.base_cost else 0.0
