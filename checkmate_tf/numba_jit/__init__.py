"""Numba's compiler. What it compiles is kept on disk if there is a place for that.

Processes share what is kept, and Numba gives two things names that are the same in all of them:

- **Functions within functions.** Numba tells them apart by a number that each process counts from one. Two functions
  with one name and number that were compiled in two processes are one to the process that loads both. `sort` and
  `argsort` are such: a simulation called the wrong one of them, and wrote where it must not.
- **Files.** The first kind of arguments that a function is compiled for is kept in its file 1. If two processes do that
  at a time, for arguments of different kinds, one may find the other's code behind its own name.

Here each process counts from a number of its own, and has names of its own for its files.

A function is compiled for each kind of arguments, for seconds. Arrays that may be written to and those that may not be
are two kinds, and so are a number and a literal. Callers give the same kind everywhere: `np.array(...)` copies what may
be read only, `np.int64(0)` is no literal.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.bytecode import FunctionIdentity

from .interrupts import CallsToTheEnd

__all__ = ["is_compiled", "is_kept", "numba_jit"]

log = logging.getLogger("checkmate_tf")

F = TypeVar("F", bound=Callable[..., Any])

_BITS = 48  # of a process's number: two of thousands are hardly ever near each other


def numba_jit(function: F) -> F:
    """Compile without holding the GIL; cached beside the source, or in the user's cache folder or NUMBA_CACHE_DIR.

    If none of these can be written, the function is compiled anew in every process. Ctrl-C comes after a call.
    """
    try:
        result: Any = njit(cache=True, nogil=True)(function)
        if hasattr(result, "_cache"):  # with NUMBA_DISABLE_JIT it is the function as it was written
            _name_files_apart(result._cache._cache_file)
    except RuntimeError as error:  # "cannot cache function ...: no locator available"
        log.info("%s; set NUMBA_CACHE_DIR to a folder that can be written to save compilation", error)
        result = njit(nogil=True)(function)
    if hasattr(result, "signatures"):
        result.__class__ = CallsToTheEnd
    return cast(F, result)


def is_kept(function: Callable[..., Any]) -> bool:
    """Whether what is compiled for a function is kept on disk."""
    return _kept(function) is not None


def is_compiled(function: Callable[..., Any]) -> bool:
    """Whether a function is compiled for any kind of arguments, in this process, or on disk for this processor."""
    if not hasattr(function, "signatures") or function.signatures:
        return True
    kept = _kept(function)
    if kept is None:
        return False
    try:
        processor = function.targetctx.codegen().magic_tuple()  # type: ignore[attr-defined]  # Numba has no types
        return any(key[1] == processor for key in kept._load_index())
    except Exception:  # noqa: BLE001 - a damaged file is unpickled: anything; Numba would end with it
        with suppress(OSError):
            os.unlink(kept._index_path)
        return False


def _kept(function: Callable[..., Any]) -> Any:
    """The files of a function, None without any."""
    return getattr(getattr(function, "_cache", None), "_cache_file", None)


def _name_files_apart(kept: Any) -> None:
    """Let a function's files have numbers that no other process gives to its own, forked ones included."""
    numbered: Callable[[int], str] = kept._data_name
    kept._data_name = lambda number: numbered(_first + number)


def _count_anew() -> None:
    """Count functions, and files, from a number that no other process has."""
    global _first  # noqa: PLW0603 - one for each process
    _first = secrets.randbits(_BITS)
    FunctionIdentity._unique_ids = itertools.count(_first)


_first = 0
_count_anew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_anew)
