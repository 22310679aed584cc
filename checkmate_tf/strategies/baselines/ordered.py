"""Order alone: nothing is recomputed, and the order of least peak is looked for (`ordering.least_peak`)."""

from __future__ import annotations

import time
from dataclasses import replace

from ...errors import InfeasibleBudgetError
from ...graph import Graph
from ...schedule import Schedule, keep_all
from ...units import format_bytes
from ..compiled import compile_if_over
from ..options import SolveOptions
from ..ordering.least_peak import least_peak, once
from ..search.minimum_budget import proven_minimum

__all__ = ["ordered"]


def ordered(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The strategy "least-peak": every node is computed once, in an order that fits.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions

    Raises
    ------
    InfeasibleBudgetError
        If no order fits, or none was found. It names the least peak found. It is `proven` only where recomputation
        does not help either.
    """
    compile_if_over(graph, budget_bytes)
    begun = time.perf_counter()
    plain = keep_all(graph)
    if plain.peak_bytes <= budget_bytes:
        return replace(plain, strategy="least-peak", budget_bytes=budget_bytes, solver="none needed")
    found = least_peak(graph, options.time_limit, options.seed, enough_bytes=budget_bytes)
    if found.peak_bytes > budget_bytes:
        proven = budget_bytes < proven_minimum(graph, "free")[0]
        why = "no order does with less" if found.peak_bytes == found.lower_bytes else "the least peak of an order found"
        message = (
            f"budget {format_bytes(budget_bytes)} is below {format_bytes(found.peak_bytes)}, {why} without "
            'recomputation; raise the budget or use strategy="checkmate"'
        )
        raise InfeasibleBudgetError(
            message, budget_bytes, found.peak_bytes, proven=proven, sequence=found.order.tolist(), bound_order="free"
        )
    return once(graph, found.order, budget_bytes, "least-peak", time.perf_counter() - begun)
