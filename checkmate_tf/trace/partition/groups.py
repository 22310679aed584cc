"""The operations that become ready together: a group for each large one, and groups for the small ones after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from ..ops import inputs_of, writes_resource
from ..sizes.static import StaticStep
from .classes import LARGE, SHAPE, SMALL, runs_when_ready
from .memory import owner_of

__all__ = ["grouped"]


def grouped(
    operations: list[tf.Operation],
    classes: Mapping[tf.Operation, str],
    static: StaticStep,
    controls_of: Callable[[tf.Operation], Sequence[tf.Operation]],
) -> tuple[list[list[tf.Operation]], dict[tf.Operation | None, list[tf.Operation]]]:
    """One group for each large operation, and after it those of the small ones that it makes ready.

    Small ones that run as soon as they can have a group of their own if any of them reads a large value: a plan can say
    then when that value goes. The others come after them.

    Also the shape operations, by the last operation (or None) that makes them ready.

    A variable is assigned in no earlier group than those that read its value before, as in the order that is given.
    TensorFlow would copy it, and leave the new one elsewhere.
    """
    level: dict[tf.Operation, int] = {}
    large: list[tf.Operation] = []
    small: dict[int, list[tf.Operation]] = {}
    shapes: dict[int, list[tf.Operation]] = {}
    last_read: dict[tf.Operation, int] = {}  # of a variable's handle
    held: set[tf.Operation] = set()  # what does not run as soon as it can, and what of its group comes after it
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
        waits = classes[op] == SMALL and not runs_when_ready(op, classes, controls_of)
        if waits or (classes[op] != LARGE and any(p in held and level[p] == ready for p in before)):
            held.add(op)
        for t in inputs_of(op) if classes[op] in (SMALL, LARGE) else ():
            owner = owner_of(t, static).op
            if owner.type == "ReadVariableOp":
                handle = owner.inputs[0].op
                last_read[handle] = max(last_read.get(handle, -1), ready)
    groups = [small[-1]] if -1 in small else []
    for k, op in enumerate(large):
        groups.append([op])
        if k in small:
            free = [op for op in small[k] if op not in held]
            apart = any(classes[owner_of(t, static).op] == LARGE for op in free for t in inputs_of(op))
            small[k] = free + [op for op in small[k] if op in held]
            groups += [g for g in (free, small[k][len(free) :]) if g] if apart else [small[k]]
    after = {k: small[k][-1] if k in small else large[k] if k >= 0 else None for k in shapes}
    return groups, {after[k]: ready for k, ready in shapes.items()}
