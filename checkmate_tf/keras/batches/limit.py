"""The check within the step that a batch is no larger than planned, and the error that it becomes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from ...errors import BatchSizeError, CheckmateError
from .ragged import is_ragged, rows_of

__all__ = ["batch_errors", "limit_batch"]

_TOO_LARGE = "[checkmate_tf: batch too large]"  # before and after the message


def limit_batch(
    flat: list[Any], spec: list[Any], batch_size: int, replicas: int, place: str | None
) -> tuple[list[Any], list[tf.Operation]]:
    """Check that the batch of a replica is no larger than planned.

    Returns the same tensors, which are read after the check, and the check itself. What does not read the batch
    (counters, seeds) must come after the check, too.
    """
    message = f"{_TOO_LARGE}{_message(batch_size, replicas, 'more')}{_TOO_LARGE}"
    checks = []
    for t, s in zip(flat, [s for s in spec if s is not None], strict=True):
        if is_ragged(t):
            checks.append(tf.debugging.assert_less_equal(rows_of(t), np.int64(batch_size), message=message))
            continue
        if not s.shape.rank or s.shape[0] is not None:  # a first axis that is not the batch
            continue
        if t.shape[0] is not None and t.shape[0] > batch_size:
            raise BatchSizeError(_message(batch_size, replicas, t.shape[0]))
        if t.shape[0] is None:
            checks.append(tf.debugging.assert_less_equal(tf.shape(t)[0], batch_size, message=message))
    if not checks:
        return flat, []
    with tf.control_dependencies(checks), tf.device(place):
        return [t if is_ragged(t) else tf.identity(t) for t in flat], checks


def _message(planned: int, replicas: int, given: int | str) -> str:
    if replicas == 1:
        what = f"a batch of {given} samples came, memory was planned for {planned}"
    else:
        what = f"a batch of {given} samples came to a device, memory was planned for {planned} on each of {replicas}"
    return (
        f"{what}: give batches of at most {planned * replicas}, or call checkmate_tf again with the larger batch_size"
    )


class batch_errors:  # noqa: N801 - reads as a context
    """Turns the graph's assertion on the batch into a BatchSizeError."""

    def __enter__(self) -> None:
        self.handled = sys.exception()  # whoever trains again while an error of ours is handled: it is no new one

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        ours = isinstance(error, CheckmateError)
        before = error.__context__ if isinstance(error, Exception) and not ours else None
        if isinstance(before, CheckmateError) and before is not self.handled:
            raise before from None  # autograph, under tf_keras, raises its own in the place of ours
        if isinstance(error, tf.errors.InvalidArgumentError) and _TOO_LARGE in str(error):
            raise BatchSizeError(str(error).split(_TOO_LARGE)[1]) from None
