"""What several steps took, and what later ones may take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

__all__ = ["expected_most", "of_a_kind"]


def of_a_kind(peaks: Sequence[int], kinds: int = 1) -> list[Sequence[int]]:
    """The peaks of each kind of steps, or all together where there are not two of each.

    Parameters
    ----------
    peaks : sequence of int
        Of several steps, bytes; at least one.
    kinds : int
        How many kinds of steps take turns.
    """
    if len(peaks) < 2 * kinds:
        return [peaks]
    return [peaks[kind::kinds] for kind in range(kinds)]


def expected_most(peaks: Sequence[int], kinds: int = 1) -> int:
    """What no later step is expected to exceed: the most of all, and once more what it is above the median of its kind.

    Parameters
    ----------
    peaks, kinds
        As for `of_a_kind`.
    """
    return max(max(own) + int(max(own) - statistics.median(own)) for own in of_a_kind(peaks, kinds))
