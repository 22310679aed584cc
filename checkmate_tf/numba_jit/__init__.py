"""Numba's compiler. What it compiles is kept on disk if there is a place for that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

__all__ = ["numba_jit"]

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])


def numba_jit(function: F) -> F:
    """Compile without holding the GIL; cached beside the source, or in the user's cache folder or NUMBA_CACHE_DIR.

    If none of these can be written, the function is compiled anew in every process.
    """
    try:
        result: Any = njit(cache=True, nogil=True)(function)
    except RuntimeError as error:  # "cannot cache function ...: no locator available"
        log.info("%s; set NUMBA_CACHE_DIR to a folder that can be written to save compilation", error)
        result = njit(nogil=True)(function)
    return cast(F, result)
