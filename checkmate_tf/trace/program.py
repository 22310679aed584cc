"""From operations to the nodes of a graph to schedule, and the operations that each node stands for.

A step has thousands of operations, most of them tiny. Each operation is one of:

- a *source* (input, constant, read of a variable): it stays in memory and is free to read;
- a *view* (Reshape, Identity, ...): it shares its input's buffer and belongs to the owner of that;
- *shape*: shapes alone decide its value (Shape, BroadcastGradientArgs, ...). It runs once, when the values whose shapes
  it reads are first there, and takes no memory worth counting;
- *small*: its outputs together are below `large_bytes`. Small values are computed once and kept until their last use.
  All small operations that become ready with the same large value form one node right after it;
- *large*: a node of its own. If its only reader comes right after it, the two are merged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..allocator.workspace import NOTHING, Workspace
from ..errors import DynamicShapeError
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from .ops import ELEMENTWISE, SUMS, inputs_of, is_read_only, is_source, is_stateful, view_of, writes_resource
from .order import is_gradient, waits_of
from .sizes.learned import LEARNED
from .sizes.shapes import PYTHON
from .sizes.static import StaticStep
from .sizes.tapes import pooling_of, taped_bytes, tapes_of
from .step import TracedStep
from .trees import gather_trees, within_trees

__all__ = ["Program", "build_program"]

log = logging.getLogger("checkmate_tf")

SOURCE, VIEW, SHAPE, SMALL, LARGE = "source", "view", "shape", "small", "large"

_OPEN = (
    "give every dimension but the batch a fixed size (pad, or set input shapes), and while loops a maximum_iterations; "
    "or leave batch_size=, input_spec= and data= out, and sizes are seen in the first batch"
)
_NOT_TOLD = "tell the shape of what the Python function returns: result.set_shape(x.shape), or tf.ensure_shape"
_NOT_LEARNED = "cuDNN decides it, and could not be asked now: free memory on the GPU, or give the layer use_cudnn=False"


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

    @property
    def batch_bytes(self) -> list[int]:
        """Bytes of each tensor of the data."""
        return [self.static.bytes_of(t) or 0 for t in self.step.inputs]

    @property
    def input_bytes(self) -> int:
        """Bytes of all data of a step."""
        return sum(self.batch_bytes)

    def source_of(self, t: tf.Tensor) -> tf.Tensor:
        """The tensor that owns the buffer of `t`, seen through views."""
        return _owner(t, self.static)

    def taped_bytes(self, op: tf.Operation) -> int:
        """Bytes that an operation keeps for its gradient, beside its outputs."""
        return _taped_bytes(op, self.scratch, self.static) if op in self.tapes.values() else 0

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
    sizes, scratch = _sizes(step.operations, static), scratch or {}
    poolings = {op: pooling for op in step.operations if (pooling := pooling_of(op)) is not None}
    tapes = tapes_of(step.operations) | {op: p for op, p in poolings.items() if scratch.get(p, NOTHING).kept}
    for op in dict.fromkeys(tapes.values()):
        sizes[op] += _taped_bytes(op, scratch, static)
    if large_bytes is None:
        large_bytes = max(16384, sum(sizes.values()) // 50_000)
    classes: dict[tf.Operation, str] = {}
    for op in step.operations:
        if is_source(op):
            classes[op] = SOURCE
        elif op.outputs and all(view_of(static.operations[op], k) is not None for k in range(len(op.outputs))):
            classes[op] = VIEW
        elif static.operations[op].type == "Const":  # folded
            classes[op] = SHAPE
        else:
            classes[op] = LARGE if sizes[op] >= large_bytes else SMALL
    reads = lambda op: classes[op] != SHAPE  # noqa: E731 - a short callback
    operations = gather_trees(step.operations, step.outputs, reads, lambda op: classes[op] == LARGE)
    groups, shapes = _group(operations, classes, static, step.controls_of)
    readers = _buffer_readers(step, static, classes, tapes)
    memory = _Memory(sizes, scratch, static, readers, tapes)
    groups = _merge(groups, classes, memory, within_trees(operations, step.outputs, reads))
    return _program(step, static, name, groups, shapes, classes, memory)


@dataclass(frozen=True, eq=False)
class _Memory:
    """What memory operations take.

    Attributes
    ----------
    sizes : bytes of the outputs that somebody reads, and of what is kept for a gradient
    scratch : what a kernel takes for itself
    readers : which small and large operations read each buffer; None stands for the step's results
    tapes : the operation that keeps something for a gradient
    """

    sizes: Mapping[tf.Operation, int]
    scratch: Mapping[tf.Operation, Workspace]
    static: StaticStep
    readers: Mapping[tf.Operation, set[tf.Operation | None]]
    tapes: Mapping[tf.Operation, tf.Operation]

    def read_by(self, op: tf.Operation) -> list[tf.Operation]:
        """Owners of the buffers that an operation reads."""
        owners = [_owner(t, self.static).op for t in inputs_of(op)]
        return [*owners, self.tapes[op]] if op in self.tapes else owners


def _sizes(operations: list[tf.Operation], static: StaticStep) -> dict[tf.Operation, int]:
    """Bytes of the outputs of each operation that somebody reads."""
    sizes: dict[tf.Operation, int] = {}
    for op in operations:
        total = 0
        for t in op.outputs:
            size = static.bytes_of(t)
            if size is None:
                if t.dtype == tf.variant and not t.consumers():
                    continue
                if t.dtype == tf.variant and static.seen:  # it is computed once, and kept
                    log.info("the size of %s cannot be seen: it counts nothing, but is measured", t.name)
                    continue
                advice = _NOT_LEARNED if op.type in LEARNED else _NOT_TOLD if op.type in PYTHON else _OPEN
                raise DynamicShapeError(
                    f"the size of {t.name} ({op.type}, shape {static.tensors[id(t)].shape}) does not follow from the "
                    f"batch size, so its memory cannot be planned; {advice}"
                )
            total += size
        sizes[op] = total
    return sizes


def _taped_bytes(op: tf.Operation, scratch: Mapping[tf.Operation, Workspace], static: StaticStep) -> int:
    """Bytes that an operation keeps for its gradient, beside its outputs."""
    kept = scratch.get(op, NOTHING).kept
    return kept or taped_bytes(op, lambda t: _owner(t, static), static.bytes_of)


def _owner(t: tf.Tensor, static: StaticStep) -> tf.Tensor:
    while True:
        copy = static.operations.get(t.op)
        source = view_of(copy, t.value_index) if copy is not None and copy.type == t.op.type else None
        if source is None:
            return t
        t = inputs_of(t.op)[source]


def _group(
    operations: list[tf.Operation],
    classes: Mapping[tf.Operation, str],
    static: StaticStep,
    controls_of: Callable[[tf.Operation], Sequence[tf.Operation]],
) -> tuple[list[list[tf.Operation]], dict[tf.Operation | None, list[tf.Operation]]]:
    """One group for each large operation, and after it one for the small ones that it makes ready.

    Also the shape operations, by the last operation (or None) that makes them ready.

    A variable is assigned in no earlier group than those that read its value before, as in the order that is given.
    TensorFlow would copy it, and leave the new one elsewhere.
    """
    level: dict[tf.Operation, int] = {}
    large: list[tf.Operation] = []
    small: dict[int, list[tf.Operation]] = {}
    shapes: dict[int, list[tf.Operation]] = {}
    last_read: dict[tf.Operation, int] = {}  # of a variable's handle
    for op in operations:
        before = [*(t.op for t in inputs_of(op)), *(c for c in controls_of(op) if c in classes)]
        ready = max((level[p] for p in before), default=-1)
        if writes_resource(op):
            ready = max([ready, *(last_read.get(t.op, -1) for t in op.inputs)])
        if classes[op] == LARGE:
            ready = len(large)
            large.append(op)
        elif classes[op] == SMALL:
            small.setdefault(ready, []).append(op)
        elif classes[op] == SHAPE:
            shapes.setdefault(ready, []).append(op)
        level[op] = ready
        for t in inputs_of(op) if classes[op] in (SMALL, LARGE) else ():
            owner = _owner(t, static).op
            if owner.type == "ReadVariableOp":
                handle = owner.inputs[0].op
                last_read[handle] = max(last_read.get(handle, -1), ready)
    groups = [small[-1]] if -1 in small else []
    for k, op in enumerate(large):
        groups.append([op])
        if k in small:
            groups.append(small[k])
    after = {k: small[k][-1] if k in small else large[k] if k >= 0 else None for k in shapes}
    return groups, {after[k]: ready for k, ready in shapes.items()}


def _buffer_readers(
    step: TracedStep,
    static: StaticStep,
    classes: Mapping[tf.Operation, str],
    tapes: Mapping[tf.Operation, tf.Operation],
) -> dict[tf.Operation, set[tf.Operation | None]]:
    """Which small and large operations read each buffer; None stands for the step's results."""
    readers: dict[tf.Operation, set[tf.Operation | None]] = {}
    for op in step.operations:
        if classes[op] in (SMALL, LARGE):
            for t in inputs_of(op):
                readers.setdefault(_owner(t, static).op, set()).add(op)
    for op, recorded in tapes.items():
        readers.setdefault(recorded, set()).add(op)
    for t in step.outputs:
        readers.setdefault(_owner(t, static).op, set()).add(None)
    return readers


