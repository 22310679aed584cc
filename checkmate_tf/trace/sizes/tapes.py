"""What `tf.py_function` keeps for its gradient.

TensorFlow runs the Python function under a gradient tape. The tape holds the function's inputs and outputs in memory
until the operation of the gradient has taken it, whoever else reads them. That one comes after the function: it is made
with a control input from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from ..ops import inputs_of, is_source
from ..order import is_gradient

__all__ = ["taped_bytes", "tapes_of"]

_PYTHON = "EagerPyFunc"


def tapes_of(operations: Sequence[tf.Operation]) -> dict[tf.Operation, tf.Operation]:
    """Each gradient of a Python function, and the operation whose tape it takes."""
    tapes: dict[tf.Operation, tf.Operation] = {}
    for op in operations:
        if op.type != _PYTHON or not is_gradient(op):
            continue
        for c in op.control_inputs:
            if c.type == _PYTHON and not is_gradient(c) and len(c.outputs) == len(op.inputs):
                tapes[op] = c
    return tapes


def taped_bytes(
    op: tf.Operation, owner: Callable[[tf.Tensor], tf.Tensor], bytes_of: Callable[[tf.Tensor], int | None]
) -> int:
    """Bytes of the inputs that the tape of a Python function holds. Variables, constants and batches are there anyway.

    Parameters
    ----------
    op : tf.Operation
    owner : callable
        The tensor whose memory another one shares.
    bytes_of : callable
        What a tensor takes.
    """
    held = {id(t): t for t in map(owner, inputs_of(op)) if not is_source(t.op)}
    return sum(bytes_of(t) or 0 for t in held.values())
