"""The least budget: what any schedule is proven to need, and what the search is known to manage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import InfeasibleBudgetError
from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ...schedule import Schedule, keep_all
from ...units import format_bytes
from ..options import Order, SolveOptions
from ..ordering.descents import start_order
from .arrays import pinned_bytes
from .search import search
from .sequences.lowering import lowered

__all__ = [
    "infeasible",
    "infeasible_plain",
    "least_known",
    "minimum_budget",
    "proven_minimum",
    "tightest",
    "without_solving",
]


_MOST_SECONDS = 12.0  # the first half seldom finds more; the second finds schedules that recompute in another way
_LEFT = 1.0  # seconds at least, for the least budget that an error names
_SECONDS_A_NODE = 1e-4  # at least, to look for a schedule
_SHARE = 0.2  # of the time, at most, for one budget: schedules that recompute in another way are found late
_TURNS = 0.3  # of the moves of settling: shares that turn a part of the order round
_NEAR = 0.01  # of the peak: stop when the least budget known to do is so near to one that fails


def proven_minimum(graph: Graph, order: Order = "fixed") -> tuple[int, int]:
    """Bytes that every schedule needs, and the node that needs them.

    They are those of a working set and of constants; in the graph's order, of pinned values, too.
    """
    needed = pinned_bytes(graph) if order == "fixed" else graph.working_set
    node = int(np.argmax(needed))
    return graph.constant_bytes + int(needed[node]), node


def minimum_budget(graph: Graph, time_limit: float = _MOST_SECONDS, seed: int = 0) -> tuple[int, int, int]:
    """Find between which bytes the least feasible budget lies, by bisection with the search.

    Parameters
    ----------
    graph : Graph
    time_limit : float
        Seconds, of which 12 at most are used. The upper end is what was found by then.
    seed : int

    Returns
    -------
    proven_lower_bytes, achievable_bytes, node : int
        No schedule fits below the first number of bytes. A schedule is known for the second. Both include constants.
        Computing `node` is what needs the first.
    """
    low, node = proven_minimum(graph)
    return low, tightest(graph, low, time_limit, seed)[0], node


def least_known(graph: Graph, options: SolveOptions, begun: float) -> tuple[int, NDArray[np.int64]]:
    """What an error says of budgets, after a solver has found nothing: the least peak that is known, and its sequence.

    It is looked for in what is left of the time limit, a second at least.

    Parameters
    ----------
    begun : float
        When solving began, by `time.perf_counter`.

    Returns
    -------
    peak_bytes : int
        Constants included.
    sequence : (length,) int array
        That has it.
    """
    left = options.time_limit - (time.perf_counter() - begun)
    return tightest(graph, proven_minimum(graph)[0], max(left, _LEFT), options.seed)


def without_solving(
    graph: Graph, budget_bytes: int, strategy: str, options: SolveOptions, order: Order = "fixed"
) -> Schedule | None:
    """The schedule that recomputes nothing, if it fits; None if a strategy has to solve.

    Parameters
    ----------
    budget_bytes : int
        Constants included.
    strategy : str
        The name of the strategy that the schedule is to bear.
    options : SolveOptions
        If the error has to name the least budget, the time limit is for finding that.
    order : "fixed" or "free"
        Which schedules the strategy has.

    Raises
    ------
    InfeasibleBudgetError
        If the budget is below what every schedule needs. It names the least that is known to do, and has its sequence.
    """
    begun = time.perf_counter()
    plain = keep_all(graph)
    if plain.peak_bytes <= budget_bytes:
        seconds = time.perf_counter() - begun
        return replace(plain, strategy=strategy, budget_bytes=budget_bytes, solver="none needed", seconds=seconds)
    least = proven_minimum(graph, order)[0]
    if budget_bytes < least:
        known, sequence = tightest(graph, least, options.time_limit, options.seed, order)
        raise infeasible(graph, budget_bytes, known, sequence=sequence, order=order)
    return None


def tightest(
    graph: Graph, low: int, time_limit: float, seed: int = 0, order: Order = "fixed"
) -> tuple[int, NDArray[np.int64]]:
    """The least peak found, constants included, and the sequence that has it.

    Parameters
    ----------
    low : int
        Where to start: no schedule has a lower peak.
    time_limit : float
        Seconds, of which 12 at most are used; 18 with a free order, two thirds of them in the graph's order.
    """
    time_limit = min(time_limit if order == "fixed" else time_limit / 1.5, _MOST_SECONDS)
    begun, least = time.perf_counter(), max(low, proven_minimum(graph)[0])  # in the graph's order
    found = _with_peak(graph, lowered(graph, np.arange(len(graph)), 0.0, least, time_limit / 3, seed))
    found = _bisected(graph, found, least, begun + time_limit, seed, None)
    if order == "fixed":
        return found
    begun, start = time.perf_counter(), start_order(graph)[0]
    other = _with_peak(graph, lowered(graph, start, _TURNS, low, time_limit / 6, seed))
    found = min(found, other, key=lambda pair: pair[0])
    return _bisected(graph, found, low, begun + time_limit / 2, seed, [start])


def _with_peak(graph: Graph, sequence: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    return evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes, sequence


def _bisected(
    graph: Graph,
    found: tuple[int, NDArray[np.int64]],
    low: int,
    until: float,
    seed: int,
    orders: Sequence[NDArray[np.int64]] | None,
) -> tuple[int, NDArray[np.int64]]:
    """A lower peak than the one found, and its sequence. `orders`: starts of a free order, or None for the graph's."""
    fails, whole = low - 1, until - time.perf_counter()
    high, best = found
    while high - fails > max(1, _NEAR * high) and (left := until - time.perf_counter()) > 0:
        near = fails < low and high <= 1.25 * low  # worth asking for what is proven to be needed
        ask = low if near else min(int(np.sqrt(float(max(fails, low)) * high)), high - 1)
        seconds = min(left, max(_SHARE * whole, _SECONDS_A_NODE * len(graph)))
        sequence = _first(graph, ask, seconds, seed, orders)
        if sequence is None:
            fails = ask
        else:
            best, high = sequence, evaluate(graph, plan_from_sequence(graph, sequence)).peak_bytes
    return high, best


