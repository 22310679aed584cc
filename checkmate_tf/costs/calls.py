"""Loops, branches and calls: totals over the functions that an operation calls, and iterations of loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["call_total", "iterations_of"]


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
    from .alone.eager import called_graphs

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


def iterations_of(op: Any, values: Callable[[Any], np.ndarray | None] | None = None) -> int | None:
    """Iterations of a While whose condition bounds a counter by a number that constants and static shapes tell.

    The condition is searched for `Less` between integer scalars. The loop of a gradient is bounded by the counter of
    its forward loop, and takes that loop's number. Of several bounds the least counts. A loop that may end early runs
    at most so often.

    Returns
    -------
    int or None
        None if no bound is known.
    """
    from .alone.eager import called_graph
    from .alone.values import StaticValues

    condition = called_graph(op, "cond") if "While" in op.type else None
    if condition is None:
        return None
    values = values or StaticValues()
    place = {t.ref(): i for i, t in enumerate(condition.inputs)}

    def known(tensor: Any) -> int | None:
        while tensor.op.type == "Identity":
            tensor = tensor.op.inputs[0]
        outer = op.inputs[place[tensor.ref()]] if tensor.ref() in place else tensor
        value = values(outer)
        if value is None:
            return iterations_of(outer.op, values) if "While" in outer.op.type else None
        return int(value) if np.ndim(value) == 0 else None

    bounds = []
    for test in condition.get_operations():
        if test.type == "Less" and test.inputs[0].dtype.is_integer and test.inputs[0].shape.rank == 0:
            limit, start = known(test.inputs[1]), known(test.inputs[0])
            if limit is not None and limit >= 0:
                bounds.append(max(0, limit - (start or 0)))
    return min(bounds) if bounds else None