def _merge(
    groups: list[list[tf.Operation]],
    classes: Mapping[tf.Operation, str],
    memory: _Memory,
    partial: set[tf.Operation],
) -> list[list[tf.Operation]]:
    """Merge a group into the next one if only that one reads it.

    To keep such a value is never better than to keep what its reader makes of it, unless the value is the smaller one.
    A merged node holds both sets of inputs at once. So a merge that needs more memory than any node does today is left
    out. Partial sums and products, and what lies behind them, are merged anyway (see `trees.py`).
    """
    sizes = memory.sizes
    home = {op: k for k, group in enumerate(groups) for op in group}
    readers: list[set[int]] = [set() for _ in groups]
    inputs = [_reads(group, memory, home) for group in groups]
    for k, reads in enumerate(inputs):
        for op in reads:
            if home[op] != k:
                readers[home[op]].add(k)
    pinned = [any(classes[op] == SMALL or is_stateful(op) for op in group) for group in groups]

    def needs(group: list[tf.Operation], reads: set[tf.Operation]) -> int:
        inside = set(group)
        value, workspace, _ = _local_memory(group, memory, lambda op: op in home and memory.readers[op] <= inside)
        return sum(sizes[op] for op in reads - inside) + value + workspace

    limit = max((needs(g, r) for g, r in zip(groups, inputs, strict=True)), default=0)
    stack: list[tuple[list[tf.Operation], set[tf.Operation], set[int], bool]] = []
    for k, group in enumerate(groups):
        reads, fixed = inputs[k], pinned[k]
        while stack and stack[-1][2] == {k} and (fixed or not stack[-1][3]):
            before, earlier, _, _ = stack[-1]
            joined, together = before + group, earlier | reads
            grows = sum(sizes[op] for op in group) > sum(sizes[op] for op in before) and not fixed
            ends = (j for j in range(len(stack), 0, -1) if stack[j - 1][2] != {k} or (stack[j - 1][3] and not fixed))
            begin = next(ends, 0)
            whole = any(entry[0][-1] in partial for entry in stack[begin:])  # this one, or one behind it
            if not whole and (grows or needs(joined, together) > limit):
                break
            group, reads = joined, together
            stack.pop()
        stack.append((group, reads, readers[k], fixed))
    return [entry[0] for entry in stack]


