"""Ctrl-C comes after a call of compiled code, not within it.

To give a result to Python, Numba's code calls Python functions: for the type of an array, and the class of a named
tuple. What handles a signal that came in the meantime runs in there. Numba does not look for an error of these calls,
and the `KeyboardInterrupt` ends as a `SystemError`, or with the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from numba.core.registry import CPUDispatcher

__all__ = ["CallsToTheEnd"]

# What `signal` wraps to make enumerations of handlers, which takes longer than all else here.
_handler: Callable[[int], Any] = getattr(signal.getsignal, "__wrapped__", signal.getsignal)
_handle: Callable[[int, Any], Any] = getattr(signal.signal, "__wrapped__", signal.signal)


class _Later:
    """Takes note of a signal, for the handler that it stands for."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.noted: tuple[int, FrameType | None] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.noted = number, frame

    def end(self) -> None:
        """Install the other handler again, and let it handle what was noted."""
        _handle(signal.SIGINT, self.handler)
        if self.noted is not None:
            self.handler(*self.noted)


class CallsToTheEnd(CPUDispatcher):
    """A compiled function that is not interrupted, nor is its compilation: Numba may be left unusable by that."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        handler = _handler(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return super().__call__(*args, **kwargs)
        later = _Later(handler)
        _handle(signal.SIGINT, later)
        try:
            return super().__call__(*args, **kwargs)
        finally:
            later.end()
