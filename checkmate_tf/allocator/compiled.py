"""Compiled code of the allocator's model, made before any clock runs: on a new machine Numba takes half a minute."""

from __future__ import annotations

import numpy as np

from ..numba_jit.beforehand import Calls
from .bfc import Bfc, empty_state
from .interleave import simulated
from .kernel import most_with_one_whole, replay
from .memory import Memory, with_more
from .packing import best_packing
from .sequence import Kernels, allocated, expand, small_bytes

__all__ = ["PLACING"]


def place() -> None:
    """Call each compiled function once, for a step of two operations of which one reads the other."""
    one_each, ones = np.arange(3), np.ones(2, np.int64)
    reads, read = np.array([0, 0, 1]), np.zeros(1, np.int64)
    kernels = Kernels(
        one_each, one_each, reads, read, 1000 * ones, ones, np.zeros(2, bool), -ones, 0 * one_each, 0 * ones,
        np.zeros(0, np.int64),
    )  # fmt: skip
    allocator, sequence = Bfc(1 << 30, growth=False), np.arange(2)
    memory = Memory(allocator, with_more(allocator, empty_state(allocator), (1 << 20,)), kernels)
    memory.placed(sequence)
    memory.placed_loose(sequence, sequence, np.ones(2), samples=1)
    events, _, _ = memory.placement(sequence)
    best_packing(events)
    small_bytes(kernels, sequence, 1 << 10, 1 << 8)


_CALLED = (expand, allocated, replay, simulated, most_with_one_whole)
PLACING = Calls("the model of the allocator (half a minute)", _CALLED, (place,))
"""All that placing calls."""
