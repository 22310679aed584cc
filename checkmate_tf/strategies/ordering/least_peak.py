"""The order of least peak, where nothing is recomputed: as MODeL (Steiner et al.) orders programs, without a solver.

The order of the graph, greedy ones (`descents`), and a local search from the best of them (`moves`). In graphs of
up to 62 nodes the least peak is found and proven (`downsets`). In larger ones a bound looks at each node alone: what
its ancestors made for its descendants is in memory when it is computed.

What it does badly: in a training step the values kept for the backward pass are most of the peak, and no order of an
ordinary network takes them away. "checkmate" with a free order recomputes and orders at once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ...schedule import Schedule
from .descents import start_order
from .downsets import least_order
from .lives import Lives, least_possible, lives, peak
from .moves import lower
from .states import LARGEST

__all__ = ["LeastPeak", "least_peak", "once"]

_SLICE = 0.2  # seconds of compiled code between two looks at the clock
_STEP = 0.5  # of the way from the peak to the bound that a target goes down; less after each failure
_CLOSE = 1e-3  # of the way: then it is as low as it gets
_HEATS = (0.0, 0.01, 0.1)  # of the target
_MOVES = 300  # of each node, tried for a target at most: in graphs of 70 to 500 nodes more of them found no less


@dataclass(frozen=True, eq=False)
class LeastPeak:
    """An order, its peak, and bytes that every order needs. Both include the constants.

    `start` is the best of the orders that are had at once.
    """

    order: NDArray[np.int64]
    start: NDArray[np.int64]
    peak_bytes: int
    lower_bytes: int


def once(graph: Graph, order: NDArray[np.int64], budget_bytes: int, strategy: str, seconds: float) -> Schedule:
    """The schedule that computes every node once, in an order that fits: nothing costs less."""
    return Schedule(
        graph, order, strategy=strategy, solver="order search", status="optimal", budget_bytes=budget_bytes,
        lower_bound=graph.base_cost, bound_order="free", seconds=seconds,
    )  # fmt: skip


def least_peak(graph: Graph, time_limit: float = 10.0, seed: int = 0, enough_bytes: int = 0) -> LeastPeak:
    """An order of the least peak that is found.

    Parameters
    ----------
    graph : Graph
    time_limit : float
        Seconds, beyond what orders that are had at once take.
    seed : int
    enough_bytes : int
        Constants included: a peak that is good enough.

    Returns
    -------
    LeastPeak
        The peak is that of `plan.evaluate`.
    """
    until = time.perf_counter() + time_limit
    constant, least, enough = graph.constant_bytes, least_possible(graph), max(0, enough_bytes - graph.constant_bytes)
    start, high = start_order(graph)
    best = start
    if len(graph) <= LARGEST and high > max(least, enough) and time_limit > 0:
        exact, at_least = least_order(graph, high, (until - time.perf_counter()) / 2)
        least = max(least, at_least)
        best, high = (best, high) if exact is None else (exact, at_least)
    if len(graph) > 1 and high > max(least, enough):
        best, high = _improved(lives(graph), best, high, max(least, enough), until, seed)
    found = evaluate(graph, plan_from_sequence(graph, best))
    return LeastPeak(best, start, found.peak_bytes, constant + min(least, high))


def _improved(
    steps: Lives, best: NDArray[np.int64], high: int, goal: int, until: float, seed: int
) -> tuple[NDArray[np.int64], int]:
    """An order of a lower peak, and its peak, by local search; the goal is low enough."""
    random = np.random.default_rng(seed)
    share, rate, here = _STEP, 1000.0, best
    while high > goal and share > _CLOSE and (left := until - time.perf_counter()) > 0:
        target = min(high - 1, int(high - share * (high - goal)))
        reached = False
        for heat in _HEATS:
            tries = min(rate * min(left, 5 * _SLICE), _MOVES * len(best))
            count, clock = max(1, int(tries)), time.perf_counter()
            reached, here = lower(steps, best, target, count, heat, int(random.integers(2**31)))
            rate = min(2 * rate, count / max(time.perf_counter() - clock, 1e-6))
            if reached:
                break
        if reached:
            best, high = here, peak(steps, here)
        else:
            share /= 2
    return best, high
