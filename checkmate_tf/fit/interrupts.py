"""Whether Ctrl-C was pressed while something ran that goes on with what it has."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["noted_interrupts"]


@contextmanager
def noted_interrupts() -> Iterator[Callable[[], bool]]:
    """A function that tells whether the process was interrupted since; whoever handled it, still does.

    Strategies answer Ctrl-C with the best schedule so far, which is not what was asked for. Outside of the main thread,
    which alone is interrupted, nothing is watched.
    """
    noted = threading.Event()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield noted.is_set
        return

    def handle(number: int, frame: Any) -> None:
        noted.set()
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield noted.is_set
    finally:
        signal.signal(signal.SIGINT, before)
