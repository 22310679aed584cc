"""Local search for an order of least peak: moves of the search for orders (`links.move`), and a peak to get below.

What counts is by how many bytes the order is over a target, at all its computations together, so a move counts before
the last computation over the target has gone. When none is over it, the target goes down.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...numba_jit import numba_jit
from .links import move
from .lives import Lives, profile

__all__ = ["lower"]

_LONGEST = 400  # places that a move spans at most


@numba_jit
def lower(
    lives: Lives, order: NDArray[np.int64], target: int, steps: int, hot: float, seed: int
) -> tuple[bool, NDArray[np.int64]]:
    """An order that needs no more than a target, if one is found in so many moves; and where the search is.

    Parameters
    ----------
    order : (n,) int
        Legal.
    target : int
        Bytes without constants.
    hot : float
        Temperature at the begin, in shares of the target.
    """
    np.random.seed(seed)  # noqa: NPY002 - Numba's own generator
    n = order.shape[0]
    here, trial = order.copy(), order.copy()
    memory, left = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    mark = np.zeros(n, dtype=np.bool_)
    profile(lives, here, memory, left)
    over = _over(memory, target)
    worst = int(np.argmax(memory))
    for step in range(steps):
        if over == 0:
            return True, here
        span = 2 + int(math.exp(np.random.random() * math.log(min(n, _LONGEST))))  # noqa: NPY002
        if np.random.random() < 0.6:  # noqa: NPY002
            begin = worst - int(np.random.random() * span)  # noqa: NPY002
        else:
            begin = int(np.random.random() * (n - 1))  # noqa: NPY002
        begin = max(0, min(n - 2, begin))
        end = min(n, begin + span)
        window, moved = move(here, lives.links, begin, end, np.random.random() < 0.5, mark)  # noqa: NPY002
        if not moved:
            continue
        trial[:] = here
        trial[begin:end] = window
        profile(lives, trial, memory, left)
        then = _over(memory, target)
        heat = hot * target * (1 - step / steps)
        if then <= over - heat * math.log(1 - np.random.random()):  # noqa: NPY002
            here, trial = trial, here
            over = then
            worst = int(np.argmax(memory))
    return over == 0, here


@numba_jit
def _over(memory: NDArray[np.int64], target: int) -> int:
    total = 0
    for bytes_ in memory:
        if bytes_ > target:
            total += bytes_ - target
    return total
