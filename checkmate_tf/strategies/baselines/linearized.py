"""Chen's heuristics for any graph: treated as if it were linear (Checkmate, Table 1 and section 5.1.2).

Every forward node is a candidate, in topological order, and R is optimal for what is kept. On a chain these are the
heuristics themselves. In a residual network many segments begin inside a block, and what is dropped must then be
computed from far before: it can cost several forward passes.
"""

from __future__ import annotations

import numpy as np

from ...graph import Graph
from ...schedule import Schedule
from ..options import SolveOptions
from .chen import solve_greedy, solve_sqrt
from .keepset import droppable, plain_schedule

__all__ = ["linearized_greedy", "linearized_sqrt"]


def linearized_sqrt(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Every k-th forward node is kept, k the integer square root of their number: one schedule, whatever the budget.

    Raises
    ------
    InfeasibleBudgetError
        If it does not fit.
    """
    plain = plain_schedule(graph, budget_bytes, "linearized-sqrt")
    if plain is not None:
        return plain
    return solve_sqrt(graph, budget_bytes, "linearized-sqrt", np.flatnonzero(droppable(graph)).tolist(), options)


def linearized_greedy(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """Segments of more than b bytes, each ended by a kept node, with a search over b.

    Raises
    ------
    InfeasibleBudgetError
        If no b gives a schedule that fits.
    """
    plain = plain_schedule(graph, budget_bytes, "linearized-greedy")
    if plain is not None:
        return plain
    return solve_greedy(graph, budget_bytes, "linearized-greedy", np.flatnonzero(droppable(graph)).tolist(), options)
