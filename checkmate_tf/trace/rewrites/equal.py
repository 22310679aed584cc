"""Equal operations, joined: what two operations compute alike is computed once.

Keras makes many operations anew that it has made before: constants of the optimizer for each variable, casts of labels
for the loss and for each metric, shapes. Grappler takes equal ones for one before it runs a graph, at the first of
their places. A plan would count them apart, and free one while the other is in use. Joined here, they are what runs,
with Grappler or without, and the plan decides whether one is computed again. The bits stay the same.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from ..ops import copy_attributes, is_source, is_stateful
from ..order import topological
from .edges import put_in_place

__all__ = ["join_equal"]

_WAITED_FOR = "_has_manual_control_dependencies"  # an attribute that only says that something waits for an operation
_KEPT_APART = frozenset({"Placeholder", "PlaceholderWithDefault", "NoOp", "ControlTrigger"})  # arguments, and waits


def join_equal(graph: tf.Graph, results: Sequence[tf.Tensor] = ()) -> dict[Any, tf.Tensor]:
    """Let readers of equal operations all read the first of them.

    Operations are equal if they have one type, device and attributes, and read the same after the same. Those with
    effects, and those that hold a resource or a variant, are left alone. So are operations in functions of the graph.

    Parameters
    ----------
    graph : FuncGraph
        Changed in place.
    results : sequence of tf.Tensor
        Of the graph.

    Returns
    -------
    dict
        From references of `results` that were joined to the tensors that replace them.
    """
    alone: dict[Hashable, tf.Operation] = {}  # attributes cost the most to read: only those of several are
    several: dict[Hashable, dict[Hashable, tf.Operation]] = {}
    joined: dict[tf.Operation, tf.Operation] = {}
    for op in topological(graph.get_operations()):
        if not _may_be_joined(op):
            continue
        read = tuple((joined.get(t.op, t.op), t.value_index) for t in op.inputs)
        after = frozenset(joined.get(c, c) for c in op.control_inputs)
        key = (op.type, op.device, read, after)
        other = alone.setdefault(key, op)
        if other is op:
            continue
        if key not in several:
            several[key] = {_attributes(other): other}
        equal = several[key].setdefault(_attributes(op), op)
        if equal is not op:
            joined[op] = equal
    for op, equal in joined.items():
        put_in_place(op, equal)
    return {t.ref(): joined[t.op].outputs[t.value_index] for t in results if t.op in joined}


def _may_be_joined(op: tf.Operation) -> bool:
    if op.type in _KEPT_APART or op.op_def.is_stateful or is_stateful(op) or (is_source(op) and op.type != "Const"):
        return False
    return bool(op.outputs) and not any(t.dtype in (tf.resource, tf.variant) for t in [*op.inputs, *op.outputs])


def _attributes(op: tf.Operation) -> Hashable:
    """What tells an operation's attributes from others'."""
    mine = ((name, value) for name, value in copy_attributes(op).items() if name != _WAITED_FOR)
    return tuple(sorted((name, value.SerializeToString(deterministic=True)) for name, value in mine))
