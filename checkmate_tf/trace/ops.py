"""What the tracer must know of TensorFlow's operations, by type: sources, views, readers and writers of variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.core.framework.node_def_pb2 import NodeDef
from tensorflow.python.framework import op_def_registry

__all__ = [
    "DRAW_UNREGISTERED",
    "ELEMENTWISE",
    "FUSED_LATER",
    "SUMS",
    "call_attributes",
    "called_nodes",
    "copy_attributes",
    "inputs_of",
    "is_read_only",
    "is_source",
    "is_stateful",
    "updated_in_part",
    "view_of",
    "writes_resource",
]

_SOURCES = frozenset(
    {"Const", "Placeholder", "PlaceholderWithDefault", "ReadVariableOp", "VarHandleOp", "VariableShape"}
)

# Stateful by registration, but reading them twice has no effect on anything.
_READERS = frozenset(
    {"ReadVariableOp", "VariableShape", "VarIsInitializedOp", "ResourceGather", "ResourceGatherNd", "Placeholder"}
)

# cuDNN's recurrent layers, stateful by registration: with dropout they draw random numbers. Without, running one twice
# gives the same bits and has no effect (measured on an H200).
_DRAW_FOR_DROPOUT = frozenset(
    f"CudnnRNN{direction}{version}" for direction in ("", "Backprop") for version in ("", "V2", "V3")
)

DRAW_UNREGISTERED = frozenset({"FractionalMaxPool", "FractionalAvgPool"})
"""Stateless by registration, though their kernels draw random regions: each kernel others, where there is no seed."""
_CALL = frozenset({"PartitionedCall", "StatelessCase", "StatelessIf", "StatelessWhile"})  # functions of such operations

_WRITES_IN_PART = ("ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign")  # types begin

# Output k shares the buffer of input k (all outputs of the single-output ones share input 0).
_VIEWS = frozenset(
    {
        "Identity",
        "IdentityN",
        "Reshape",
        "Squeeze",
        "ExpandDims",
        "StopGradient",
        "PreventGradient",
        "CheckNumerics",
        "EnsureShape",
        "Bitcast",
    }
)

# These return their input's buffer when shape and type do not change.
_VIEWS_IF_SAME = frozenset(
    {
        "Sum",
        "Mean",
        "Max",
        "Min",
        "Prod",
        "BroadcastTo",
        "Cast",
        "Tile",
        "AddN",
        "ConcatV2",
        "Transpose",
        "Pad",
        "PadV2",
        "MirrorPad",
        "Pack",
    }
)

# Sums of any number of values: the order of the terms, and with it the last bit, is up to Grappler and the kernel.
SUMS = frozenset({"AddN", "AccumulateNV2"})

# A convolution that reads these may do them itself, when it comes.
FUSED_LATER = frozenset({"Pad", "PadV2", "MirrorPad"})

# TensorFlow computes these into the buffer of a dying input of the same size.
ELEMENTWISE = frozenset(
    """Abs Add AddV2 AddN BiasAdd Ceil Cos DivNoNan Elu EluGrad Erf Erfc Exp Expm1 Floor LeakyRelu LeakyReluGrad Log
    Log1p Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal Relu Relu6 Relu6Grad ReluGrad Round Rsqrt
    RsqrtGrad Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Snapshot Softplus SoftplusGrad Softsign Sqrt SqrtGrad
    Square SquaredDifference Sub Tanh TanhGrad Xdivy Xlogy ZerosLike Softmax LogSoftmax""".split()  # noqa: SIM905 - a list of words
)


_DROPPED_ATTRIBUTES = ("_class", "_output_shapes")
_ROUNDS = "parallel_iterations"
_MOST_ROUNDS = 2  # of a loop at once: with Keras's 32, as many gradients of the weights wait in memory to be added up


def copy_attributes(op: tf.Operation) -> dict:
    """Attributes for a copy of the operation in another graph. Of a loop, no more than two rounds overlap there."""
    attributes = {k: v for k, v in op.node_def.attr.items() if k not in _DROPPED_ATTRIBUTES}
    if _ROUNDS in attributes and attributes[_ROUNDS].i > _MOST_ROUNDS:
        attributes[_ROUNDS] = attr_value_pb2.AttrValue(i=_MOST_ROUNDS)
    return attributes


def call_attributes(op: tf.Operation) -> tuple[Any, ...]:
    """Attributes of an operation to run it eagerly: flat (name, value, name, value ...), as `execute` takes them."""
    flat: list[Any] = []
    for attr in op.op_def.attr:
        flat += [attr.name, _plain(attr.type, op.get_attr(attr.name))]
    return tuple(flat)


def _plain(kind: str, value: Any) -> Any:
    if kind == "type":
        return tf.as_dtype(value).as_datatype_enum
    if kind == "list(type)":
        return [tf.as_dtype(v).as_datatype_enum for v in value]
    if kind == "shape":
        return _shape(value)
    if kind == "list(shape)":
        return [_shape(v) for v in value]
    return value


def _shape(proto: Any) -> list[int | None] | None:
    shape = tf.TensorShape(proto)
    return None if shape.rank is None else shape.as_list()


def inputs_of(op: tf.Operation) -> list[tf.Tensor]:
    """Data inputs, seen through IdentityN.

    Keras passes all gradients through one IdentityN, which would hold every gradient until the last is there.
    """
    inputs = []
    for t in op.inputs:
        while t.op.type == "IdentityN" and not t.op.control_inputs:
            t = t.op.inputs[t.value_index]
        inputs.append(t)
    return inputs


def is_source(op: tf.Operation) -> bool:
    """True for inputs, constants and reads of variables: resident, and free to read."""
    return op.type in _SOURCES


def is_stateful(op: tf.Operation) -> bool:
    """True if running the operation twice has another effect than running it once."""
    if op.type in DRAW_UNREGISTERED or (
        op.type in _CALL and any(node is not None and node.op in DRAW_UNREGISTERED for node in called_nodes(op))
    ):
        return True
    if op.type in _READERS or not op.op_def.is_stateful:
        return False
    if op.type in _DRAW_FOR_DROPOUT and op.get_attr("dropout") == 0:
        return False
    return not (_function_names(op.node_def) and _functions_only_read(op))


def is_read_only(op: tf.Operation) -> bool:
    """True if it reads variables through a resource handle, itself or in its functions, without a change."""
    return any(t.dtype == tf.resource for t in op.inputs) and not is_stateful(op)


def writes_resource(op: tf.Operation) -> bool:
    """True if it may change a variable."""
    return any(t.dtype == tf.resource for t in op.inputs) and is_stateful(op)


def updated_in_part(operations: Iterable[tf.Operation]) -> set[tf.Operation]:
    """Handles of the variables that some operations write in part, and none reads in part.

    TensorFlow writes into such a variable's buffer, and from then on copies all of it for each read (measured: 26 MB
    for an embedding of 100,000 words). Where a read in part asks for that as well, it must stay so.
    """
    written, read = set[tf.Operation](), set[tf.Operation]()
    for op in operations:
        handles = {t.op for t in op.inputs if t.dtype == tf.resource}
        if op.type.startswith(_WRITES_IN_PART):
            written |= handles
        elif op.type.startswith("ResourceGather"):
            read |= handles
    return written - read


def called_nodes(op: tf.Operation) -> Iterator[NodeDef | None]:
    """Nodes of all functions that an operation calls, itself or from within them; None for a function not found."""
    seen: set[str] = set()
    todo = _function_names(op.node_def)
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        function = op.graph._functions.get(name)
        if function is None:
            yield None
            continue
        for node in (getattr(function, "cached_definition", None) or function.definition).node_def:
            todo += _function_names(node)
            yield node


def _function_names(node: NodeDef) -> list[str]:
    """Names of the functions that a node's attributes refer to."""
    names = [a.func.name for a in node.attr.values() if a.WhichOneof("value") == "func"]
    return names + [f.name for a in node.attr.values() for f in a.list.func]


