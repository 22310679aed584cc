"""A random move of the order that is searched."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...numba_jit import numba_jit
from ..ordering.links import Links, move
from .arrays import Problem, place

__all__ = ["reorder", "span"]

_LONGEST = 400  # places that a random move spans at most


@numba_jit
def span(places: int) -> int:
    """How many places a random move takes in: 2 and more, few more often than many."""
    return 2 + int(math.exp(np.random.random() * math.log(min(places, _LONGEST))))  # noqa: NPY002 - Numba's own generator


@numba_jit
def reorder(problem: Problem, links: Links, changed: Problem, near: int | np.int64, mark: NDArray[np.bool_]) -> bool:
    """Let `changed` be `problem` after a random move. Returns whether anything moved; if not, it is undefined.

    Parameters
    ----------
    near : int
        The place before which most moves begin, or -1 for anywhere.
    """
    n = problem.order.shape[0]
    if n < 2:
        return False
    begin = int(np.random.random() * (n - 1))  # noqa: NPY002
    if near >= 0 and np.random.random() < 0.7:  # noqa: NPY002
        begin = max(0, min(n - 2, near - int(np.random.random() ** 2 * near)))  # noqa: NPY002
    end = min(n, begin + span(n))
    window, moved = move(problem.order, links, begin, end, np.random.random() < 0.5, mark)  # noqa: NPY002
    if moved:
        changed.order[:] = problem.order
        changed.order[begin:end] = window
        place(changed)
    return moved
