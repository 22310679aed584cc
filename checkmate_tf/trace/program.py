"""From operations to the nodes of a graph to schedule, and the operations that each node stands for.

Operations are put together to groups, and groups to nodes (see `partition`). A large operation is a group of its own.
If its only reader comes right after it, the two are merged. All small operations that become ready with the same large
value come right after it: first those that run as soon as they can.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..allocator.workspace import NOTHING, Workspace
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from .ops import SUMS, is_read_only, is_stateful, writes_resource
from .order import is_gradient, waits_of
from .partition.classes import LARGE, SHAPE, SMALL, classified, runs_when_ready
from .partition.groups import grouped
from .partition.memory import Memory, bytes_made, bytes_taped, local_memory, owner_of, readers_of, whole_of
from .partition.merged import merged, read_by_group
from .partition.trees import gather_trees, within_trees
from .sizes.static import StaticStep
from .sizes.tapes import pooling_of, tapes_of
from .step import TracedStep

__all__ = ["Program", "build_program"]


@dataclass(frozen=True, eq=False)
class Program:
    """A traced step, partitioned into the nodes of a Graph.

    Attributes
    ----------
    step : TracedStep
    static : StaticStep
    graph : Graph
        Costs are zero until `with_costs`.
    nodes : tuple of tuples of tf.Operation
        Operations of each node, in order: small and large ones.
    shapes : tuple of tuples of tf.Operation
        Shape operations that become ready when each node is first computed.
    classes : dict from operation to "source", "view", "shape", "small" or "large"
    node_of : dict from operation to node, for small and large operations
    variable_bytes : int
        A part of `graph.constant_bytes`. `input_bytes` are another; large constants are the rest.
    scratch : dict from operation to what its kernel takes for itself, where there is any
    tapes : dict from a gradient to the operation that keeps something for it
    left_out : set of operations that an emitted step does without, with zeros for what others read (`device.effects`)
    """

    step: TracedStep
    static: StaticStep
    graph: Graph
    nodes: tuple[tuple[tf.Operation, ...], ...]
    shapes: tuple[tuple[tf.Operation, ...], ...]
    classes: Mapping[tf.Operation, str]
    node_of: Mapping[tf.Operation, int]
    variable_bytes: int
    scratch: Mapping[tf.Operation, Workspace] = field(default_factory=dict)
    tapes: Mapping[tf.Operation, tf.Operation] = field(default_factory=dict)
    left_out: Set[tf.Operation] = frozenset()

    @property
    def batch_bytes(self) -> list[int]:
        """Bytes of each tensor of the data."""
        return [self.static.bytes_of(t) or 0 for t in self.step.inputs]

    @property
    def input_bytes(self) -> int:
        """Bytes of all data of a step."""
        return sum(self.batch_bytes)

    def source_of(self, t: tf.Tensor) -> tf.Tensor:
        """The tensor that owns the buffer that `t` lies in, seen through views and pieces."""
        return owner_of(t, self.static)

    def whole_of(self, t: tf.Tensor) -> tf.Tensor:
        """The tensor that has the values of `t` in its own buffer, seen through views, but not through pieces."""
        return whole_of(t, self.static)

    def taped_bytes(self, op: tf.Operation) -> int:
        """Bytes that an operation keeps for its gradient, beside its outputs."""
        return bytes_taped(op, self.scratch, self.static) if op in self.tapes.values() else 0

    def node_costs(self, operations: list[tf.Operation], costs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum the costs of operations by node. Operations that are in no node are free."""
        total = np.zeros(len(self.nodes))
        for op, cost in zip(operations, costs, strict=True):
            node = self.node_of.get(op)
            if node is not None:
                total[node] += cost
        return total