def _functions_only_read(op: tf.Operation) -> bool:
    return all(node is not None and (_function_names(node) or _only_reads(node.op)) for node in called_nodes(op))


def _only_reads(kind: str) -> bool:
    known = op_def_registry.get(kind)
    return kind in _READERS or (known is not None and not known.is_stateful and kind not in DRAW_UNREGISTERED)


def view_of(op: tf.Operation, output: int) -> int | None:
    """Index of the input whose buffer this output shares, or None if it has a buffer of its own.

    Shapes are read from the operation's own graph: give the one with the static batch, if there is one.
    """
    if op.type in _VIEWS:
        return output if op.type == "IdentityN" else 0
    if op.type == "Sum" and _sums_nothing(op):
        return 0
    if op.type in _VIEWS_IF_SAME and op.inputs:
        source, result = op.inputs[0], op.outputs[output]
        if op.type in ("AddN", "ConcatV2") and len(op.inputs) > (1 if op.type == "AddN" else 2):
            return None
        if op.type == "Transpose" and result.shape.num_elements() != 1:
            permutation = tf.get_static_value(op.inputs[1])
            if permutation is None or source.shape.rank is None:
                return None
            moved = [axis for axis in permutation if source.shape[axis] != 1]  # others may be anywhere
            if moved != sorted(moved):
                return None
        same = source.dtype == result.dtype and source.shape.is_fully_defined() and result.shape.is_fully_defined()
        if same and source.shape.num_elements() == result.shape.num_elements():
            return 0
    return None


def _sums_nothing(op: tf.Operation) -> bool:
    """Whether a sum in the gradient of an operation that may broadcast leaves the gradient as it is.

    It does where its own operand is not broadcast. Sizes that are open are those of the batch, in both operands.
    """
    axes = op.inputs[1]
    if axes.op.type != "BroadcastGradientArgs" or any(t.op.type != "Shape" for t in axes.op.inputs):
        return False
    shapes = [t.op.inputs[0].shape for t in axes.op.inputs]
    mine, other = shapes[axes.value_index], shapes[1 - axes.value_index]
    if mine.rank is None or other.rank is None or mine.rank < other.rank:
        return False
    theirs = [1] * (mine.rank - other.rank) + other.as_list()
    return all(b == 1 or (a != 1 and (a is not None or b is None)) for a, b in zip(mine.as_list(), theirs, strict=True))
