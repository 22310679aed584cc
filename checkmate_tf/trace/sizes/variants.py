"""What variants hold: tensor lists, which loops fill, and optionals, in which conditionals keep values for gradients.

To TensorFlow's shape functions a variant is a scalar. What was put in decides how much memory it holds, and the shapes
of what is taken out again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ..ops import inputs_of
from .loops import PUSHES, grows

__all__ = ["Held", "Variants", "bytes_of", "largest"]


@dataclass(frozen=True)
class Held:
    """What an optional holds, or a conditional returns: shape, bytes and, of a variant, what is known of it."""

    shape: tf.TensorShape
    bytes: int | None
    element: tf.TensorSpec | None
    length: int | None
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Variants:
    """What is known of variants, by the id of the traced tensor.

    Attributes
    ----------
    tensors : dict from id(traced tensor) to its copy with static shapes
    list_bytes : dict to bytes, where they are known
    elements : dict to what a list's elements look like
    lengths : dict to how many they are
    held : dict to what an optional may hold: one thing for each branch of the conditional that made it
    """

    tensors: Mapping[int, tf.Tensor]
    list_bytes: dict[int, int] = field(default_factory=dict)
    elements: dict[int, tf.TensorSpec] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    held: dict[int, tuple[Held, ...]] = field(default_factory=dict)

    def bytes_of(self, t: tf.Tensor) -> int | None:
        """Bytes of a traced tensor, None if they are not known."""
        return bytes_of(t, self.tensors, self.list_bytes)

    def of(self, t: tf.Tensor) -> Held:
        """All that is known of a traced tensor."""
        key = id(t)
        shape, element, length = self.tensors[key].shape, self.elements.get(key), self.lengths.get(key)
        return Held(shape, self.bytes_of(t), element, length, self.held.get(key, ()))

    def note(self, t: tf.Tensor, found: Sequence[Held]) -> None:
        """Note that a variant holds one of these: it is counted as the largest."""
        sizes = [h.bytes for h in found if h.bytes is not None]
        if sizes and len(sizes) == len(found):
            self.list_bytes[id(t)] = max(sizes)
        elements = [h.element for h in found if h.element is not None]
        if elements and (shape := largest([e.shape for e in elements])) is not None:
            self.elements[id(t)] = tf.TensorSpec(shape, elements[0].dtype)
        lengths = {h.length for h in found}
        if len(lengths) == 1 and (length := lengths.pop()) is not None:
            self.lengths[id(t)] = length
        self.held[id(t)] = tuple(inner for h in found for inner in h.held)

    def copy(self, source: tf.Tensor, target: tf.Tensor, within: Variants | None = None, values: bool = True) -> None:
        """Note of `target` all that is known of `source`; within a function, in the notes given as `within`."""
        to = within or self
        for mine, others in ((self.list_bytes, to.list_bytes), (self.elements, to.elements)):
            if id(source) in mine:
                others[id(target)] = mine[id(source)]
        if values and id(source) in self.lengths:
            to.lengths[id(target)] = self.lengths[id(source)]
        if values and id(source) in self.held:
            to.held[id(target)] = self.held[id(source)]

    def follow(self, op: tf.Operation) -> None:
        """Learn from a traced operation whose copy was emitted."""
        result = op.outputs[0] if op.outputs else None
        if op.type in ("EmptyTensorList", "TensorListReserve"):
            self.list_bytes[id(result)] = 0
            count = 0 if op.type == "EmptyTensorList" else tf.get_static_value(self.tensors[id(inputs_of(op)[1])])
            if count is not None:
                self.lengths[id(result)] = int(count)
        elif op.type == "TensorListFromTensor":
            shape = self.tensors[id(inputs_of(op)[0])].shape
            if shape.is_fully_defined():
                self.list_bytes[id(result)] = shape.num_elements() * op.inputs[0].dtype.size
                self.elements[id(result)] = tf.TensorSpec(shape[1:], op.inputs[0].dtype)
                self.lengths[id(result)] = shape[0]
        elif op.type in PUSHES:
            self._push(op)
        elif op.type in ("TensorListGetItem", "TensorListPopBack", "TensorListStack"):
            self._take(op)
        elif op.type == "TensorListElementShape":
            element = self.elements.get(id(inputs_of(op)[0]))
            if element is not None and element.shape.rank is not None:
                self.tensors[id(result)].set_shape([element.shape.rank])
        elif op.type in ("Identity", "ZerosLike", "AddN") and op.outputs[0].dtype == tf.variant:
            for source in reversed(inputs_of(op)):  # terms are lists of equal shapes, of which little may be known
                self.copy(source, op.outputs[0])
            if op.type != "Identity":
                self._made_anew(op)
        elif op.type == "TensorListResize":
            self.copy(inputs_of(op)[0], op.outputs[0], values=False)
            length = tf.get_static_value(self.tensors[id(inputs_of(op)[1])])
            if length is not None:
                self.lengths[id(result)] = int(length)
                self._made_anew(op)
        elif op.type == "OptionalNone":
            self.list_bytes[id(result)], self.held[id(result)] = 0, ()
        elif op.type == "OptionalFromValue" and len(op.inputs) == 1:
            value = self.of(inputs_of(op)[0])
            if value.bytes is not None:
                self.list_bytes[id(result)] = value.bytes
            self.held[id(result)] = (value,)
        elif op.type == "OptionalGetValue" and len(op.outputs) == 1:
            self._get_value(op)

    def _push(self, op: tf.Operation) -> None:
        before, pushed = inputs_of(op)[0], inputs_of(op)[PUSHES[op.type]]
        self.elements[id(op.outputs[0])] = tf.TensorSpec(self.tensors[id(pushed)].shape, pushed.dtype)
        length = self.lengths.get(id(before))
        if length is not None and grows(op):
            index = tf.get_static_value(self.tensors[id(inputs_of(op)[1])])
            length = None if index is None else max(length, int(index) + 1)
        if length is not None:
            self.lengths[id(op.outputs[0])] = length + (op.type == "TensorListPushBack")
        earlier, more = self.list_bytes.get(id(before)), self.bytes_of(pushed)
        if earlier is not None and more is not None:  # outside of a loop, whose lists count by the distinct tensors
            self.list_bytes[id(op.outputs[0])] = earlier + more

    def _made_anew(self, op: tf.Operation) -> None:
        """Note what a list takes if each element is a tensor of its own: of zeros, of sums, and at most if resized."""
        key = id(op.outputs[0])
        element, length = self.elements.get(key), self.lengths.get(key)
        if element is not None and length is not None and element.shape.is_fully_defined():
            self.list_bytes[key] = length * element.shape.num_elements() * element.dtype.size

    def _take(self, op: tf.Operation) -> None:
        element, result = self.elements.get(id(inputs_of(op)[0])), op.outputs[-1]
        if element is None:
            return
        copy = self.tensors[id(result)]
        shape = element.shape
        if op.type == "TensorListStack":
            count = copy.shape[:1] if copy.shape.rank else tf.TensorShape([None])
            told = tf.TensorShape([self.lengths.get(id(inputs_of(op)[0]))])
            shape = (told if count.is_compatible_with(told) and count[0] is None else count).concatenate(shape)
        copy.set_shape(shape)
        if op.type == "TensorListPopBack":
            self.elements[id(op.outputs[0])] = element

    def _get_value(self, op: tf.Operation) -> None:
        """Note what is taken from an optional: the gradient of a conditional takes what its branch has put in."""
        result = op.outputs[0]
        copy = self.tensors[id(result)]
        found = [h for h in self.held.get(id(inputs_of(op)[0]), ()) if h.shape.is_compatible_with(copy.shape)]
        if result.dtype == tf.variant:
            self.note(result, found)
        elif found and (shape := largest([h.shape for h in found])) is not None:
            copy.set_shape(shape)


def bytes_of(t: tf.Tensor, tensors: Mapping[int, tf.Tensor], list_bytes: Mapping[int, int]) -> int | None:
    """Bytes of a traced tensor; None if they are not known.

    Parameters
    ----------
    t : tf.Tensor
    tensors : mapping from id(traced tensor) to its copy with static shapes
    list_bytes : mapping from id(traced tensor) to bytes, for variants
    """
    if t.dtype == tf.variant:
        return list_bytes.get(id(t))
    if t.dtype == tf.resource:
        return 0
    count = tensors[id(t)].shape.num_elements()
    if count is None:
        return 64 if t.op.type == "BroadcastGradientArgs" else None
    return count * (t.dtype.size or 16)  # strings have no fixed size


def largest(shapes: Sequence[tf.TensorShape]) -> tf.TensorShape | None:
    """The largest of each size; None if there are several ranks, or a size is open."""
    if len({s.rank for s in shapes}) > 1 or not all(s.is_fully_defined() for s in shapes):
        return None
    return tf.TensorShape([max(sizes) for sizes in zip(*(s.as_list() for s in shapes), strict=True)])
