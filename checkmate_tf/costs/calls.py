"""Loops, branches and calls: totals over what an operation calls, iterations of loops, and whether they end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..trace.sizes.loops import most_rounds, root_of
from .alone.eager import called_graph, called_graphs
from .alone.values import StaticValues
from .counts import CALLS

__all__ = ["call_total", "iterations_of", "may_not_end"]

Values = Callable[[Any], np.ndarray | None]
_SOME = np.array(1)  # of a number of rounds that matters only in that there is one


def call_total(op: Any, measure: Callable[[Any, int | None], float], unknown_dim: int | None = None) -> float:
    """Sum of a quantity over the functions that an operation calls.

    Parameters
    ----------
    op : tf.Operation
    measure : callable (op, unknown_dim) -> float
    unknown_dim : int, optional
        What an unknown dimension of the body is, where the caller's own inputs do not tell.

    Returns
    -------
    float
        Of a loop: body and condition, times `iterations_of`, or once if that is not known. Of branches: the dearest
        one. Of a call: the function.
    """
    totals = []
    for graph in called_graphs(op):
        unknown = _batch_of(op, graph, unknown_dim)
        totals.append(sum(measure(inner, unknown) for inner in graph.get_operations()))
    if "While" in op.type:
        return sum(totals) * (iterations_of(op) or 1)
    return max(totals, default=0.0)


def _batch_of(op: Any, graph: Any, default: int | None) -> int | None:
    """What `None` means inside: the size that most of the caller's inputs have where the body's have none."""
    outer_inputs = list(op.inputs)[-len(graph.inputs) :] if graph.inputs else []
    seen: Counter[int] = Counter()
    for outer, inner in zip(outer_inputs, graph.inputs, strict=False):
        if outer.shape.rank is not None and outer.shape.rank == inner.shape.rank:
            pairs = zip(outer.shape.as_list(), inner.shape.as_list(), strict=True)
            seen.update(o for o, i in pairs if i is None and o is not None)
    return seen.most_common(1)[0][0] if seen else default


def iterations_of(op: Any, values: Values | None = None) -> int | None:
    """Iterations of a While that counts to a number that constants and static shapes tell.

    The loop of a gradient counts to what its forward loop has counted, and takes that loop's number. Of several bounds
    the least counts. A loop that may end early runs at most so often.

    Returns
    -------
    int or None
        None if no bound is known.
    """
    if "While" not in op.type:
        return None
    condition, body = called_graph(op, "cond"), called_graph(op, "body")
    if condition is None or body is None:
        return None
    values = values or StaticValues()
    return most_rounds(condition, body, [_start(t, values) for t in op.inputs], values)


def may_not_end(op: Any, values: Values | None = None) -> bool:
    """Whether an operation is a loop that runs as long as its data decides, or calls one.

    On data that is made up such a loop may run for ever. Where a gradient pops from a list how often to run, a loop
    before it has run, and counted that.
    """
    if op.type not in CALLS:
        return False
    known = values or StaticValues()

    def counted(t: Any) -> np.ndarray | None:
        return _SOME if t.op.type == "TensorListPopBack" and t.shape.rank == 0 else known(t)

    if "While" in op.type and iterations_of(op, counted) is None:
        return True
    for graph in called_graphs(op):
        inside = _values_inside(op, graph, counted)
        if any(may_not_end(inner, inside) for inner in graph.get_operations()):
            return True
    return False


def _start(tensor: Any, values: Values) -> np.ndarray | None:
    """The value of a variable of a loop when it begins: of a counter, a known number or what another loop counts."""
    if not tensor.dtype.is_integer or tensor.shape.rank != 0:
        return None
    value = values(tensor)
    if value is None and tensor.value_index == 0:  # where TensorFlow's loops count from 0
        rounds = iterations_of(tensor.op, values)
        value = None if rounds is None else np.array(rounds)
    return value


def _values_inside(op: Any, graph: Any, values: Values) -> Values:
    """Values in a function that an operation calls: of a loop, those that its rounds leave alone."""
    if len(op.inputs) < len(graph.inputs):  # its function was traced with more than it is called with
        return StaticValues()
    given = list(op.inputs)[len(op.inputs) - len(graph.inputs) :]
    body = called_graph(op, "body") if "While" in op.type else None
    known = {}
    for k, (outer, inner) in enumerate(zip(given, graph.inputs, strict=True)):
        if outer.dtype.is_integer and (body is None or root_of(body.outputs[k]) is body.inputs[k]):
            known[inner.ref()] = values(outer)
    return StaticValues(known)