def infeasible(
    graph: Graph,
    budget_bytes: int,
    known_bytes: int,
    *,
    relaxation: bool = False,
    sequence: NDArray[np.int64] | None = None,
    order: Order = "fixed",
) -> InfeasibleBudgetError:
    """The error for a budget under which no schedule exists, or none was found.

    Parameters
    ----------
    known_bytes : int
        The least budget with a known schedule.
    relaxation : bool
        Whether the relaxation proves that there is none.
    sequence : (length,) int array, optional
        The schedule with `known_bytes`.
    order : "fixed" or "free"
        Which schedules the strategy has.
    """
    (low, node), high = proven_minimum(graph, order), known_bytes
    known = None if sequence is None else [int(i) for i in sequence]
    asked, least, found = format_bytes(budget_bytes), format_bytes(low), format_bytes(high)
    if budget_bytes < low:
        which = "" if proven_minimum(graph, "free")[0] == low else " in the order given"
        message = (
            f"budget {asked} is below {least}, the least that any schedule of this model{which} needs "
            f"({graph.names[node]}); raise the budget or lower the batch size"
        )
        return InfeasibleBudgetError(message, budget_bytes, high, proven=True, sequence=known, bound_order=order)
    why = (
        f"no schedule of this model{'' if order == 'free' else ' in the order given'} fits it (proven)"
        if relaxation
        else "no schedule was found for it, though one may exist"
    )
    message = (
        f"budget {asked} is too small: {why}; the least budget with a known schedule is {found}; raise the budget "
        "to that or lower the batch size"
    )
    return InfeasibleBudgetError(message, budget_bytes, high, proven=relaxation, sequence=known, bound_order=order)


def infeasible_plain(graph: Graph, budget_bytes: int, peak_bytes: int) -> InfeasibleBudgetError:
    """The error for a budget below the peak without recomputation, from a strategy that does not recompute."""
    low, _ = proven_minimum(graph)
    message = (
        f"budget {format_bytes(budget_bytes)} is below {format_bytes(peak_bytes)}, the peak without recomputation; "
        'raise the budget or use strategy="checkmate"'
    )
    return InfeasibleBudgetError(message, budget_bytes, peak_bytes, proven=budget_bytes < low)


def _first(
    graph: Graph, budget_bytes: int, seconds: float, seed: int, orders: Sequence[NDArray[np.int64]] | None
) -> NDArray[np.int64] | None:
    begun = time.perf_counter()
    for sequence in search(graph, budget_bytes, seed, free=orders is not None, orders=orders or ()):
        if sequence is not None:
            return sequence
        if time.perf_counter() - begun > seconds:
            break
    return None
