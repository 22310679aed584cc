"""Which of several shares of a kind of move is tried next: what has gained more in its time is tried more often."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["Shares"]

_EVEN = 0.3  # of the choices are even, so that what gained nothing yet is tried again
_KEPT = 0.9  # of what was learned, with each new lesson: what gains at first may not do so later


class Shares:
    """Shares to choose from, and what they have gained.

    Parameters
    ----------
    shares : sequence of float
    random : numpy.random.Generator
    """

    def __init__(self, shares: Sequence[float], random: np.random.Generator) -> None:
        self.shares = tuple(shares)
        self._random = random
        self._gained, self._seconds = np.zeros(len(shares)), np.zeros(len(shares))

    def choose(self) -> float:
        """One of the shares: even at first, later by gain in a second."""
        count = len(self.shares)
        rates = self._gained / np.maximum(self._seconds, 1e-9)
        even = _EVEN if rates.sum() > 0 else 1.0
        chances = even / count + (1 - even) * rates / max(rates.sum(), 1e-300)
        return float(self.shares[self._random.choice(count, p=chances / chances.sum())])

    def learn(self, share: float, gain: float, seconds: float) -> None:
        """What a share has gained in so many seconds; of gains only the ratio counts."""
        k = self.shares.index(share)
        self._gained *= _KEPT
        self._seconds *= _KEPT
        self._gained[k] += gain
        self._seconds[k] += seconds
