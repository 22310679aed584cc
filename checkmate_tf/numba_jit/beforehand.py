"""Compiles what will be called, before any clock runs, in several processes.

A process of its own compiles a part, and keeps it on disk, where this one finds it. What a process could not compile,
this one does.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from numba.core import config

from ..machine import child_environment, cores
from . import is_compiled, is_kept

__all__ = ["Calls", "compile_once"]

log = logging.getLogger("checkmate_tf")

_LOOKS = 0.05  # seconds between two looks at processes
_MOST = 300.0  # seconds that they have: several times as long as is needed


@dataclass(frozen=True)
class Calls:
    """Compiled functions, and calls of them all.

    Attributes
    ----------
    what : str
        They are, for the warning.
    functions : tuple of functions by `numba_jit`
        Those that are called from Python.
    parts : tuple of callables
        Functions of modules, without arguments. Together they call each of the functions. The one that takes longest
        comes first.
    """

    what: str
    functions: tuple[Callable[..., Any], ...]
    parts: tuple[Callable[[], Any], ...]


def compile_once(*all_calls: Calls) -> None:
    """Compile functions by calling them all, unless that was done before, on this machine and for this version."""
    missing = [calls for calls in all_calls if not all(map(is_compiled, calls.functions))]
    if not missing:
        return
    what = " and ".join(calls.what for calls in missing)
    log.warning("Numba compiles %s, once for this version on this machine", what)
    python = sys.executable and not getattr(sys, "frozen", False)  # else it is an application, which would begin anew
    if python and cores() > 1 and all(is_kept(function) for calls in missing for function in calls.functions):
        _in_processes([part for calls in missing for part in calls.parts], cores())
    for calls in missing:
        if not all(map(is_compiled, calls.functions)):
            for part in calls.parts:
                part()


def _in_processes(parts: Iterable[Callable[[], Any]], at_once: int) -> None:
    """Compile each part in a process of its own, some at a time, and wait for them all, if they come to an end."""
    waiting, running = list(parts), list[subprocess.Popen[bytes]]()
    until = time.monotonic() + _MOST
    try:
        while (waiting or running) and time.monotonic() < until:
            try:
                while waiting and len(running) < at_once:
                    running.append(_begin(waiting.pop(0)))
            except OSError as error:
                log.info("a process that compiles for Numba did not start (%s)", error)
                waiting.clear()
            time.sleep(_LOOKS)
            for process in [process for process in running if process.poll() is not None]:
                process.communicate()  # closes its input
                running.remove(process)
                if process.returncode:
                    log.info("a process that compiles for Numba failed (%d)", process.returncode)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _begin(part: Callable[[], Any]) -> subprocess.Popen[bytes]:
    """Begin to compile a part in a process. It ends with this one, however that ends."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, part.__module__, part.__name__],
        stdin=subprocess.PIPE,  # nothing is written: it closes when this process ends
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=child_environment(NUMBA_CACHE_DIR=config.CACHE_DIR),  # type: ignore[attr-defined]
        start_new_session=True,  # Ctrl-C is this process's to handle
    )


def _end_with_parent() -> None:
    """Wait for the other end of standard input, which only the parent holds, to be closed."""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    getattr(importlib.import_module(sys.argv[1]), sys.argv[2])()
