"""A step that several devices run side by side, each on its share of the batch: planned once, for the first of them.

TensorFlow traces the steps of all replicas into one graph. They are alike, operation by operation. They meet only in
collective operations, of which each replica has its own. So the graph to schedule is made of the first replica's
operations. Each of its nodes then stands for the operations of all replicas.

Effects that belong to no variable (assertions, prints) are kept in order by control edges. That is the order of
tracing, which alternates between the replicas. Here it is kept within each replica; between replicas there is none to
keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from ..errors import ModelError
from .ops import inputs_of, is_source
from .order import topological
from .partition.classes import SOURCE
from .program import Program
from .sizes.static import StaticStep
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
    own : set of tf.Operation
        Those of the first replica whose values differ among replicas, because they read a constant that differs.
    """

    whole: TracedStep
    first: TracedStep
    twins: Mapping[tf.Operation, tuple[tf.Operation, ...]]
    own: frozenset[tf.Operation]

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
                        tensors[id(t)] = t if op in self.own else tensors[id(same)]
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
        If the replicas' operations do not correspond; if the first reads values of another, other than by a collective;
        or if all gather rows whose number only data tells.
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
    position = {op: k for k, op in enumerate(topological(step.graph.get_operations()))}
    rows: list[list[tf.Operation]] = [[] for _ in devices]
    for op in sorted(step.operations, key=position.__getitem__):
        owner = home[op]
        if op.type == "CollectiveGatherV2":
            raise ModelError(
                f"{op.name} gathers the rows of a sparse gradient (an Embedding's) from all devices: only data tells "
                "how many come, so memory cannot be planned; build the model outside of the strategy's scope"
            )
        if owner == 0 and any(home.get(t.op) for t in inputs_of(op)):
            raise ModelError(
                f"{op.name} ({op.type}) reads values of several replicas, which only collective operations may: leave "
                "cross_device_ops of the tf.distribute strategy at its default, and do not scale the loss, as "
                "mixed_float16 does"
            )
        if owner is not None and not is_source(op):
            rows[owner].append(op)
    pairs: list[dict[tf.Operation, tf.Operation]] = [_correspond(rows[0], row) for row in rows[1:]]
    for op in rows[0]:
        alone = [op not in pair for pair in pairs]
        if any(alone) and not all(alone):
            raise ModelError(f"the replicas do not do the same: {op.name} ({op.type}) is done by some of them")
    for k, pair in enumerate(pairs, start=1):
        start = k * count
        for t, other in zip(step.inputs[:count], step.inputs[start : start + count], strict=True):
            pair[t.op] = other.op
    twins = {op: tuple(pair[op] for pair in pairs) for op in (pairs[0] if pairs else ())}  # none: one on each worker
    controls = _controls(step.operations, position, home, pairs)
    step = replace(step, controls=controls)
    outputs = tf.nest.flatten(step.structured_outputs[0])
    first = replace(
        step,
        inputs=step.inputs[:count],
        captures=[(e, t) for e, t in step.captures if home[t.op] in (0, None)],
        outputs=[t for t in outputs if tf.is_tensor(t)],
        structured_outputs=step.structured_outputs[0],
        operations=[op for op in step.operations if home[op] in (0, None)],
    )
    return Replicas(step, first, twins, _differing(first.operations, twins))


def _controls(
    operations: Iterable[tf.Operation],
    position: Mapping[tf.Operation, int],
    home: Mapping[tf.Operation, int | None],
    pairs: Sequence[Mapping[tf.Operation, tf.Operation]],
) -> dict[tf.Operation, list[tf.Operation]]:
    """What an operation comes after in its own replica, for those that come after operations of other replicas."""
    of_first = {same: op for pair in pairs for op, same in pair.items()}

    def counterpart(op: tf.Operation, replica: int) -> tf.Operation | None:
        first = op if home[op] == 0 else of_first.get(op)
        return first if replica == 0 or first is None else pairs[replica - 1].get(first)

    found: dict[tf.Operation, list[tf.Operation]] = {}
    for op in operations:
        replica = home[op]
        if replica is None or all(home.get(c) in (replica, None) for c in op.control_inputs):
            continue
        before: dict[tf.Operation, None] = {}
        stack, seen = list(op.control_inputs), set[tf.Operation]()
        while stack:
            control = stack.pop()
            if control in seen:
                continue
            seen.add(control)
            mine = control if home.get(control) in (replica, None) else counterpart(control, replica)
            if mine is None:  # what the first replica does for all
                before[control] = None
            elif position[mine] < position[op]:
                before[mine] = None
            else:  # comes later here: what it comes after may not
                stack += control.control_inputs
        found[op] = list(before)
    return found


def _differing(
    operations: Iterable[tf.Operation], twins: Mapping[tf.Operation, tuple[tf.Operation, ...]]
) -> frozenset[tf.Operation]:
    """The operations that read, directly or not, a constant that differs among replicas: a replica's number."""
    found = {
        op
        for op, others in twins.items()
        if op.type == "Const" and any(op.get_attr("value") != other.get_attr("value") for other in others)
    }
    for op in operations:
        if any(t.op in found for t in inputs_of(op)):
            found.add(op)
    return frozenset(found)


def _place(device: str) -> tuple[str, int] | None:
    """Type and number of a device; the rest of its name is ignored."""
    if not device:
        return None
    spec = tf.DeviceSpec.from_string(device)
    return str(spec.device_type).upper(), int(spec.device_index or 0)


def _of_inputs(op: tf.Operation, home: Mapping[tf.Operation, int | None]) -> int | None:
    """The first replica whose values an operation reads; None if it reads no replica's."""
    return min((k for k in (home.get(t.op) for t in inputs_of(op)) if k is not None), default=None)


def _correspond(mine: list[tf.Operation], theirs: list[tf.Operation]) -> dict[tf.Operation, tf.Operation]:
    """Pair the operations of the first replica with those of another that do the same, sources included.

    What the first replica does for all (it counts steps) has no counterpart.
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
    """The pair of operations, and pairs of the sources that they read, if both do the same on paired inputs."""
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
