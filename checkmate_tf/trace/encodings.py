"""Encodings: the same step, whose gradients read small codes of forward values instead of the values (Gist; MONeT).

Some gradients need little of what they read. The gradient of a ReLU needs the sign of each element: a bit. That of a
max-pooling needs the place of the largest element in each window: a byte. That of a dropout needs its mask. To keep the
whole value for these wastes memory. So each such gradient is traced again, and reads a code:

    encode, right after the value is made -> code -> decode, just before the gradient's own arithmetic.

Codes are values like others in the graph. A schedule may keep the code. Or it keeps the value, or computes it again,
and encodes it when the code is needed. So one solution chooses the schedule and the encodings together.

Every encoding gives the same bits as the kernel that it replaces, for infinities, negative zeros and ties, too; and
for NaN, but in the inputs of a max-pooling.

- *ReLU, ReLU6*: g * (y > 0), as the kernel computes it. A bit an element.
- *Max-pooling*: the place of the first largest element in its window. A byte an element of the result. Left out are
  windows that reach into padding or overlap, where kernels add up in orders of their own. Only CPU kernels decide ties
  so: elsewhere poolings are left out, too.
- *Masks*: any boolean value that the forward pass makes and the backward pass reads (dropout, comparisons). A bit an
  element instead of a byte.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import gen_nn_ops, handle_data_util

from .ops import copy_attributes, inputs_of, is_source
from .order import is_gradient
from .sizes.loops import copy_functions
from .step import TracedStep

__all__ = ["EncodedStep", "Encoding", "encoded", "find_encodings"]

_LEAST_ELEMENTS = 1024  # of a sample: smaller values are not worth it
_GATHER, _SPREAD = 0x0102040810204080, 0x0101010101010101  # eight bytes of 0 or 1 to the bits of one, and back
_BIT_OF_BYTE = 0x8040201008040201
_BITS_OF = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")  # a row a byte
_SIGNS = {"ReluGrad": "relu", "Relu6Grad": "relu6"}
_FORWARD, _BACKWARD = "checkmate/encode", "gradient_tape/checkmate/decode"


@dataclass(frozen=True, eq=False)
class Encoding:
    """A gradient that can read a code.

    Attributes
    ----------
    kind : str
        "relu", "relu6", "pool" or "mask".
    value : tf.Tensor
        Of the forward pass. It is encoded right after it is made.
    gradient : tf.Operation
        Of the backward pass.
    """

    kind: str
    value: tf.Tensor
    gradient: tf.Operation

    @property
    def spared(self) -> list[tf.Tensor]:
        """The forward values that the gradient reads in its own way, and does not read with the code."""
        return inputs_of(self.gradient)[:2] if self.kind == "pool" else [self.value]


@dataclass(frozen=True, eq=False)
class EncodedStep:
    """A step with encodings.

    Attributes
    ----------
    step : TracedStep
    tensors : dict from the id of a tensor of the plain step to its copy
    operations : dict from an operation of the plain step to its copy
        Where several operations replace it, to the last of these.
    """

    step: TracedStep
    tensors: Mapping[int, tf.Tensor]
    operations: Mapping[tf.Operation, tf.Operation]


def find_encodings(step: TracedStep, pools: bool = True) -> list[Encoding]:
    """All gradients of a step that can read codes, in the order of the backward pass.

    Parameters
    ----------
    step : TracedStep
    pools : bool
        Whether max-poolings may be encoded.
    """
    found: list[Encoding] = []
    for op in step.operations:
        if not is_gradient(op):
            continue
        inputs = inputs_of(op)
        if op.type in _SIGNS and _worth(inputs[1]):
            found.append(Encoding(_SIGNS[op.type], inputs[1], op))
        elif op.type == "MaxPoolGrad" and pools and _worth(inputs[1]) and _covers(op):
            found.append(Encoding("pool", inputs[1], op))
        else:
            masks = {id(t): t for t in inputs if t.dtype == tf.bool and not is_gradient(t.op) and _worth(t)}
            found += [Encoding("mask", t, op) for t in masks.values() if _elements(t) % 8 == 0]
    return found


def encoded(step: TracedStep, encodings: Iterable[Encoding]) -> EncodedStep:
    """The same step with some of its gradients reading codes.

    Parameters
    ----------
    step : TracedStep
        Left as it is. Not one of replicas.
    encodings : iterable of Encoding
        Some of `find_encodings(step)`.

    Returns
    -------
    EncodedStep
        In a graph of its own.
    """
    return _EncodedCopy(step, encodings).run()


def _elements(t: tf.Tensor) -> int:
    """Elements of one sample; 0 if their number is not known."""
    if t.shape.rank is None or t.shape.rank < 1 or None in t.shape[1:].as_list():
        return 0
    return math.prod(t.shape[1:].as_list())


def _worth(t: tf.Tensor) -> bool:
    """Whether a code of it saves memory. Small values save little; inputs and constants stay in memory anyway."""
    return _elements(t) >= _LEAST_ELEMENTS and not is_source(t.op)


def _window(op: tf.Operation) -> tuple[list[int], list[int]]:
    return list(op.get_attr("ksize")), list(op.get_attr("strides"))


def _covers(op: tf.Operation) -> bool:
    """Whether a pooling's windows are within its input and apart, of 2 to 255 elements, over height and width."""
    if op.get_attr("data_format") not in (b"NHWC", "NHWC") or op.get_attr("padding") in (b"EXPLICIT", "EXPLICIT"):
        return False
    size, stride = _window(op)
    source, result = inputs_of(op)[0].shape, inputs_of(op)[1].shape
    if size[0] != 1 or size[3] != 1 or not 1 < size[1] * size[2] <= 255:
        return False
    return all(size[k] <= stride[k] and (result[k] - 1) * stride[k] + size[k] <= source[k] for k in (1, 2))


