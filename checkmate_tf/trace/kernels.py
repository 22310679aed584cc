"""What the operations of a program's nodes allocate, read and take over, as the allocator's model takes it."""

from __future__ import annotations

from collections.abc import Container, Iterable

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..allocator.sequence import Kernels
from ..allocator.workspace import NOTHING
from .ops import ELEMENTWISE, inputs_of
from .products import products_of
from .program import Program
from .rewrites.sums import grappler_sorts

__all__ = ["kernels_of", "takes_over"]

# Which output takes over the memory of a dying input of the same size.
_TAKES_OVER = dict.fromkeys(ELEMENTWISE | {"Select", "SelectV2", "LogicalAnd", "LogicalNot", "LogicalOr"}, 0) | {
    "SparseSoftmaxCrossEntropyWithLogits": 1,
    "SoftmaxCrossEntropyWithLogits": 1,
}


def takes_over(op: tf.Operation) -> bool:
    """Whether a kernel computes into the memory of a dying input, if one is as large as its result."""
    return op.type in _TAKES_OVER


def kernels_of(program: Program, batch: bool = False, folded: Container[tf.Operation] = frozenset()) -> Kernels:
    """The operations of a program's nodes, as arrays.

    Views are no operations here: they share the memory of what they look at. So are shape operations, whose values
    are a few bytes. Where Grappler is on, a constant factor is where Grappler will put it (see `products`).

    With `batch` the last node, one beyond those of the program, is the batch that comes for the step. It is freed as
    other values are. A plan counts it for the whole step.

    What is `folded` does not run in a step: it takes no memory, and reads nothing.
    """
    pushed = products_of(program).pushed if grappler_sorts() else []
    without = {p.inner: id(p.factor) for p in pushed}
    beside = {p.outer: id(program.source_of(p.factor)) for p in pushed}
    given = program.step.inputs if batch else []
    made = sum(len(op.outputs) + (program.taped_bytes(op) > 0) for node in program.nodes for op in node)
    # id of a traced tensor, or of an operation whose tape holds one -> buffer
    buffers: dict[int, int] = {id(t): made + k for k, t in enumerate(given)}
    sizes: list[int] = []
    pieces: list[int] = []
    operations, outputs, reads = [0], [0], [0]
    read: list[int] = []
    into: list[int] = []
    workspaces, before = [0], list[int]()
    workspace: list[int] = []
    for node in program.nodes:
        for op in node:
            mine = dict.fromkeys(id(program.source_of(t)) for t in inputs_of(op))
            mine.pop(without.get(op, 0), None)
            mine |= {beside[op]: None} if op in beside else {}
            recorded = program.tapes.get(op)
            mine |= dict.fromkeys([id(recorded), *map(id, recorded.outputs)]) if recorded is not None else {}
            read += [buffers[key] for key in mine if key in buffers and op not in folded]
            reads.append(len(read))
            for t in op.outputs:
                size = 0 if op in folded else _bytes_of(program, t)
                element = _element_bytes(program, t)
                buffers[id(t)] = len(sizes)
                sizes.append(size)
                pieces.append(max(1, round(size / element)) if element else 1)
            if (taped := program.taped_bytes(op)) > 0:
                buffers[id(op)] = len(sizes)
                sizes.append(taped)
                pieces.append(1)
            elements = [e for t in (*op.inputs, *op.outputs) if (e := _element_bytes(program, t))]
            outputs.append(len(sizes))
            passed_on = program.static.passed_on.get(op)
            into.append(min(passed_on) if passed_on else _TAKES_OVER.get(op.type, -1))
            own = NOTHING if op in folded else program.scratch.get(op, NOTHING)
            many = max(1, round(own.bytes / max(elements))) if elements else 1  # it keeps lists of its own
            workspace += [*own.before, *own.after] if many == 1 else [own.bytes // many] * many
            before.append(len(own.before) if many == 1 else 0)
            workspaces.append(len(workspace))
        operations.append(len(into))
    if batch:
        sizes += program.batch_bytes
        pieces += [1] * len(given)
        for counts, most in ((outputs, sizes), (reads, read), (workspaces, workspace)):
            counts.append(len(most))
        into.append(-1)
        before.append(0)
        operations.append(len(into))
    kept = np.zeros(len(sizes), bool)
    for t in program.step.outputs:
        source = program.source_of(t)
        if id(source) in buffers:
            kept[buffers[id(source)]] = True
    return Kernels(
        _integers(operations),
        _integers(outputs),
        _integers(reads),
        _integers(read),
        _integers(sizes),
        _integers(pieces),
        kept,
        _integers(into),
        _integers(workspaces),
        _integers(before),
        _integers(workspace),
    )


def _bytes_of(program: Program, t: tf.Tensor) -> int:
    """Bytes that an output takes; 0 if it shares the memory of an input, or holds nothing that is known."""
    if program.source_of(t) is not t:
        return 0
    return program.static.bytes_of(t) or 0


def _element_bytes(program: Program, t: tf.Tensor) -> int:
    """Bytes of an element of a list; 0 if it is no list, or that is not known."""
    element = program.static.elements.get(id(t)) if t.dtype == tf.variant else None
    if element is None or not element.shape.is_fully_defined():
        return 0
    return int(element.shape.num_elements() * element.dtype.size)


def _integers(values: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64)
