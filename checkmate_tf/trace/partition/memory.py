"""What operations take, alone and together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tensorflow as tf

from ...allocator.workspace import NOTHING, Workspace
from ...errors import DynamicShapeError
from ..ops import ELEMENTWISE, inputs_of
from ..pieces import PIECES
from ..sizes.learned import LEARNED
from ..sizes.shapes import PYTHON
from ..sizes.static import StaticStep
from ..sizes.tapes import taped_bytes
from ..step import TracedStep
from .classes import LARGE, SMALL

__all__ = ["Memory", "bytes_made", "bytes_taped", "local_memory", "owner_of", "readers_of", "whole_of"]

log = logging.getLogger("checkmate_tf")

_OPEN = (
    "give every dimension but the batch a fixed size (pad, or set input shapes), and while loops a maximum_iterations; "
    "or leave batch_size=, input_spec= and data= out, and sizes are seen in the first batch (a warning says if they "
    "cannot be)"
)
_NOT_TOLD = "tell the shape of what the Python function returns: result.set_shape(x.shape), or tf.ensure_shape"
_NOT_LEARNED = "cuDNN decides it, and could not be asked now: free memory on the GPU, or give the layer use_cudnn=False"


@dataclass(frozen=True, eq=False)
class Memory:
    """What memory operations take.

    Attributes
    ----------
    sizes : bytes of the outputs, and of what is kept for a gradient
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
        owners = [owner_of(t, self.static).op for t in inputs_of(op)]
        return [*owners, self.tapes[op]] if op in self.tapes else owners


def owner_of(t: tf.Tensor, static: StaticStep) -> tf.Tensor:
    """The tensor that owns the buffer that `t` lies in, seen through views and pieces."""
    while (source := static.lies_in(t.op, t.value_index)) is not None:
        t = inputs_of(t.op)[source]
    return t


def whole_of(t: tf.Tensor, static: StaticStep) -> tf.Tensor:
    """The tensor that has the values of `t` in its own buffer, seen through views, but not through pieces."""
    while t.op.type not in PIECES and (source := static.lies_in(t.op, t.value_index)) is not None:
        t = inputs_of(t.op)[source]
    return t


def bytes_made(operations: list[tf.Operation], static: StaticStep) -> dict[tf.Operation, int]:
    """Bytes of the outputs of each operation."""
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


def bytes_taped(op: tf.Operation, scratch: Mapping[tf.Operation, Workspace], static: StaticStep) -> int:
    """Bytes that an operation keeps for its gradient, beside its outputs."""
    kept = scratch.get(op, NOTHING).kept
    return kept or taped_bytes(op, lambda t: owner_of(t, static), static.bytes_of)


def readers_of(
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
                readers.setdefault(owner_of(t, static).op, set()).add(op)
    for op, recorded in tapes.items():
        readers.setdefault(recorded, set()).add(op)
    for t in step.outputs:
        readers.setdefault(owner_of(t, static).op, set()).add(None)
    return readers


def local_memory(
    group: list[tf.Operation], memory: Memory, own: Callable[[tf.Operation], bool]
) -> tuple[int, int, int]:
    """Bytes of a node's value; of its workspace; and of what it needs besides if its own inputs stay in memory.

    Follows the operations one by one. An inner value is freed after its last reader. So is an input that only this
    node reads (`own`). What nobody reads, but for its shape, is freed at once. An elementwise operation takes over the
    buffer of a dying value of its own size.
    """
    sizes, readers = memory.sizes, memory.readers
    inside = set(group)
    last = {op: k for k, op in enumerate(group) if not readers.get(op)}
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
            alike = any(sizes[o] == sizes[op] for o in dying if o is not op)
            reused = sizes[op] if op.type in ELEMENTWISE and alike else 0
            peak = max(peak, live + sizes[op] + memory.scratch.get(op, NOTHING).bytes - reused)
            live += sizes[op] - sum(sizes[o] for o in dying)
        peaks.append(peak)
    return value, peaks[0] - value, peaks[1] - peaks[0]
