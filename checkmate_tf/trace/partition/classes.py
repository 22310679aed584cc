"""Which operations are worth deciding about, and which run as soon as they can.

A step has thousands of operations, most of them tiny. Each operation is one of:

- a *source* (input, constant, read of a variable): it stays in memory and is free to read;
- a *view* (Reshape, Identity, a piece along the first dimension, ...): it lies in its input's buffer and belongs to
  the owner of that;
- *shape*: shapes alone decide its value (Shape, BroadcastGradientArgs, ...). It runs once, when the values whose shapes
  it reads are first there, and takes no memory worth counting;
- *small*: its outputs together are below `large_bytes`. Small values are computed once and kept until their last use;
- *large*: whether to keep it is decided.

A large operation is told to wait for its turn. Small ones are not (see `emit.emit`). So those without effects run when
they can, wherever a plan has them: the gradient of a small filter, say, which reads an activation and takes as long as
a large one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import tensorflow as tf

from ..ops import FUSED_LATER, is_source, is_stateful
from ..sizes.static import StaticStep

__all__ = ["LARGE", "SHAPE", "SMALL", "SOURCE", "VIEW", "classified", "runs_when_ready"]

SOURCE, VIEW, SHAPE, SMALL, LARGE = "source", "view", "shape", "small", "large"


def classified(
    operations: Iterable[tf.Operation], static: StaticStep, sizes: Mapping[tf.Operation, int], large_bytes: int
) -> dict[tf.Operation, str]:
    """The class of each operation, given the bytes of its outputs."""
    classes: dict[tf.Operation, str] = {}
    for op in operations:
        if is_source(op):
            classes[op] = SOURCE
        elif op.outputs and all(static.lies_in(op, k) is not None for k in range(len(op.outputs))):
            classes[op] = VIEW
        elif static.operations[op].type == "Const":  # folded
            classes[op] = SHAPE
        else:
            classes[op] = LARGE if sizes[op] >= large_bytes else SMALL
    return classes


def runs_when_ready(
    op: tf.Operation,
    classes: Mapping[tf.Operation, str],
    controls_of: Callable[[tf.Operation], Sequence[tf.Operation]],
) -> bool:
    """Whether an operation runs as soon as what it reads is there, wherever a plan has it.

    It is small, without effects, and waits for nothing that it does not read. Padding is left out: a convolution may do
    it, later.
    """
    alone = classes[op] == SMALL and op.type not in FUSED_LATER and not is_stateful(op)
    return alone and not controls_of(op)
