"""Python's garbage collector, kept from looking at what was there before a plan is made."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["frozen", "old_left_alone"]


@contextlib.contextmanager
def old_left_alone() -> Iterator[None]:
    """Let the collector look only at objects that are made meanwhile.

    TensorFlow, Keras and a large model are a million objects. To plan makes as many again, and the collector would look
    at all of them each time. What lies in cycles is freed first: it may hold memory of the device.
    """
    if frozen():  # somebody else's: to end it is not ours
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def frozen() -> bool:
    """Whether anything is kept from the collector by now."""
    return gc.get_freeze_count() > 0
