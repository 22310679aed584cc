"""Run one operation of a graph alone, eagerly, with the attributes that it has in the graph, but seeds of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.ops import handle_data_util

from ...trace.ops import call_attributes
from ..counts import words

__all__ = [
    "REACHES_OUT",
    "RUN_ERRORS",
    "as_function",
    "attributes_alone",
    "called_graph",
    "called_graphs",
    "called_names",
    "empty_function",
    "handle_shape_dtype",
    "run_op",
]

#: What running an operation in isolation may raise when its inputs cannot be fabricated or memory runs out.
RUN_ERRORS = (
    tf.errors.OpError,
    TypeError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    AttributeError,
    KeyError,
    IndexError,
)


#: Stateless by registration, but they call Python or read files: whoever wrote that could tell a run on made-up data.
REACHES_OUT = words("PyFuncStateless ReadFile MatchingFiles")

# Nobody else's, and the same each time. Eager operations of equal attributes draw from one stream of random numbers.
_SEEDS = {"seed": 7_405_361_921, "seed2": 2_718_281_828}


def attributes_alone(op: tf.Operation) -> tuple[Any, ...]:
    """Attributes of an operation to run it alone: those that it has, but seeds are our own.

    With the graph's seeds it would draw from a stream of the program, whose next numbers were others then.
    """
    flat = list(call_attributes(op))
    for k in range(0, len(flat), 2):
        flat[k + 1] = _SEEDS.get(flat[k], flat[k + 1])
    return tuple(flat)


def run_op(op: tf.Operation, inputs: Sequence[Any], attributes: tuple[Any, ...] | None = None) -> list[Any]:
    """Run an operation eagerly on given inputs.

    Parameters
    ----------
    op : tf.Operation
        Of any graph. The eager context must know its functions, as it does those of a traced function.
    inputs : sequence of eager tensors, one for each data input
    attributes : tuple, optional
        From `attributes_alone`, to spare working them out again.

    Returns
    -------
    list of eager tensors
    """
    attrs = attributes_alone(op) if attributes is None else attributes
    return execute.execute(op.type, len(op.outputs), list(inputs), attrs, context.context())


def as_function(op: tf.Operation, inputs: Sequence[Any], pooling: tf.Operation | None = None) -> Callable[..., Any]:
    """A function that runs one operation inside a graph, as a step does, for eager tensors like `inputs`.

    Loops and branches run faster so: in a graph they are lowered to primitives and their bodies optimized.

    Parameters
    ----------
    op : tf.Operation
    inputs : sequence of tf.Tensor
        What it is traced for. One that is traced when it is called makes TensorFlow warn that many are.
    pooling : tf.Operation, optional
        The pooling that it is the gradient of (`pooling_of`), which runs before it in the same graph.
    """

    def call(*inputs: Any) -> list[Any]:
        if pooling is None:
            return _in_graph(op, inputs)
        x, _, gradient = inputs
        return _in_graph(op, (x, *_in_graph(pooling, (x,)), gradient))

    return tf.function(call, autograph=False).get_concrete_function(*inputs)


def empty_function(inputs: Sequence[Any]) -> Callable[..., Any]:
    """A function that computes nothing, and gives its inputs: what calling one of `as_function` takes by itself."""

    def call(*inputs: Any) -> list[Any]:
        return [tf.identity(t) for t in inputs]

    return tf.function(call, autograph=False).get_concrete_function(*inputs)


def _in_graph(op: tf.Operation, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a copy of an operation in the graph that is being traced."""
    graph = tf.compat.v1.get_default_graph()
    for name in called_names(op):
        graph._add_function_recursive(op.graph._get_function(name))
    attrs = {key: value for key, value in op.node_def.attr.items() if key not in ("_class", "_output_shapes")}
    dtypes = [t.dtype for t in op.outputs]
    return list(graph._create_op_internal(op.type, inputs, dtypes, attrs=attrs, op_def=op.op_def).outputs)


def called_graph(op: tf.Operation, attribute: str) -> Any | None:
    """The FuncGraph that a function attribute (`body`, `cond`, `f` ...) names, or None if it cannot be found."""
    try:
        return _graph_of(op, op.get_attr(attribute).name)
    except RUN_ERRORS:
        return None


def _graph_of(op: tf.Operation, name: str) -> Any | None:
    try:
        function = op.graph._get_function(name)
        return None if function is None else function.graph
    except RUN_ERRORS:
        return None


def called_graphs(op: tf.Operation) -> list[Any]:
    """FuncGraphs of the functions that an operation calls; those that cannot be found are left out."""
    return [graph for name in called_names(op) if (graph := _graph_of(op, name)) is not None]


def called_names(op: tf.Operation) -> list[str]:
    """Names of the functions that an operation calls, in the order of its attributes."""
    names = list[str]()
    for attr in op.op_def.attr:
        if attr.type in ("func", "list(func)"):
            value = op.get_attr(attr.name)
            names += [function.name for function in (value if attr.type == "list(func)" else [value])]
    return names


def handle_shape_dtype(tensor: Any) -> tuple[list[int], tf.DType] | None:
    """Shape and dtype of the variable behind a resource handle, if the graph knows them in full."""
    data = handle_data_util.get_resource_handle_data(tensor)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    shape = tf.TensorShape(data.shape_and_type[0].shape)
    return (shape.as_list(), tf.as_dtype(data.shape_and_type[0].dtype)) if shape.is_fully_defined() else None
