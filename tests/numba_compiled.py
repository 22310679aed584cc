"""Compiles with Numba what the tests call: a minute in a new checkout, and nothing from then on, as it is kept on disk.

`make test` runs this beside the linters, which take the other core.
"""

from __future__ import annotations

import contextlib

import numpy as np
from graphs import transformer
from memories import memory_of

from checkmate_tf.allocator.packing import best_packing
from checkmate_tf.allocator.sequence import small_bytes
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions, solve
from checkmate_tf.strategies.ordering.downsets import least_order
from checkmate_tf.strategies.ordering.least_peak import least_peak
from checkmate_tf.strategies.search.best_first import BestFirst
from checkmate_tf.strategies.search.measured import refill, squeeze
from checkmate_tf.strategies.search.minimum_budget import minimum_budget

__all__ = ["compile_all"]


def compile_all() -> None:
    """Search, order, place: each once, on small graphs."""
    _search()
    _order()
    _place()


def _search() -> None:
    graph = transformer(3)
    for _ in range(2):  # what the first round compiles takes its time
        least = minimum_budget(graph, 0.5)[1]
        with contextlib.suppress(InfeasibleBudgetError):
            solve(graph, (least + keep_all(graph).peak_bytes) // 2, options=SolveOptions(time_limit=0.5, gap=0.0))
    sequence = np.arange(len(graph))
    for turns in (0.0, 1.0):
        refill(graph, squeeze(graph, sequence, len, 0, 0.1, turns), lambda _: False, 0.1)


def _order() -> None:
    graph = transformer(1)
    least_peak(graph, 0.5)
    least_order(graph, keep_all(graph).peak_bytes, 0.5)
    BestFirst(graph, keep_all(graph).peak_bytes).explore(0.5)


def _place() -> None:
    graph = transformer(1)
    memory, sequence = memory_of(graph, 1 << 30, there=(1 << 20,)), np.arange(len(graph))
    memory.placed(sequence)
    memory.placed_loose(sequence, np.arange(len(graph)), np.ones(len(graph)), samples=1)
    events, _, _ = memory.placement(sequence)
    best_packing(events)
    small_bytes(memory.kernels, sequence, 1 << 10, 1 << 8)


if __name__ == "__main__":
    compile_all()
