"""Sums of three and more terms, two terms at a time: the same bits, and never all terms in memory at once.

A gradient's contributions are added by one operation, which needs all of them (three in every batch normalization, as
large as what it normalizes). Added one after another, each can be made when the one before is in the sum.

And where a graph needs more than four fifths of what TensorFlow takes for the device's memory (256 MB for any CPU),
Grappler makes a sum of three or more into a temporary variable. It is filled with zeros, and each term is added when
that is there, in any order, so the last bits differ from step to step; and its memory stays allocated until the next
step: in MobileNet at batch 560 a sixth of a 2 GB device. Sums of two are left alone, and a Snapshot, which passes its
input's buffer on, keeps Grappler from joining them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .ops import SUMS, inputs_of, is_source, view_of

__all__ = ["emit_sum", "grappler_sorts", "order_of_terms", "split_sums"]

_LEAST_TERMS = 3  # sums of fewer are left as they are
_WIDTH = 8  # AddN's kernel adds so many terms to each other before it adds them to what it has


def split_sums(graph: tf.Graph) -> dict[Any, tf.Tensor]:
    """Add sums of two to a graph for each of three and more, and let whoever reads that read them.

    Parameters
    ----------
    graph : FuncGraph
        Changed. Bodies of loops, and sums of other than floating-point numbers, are left.

    Returns
    -------
    dict
        From references of the sums to what stands for them; outputs of the graph are for the caller to replace.
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
        for reader in result.consumers():
            for k, t in enumerate(reader.inputs):
                if t is result:
                    reader._update_input(k, total)  # noqa: SLF001 - the only way to change a graph in place
        for waiting in list(op._control_outputs):  # noqa: SLF001
            controls = [total.op if c is op else c for c in waiting.control_inputs]
            waiting._remove_all_control_inputs()  # noqa: SLF001
            waiting._add_control_inputs(controls)  # noqa: SLF001
        found[result.ref()] = total
    return found


def emit_sum(terms: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    """What AddN's kernel makes of three or more floating-point terms, bit by bit, whenever they are there.

    Parameters
    ----------
    terms : sequence of tf.Tensor
        Of one shape and type.
    name : str
        For the operations.

    Returns
    -------
    tf.Tensor
        Of the same shape and type. Summed in the order of TensorFlow's kernel for the CPU: up to nine terms in turn,
        then eight at a time.
    """
    first = (len(terms) - 2) % _WIDTH + 2  # 2 to 9, so that the rest comes in whole groups
    total = _in_turn(terms[:first], name)
    for k in range(first, len(terms), _WIDTH):
        total = _in_turn([total, _in_turn(terms[k : k + _WIDTH], name)], name)
    return total


def order_of_terms(terms: Sequence[tf.Tensor]) -> list[int]:
    """The order in which AddN would add these: as given, or as Grappler sorts them, by name, if it is on.

    Its kernel begins with the first term into whose memory it can add, so never with a tensor that is given twice or
    with a variable, an argument or a constant, if there is another. A term whose other readers may or may not have run
    by then is taken for one that it can begin with: there the plain step itself is not always the same.

    Parameters
    ----------
    terms : sequence of tf.Tensor
        Of the traced step, whose names the plain step has.

    Returns
    -------
    list of int
        Indices of `terms`. Grappler's order is that of its names when it begins, but for identities: where it renames a
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
    """Whether functions that are called now for the first time have their sums sorted: whether Grappler is on."""
    return not tf.config.optimizer.get_experimental_options().get("disable_meta_optimizer", False)


def _source(t: tf.Tensor) -> tf.Tensor:
    """The tensor that owns the buffer."""
    while (source := view_of(t.op, t.value_index)) is not None:
        t = inputs_of(t.op)[source]
    return t


def _count(tensors: Sequence[tf.Tensor], wanted: tf.Tensor) -> int:
    return sum(t is wanted for t in tensors)


def _in_turn(terms: Sequence[tf.Tensor], name: str) -> tf.Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = tf.raw_ops.Snapshot(input=tf.raw_ops.AddN(inputs=[total, term], name=name), name=name)
    return total


def _name(t: tf.Tensor) -> bytes:
    """As an input is called in a graph without the identities that Grappler removes."""
    while t.op.type in ("Identity", "StopGradient"):
        t = t.op.inputs[0]
    return (t.op.name if t.value_index == 0 else t.name).encode()
