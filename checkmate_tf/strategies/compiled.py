"""Compiled code, made before the clock of a search begins.

Numba compiles a function when it is first called, and keeps it on disk. On a new machine that takes a minute for all of
the search. It would be taken off the first search's time limit, and end it in its first schedules.
"""

from __future__ import annotations

import numpy as np

from ..graph import BACKWARD, FORWARD, LOSS, Graph
from ..numba_jit.beforehand import Calls, compile_once
from ..schedule import keep_all
from .ordering.best_first import BestFirst
from .ordering.best_first import explore as explore_all
from .ordering.descents import descend, start_order
from .ordering.downsets import explore, least_order
from .ordering.least_peak import least_peak
from .ordering.lives import lives
from .ordering.moves import lower
from .random_graphs import layered, usual_edges
from .search.measured import refill, squeeze
from .search.sequences.exchange import exchange
from .search.sequences.keep_where_room import keep_where_room
from .search.sequences.lowering import lowered
from .search.sequences.press import press
from .search.sequences.settle import ruined, settle
from .search.simulate import anneal, repair, simulate
from .search.variants import variants
from .search.walk import Walk

__all__ = ["SEARCH", "compile_if_over", "compile_search"]


def compile_search() -> None:
    """Compile all that a search calls, unless that was done before, on this machine and for this version."""
    compile_once(SEARCH)


def compile_if_over(graph: Graph, budget_bytes: int) -> None:
    """Compile the search if there is anything to search: if recomputing nothing takes more than the budget."""
    if keep_all(graph).peak_bytes > budget_bytes:
        compile_search()


def compile_weights() -> None:
    """What a search does to weights."""
    graph = _chain(4)
    plain = keep_all(graph).peak_bytes
    Walk(graph, plain - 1, 0, free=True).call_weights()
    list(variants(graph, range(len(graph)), [plain]))


def compile_sequences() -> None:
    """What it does to sequences."""
    graph = _chain(4)
    plain, sequence = keep_all(graph).peak_bytes, np.arange(len(graph))
    Walk(graph, plain - 1, 0, free=True).call_sequences()
    lowered(graph, sequence, 0.3, plain // 2, 0.01)
    for turns in (0.0, 1.0):
        refill(graph, squeeze(graph, sequence, len, 0, 0.01, turns), lambda _: False, 0.01)


def compile_orders() -> None:
    """What looks for orders, and best-first search."""
    graph = _chain(4)
    BestFirst(graph, keep_all(graph).peak_bytes - 1).explore(0.1)
    graph = layered(40, usual_edges(40))
    for _ in range(2):  # their clocks run while the first functions are compiled, and others are not called then
        least_peak(graph, 0.3)
        least_order(graph, keep_all(graph).peak_bytes, 0.1)
    lower(lives(graph), start_order(graph)[0], 1, 1, 0.0, 0)  # the order of least peak is proven without it


def _chain(layers: int) -> Graph:
    """Layers, a loss and gradients: each gradient reads the one before it, and its layer's input and output."""
    n = 2 * layers + 1
    inputs = [[i - 1] if i else [] for i in range(layers + 1)]
    for i in range(layers + 1, n):
        layer = n - 1 - i
        inputs.append([*([layer - 1] if layer else []), layer, i - 1])
    kinds = np.array([FORWARD] * layers + [LOSS] + [BACKWARD] * layers)
    return Graph("chain", [f"node {i}" for i in range(n)], kinds, np.ones(n), np.full(n, 100), inputs)


SEARCH = Calls(
    "the search (a minute or two)",
    (simulate, anneal, repair, exchange, settle, press, ruined, keep_where_room, lower, descend, explore, explore_all),
    (compile_sequences, compile_weights, compile_orders),
)
"""All that a search calls."""
