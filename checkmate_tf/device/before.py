"""A device's memory as a planned step will find it: its allocator as a model, and what lies in it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence

import tensorflow as tf

from ..allocator.bfc import state_of_chunks
from ..allocator.memory import Memory, with_more
from ..allocator.sequence import Kernels
from ..errors import PlanError
from ..machine import processors
from .measure import Device
from .memory_map import memory_map
from .record import NotRecorded
from .replay import allocator_of

__all__ = ["memory_before"]

_UNREADABLE = (tf.errors.OpError, BufferError, TypeError, ValueError)  # a map that this TensorFlow has otherwise

_MOST_THREADS = 16  # each that is drawn has a queue as long as the step
_THREADS_OF_OTHERS = 2  # a GPU's kernels come one after the other: threads only launch them

_log = logging.getLogger(__name__)


def memory_before(device: Device, kernels: Kernels, coming: Sequence[int], first: int | None = None) -> Memory | None:
    """The memory that a step finds, or None where the device's allocator is not known.

    Parameters
    ----------
    device : Device
    kernels : Kernels
        Of the step's program.
    coming : sequence of int
        Bytes of each tensor that is not there yet, but will be: batches that are kept ready, large constants.
    first : int, optional
        As in `Memory`.
    """
    gc.collect()  # what only lies in cycles would be taken for something that stays
    try:
        lies = memory_map(device)
        allocator = allocator_of(device)
        state = with_more(allocator, state_of_chunks(allocator, lies.address, lies.size, lies.in_use), coming)
    except (NotRecorded, PlanError, *_UNREADABLE) as error:
        _log.info("the allocator of %s has no model here: %s", device.name, error)
        return None
    return Memory(allocator, state, kernels, first, _threads() if device.is_cpu else _THREADS_OF_OTHERS)


def _threads() -> int:
    """How many operations TensorFlow runs at once."""
    asked = tf.config.threading.get_inter_op_parallelism_threads()
    return min(_MOST_THREADS, asked or processors())