def build_program(
    step: TracedStep,
    static: StaticStep,
    name: str,
    large_bytes: int | None = None,
    scratch: Mapping[tf.Operation, Workspace] | None = None,
) -> Program:
    """Partition a traced step into nodes.

    Parameters
    ----------
    step, static
        The step, and its sizes for the batch to plan for.
    name : str
        Of the graph.
    large_bytes : int, optional
        Least bytes of a value worth deciding about. Default: 16 KiB, or 1/50,000 of all bytes computed if that is more.
    scratch : mapping from operation to Workspace, optional
        What its kernel takes for itself. By default nothing.

    Raises
    ------
    DynamicShapeError
        If a value's size does not follow from the batch size.
    """
    sizes, scratch = bytes_made(step.operations, static), scratch or {}
    poolings = {op: pooling for op in step.operations if (pooling := pooling_of(op)) is not None}
    tapes = tapes_of(step.operations) | {op: p for op, p in poolings.items() if scratch.get(p, NOTHING).kept}
    for op in dict.fromkeys(tapes.values()):
        sizes[op] += bytes_taped(op, scratch, static)
    if large_bytes is None:
        large_bytes = max(16384, sum(sizes.values()) // 50_000)
    classes = classified(step.operations, static, sizes, large_bytes)
    reads = lambda op: classes[op] != SHAPE  # noqa: E731 - a short callback
    operations = gather_trees(step.operations, step.outputs, reads, lambda op: classes[op] == LARGE)
    groups, shapes = grouped(operations, classes, static, step.controls_of)
    readers = readers_of(step, static, classes, tapes)
    memory = Memory(sizes, scratch, static, readers, tapes)
    free = lambda op: runs_when_ready(op, classes, step.controls_of)  # noqa: E731
    groups = merged(groups, classes, memory, within_trees(operations, step.outputs, reads), free)
    return _program(step, static, name, groups, shapes, classes, memory)


def _program(
    step: TracedStep,
    static: StaticStep,
    name: str,
    groups: list[list[tf.Operation]],
    shapes: Mapping[tf.Operation | None, list[tf.Operation]],
    classes: Mapping[tf.Operation, str],
    memory: Memory,
) -> Program:
    sizes = memory.sizes
    node_of = {op: k for k, group in enumerate(groups) for op in group}
    n = len(groups)
    inputs = [sorted({node_of[op] for op in read_by_group(g, memory, node_of)} - {k}) for k, g in enumerate(groups)]
    users: list[set[int]] = [set() for _ in groups]
    for k, row in enumerate(inputs):
        for i in row:
            users[i].add(k)
    kept = {node_of[owner_of(t, static).op] for t in step.outputs if owner_of(t, static).op in node_of}

    def memory_of(k: int) -> tuple[int, int, int]:
        mine = {i for i in inputs[k] if users[i] == {k} and i not in kept}
        return local_memory(groups[k], memory, lambda op: node_of.get(op) in mine)

    local = [memory_of(k) for k in range(n)]
    kinds, backward = np.zeros(n, np.int8), [False] * n
    for k, group in enumerate(groups):
        made = any(is_gradient(op) and classes[op] == LARGE and op.type != "EmptyTensorList" for op in group)
        backward[k] = made or any(backward[i] for i in inputs[k])
        kinds[k] = BACKWARD if backward[k] else FORWARD
    first = next((k for k in range(n) if backward[k]), n)
    if 0 < first < n:
        kinds[first - 1] = LOSS
    variables = _variable_bytes(step)
    given = sum(static.bytes_of(t) or 0 for t in step.inputs)
    constants = sum(sizes[op] for op in step.operations if op.type == "Const")
    names, sinks = [_node_name(g, sizes) for g in groups], sorted(k for k in kept if local[k][0] >= 16384)
    until, last = _recompute_until(groups, classes)
    columns: dict[str, Any] = {
        "kinds": [*kinds],
        "sizes": [m[0] for m in local],
        "workspace": [m[1] for m in local],
        "held": [m[2] for m in local],
        "recompute_until": until,
    }
    if sinks:  # results are in memory until the step returns
        names.append("outputs")
        inputs.append(sinks)
        groups = [*groups, []]
        for key, value in {"kinds": BACKWARD, "sizes": 0, "workspace": 0, "held": 0, "recompute_until": 0}.items():
            columns[key].append(value)
    graph = Graph(
        name=name,
        names=names,
        costs=np.zeros(len(names)),
        inputs=inputs,
        waits=waits_of(step.operations, node_of, step.controls_of, shapes, inputs, last),
        constant_bytes=variables + given + constants,
        **columns,
    )
    by_node: list[list[tf.Operation]] = [list(shapes.get(None, [])) if k == 0 else [] for k in range(len(groups))]
    for op, ready in shapes.items():
        if op is not None:
            by_node[node_of[op]] += ready
    return Program(
        step, static, graph, tuple(map(tuple, groups)), tuple(map(tuple, by_node)), classes, node_of, variables,
        memory.scratch, memory.tapes,
    )  # fmt: skip


def _recompute_until(
    groups: list[list[tf.Operation]], classes: Mapping[tf.Operation, str]
) -> tuple[list[int], set[int]]:
    """First stage in which a node may no longer be computed again: 0 if it has effects, n if nothing forbids it.

    Also the nodes whose assignments forbid it, which have to come after all nodes below them (`after_all_below`).

    A small value is kept: its node's is the next stage. A node that reads variables itself (a loop over a cell) must
    not run again once one of them was assigned. A sum of three and more terms runs once: its kernel begins with an
    input whose memory it can take over, and a second run whose inputs live on would round in another order.
    """
    written: dict[int, list[int]] = {}
    for k, group in enumerate(groups):
        for op in group:
            if writes_resource(op):
                for t in op.inputs:
                    if t.dtype == tf.resource:
                        written.setdefault(id(t), []).append(k)
    until, last = list[int](), set[int]()
    for k, group in enumerate(groups):
        if any(is_stateful(op) for op in group):
            until.append(0)
            continue
        if any(op.type in SUMS and len(op.inputs) > 2 for op in group):
            until.append(1)
            continue
        limit = k + 1 if any(classes[op] == SMALL for op in group) else len(groups)
        for op in group:
            if is_read_only(op):
                writers = (w for t in op.inputs if t.dtype == tf.resource for w in written.get(id(t), []))
                assigned = min((w for w in writers if w > k), default=None)
                if assigned is not None:
                    last.add(assigned)
                    limit = min(limit, assigned)
        until.append(limit)
    return until, last


def _variable_bytes(step: TracedStep) -> int:
    total, seen = 0, set()
    for external, internal in step.captures:
        if internal.dtype != tf.resource:
            total += int(np.prod(external.shape)) * external.dtype.size if external.shape.is_fully_defined() else 0
            continue
        data = getattr(internal, "_handle_data", None) or getattr(external, "_handle_data", None)
        if id(external) in seen or data is None or not data.is_set:
            continue
        seen.add(id(external))
        for entry in data.shape_and_type:
            shape, dtype = tf.TensorShape(entry.shape), tf.as_dtype(entry.dtype)
            total += (shape.num_elements() or 0) * dtype.size
    return total


def _node_name(group: list[tf.Operation], sizes: Mapping[tf.Operation, int]) -> str:
    return max(reversed(group), key=lambda op: sizes[op]).name if group else "empty"
