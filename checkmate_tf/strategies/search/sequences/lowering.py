"""Lower and lower budgets: how little memory a sequence can be brought to."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from ....graph import Graph
from ...ordering.links import Links, links
from ..arrays import Problem, flatten
from .press import Press
from .settle import HIGHEST, SLICE, first_price, in_memory, moves_at_once, settle

__all__ = ["lowered"]

_LOWER = 0.97  # from one budget to the next
_GROWTH, _PATIENCE, _DROPS = 2.0, 200, 0.2  # of settling

Integers = NDArray[np.int64]


def lowered(graph: Graph, sequence: Integers, turns: float, low: int, seconds: float, seed: int = 0) -> Integers:
    """The sequence of least memory of some that settle, or are pressed, into lower and lower budgets.

    Parameters
    ----------
    graph : Graph
    sequence : (length,) int
        Legal.
    turns : float
        Share of the moves that turn a part round; 0 to keep the order of first computations.
    low : int
        Bytes that all schedules need, constants included.
    seconds : float
        It ends sooner where no lower budget is met.
    seed : int

    Returns
    -------
    (length,) int array
    """
    until, random = time.perf_counter() + seconds, np.random.default_rng(seed)
    problem, before_after = flatten(graph), links(graph)
    best, least = np.array(sequence, np.int64), low - graph.constant_bytes
    while time.perf_counter() < until:
        most = int(in_memory(problem, best).max(initial=0))
        if most <= least:
            break
        budget = max(least, int(_LOWER * most))
        clock = time.perf_counter()
        current, fits = _settled(graph, problem, before_after, turns, budget, best, until, random)
        press = Press(graph, before_after, budget, current, turns, random, time.perf_counter() - clock)
        while not fits and not press.stale and (left := until - time.perf_counter()) > 0:
            fits, current = press.go_on(problem, min(left, SLICE)), press.sequence
        if not fits:
            break
        best = current
    return best


def _settled(
    graph: Graph,
    problem: Problem,
    links: Links,
    turns: float,
    budget: int,
    sequence: Integers,
    until: float,
    random: np.random.Generator,
) -> tuple[Integers, bool]:
    """What settles until then, or comes near that, and whether it fits."""
    price = first_price(graph, problem, sequence, budget)
    highest = HIGHEST * price
    while time.perf_counter() < until and price <= highest:
        found = settle(
            problem, links, turns, _DROPS, budget, sequence, price, _GROWTH, _PATIENCE, moves_at_once(graph),
            int(random.integers(2**31)),
        )  # fmt: skip
        sequence, price = found.sequence, found.price
        if not found.excess:
            return sequence, True
    return sequence, False
