"""Inlining: calls of functions in a step are replaced by the operations of the functions.

A layer or a `train_step` may call what is decorated with `tf.function`. In the traced step such a call is one
operation, which hides its activations. TensorFlow inlines it before it runs, so the kernels are the same without the
call. Two kinds of functions stay calls: those that XLA compiles, and those that name an implementation for a device,
which Grappler may choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import handle_data_util

from ..ops import copy_attributes, is_stateful
from ..order import topological
from ..sizes.loops import copy_functions, function_graph

__all__ = ["Inlined", "inlined"]

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_IMPLEMENTED = ("api_implements", "implements")  # attributes of functions: Grappler may choose another for the device


@dataclass(frozen=True, eq=False)
class Inlined:
    """A graph without calls.

    Attributes
    ----------
    graph : FuncGraph
    tensors : dict from the id of a tensor of the traced graph to the tensor that replaces it
    """

    graph: tf.Graph
    tensors: Mapping[int, tf.Tensor]

    def replaced(self, found: Mapping[Any, tf.Tensor]) -> Inlined:
        """The same, where other tensors replace some in turn, by their references."""
        return Inlined(self.graph, {key: found.get(t.ref(), t) for key, t in self.tensors.items()})

    def nest(self, tensors: Any) -> Any:
        """A nest of tensors of the traced graph, each replaced."""
        flat = tf.nest.flatten(tensors, expand_composites=True)
        found = [self.tensors[id(t)] if tf.is_tensor(t) else t for t in flat]
        return tf.nest.pack_sequence_as(tensors, found, expand_composites=True)


def inlined(
    graph: tf.Graph,
    inputs: Sequence[tf.Tensor],
    captures: Sequence[tuple[Any, tf.Tensor]],
    call_time: Sequence[tuple[Callable[[], Any], tf.Tensor]],
) -> Inlined:
    """Replace the calls of a graph by the operations of the functions that they call.

    Parameters
    ----------
    graph : FuncGraph
        Left as it is, and returned if it has no calls.
    inputs, captures, call_time
        As `TracedStep` has them.
    """
    if not any(_is_call(op) for op in graph.get_operations()):
        return Inlined(graph, {id(t): t for op in graph.get_operations() for t in op.outputs})
    copy = _InlinedCopy(graph)
    with copy.graph.as_default():
        for t in inputs:
            copy.place(t, tf.compat.v1.placeholder(t.dtype, t.shape, name=t.op.name))
        for external, internal in captures:
            copy.place(internal, copy.graph.capture(external))
        for _, internal in call_time:
            copy.place(internal, tf.compat.v1.placeholder(internal.dtype, internal.shape, name=internal.op.name))
        copy.add(graph, "", [])
    return Inlined(copy.graph, copy.tensors)


def _is_call(op: tf.Operation) -> bool:
    if op.type not in _CALLS or op.node_def.attr["_XlaMustCompile"].b:
        return False
    function = op.graph._functions[op.get_attr("f").name]
    definition = getattr(function, "cached_definition", None) or function.definition
    return not any(name in definition.attr for name in _IMPLEMENTED)


class _InlinedCopy:
    """A copy of a graph without calls, while it is made.

    Attributes
    ----------
    tensors : dict from the id of a tensor to its copy
    operations : dict from an operation to the copies that replace it
        It has run when all of them have.
    """

    def __init__(self, source: tf.Graph) -> None:
        self.graph = func_graph.FuncGraph("checkmate_inlined")
        copy_functions(source, self.graph)
        self.tensors: dict[int, tf.Tensor] = {}
        self.operations: dict[tf.Operation, list[tf.Operation]] = {}
        self._bodies: list[tf.Graph] = []  # kept, so that no other tensor comes to have the id of one of theirs

    def place(self, t: tf.Tensor, copy: tf.Tensor) -> None:
        """Replace an argument by `copy`."""
        self.tensors[id(t)] = copy
        self.operations[t.op] = [copy.op]

    def add(self, graph: tf.Graph, scope: str, after: list[tf.Operation], device: str = "") -> None:
        """Copy a graph whose arguments are placed.

        Parameters
        ----------
        graph : FuncGraph
        scope : str
            Comes before all names.
        after : list of tf.Operation
            Effects, reads of variables and operations without inputs run after these.
        device : str
            Of operations that name none.
        """
        for op in topological(graph.get_operations()):
            if op in self.operations:
                continue
            controls = [copy for p in op.control_inputs for copy in self.operations[p]]
            if is_stateful(op) or not op.inputs or any(t.dtype == tf.resource for t in op.inputs):
                controls += after
            if _is_call(op):
                self._inline(op, scope, list(dict.fromkeys([*controls, *after])), op.device or device)
            else:
                self._same(op, scope, list(dict.fromkeys(controls)), op.device or device)

    def _same(self, op: tf.Operation, scope: str, controls: list[tf.Operation], device: str) -> None:
        with self.graph.device(device or None), self.graph.control_dependencies(controls):
            copy = self.graph._create_op_internal(
                op.type,
                [self.tensors[id(t)] for t in op.inputs],
                [t.dtype for t in op.outputs],
                attrs=copy_attributes(op),
                name=scope + op.name,
                op_def=op.op_def,
            )
        self.operations[op] = [copy]
        for t, made in zip(op.outputs, copy.outputs, strict=True):
            self._replace(t, made)

    def _inline(self, op: tf.Operation, scope: str, controls: list[tf.Operation], device: str) -> None:
        body = function_graph(op.graph, op.get_attr("f").name)
        self._bodies.append(body)
        for t, given in zip(body.inputs, op.inputs, strict=True):
            self.place(t, self.tensors[id(given)])
        self.add(body, f"{scope}{op.name}/", controls, device)
        done = [copy for effect in body.control_outputs for copy in self.operations[effect]]
        for t, result in zip(op.outputs, body.outputs, strict=True):
            self._replace(t, self.tensors[id(result)])
            done.append(self.tensors[id(result)].op)
        self.operations[op] = list(dict.fromkeys(done))

    def _replace(self, t: tf.Tensor, copy: tf.Tensor) -> None:
        self.tensors[id(t)] = copy
        if not copy.shape.is_fully_defined() and copy.shape.is_compatible_with(t.shape):
            copy.set_shape(t.shape)
        if t.dtype in (tf.variant, tf.resource):
            handle_data_util.copy_handle_data(t, copy)