class _EncodedCopy:
    """A copy of a step, while it is made. Values are encoded right after they are made, codes decoded when read."""

    def __init__(self, step: TracedStep, encodings: Iterable[Encoding]) -> None:
        self.source = step
        self.graph = func_graph.FuncGraph("checkmate_encoded")
        copy_functions(step.graph, self.graph)
        self.tensors: dict[int, tf.Tensor] = {}  # by the id of the tensor of the source
        self.operations: dict[tf.Operation, tf.Operation] = {}
        self.order: list[tf.Operation] = []
        self.codes: dict[tuple[str, int], tf.Tensor] = {}
        self.decoded: dict[int, tf.Tensor] = {}
        self.by_gradient: dict[tf.Operation, list[Encoding]] = {}
        self.by_value: dict[tf.Operation, list[Encoding]] = {}
        for e in encodings:
            self.by_gradient.setdefault(e.gradient, []).append(e)
            self.by_value.setdefault(e.value.op, []).append(e)

    def run(self) -> EncodedStep:
        step = self.source
        with self.graph.as_default():
            for t in step.inputs:
                self._place(t, tf.compat.v1.placeholder(t.dtype, t.shape, name=t.op.name))
            for external, internal in step.captures:
                self._place(internal, self.graph.capture(external))
            for _, internal in step.call_time:
                self._place(internal, tf.compat.v1.placeholder(internal.dtype, internal.shape, name=internal.op.name))
            for op in step.operations:
                if op in self.operations:
                    self.order.append(self.operations[op])
                    continue
                begun = len(self.graph.get_operations())
                self._emit(op)
                for e in self.by_value.get(op, ()):
                    self._encode(e)
                self.order += self.graph.get_operations()[begun:]
        return EncodedStep(self._step(), self.tensors, self.operations)

    def _step(self) -> TracedStep:
        source = self.source
        copied = lambda t: None if t is None else self.tensors[id(t)]  # noqa: E731 - a short callback
        results = [copied(t) for t in tf.nest.flatten(source.structured_outputs)]
        return replace(
            source,
            graph=self.graph,
            inputs=[copied(t) for t in source.inputs],
            captures=[(external, copied(t)) for external, t in source.captures],
            call_time=[(ask, copied(t)) for ask, t in source.call_time],
            outputs=[copied(t) for t in source.outputs],
            structured_outputs=tf.nest.pack_sequence_as(source.structured_outputs, results),
            operations=self.order,
            controls={self.operations[op]: self._copies(after) for op, after in source.controls.items()},
        )

    def _place(self, t: tf.Tensor, copy: tf.Tensor) -> None:
        self.tensors[id(t)] = copy
        self.operations[t.op] = copy.op

    def _copies(self, operations: Iterable[tf.Operation]) -> list[tf.Operation]:
        return [self.operations[op] for op in operations if op in self.operations]

    def _emit(self, op: tf.Operation) -> None:
        given = [self.tensors[id(t)] for t in inputs_of(op)]
        encodings = self.by_gradient.get(op, [])
        with self.graph.device(op.device or None):
            if encodings and encodings[0].kind != "mask":
                with tf.name_scope(_BACKWARD), self.graph.control_dependencies(self._copies(op.control_inputs)):
                    copies = [self._gradient(encodings[0], given)]
            else:
                for e in encodings:
                    mask = self._mask(e)
                    given = [mask if t is e.value else g for t, g in zip(inputs_of(op), given, strict=True)]
                with self.graph.control_dependencies(self._copies(op.control_inputs)):
                    copies = self._same(op, given)
        for t, copy in zip(op.outputs, copies, strict=True):
            self.tensors[id(t)] = copy
            if not copy.shape.is_fully_defined():
                copy.set_shape(t.shape)
            if t.dtype in (tf.variant, tf.resource):
                handle_data_util.copy_handle_data(t, copy)

    def _same(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        copy = self.graph._create_op_internal(
            op.type,
            list(inputs),
            [t.dtype for t in op.outputs],
            attrs=copy_attributes(op),
            name=op.name,
            op_def=op.op_def,
        )
        self.operations[op] = copy
        return list(copy.outputs)

    def _encode(self, e: Encoding) -> None:
        """Add the operations that encode a value, once for each kind of code."""
        key = (e.kind, id(e.value))
        if key in self.codes:
            return
        value = self.tensors[id(e.value)]
        with tf.name_scope(_FORWARD), self.graph.device(e.value.op.device or None):
            if e.kind == "pool":
                size, stride = _window(e.gradient)
                source = self.tensors[id(inputs_of(e.gradient)[0])]
                self.codes[key] = place_in_window(source, value, size[1:3], stride[1:3])
            else:
                bits = {"relu": lambda y: y > 0, "relu6": lambda y: (y > 0) & (y < 6), "mask": lambda y: y}[e.kind]
                self.codes[key] = pack_bits(bits(value)) if _elements(e.value) % 8 == 0 else bits(value)

    def _mask(self, e: Encoding) -> tf.Tensor:
        if id(e.value) not in self.decoded:
            with tf.name_scope(_BACKWARD):
                self.decoded[id(e.value)] = self._bits(e)
        return self.decoded[id(e.value)]

    def _bits(self, e: Encoding, dtype: tf.DType = tf.bool) -> tf.Tensor:
        code = self.codes[e.kind, id(e.value)]
        if code.dtype == tf.bool:
            return tf.cast(code, dtype)
        return unpack_bits(code, e.value.shape[1:].as_list(), dtype)

    def _gradient(self, e: Encoding, given: Sequence[tf.Tensor]) -> tf.Tensor:
        """Add the operations that replace the gradient's kernel, and give the same bits."""
        if e.kind != "pool":
            gradient = given[0]
            result = gradient * self._bits(e, gradient.dtype)
        else:
            size, stride = _window(e.gradient)
            shape = inputs_of(e.gradient)[0].shape[1:3].as_list()
            result = to_place(self.codes["pool", id(e.value)], given[2], shape, size[1:3], stride[1:3])
        self.operations[e.gradient] = result.op
        return result


def pack_bits(mask: tf.Tensor) -> tf.Tensor:
    """Pack each eight booleans in turn into a uint8, the first in the lowest bit: a vector.

    Eight bytes of 0 or 1 are read as one number of 64 bits. A product shifts each byte to its bit in the highest byte.
    """
    bytes_ = tf.reshape(tf.cast(mask, tf.uint8), [-1, 8])
    products = tf.bitcast(bytes_, tf.uint64) * tf.constant(_GATHER, tf.uint64)
    return tf.cast(tf.bitwise.right_shift(products, tf.constant(56, tf.uint64)), tf.uint8)


def unpack_bits(packed: tf.Tensor, shape: Sequence[int], dtype: tf.DType = tf.bool) -> tf.Tensor:
    """Unpack what `pack_bits` packed.

    Parameters
    ----------
    packed : (n / 8,) uint8
    shape : sequence of int
        Of one sample.
    dtype : tf.DType
        Boolean; or a number, for 0 and 1. Numbers are looked up eight at a time, without booleans in between.
    """
    if dtype == tf.bool:
        spread = tf.cast(packed, tf.uint64) * tf.constant(_SPREAD, tf.uint64)
        bytes_ = tf.bitcast(tf.bitwise.bitwise_and(spread, tf.constant(_BIT_OF_BYTE, tf.uint64)), tf.uint8)
        bits = tf.cast(bytes_, tf.bool)
    else:
        bits = tf.gather(tf.constant(_BITS_OF, dtype), tf.cast(packed, tf.int32))
    return tf.reshape(bits, [-1, *shape])


def place_in_window(x: tf.Tensor, y: tf.Tensor, size: Sequence[int], stride: Sequence[int]) -> tf.Tensor:
    """The place in its window of `x` where each maximum `y` is first, counted row by row: uint8 of the shape of `y`.

    The place is the number of elements before it that are less. It is 0 if no element is equal: the kernel's maximum of
    minus infinities is the least finite number.
    """
    count = size[0] * size[1]
    before = tf.cast(tf.not_equal(_element_of_windows(x, y, size, stride, 0), y), tf.uint8)
    place = before
    for k in range(1, count):
        unequal = tf.cast(tf.not_equal(_element_of_windows(x, y, size, stride, k), y), tf.uint8)
        before *= unequal
        if k < count - 1:
            place += before
    return place * (1 - before)


def _element_of_windows(x: tf.Tensor, y: tf.Tensor, size: Sequence[int], stride: Sequence[int], k: int) -> tf.Tensor:
    """The k-th element of each window of `x`, row by row, in the shape of `y`."""
    (height, width, channels), (row, column) = y.shape[1:].as_list(), divmod(k, size[1])
    if list(size) != list(stride):
        ends = [(n - 1) * s + 1 for n, s in zip((height, width), stride, strict=True)]
        return x[:, row : row + ends[0] : stride[0], column : column + ends[1] : stride[1], :]
    within = [height * size[0], width * size[1]]
    if x.shape[1:3].as_list() != within:
        x = x[:, : within[0], : within[1], :]
    return tf.reshape(x, [-1, height, size[0], width, size[1], channels])[:, :, row, :, column, :]


def to_place(
    place: tf.Tensor, gradient: tf.Tensor, shape: Sequence[int], size: Sequence[int], stride: Sequence[int]
) -> tf.Tensor:
    """The gradient of a max-pooling: each element goes to its place in the input, of the given height and width."""
    height, width, channels = gradient.shape[1:].as_list()
    if list(size) == list(stride) and size[0] == size[1]:
        given = gradient + 0  # a sum with the kernel's zero: minus zero becomes zero
        zero = tf.zeros([], gradient.dtype)
        parts = [tf.where(tf.equal(place, k), given, zero) for k in range(size[0] * size[1])]
        spread = tf.nn.depth_to_space(tf.concat(parts, axis=3), size[0])
        rest = [[0, 0], [0, shape[0] - height * size[0]], [0, shape[1] - width * size[1]], [0, 0]]
        return tf.pad(spread, rest) if any(map(any, rest)) else spread
    table = [i * shape[1] * channels + j * channels for i in range(size[0]) for j in range(size[1])]
    rows = tf.range(0, height * stride[0] * shape[1] * channels, stride[0] * shape[1] * channels, dtype=tf.int64)
    columns = tf.range(0, width * stride[1] * channels, stride[1] * channels, dtype=tf.int64)
    corners = rows[:, None, None] + columns[:, None] + tf.range(channels, dtype=tf.int64)
    where = tf.gather(tf.constant(table, tf.int64), tf.cast(place, tf.int32)) + corners
    like = tf.zeros([tf.shape(gradient)[0], *shape, channels], gradient.dtype)
    windows = [1, *size, 1], [1, *stride, 1]
    return gen_nn_ops.max_pool_grad_with_argmax(like, gradient, where, *windows, "VALID", include_batch_in_index=False)
