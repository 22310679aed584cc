"""A lower bound for schedules that copy values to the host.

Take a schedule whose step takes T. What lies in the host's memory at some moment was copied there before it, and comes
back after it, each at the engine's rate. (What never comes back need not have been copied.) So that is at most

    T a b / (a + b) bytes,   a and b the rates to the host and back.

With so much more memory on the device the schedule would need no copies, and would compute the same. So T is at least
the least cost L(B) of schedules without copies in a budget of B and that much more:

    T >= L(B + T a b / (a + b)).

L falls with the budget. So a T that is less than its own right side is too low, and one that is not has a right side
that is a bound. The two meet by bisection. A relaxation's bound takes the place of L.
"""

from __future__ import annotations

import time

import numpy as np

from ...evaluator import CLOSED_GAP
from ...graph import Graph
from ...paging import without_host
from ..options import Order
from ..programs.any_order import any_order_bound
from ..programs.bound_process import BoundProcess

__all__ = ["paging_bound"]

_STEPS = 4  # of the bisection
_TICK = 0.1  # seconds between two looks at the process


def paging_bound(
    graph: Graph, budget_bytes: int, time_limit: float, memory_limit: int | None = None, order: Order = "fixed"
) -> float:
    """Least cost that a schedule with copies to the host may have, in the graph's unit.

    Parameters
    ----------
    graph : Graph
        With copies.
    budget_bytes : int
        Of the device, constants included.
    time_limit : float
        Seconds, of all relaxations.
    memory_limit : int, optional
        As for `BoundProcess`.
    order : "fixed" or "free"
        Which schedules it is to hold for: those in the graph's order, or those in any.

    Returns
    -------
    float
        At least the cost of computing everything once.
    """
    base = without_host(graph)
    rate = _rate(graph)
    low, high, begun = base.base_cost, np.inf, time.perf_counter()
    for step in range(_STEPS):
        left = time_limit - (time.perf_counter() - begun)
        if left < _TICK:
            break
        at = low if step == 0 else 0.5 * (low + high) if np.isfinite(high) else 2 * low
        more = budget_bytes + int(at * rate)
        if order == "free":
            least = any_order_bound(base, more)
        else:
            least = _relaxed(base, more, left / (_STEPS - step), memory_limit)
        low = max(low, min(at, least))
        high = at if least <= at else min(high, least)
        if high - low <= CLOSED_GAP * low:
            break
    return float(low)


def _rate(graph: Graph) -> float:
    """Bytes that may lie on the host at once, for each unit of the step's cost: a b / (a + b)."""
    host = graph.host
    assert host is not None
    sizes = np.array([graph.sizes[graph.inputs[k][0]] for k in range(host.first, len(graph))], dtype=np.float64)
    return float((sizes / (host.to_host + host.from_host)).max(initial=0.0))


def _relaxed(graph: Graph, budget_bytes: int, seconds: float, memory_limit: int | None) -> float:
    """The relaxation's bound without copies."""
    found = graph.base_cost
    with BoundProcess(graph, budget_bytes, seconds, memory_limit, relaxed=True) as process:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            found = max([found, *(float(news["cost"]) for news in process.news())])
            if not process.running:
                break
            time.sleep(_TICK)
    return found
