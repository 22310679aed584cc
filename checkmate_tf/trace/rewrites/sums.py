"""Sums of three and more terms, split into sums of two: the same bits, with fewer terms in memory at once.

TensorFlow adds all contributions to a gradient in one operation, which needs all of them at once. Each batch
normalization has three, as large as what it normalizes. When they are added one after another, each can be made after
the one before it is in the sum.

There is a second reason. Grappler rewrites a sum of three or more where a graph needs more than four fifths of what
TensorFlow takes for the device's memory (256 MB for any CPU). It makes the sum into a temporary variable, fills that
with zeros and adds the terms in any order. So the last bits differ from step to step, and the variable stays allocated
until the next step: in MobileNet at batch 560, a sixth of a 2 GB device. Grappler leaves sums of two alone. A Snapshot
behind each, which passes its input's buffer on, keeps Grappler from joining them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..ops import SUMS, inputs_of, is_source, view_of
from ..pieces import piece_of
from .edges import put_in_place

__all__ = ["emit_sum", "grappler_sorts", "order_of_terms", "split_sums"]

_LEAST_TERMS = 3  # sums of fewer are left as they are
_WIDTH = 8  # AddN's kernel adds so many terms to each other before it adds them to what it has


def split_sums(graph: tf.Graph) -> dict[Any, tf.Tensor]:
    """Split the sums of three and more terms in a graph: their readers read sums of two instead.

    Parameters
    ----------
    graph : FuncGraph
        Changed in place. Bodies of loops, and sums of other than floating-point numbers, are left as they are.

    Returns
    -------
    dict
        From references of the sums to the tensors that replace them. The caller replaces outputs of the graph.
    """
    sums = [op for op in graph.get_operations() if op.type in SUMS and len(op.inputs) >= _LEAST_TERMS]
    floating = [op for op in sums if op.outputs[0].dtype.is_floating]
    orders = {op: order_of_terms(inputs_of(op)) for op in floating}  # before any term has another name
    found: dict[tf.Tensor, tf.Tensor] = {}
    for op, order in orders.items():
        terms, (result,) = inputs_of(op), op.outputs
        with graph.as_default(), graph.device(op.device or None), graph.control_dependencies(op.control_inputs):
            total = emit_sum([terms[k] for k in order], op.name)
        total.set_shape(result.shape)
        put_in_place(op, total.op)
        found[result.ref()] = total
    return found


def emit_sum(terms: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    """Add three or more floating-point terms two at a time, with the bits of AddN's kernel.

    Parameters
    ----------
    terms : sequence of tf.Tensor
        Of one shape and type.
    name : str
        For the operations.

    Returns
    -------
    tf.Tensor
        Of the same shape and type. The order is that of TensorFlow's kernel for the CPU: up to nine terms in turn, then
        eight at a time.
    """
    first = (len(terms) - 2) % _WIDTH + 2  # 2 to 9, so that the rest comes in whole groups
    total = _in_turn(terms[:first], name)
    for k in range(first, len(terms), _WIDTH):
        total = _in_turn([total, _in_turn(terms[k : k + _WIDTH], name)], name)
    return total


def order_of_terms(terms: Sequence[tf.Tensor]) -> list[int]:
    """The order in which AddN adds terms: as given, or sorted by name if Grappler is on.

    Its kernel begins with the first term that it can add into. That is no tensor that is given twice, no variable, no
    argument and no constant, if there is another. A term may have other readers, which have run by then or not: it is
    taken for one to begin with. There the plain step itself is not always the same.

    Parameters
    ----------
    terms : sequence of tf.Tensor
        Of the traced step, whose names the plain step has.

    Returns
    -------
    list of int
        Indices of `terms`. The names are those before Grappler begins, identities left out. Where Grappler renames a
        term before it sorts, the last bits may differ.
    """
    order = list(range(len(terms)))
    if grappler_sorts():
        order.sort(key=lambda k: _name(terms[k]))
    sources = [_source(t) for t in terms]
    usable = (j for j, k in enumerate(order) if not is_source(sources[k].op) and _count(sources, sources[k]) == 1)
    first = next(usable, 0)
    order[0], order[first] = order[first], order[0]
    return order


def grappler_sorts() -> bool:
    """Whether Grappler is on, so that it sorts the sums of functions that are called now for the first time."""
    return not tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)


def _source(t: tf.Tensor) -> tf.Tensor:
    """The tensor that owns the buffer that `t` lies in."""
    while True:
        source = view_of(t.op, t.value_index)
        source = piece_of(t.op) if source is None else source
        if source is None:
            return t
        t = inputs_of(t.op)[source]


def _count(tensors: Sequence[tf.Tensor], wanted: tf.Tensor) -> int:
    return sum(t is wanted for t in tensors)


def _in_turn(terms: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = tf.raw_ops.Snapshot(input=tf.raw_ops.AddN(inputs=[total, term], name=name), name=name)
    return total


def _name(t: tf.Tensor) -> bytes:
    """The name of an input once Grappler has removed identities."""
    while t.op.type in ("Identity", "StopGradient"):
        t = t.op.inputs[0]
    return (t.op.name if t.value_index == 0 else t.name).encode()
