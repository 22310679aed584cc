"""The operations of a step that matter, in a stable topological order that frees memory early."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from ..errors import TraceError
from ..graph import after_all_below
from .ops import ELEMENTWISE, SUMS, inputs_of, is_source, is_stateful, view_of, writes_resource
from .pieces import PIECES

__all__ = [
    "early_updates",
    "followers_of",
    "in_order_of",
    "is_gradient",
    "needed_operations",
    "topological",
    "waits_of",
]


def needed_operations(
    graph: tf.Graph, outputs: list[tf.Tensor], standing_for: Mapping[tf.Operation, tf.Operation] | None = None
) -> list[tf.Operation]:
    """Ancestors of the outputs and of all side effects, sorted topologically.

    The order is that of creation, with two exceptions. An operation may be created before one of its inputs (a while
    loop, and the accumulators that its gradient adds): it comes right after that input. And sums, updates and the
    gradients of weights come as early as they can.

    Parameters
    ----------
    standing_for : mapping from operation to operation, optional
        Those that were created later, in the place of others: they come where these were.
    """
    roots = {t.op for t in outputs}
    roots.update(op for op in graph.get_operations() if is_stateful(op) and not is_source(op))
    needed: set[tf.Operation] = set()
    todo = list(roots)
    while todo:
        op = todo.pop()
        if op not in needed:
            needed.add(op)
            todo += _parents(op)
    created = {op: k for k, op in enumerate(graph.get_operations())}
    places = {op: created[(standing_for or {}).get(op, op)] for op in created if op in needed}
    return early_updates(_early_sums(topological(sorted(places, key=places.__getitem__))), roots)


def _early_sums(order: list[tf.Operation]) -> list[tf.Operation]:
    """Move each sum up to where its last term is ready: the sum then replaces its terms in memory.

    An elementwise term moves down, behind the other readers of an input that is as large: the input may go then.
    """
    readers: dict[tf.Operation, list[tf.Operation]] = {}
    for op in order:
        for t in inputs_of(op):
            readers.setdefault(t.op, []).append(op)
    created = {op: k for k, op in enumerate(order)}
    position: dict[tf.Operation, int] = {}
    moved: dict[int, list[tf.Operation]] = {}
    for k, op in enumerate(order):
        before = [position[p] for p in _parents(op)]
        if op.type in SUMS or op.type == "Snapshot":
            position[op] = max(before, default=k)
        elif _is_term(op, readers):
            alike = [t.op for t in inputs_of(op) if t.shape.rank and t.shape.as_list() == op.outputs[0].shape.as_list()]
            others = {r for p in alike for r in readers[p] if not _is_term(r, readers)}
            until = created[readers[op][0]]
            position[op] = max([k, *before, *(created[r] for r in others if created[r] < until)])
        else:
            position[op] = k
            continue
        moved.setdefault(position[op], []).append(op)
    wanted: list[tf.Operation] = []
    for k, op in enumerate(order):
        here = moved.get(k, [])
        wanted += [op] if position[op] == k and op not in here else []
        wanted += sorted(here, key=lambda op: _is_term(op, readers))  # sums first, each after the terms it asks for
    return topological(wanted)


def _is_term(op: tf.Operation, readers: dict[tf.Operation, list[tf.Operation]]) -> bool:
    """Whether an operation is elementwise, no sum, and read by one sum alone."""
    if op.type not in ELEMENTWISE or op.type in SUMS or op.type == "Snapshot":
        return False
    return [r.type in SUMS for r in readers.get(op, ())] == [True]


def early_updates(order: list[tf.Operation], roots: set[tf.Operation]) -> list[tf.Operation]:
    """Move updates, and the gradients of weights, up to where what they read is ready.

    Keras computes all gradients before the optimizer's first update. So all of them are in memory at the end of the
    backward pass. Here each update comes right after its gradient.

    A tape computes the gradient of a layer's input before that of its weights. So the input, its gradient and that of
    the output are in memory together. Here the weights' gradient comes first, after which the input may go.

    A variable is not assigned while the backward pass still reads its value: TensorFlow would copy it. All data and
    control dependencies stay, and so do all numbers.

    Parameters
    ----------
    order : list of tf.Operation
        In topological order.
    roots : set of tf.Operation
        Results and side effects. Those that are no part of the backward pass come as early as they can.
    """
    last = max((k for k, op in enumerate(order) if is_gradient(op)), default=None)
    if last is None:
        return order
    head: set[tf.Operation] = set()
    todo = [op for op in order[: last + 1] if is_gradient(op)]
    while todo:
        op = todo.pop()
        if op not in head:
            head.add(op)
            todo += _parents(op)
    ends, reads = _only_ends(order, head), _last_reads(order, head)
    position: dict[tf.Operation, int] = {}  # of the last that it depends on of what leads to several ends
    for k, op in enumerate(order):
        before = max((position[p] for p in _parents(op)), default=-1)
        if op not in head and writes_resource(op):
            before = max(before, *(reads.get(t.op, -1) for t in op.inputs))
        position[op] = k if op in head and (ends[op] is None or before < 0) else before
    early: dict[int, list[tf.Operation]] = {}
    for op in order:
        if op in roots if op not in head else ends[op] is op:
            early.setdefault(position[op], []).append(op)
    wanted: list[tf.Operation] = early.get(-1, [])
    for k, op in enumerate(order):
        if op in head:
            wanted += [op, *early.get(k, [])]
    return topological(wanted)


def _only_ends(order: list[tf.Operation], head: set[tf.Operation]) -> dict[tf.Operation, tf.Operation | None]:
    """Of each operation of the head: the end that it leads to, None if it leads to several.

    An end is an operation that no other of the head reads.
    """
    ends: dict[tf.Operation, tf.Operation | None] = {}
    for op in reversed(order):
        if op in head:
            end = ends.setdefault(op, op)
            for p in _parents(op):
                ends[p] = end if ends.get(p, end) is end else None
    return ends


def _last_reads(order: list[tf.Operation], head: set[tf.Operation]) -> dict[tf.Operation, int]:
    """Of each variable's handle: the place of the last operation of the head that reads the variable's value."""
    last: dict[tf.Operation, int] = {}
    for k, op in enumerate(order):
        for t in inputs_of(op) if op in head else ():
            handle = _variable(t)
            if handle is not None:
                last[handle] = k
    return last


def _variable(t: tf.Tensor) -> tf.Operation | None:
    """The handle of the variable whose value a tensor is, or may be a piece of; None if it is another value."""
    while (source := PIECES.get(t.op.type, view_of(t.op, t.value_index))) is not None:
        t = inputs_of(t.op)[source]
    return t.op.inputs[0].op if t.op.type == "ReadVariableOp" else None


def followers_of(
    operations: Sequence[tf.Operation],
    node_of: Mapping[tf.Operation, int],
    controls_of: Callable[[tf.Operation], Sequence[tf.Operation]],
) -> tuple[list[set[int]], dict[tf.Operation, set[int]]]:
    """For each node, the nodes that come after it in any order; and for each operation the nodes that it is made of.

    They read it, or something that is made of it without a node of its own; they wait for it by a control edge; or they
    assign a variable whose value it reads, which may be the other way round, too. Nodes with effects on different
    variables may come in any order.

    Parameters
    ----------
    operations : sequence of tf.Operation
        In topological order.
    node_of : mapping from operation to node
    controls_of : callable
        What an operation comes after, beside what it reads.
    """
    followers: list[set[int]] = [set() for _ in range(max(node_of.values(), default=-1) + 1)]
    behind: dict[tf.Operation, set[int]] = {}  # the nodes that an operation is made of
    read: dict[tf.Operation, set[int]] = {}  # handle -> nodes
    written: dict[tf.Operation, set[int]] = {}
    for op in operations:
        before = set[int]().union(*(behind.get(p, ()) for p in [*(t.op for t in inputs_of(op)), *controls_of(op)]))
        node = node_of.get(op)
        behind[op] = before if node is None else {node}
        if node is None:
            continue
        for k in before - {node}:
            followers[k].add(node)
        handles = written if writes_resource(op) else read
        for handle in (t.op for t in op.inputs if t.dtype == tf.resource):
            handles.setdefault(handle, set()).add(node)
        for variable in filter(None, map(_variable, inputs_of(op))):
            read.setdefault(variable, set()).add(node)
    for handle, writers in written.items():
        for writer in writers:
            for k in (writers | read.get(handle, set())) - {writer}:
                followers[min(k, writer)].add(max(k, writer))
    return followers, behind


def waits_of(
    operations: Sequence[tf.Operation],
    node_of: Mapping[tf.Operation, int],
    controls_of: Callable[[tf.Operation], Sequence[tf.Operation]],
    shapes: Mapping[tf.Operation | None, list[tf.Operation]],
    inputs: Sequence[Sequence[int]],
    last: Iterable[int],
) -> list[set[int]]:
    """For each node, those that come before it in any order, though it does not read them.

    Shape operations run with the node that made them ready, so all that they read comes before that.

    Parameters
    ----------
    operations, node_of, controls_of
        As `followers_of` takes them.
    shapes : mapping from operation to its shape operations
        By what makes them ready; None: nothing has to.
    inputs : sequence of n sequences of int
        What each node reads.
    last : iterable of int
        Nodes that come after all nodes below them.
    """
    waits = [set(row) for row in after_all_below(last, len(inputs))]
    followers, behind = followers_of(operations, node_of, controls_of)
    for k, later in enumerate(followers):
        for node in later:
            waits[node].add(k)
    for op, ready in shapes.items():
        node = 0 if op is None else node_of[op]
        waits[node].update(*(behind[shape] for shape in ready))
    return [{k for k in row if k < node} - set(inputs[node]) for node, row in enumerate(waits)]


def in_order_of(
    operations: Sequence[tf.Operation], node_of: Mapping[tf.Operation, int], order: Sequence[int]
) -> list[tf.Operation]:
    """The operations, those of nodes in the order of their nodes."""
    place = {k: at for at, k in enumerate(order)}
    mine = sorted((op for op in operations if op in node_of), key=lambda op: place[node_of[op]])
    return topological([*mine, *operations])


def is_gradient(op: tf.Operation) -> bool:
    """True if tf.GradientTape made the operation.

    Its name scope tells. A wrong guess costs memory or time only: it guides the order and the search.
    """
    return "gradient_tape/" in op.name


def topological(operations: list[tf.Operation]) -> list[tf.Operation]:
    """The operations and their ancestors, each after its ancestors, otherwise in the order given.

    Raises
    ------
    TraceError
        If there is a cycle.
    """
    ordered: dict[tf.Operation, None] = {}
    for first in operations:
        if first in ordered:
            continue
        stack = [(first, iter(_parents(first)))]
        on_stack = {first}
        while stack:
            op, parents = stack[-1]
            for parent in parents:
                if parent in on_stack:
                    raise TraceError(f"the traced step has a cycle through {parent.name}")
                if parent not in ordered:
                    stack.append((parent, iter(_parents(parent))))
                    on_stack.add(parent)
                    break
            else:
                ordered[op] = None
                on_stack.discard(op)
                stack.pop()
    return list(ordered)


def _parents(op: tf.Operation) -> list[tf.Operation]:
    return [t.op for t in inputs_of(op)] + list(op.control_inputs)
