"""Ctrl-C comes after a call of compiled code, not within it.

To give a result to Python, Numba's code calls Python functions: for the type of an array, and the class of a named
tuple. What handles a signal that came in the meantime runs in there. Numba does not look for an error of these calls,
and the `KeyboardInterrupt` ends as a `SystemError`, or with the process.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import FrameType
from typing import Any

from numba.core.registry import CPUDispatcher

__all__ = ["CallsToTheEnd"]

_signal: Any = importlib.import_module(
    "_signal"
)  # `signal` makes enumerations of handlers, which takes ten times as long
_CTRL_C = _signal.SIGINT


class _Later:
    """Takes note of a signal for the handler that it stands for, until its call has ended.

    Another signal's handler may raise between any two statements, so that this one stays installed. Then it hands
    signals on.
    """

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.noted: tuple[int, FrameType | None] | None = None
        self.ended = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.ended:
            self.handler(number, frame)
        else:
            self.noted = number, frame

    def end(self) -> None:
        """Install the other handler again, unless there is a new one, and let it handle what was noted."""
        self.ended = True
        if _signal.getsignal(_CTRL_C) is self:
            _signal.signal(_CTRL_C, self.handler)
        if self.noted is not None:
            self.handler(*self.noted)


class CallsToTheEnd(CPUDispatcher):
    """A compiled function that is not interrupted, nor is its compilation: Numba may be left unusable by that."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        handler = _handler()
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return super().__call__(*args, **kwargs)
        later = _Later(handler)
        try:
            _signal.signal(_CTRL_C, later)
            return super().__call__(*args, **kwargs)
        finally:
            later.end()


def _handler() -> Any:
    """What handles Ctrl-C outside of calls."""
    handler = _signal.getsignal(_CTRL_C)
    while isinstance(handler, _Later):
        handler = handler.handler
    return handler


def _as_outside() -> None:
    """In a child that another thread has forked while a call was on."""
    if isinstance(_signal.getsignal(_CTRL_C), _Later):
        _signal.signal(_CTRL_C, _handler())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_as_outside)
