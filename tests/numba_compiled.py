"""Compiles with Numba what the tests call: a minute or two in a new checkout, and nothing from then on, as it is kept.

`make test` runs this beside the linters, in two processes of about the same length.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
from graphs import transformer
from memories import memory_of

from checkmate_tf.allocator.packing import best_packing
from checkmate_tf.allocator.sequence import small_bytes
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.ordering.downsets import least_order
from checkmate_tf.strategies.ordering.least_peak import least_peak
from checkmate_tf.strategies.random_graphs import layered, usual_edges
from checkmate_tf.strategies.search.best_first import BestFirst
from checkmate_tf.strategies.search.exchange import exchange
from checkmate_tf.strategies.search.measured import refill, squeeze
from checkmate_tf.strategies.search.minimum_budget import proven_minimum
from checkmate_tf.strategies.search.search import search
from checkmate_tf.strategies.search.settle import lowered
from checkmate_tf.strategies.search.simulate import anneal, repair
from checkmate_tf.strategies.search.variants import variants

__all__ = ["compile_all"]


def compile_all() -> None:
    """Search, order, place: each once, on small graphs."""
    _search()
    _order_and_place()


def _order_and_place() -> None:
    _order()
    _place()


def _search() -> None:
    graph = transformer(3)
    low, plain = proven_minimum(graph)[0], keep_all(graph).peak_bytes
    walk = search(graph, (low + plain) // 2, free=True)
    while not (_compiled(anneal) and _compiled(exchange)):
        next(walk)
    walk = search(graph, low - 1, free=True)  # there is no schedule, and all ways to one are tried
    while not _compiled(repair):
        next(walk)
    lowered(graph, np.arange(len(graph)), 0.3, low, 0.1)
    for _ in variants(graph, range(len(graph)), [plain]):
        pass
    sequence = np.arange(len(graph))
    for turns in (0.0, 1.0):
        refill(graph, squeeze(graph, sequence, len, 0, 0.1, turns), lambda _: False, 0.1)


def _compiled(function: Any) -> bool:
    return bool(getattr(function, "signatures", True))  # it is not a function of Numba's if that is turned off


def _order() -> None:
    graph = layered(40, usual_edges(40))
    least_peak(layered(80, usual_edges(80)), 1.0)
    least_order(graph, keep_all(graph).peak_bytes, 0.5)
    graph = transformer(1)
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
    processes = [multiprocessing.get_context("spawn").Process(target=part) for part in (_search, _order_and_place)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in processes))
