"""Compiles with Numba what the tests call: a minute or two in a new checkout, and nothing from then on, as it is kept.

`make test` runs this beside the linters, in two processes.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from checkmate_tf.allocator import compiled as placing
from checkmate_tf.strategies import compiled as searching

__all__ = ["compile_all"]

PARTS = (  # the longest first
    searching.compile_sequences, searching.compile_weights, placing.compile_all, searching.compile_orders,
)  # fmt: skip


def compile_all() -> None:
    """Search, order, place: each once, on small graphs."""
    searching.compile_all()
    placing.compile_all()


if __name__ == "__main__":
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:
        for running in [processes.submit(part) for part in PARTS]:
            running.result()
