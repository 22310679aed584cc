"""What `tf.py_function` keeps for its gradient.

TensorFlow runs the Python function under a gradient tape. The tape holds the function's inputs and outputs in memory
until the operation of the gradient has taken it, whoever else reads them. The gradient's own Python function knows by
a token whose tape it takes. TensorFlow tells that nobody else, so it is read from that function: inlined operations
have neither a name nor a control input that would say it. If it cannot be read, nothing is counted, and measuring
shows what is missing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.ops import script_ops

from ..ops import inputs_of, is_source

__all__ = ["taped_bytes", "tapes_of"]


def tapes_of(operations: Sequence[tf.Operation]) -> dict[tf.Operation, tf.Operation]:
    """Each gradient of a Python function, and the operation whose tape it takes.

    Parameters
    ----------
    operations : sequence of tf.Operation
        Of a step, each after those that it reads.
    """
    tapes: dict[tf.Operation, tf.Operation] = {}
    by_token: dict[bytes | None, tf.Operation] = {}
    for op in operations:
        if op.type != "EagerPyFunc":
            continue
        token = op.get_attr("token")
        taken = _token_of_tape(token)
        if taken in by_token:
            tapes[op] = by_token[taken]
        by_token[token] = op
    return tapes


def _token_of_tape(token: bytes) -> bytes | None:
    """The token of the Python function whose gradient the one with this token computes; None if it computes none."""
    function = script_ops._py_funcs.get(token.decode())
    if not getattr(function, "_is_grad_func", False):
        return None
    found = inspect.getclosurevars(inspect.unwrap(function._func)).nonlocals.get("token")
    return found if isinstance(found, bytes) else None


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
