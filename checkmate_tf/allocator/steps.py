"""What several steps took, and what later ones may take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["expected_most"]


def expected_most(peaks: Sequence[int], kinds: int = 1) -> int:
    """What no later step is expected to exceed: the most of all, and once more what it is above the median.

    Parameters
    ----------
    peaks : sequence of int
        Of several steps, bytes.
    kinds : int
        How many kinds of steps take turns. Each has a median of its own.
    """
    alike = [peaks[kind::kinds] for kind in range(min(kinds, len(peaks)))]
    return max(max(own) + int(max(own) - statistics.median(own)) for own in alike)
