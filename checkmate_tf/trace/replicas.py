"""A step that several devices run side by side, each on its share of the batch: planned once, for the first of them.

TensorFlow traces the steps of all replicas into one graph. They are alike, operation by operation, and meet only in
collective operations, of which each has its own. So the first replica's operations make the graph to schedule, and each
node then stands for the operations of all replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from ..errors import ModelError
from .ops import inputs_of, is_source
from .program import SOURCE, Program
from .static import StaticStep
from .step import TracedStep

__all__ = ["Replicas", "split_replicas"]


@dataclass(frozen=True, eq=False)
class Replicas:
    """The steps of all replicas, and how they correspond.

    Attributes
    ----------
    whole : TracedStep
        Of all.
    first : TracedStep
        Of the first replica alone.
    twins : dict from an operation of the first replica to those of the others, in order
    """

    whole: TracedStep
    first: TracedStep
    twins: Mapping[tf.Operation, tuple[tf.Operation, ...]]

    def all_in(self, program: Program) -> Program:
        """The first replica's program with the operations of all replicas in each of its nodes."""
        nodes = tuple(self._with_twins(node) for node in program.nodes)
        shapes = tuple(self._with_twins(ready) for ready in program.shapes)
        classes, node_of = dict(program.classes), dict(program.node_of)
        operations, tensors = dict(program.static.operations), dict(program.static.tensors)
        for op, others in self.twins.items():
            for other in others:
                classes[other] = program.classes.get(op, SOURCE)
                if op in program.node_of:
                    node_of[other] = program.node_of[op]
                if op in operations:
                    operations[other] = operations[op]
                for t, same in zip(other.outputs, op.outputs, strict=True):
                    if id(same) in tensors:
                        tensors[id(t)] = tensors[id(same)]
        static = StaticStep(program.static.graph, operations, tensors, program.static.list_bytes)
        return replace(
            program, step=self.whole, static=static, nodes=nodes, shapes=shapes, classes=classes, node_of=node_of
        )

    def _with_twins(self, operations: Sequence[tf.Operation]) -> tuple[tf.Operation, ...]:
        return tuple(same for op in operations for same in (op, *self.twins.get(op, ())))


def split_replicas(step: TracedStep, devices: Sequence[str]) -> Replicas:
    """Tell the replicas of a step apart.

    Parameters
    ----------
    step : TracedStep
        Its inputs and its results are those of the first replica, then those of the second, and so on.
    devices : sequence of str
        Of the replicas.

    Raises
    ------
    ModelError
        If the replicas' operations do not correspond, or one reads another's values other than by a collective.
    """
    places = {_place(device): k for k, device in enumerate(devices)}
    count = len(step.inputs) // len(devices)
    home: dict[tf.Operation, int | None] = {t.op: k // count for k, t in enumerate(step.inputs)}
    home |= {t.op: places.get(_place(getattr(e, "device", ""))) for e, t in step.captures}
    for op in step.operations:
        if op not in home:
            home[op] = places.get(_place(op.device))
            if home[op] is None:
                home[op] = _of_inputs(op, home)
    position = {op: k for k, op in enumerate(step.graph.get_operations())}
    rows: list[list[tf.Operation]] = [[] for _ in devices]
    for op in sorted(step.operations, key=position.__getitem__):
        owner = home[op]
        if owner == 0 and any(home.get(t.op) for t in inputs_of(op)):
            raise ModelError(
                f"{op.name} ({op.type}) reads values of several replicas, which only collective operations may: leave "
                "cross_device_ops of the tf.distribute strategy at its default"
            )
        if owner is not None and not is_source(op):
            rows[owner].append(op)
    pairs: list[dict[tf.Operation, tf.Operation]] = [_correspond(rows[0], row) for row in rows[1:]]
    for k, pair in enumerate(pairs, start=1):
        start = k * count
        for t, other in zip(step.inputs[:count], step.inputs[start : start + count], strict=True):
            pair[t.op] = other.op
    twins = {op: tuple(pair[op] for pair in pairs if op in pair) for op in (pairs[0] if pairs else ())}
    outputs = tf.nest.flatten(step.structured_outputs[0])
    first = replace(
        step,
        inputs=step.inputs[:count],
        captures=[(e, t) for e, t in step.captures if home[t.op] in (0, None)],
        outputs=[t for t in outputs if tf.is_tensor(t)],
        structured_outputs=step.structured_outputs[0],
        operations=[op for op in step.operations if home[op] in (0, None)],
    )
    return Replicas(step, first, twins)


def _place(device: str) -> tuple[str, int] | None:
    """Type and number of a device, whatever else its name tells."""
    if not device:
        return None
    spec = tf.DeviceSpec.from_string(device)
    return str(spec.device_type).upper(), int(spec.device_index or 0)


def _of_inputs(op: tf.Operation, home: Mapping[tf.Operation, int | None]) -> int | None:
    """The first replica whose values an operation reads; None if nobody's."""
    return min((k for k in (home.get(t.op) for t in inputs_of(op)) if k is not None), default=None)


def _correspond(mine: list[tf.Operation], theirs: list[tf.Operation]) -> dict[tf.Operation, tf.Operation]:
    """Which operation of another replica does what one of the first does, sources included.

    What the first replica does for all (to count steps) has no counterpart.
    """
    pairs: dict[tf.Operation, tf.Operation] = {}
    left = iter(mine)
    for other in theirs:
        for op in left:
            found = _alike(op, other, pairs)
            if found is not None:
                pairs |= found
                break
        else:
            raise ModelError(f"the replicas do not do the same: {other.name} ({other.type}) is done by one alone")
    return pairs


def _alike(
    op: tf.Operation, other: tf.Operation, pairs: Mapping[tf.Operation, tf.Operation]
) -> dict[tf.Operation, tf.Operation] | None:
    """The pair of operations, with the sources that they read, if they do the same with what corresponds."""
    mine, theirs = inputs_of(op), inputs_of(other)
    if op.type != other.type or len(mine) != len(theirs):
        return None
    found = {op: other}
    for t, same in zip(mine, theirs, strict=True):
        known = pairs.get(t.op, found.get(t.op))
        if known is None and t.op is not same.op and is_source(t.op) and t.op.type == same.op.type:
            known = found[t.op] = same.op
            found |= {a.op: b.op for a, b in zip(t.op.inputs, same.op.inputs, strict=True)}
        if (t.op is not same.op and known is not same.op) or t.value_index != same.value_index:
            return None
    return found