def _reads(group: list[tf.Operation], memory: _Memory, home: Mapping[tf.Operation, int]) -> set[tf.Operation]:
    """Owners of the buffers that a group reads, sources excluded."""
    return {owner for op in group for owner in memory.read_by(op) if owner in home}


def _local_memory(
    group: list[tf.Operation], memory: _Memory, own: Callable[[tf.Operation], bool]
) -> tuple[int, int, int]:
    """Bytes of a node's value; of its workspace; and of what it needs besides if its own inputs stay in memory.

    Follows the operations one by one. An inner value is freed after its last reader. So is an input that only this
    node reads (`own`). An elementwise operation takes over the buffer of a dying value of its own size.
    """
    sizes, readers = memory.sizes, memory.readers
    inside = set(group)
    last: dict[tf.Operation, int] = {}
    for k, op in enumerate(group):
        for owner in memory.read_by(op):
            last[owner] = k
    outside = {op for op in group if op not in last or not readers.get(op, set()) <= inside}
    inner = {op for op in last if op in inside and op not in outside}
    inputs = {op for op in last if op not in inside and own(op)}
    value = sum(sizes[op] for op in outside)
    peaks = []
    for mortal in (inner | inputs, inner):
        live = peak = 0
        ends: dict[int, list[tf.Operation]] = {}
        for o in mortal:
            ends.setdefault(last[o], []).append(o)
        for k, op in enumerate(group):
            dying = ends.get(k, [])
            reused = sizes[op] if op.type in ELEMENTWISE and any(sizes[o] == sizes[op] for o in dying) else 0
            peak = max(peak, live + sizes[op] + memory.scratch.get(op, NOTHING).bytes - reused)
            live += sizes[op] - sum(sizes[o] for o in dying)
        peaks.append(peak)
    return value, peaks[0] - value, peaks[1] - peaks[0]


def _program(
    step: TracedStep,
    static: StaticStep,
    name: str,
    groups: list[list[tf.Operation]],
    shapes: Mapping[tf.Operation | None, list[tf.Operation]],
    classes: Mapping[tf.Operation, str],
    memory: _Memory,
) -> Program:
    sizes = memory.sizes
    node_of = {op: k for k, group in enumerate(groups) for op in group}
    n = len(groups)
    inputs = [sorted({node_of[op] for op in _reads(g, memory, node_of)} - {k}) for k, g in enumerate(groups)]
    users: list[set[int]] = [set() for _ in groups]
    for k, row in enumerate(inputs):
        for i in row:
            users[i].add(k)
    kept = {node_of[_owner(t, static).op] for t in step.outputs if _owner(t, static).op in node_of}

    def memory_of(k: int) -> tuple[int, int, int]:
        mine = {i for i in inputs[k] if users[i] == {k} and i not in kept}
        return _local_memory(groups[k], memory, lambda op: node_of.get(op) in mine)

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
