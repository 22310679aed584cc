"""What a while loop leaves behind: bytes of the tensor lists that it fills.

A loop's lists (TensorArrays, and the accumulators that its gradient reads) hold one tensor an iteration. Several lists
may hold the same tensor, and a list of reads of a variable holds nothing of its own, so bytes are counted by the
distinct tensors that the body makes.
"""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from .ops import view_of

__all__ = ["PUSHES", "copy_functions", "function_graph", "list_sizes"]

# Operations that add a tensor to a list, and which input it is.
PUSHES = {"TensorListPushBack": 1, "TensorListSetItem": 2}


def function_graph(graph: tf.Graph, name: str) -> tf.Graph:
    """The body of a function known to `graph`; it knows the functions that `graph` knows."""
    function = graph._functions[name]
    definition = getattr(function, "cached_definition", None) or function.definition
    with tf.Graph().as_default() as host:
        copy_functions(graph, host)
        body = function_def_to_graph.function_def_to_graph(definition)
    copy_functions(graph, body)  # it may call others
    return body


def copy_functions(source: tf.Graph, target: tf.Graph) -> None:
    """Make the functions (loop bodies, branches) that `source` knows known to `target`."""
    for function in source._functions.values():
        if not target._is_function(function.name if isinstance(function.name, str) else function.name.decode()):
            target._add_function(function)


def list_sizes(body: tf.Graph, tensors: Mapping[int, tf.Tensor], iterations: int | None) -> list[int | None]:
    """Bytes that a loop itself puts into each of the lists it returns.

    Parameters
    ----------
    body : FuncGraph
    tensors : mapping from id(tensor of body) to its copy with static shapes
    iterations : int or None
        None if not known.

    Returns
    -------
    list of int or None
        For each output of the body; 0 for what is no list, None where it cannot be known. A tensor that several lists
        hold is counted with the first.
    """
    position = {id(t): k for k, t in enumerate(body.inputs)}
    counted: set[int] = set()
    sizes: list[int | None] = []
    for result in body.outputs:
        total: int | None = 0
        for pushed in _pushed(result):
            origin = _origin(pushed, body, position)
            if origin is None or id(origin) in counted:
                continue
            counted.add(id(origin))
            count = tensors[id(origin)].shape.num_elements()
            if count is None or iterations is None or total is None:
                total = None
            else:
                total += count * origin.dtype.size * iterations
        sizes.append(total)
    return sizes


def _root(t: tf.Tensor) -> tf.Tensor:
    while (source := view_of(t.op, t.value_index)) is not None:
        t = t.op.inputs[source]
    return t


def _pushed(result: tf.Tensor) -> list[tf.Tensor]:
    """Tensors that the body adds to the list it returns."""
    pushed = []
    t = _root(result)
    while t.op.type in PUSHES:
        pushed.append(t.op.inputs[PUSHES[t.op.type]])
        t = _root(t.op.inputs[0])
    return pushed


def _origin(t: tf.Tensor, body: tf.Graph, position: dict[int, int]) -> tf.Tensor | None:
    """The tensor made in the body whose buffer `t` is, or None if it was made outside."""
    for _ in range(len(body.inputs) + 1):
        t = _root(t)
        if t.op.type in ("ReadVariableOp", "Const", "TensorListGetItem"):
            return None
        k = position.get(id(t))
        if k is None:
            return t
        previous = _root(body.outputs[k])  # the value of the iteration before
        if previous is t:
            return None
        t = previous
    return None
