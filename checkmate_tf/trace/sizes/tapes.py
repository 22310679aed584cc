"""What operations keep for their gradients, beside their outputs: here called their tapes.

**Python functions.** TensorFlow runs the function of `tf.py_function` under a gradient tape. The tape holds the
function's inputs and outputs in memory until the operation of the gradient has taken it, whoever else reads them. The
gradient's own Python function knows by a token whose tape it takes. TensorFlow tells that nobody else, so it is read
from that function: inlined operations have neither a name nor a control input that would say it. If it cannot be read,
nothing is counted, and measuring shows what is missing.

**Max-poolings.** On a CPU oneDNN computes a max-pooling together with its gradient. The pooling notes the place of the
largest element in each window, a byte for each, and keeps the places until the gradient has run. The gradient is ten
times as fast as the kernel that finds the places itself, which needs memory for that.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.ops import script_ops

from ..ops import inputs_of, is_source

__all__ = ["places_bytes", "pooling_of", "taped_bytes", "tapes_of"]

_POOLINGS = {"MaxPoolGrad": "MaxPool", "MaxPool3DGrad": "MaxPool3D"}  # the pooling's result is their second input
_BYTE = 255  # elements of a window: oneDNN numbers the places of larger ones by int32


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


def pooling_of(op: tf.Operation) -> tf.Operation | None:
    """The max-pooling that an operation is the gradient of; None if it is none, or reads another one's result."""
    pooling = inputs_of(op)[1].op if op.type in _POOLINGS else None
    return pooling if pooling is not None and pooling.type == _POOLINGS[op.type] else None


def places_bytes(pooling: tf.Operation, taken: int) -> int:
    """Bytes of the places that a max-pooling keeps for its gradient.

    Parameters
    ----------
    pooling : tf.Operation
        Of a graph with static shapes.
    taken : int
        Bytes that its kernel was seen to take beside its result: at least the places, or it keeps none.
    """
    each = 1 if math.prod(pooling.get_attr("ksize")) <= _BYTE else 4
    places = each * (pooling.outputs[0].shape.num_elements() or 0)
    return places if taken >= places else 0
