"""Traced functions and the operations in them, for the tests of costs."""

from __future__ import annotations

import tensorflow as tf


def graph_of(function, *specs):
    """The graph of a traced function; `specs` are shapes of float32 or `tf.TensorSpec`s."""
    given = [s if isinstance(s, tf.TensorSpec) else tf.TensorSpec(s) for s in specs]
    return tf.function(function, autograph=False).get_concrete_function(*given).graph


def only(graph, kind):
    """The one operation of that type."""
    (op,) = (op for op in graph.get_operations() if op.type == kind)
    return op


def looped(x, w, limit=7):
    """`limit` times a matrix product, at most nine."""
    return tf.while_loop(lambda i, h: i < limit, lambda i, h: (i + 1, tf.matmul(h, w)), (0, x), maximum_iterations=9)[1]


def above(op):
    """All operations that one comes after."""
    found, todo = set(), [op]
    while todo:
        last = todo.pop()
        new = {*(t.op for t in last.inputs), *last.control_inputs} - found
        found |= new
        todo += new
    return found
