"""The data-flow graph that schedules are made for (Checkmate, section 4.1). Knows nothing of TensorFlow."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from operator import index

import numpy as np
from numpy.typing import NDArray

from .errors import CostError, GraphError
from .units import MOST_BYTES

__all__ = ["BACKWARD", "FORWARD", "LOSS", "Graph", "Host", "after_all_below"]

FORWARD, LOSS, BACKWARD = 0, 1, 2

_COLUMNS = {
    "kinds": np.int8, "costs": np.float64, "sizes": np.int64, "workspace": np.int64, "held": np.int64,
    "recompute_until": np.int64,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Host:
    """Copies of values in the memory of the host. The last nodes of a graph make them: see `paging.with_host`.

    Attributes
    ----------
    first : int
        Nodes from here on copy the one value that each reads. They take no memory of the device, and cost nothing
        where copies are done while other nodes are computed.
    to_host, from_host : (n - first,) float
        How long each copy takes, and how long it takes to bring it back, in the unit of the graph's costs.
    """

    first: int
    to_host: NDArray[np.float64]
    from_host: NDArray[np.float64]


def after_all_below(nodes: Iterable[int], count: int) -> list[range]:
    """The `waits` of a graph in which some nodes come after all nodes below them, in any order.

    Such a node changes what others have read, as an assignment of a variable does: their `recompute_until` is that
    node. This is told in stages, and a stage lasts as long as any node below is missing. Without waits an order could
    compute the node early, and the others again after it.

    Parameters
    ----------
    nodes : iterable of int
    count : int
        Nodes of the graph.

    Returns
    -------
    list of count range
        Each of these nodes waits for the one before it of them, and for all between.
    """
    waits = [range(0)] * count
    for before, node in pairwise([0, *sorted(set(nodes))]):
        waits[node] = range(before, node)
    return waits


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in the order in which they are first computed, each with a cost and the bytes of its value.

    Stage t ends with the first computation of node t. Before that, it may compute earlier nodes again.

    Parameters
    ----------
    name : str
    names : sequence of n str
    kinds : (n,) int
        `FORWARD`, `LOSS` or `BACKWARD`.
    costs : (n,) float
        C_i, what computing node i costs, in `cost_unit`; finite and not negative.
    sizes : (n,) int
        M_i, bytes of the value of node i.
    inputs : sequence of n sequences of int
        Indices of the values that node i reads, each below i. Duplicates are dropped.
    constant_bytes : int
        Bytes that are always in memory: inputs, parameters, optimizer slots.
    workspace : (n,) int, optional
        Bytes held only while node i is computed, beyond its inputs and its value. Negative where it computes into the
        memory of inputs that nobody else reads (at least -M_i). Default 0.
    held : (n,) int, optional
        Added to the workspace of node i if an input that nobody else reads stays in memory after the computation: then
        its memory cannot be taken over. Default 0.
    recompute_until : (n,) int, optional
        Node i may be computed again in stages t < recompute_until[i] (0-based). A node that has effects has 0: it runs
        once, and in order with the others. Default n, as Checkmate assumes: every node may be computed at any time. In
        an order of its own, a schedule is in stage t until all nodes up to t have been computed: see `after_all_below`.
    waits : sequence of n sequences of int, optional
        Nodes that are first computed before node i in any order, though it does not read them, each below i: it is told
        to wait for them. Default none.
    cost_unit : str
    host : Host, optional
        Says that the last nodes copy values to the host. A value that has been copied is not computed again: it is
        brought back. A schedule need not have them. Default none.

    Raises
    ------
    GraphError
        If lengths differ, a node reads one that is not before it, or a size is negative or no whole number. If bytes
        or costs are too many to be added up. If a node that copies does not read just one value of the device, is read,
        or is the second for a value.
    CostError
        If a cost is negative or not finite.
    """

    name: str
    names: Sequence[str]
    kinds: NDArray[np.int8]
    costs: NDArray[np.float64]
    sizes: NDArray[np.int64]
    inputs: Sequence[Sequence[int]]
    constant_bytes: int = 0
    workspace: NDArray[np.int64] = None  # type: ignore[assignment]
    recompute_until: NDArray[np.int64] = None  # type: ignore[assignment]
    held: NDArray[np.int64] = None  # type: ignore[assignment]
    waits: Sequence[Collection[int]] = None  # type: ignore[assignment]
    cost_unit: str = "us"
    host: Host | None = None
    users: tuple[tuple[int, ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        n = len(self.names)
        put = lambda key, value: object.__setattr__(self, key, value)  # noqa: E731 - the one way to normalise a frozen value
        put("names", tuple(self.names))
        defaults = {"workspace": 0, "held": 0, "recompute_until": n}
        for key, dtype in _COLUMNS.items():
            given = getattr(self, key)
            put(key, self._column(key, np.full(n, defaults[key]) if given is None else given, dtype))
        put("inputs", self._rows("inputs", self.inputs))
        put("waits", self._rows("waits", [()] * n if self.waits is None else self.waits))
        put("constant_bytes", int(self._column("constant_bytes", [self.constant_bytes], np.int64)[0]))
        for key in ("inputs", "waits", "kinds", "costs", "sizes", "workspace", "recompute_until", "held"):
            if len(getattr(self, key)) != n:
                raise GraphError(f"graph {self.name!r}: {key} has {len(getattr(self, key))} entries for {n} nodes")
        users: list[list[int]] = [[] for _ in range(n)]
        for j, row in enumerate(self.inputs):
            for i in row:
                if not 0 <= i < j:
                    raise GraphError(
                        f"graph {self.name!r}: node {j} ({self.names[j]}) reads node {i}, which is not before it"
                    )
                users[i].append(j)
        for j, before in enumerate(self.waits):
            if before and not 0 <= min(before) <= max(before) < j:
                raise GraphError(f"graph {self.name!r}: node {j} ({self.names[j]}) waits for one that is not before it")
        put("users", tuple(map(tuple, users)))
        bad = np.flatnonzero(~np.isfinite(self.costs) | (self.costs < 0))
        if bad.size:
            i = int(bad[0])
            raise CostError(
                f"graph {self.name!r}: the cost of node {i} ({self.names[i]}) is {self.costs[i]}; costs must be finite "
                'and not negative: profile again (delete the cached profile) or use costs="flops"'
            )
        if (self.sizes < 0).any() or (self.held < 0).any() or (self.workspace < -self.sizes).any():
            raise GraphError(f"graph {self.name!r}: a size is negative, or a workspace below minus the size")
        if self.constant_bytes < 0 or not np.isin(self.kinds, (FORWARD, LOSS, BACKWARD)).all():
            raise GraphError(f"graph {self.name!r}: constant_bytes is negative, or a kind is none of the three")
        most = self.constant_bytes + sum(int(column.sum(dtype=object)) for column in (self.sizes, self.held))
        if max(most, int(np.abs(self.workspace).sum(dtype=object))) > MOST_BYTES or not np.isfinite(self.base_cost):
            raise GraphError(f"graph {self.name!r}: its bytes or its costs are too many to be added up")
        if self.host is not None:
            self._check_copies(self.host)

    def _column(self, key: str, values: object, dtype: type) -> NDArray:
        """A value for each node, read-only. Nothing is rounded."""
        with np.errstate(invalid="ignore"), contextlib.suppress(TypeError, ValueError, OverflowError):
            given = np.asarray(values)
            column: NDArray = given.astype(dtype)
            if given.ndim == 1 and (dtype is np.float64 or np.array_equal(column, given)):
                column.setflags(write=False)
                return column
        kind = "numbers" if dtype is np.float64 else "whole numbers"
        raise GraphError(f"graph {self.name!r}: {key} must be {kind} of 64 bits at most, one for each node")

    def _rows(self, key: str, rows: Sequence[Collection[int]]) -> tuple[tuple[int, ...], ...]:
        """Indices of nodes for each node, sorted, each once."""
        try:
            return tuple(tuple(sorted({index(i) for i in row})) for row in rows)
        except TypeError:
            raise GraphError(
                f"graph {self.name!r}: {key} must be rows of indices of nodes, one for each node"
            ) from None

    def _check_copies(self, host: Host) -> None:
        copied = [row[0] for row in self.inputs[host.first :] if len(row) == 1 and row[0] < host.first]
        known = len(self) - host.first == len(host.to_host) == len(host.from_host) == len(set(copied))
        free = not self.sizes[host.first :].any() and not self.costs[host.first :].any()
        if not (known and free) or any(self.users[host.first :]):
            raise GraphError(f"graph {self.name!r}: nodes from {host.first} on are no copies of a value each")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def edges(self) -> list[tuple[int, int]]:
        """All (i, j): node j reads the value of node i."""
        return [(i, j) for j, row in enumerate(self.inputs) for i in row]

    @property
    def first_copy(self) -> int:
        """The nodes below it compute values, those from it on copy them to the host."""
        return len(self) if self.host is None else self.host.first

    @property
    def trains(self) -> bool:
        """Whether there is a backward pass."""
        return bool((self.kinds == BACKWARD).any())

    @cached_property
    def copies(self) -> dict[int, int]:
        """The node that copies a value to the host, for each value that has one."""
        return {self.inputs[k][0]: k for k in range(self.first_copy, len(self))}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Who reads each value on the device: its users, but for the node that copies it to the host."""
        return (
            self.users
            if self.host is None
            else tuple(tuple(j for j in users if j < self.first_copy) for users in self.users)
        )

    @cached_property
    def working_set(self) -> NDArray[np.int64]:
        """(n,) bytes that computing node t needs at least (W_t): its value, workspace and inputs, but no constants."""
        needs = self.sizes + self.workspace
        for t, row in enumerate(self.inputs):
            needs[t] += sum(int(self.sizes[i]) for i in row)
        return needs

    @property
    def base_cost(self) -> float:
        """Cost of computing every node once."""
        return float(self.costs.sum())

    def with_costs(self, costs: NDArray[np.float64], unit: str) -> Graph:
        """The same graph with other costs."""
        return replace(self, costs=costs, cost_unit=unit)
