"""Compiles with Numba what the tests call: a minute or two in a new checkout, and nothing from then on, as it is kept.

`make test` runs this beside the linters, each part in a process.
"""

from __future__ import annotations

import multiprocessing

from checkmate_tf.allocator import compiled as placing
from checkmate_tf.strategies import compiled as searching

__all__ = ["compile_all"]

PARTS = (searching.compile_sequences, searching.compile_weights, searching.compile_orders, placing.compile_all)


def compile_all() -> None:
    """Search, order, place: each once, on small graphs."""
    searching.compile_all()
    placing.compile_all()


if __name__ == "__main__":
    processes = [multiprocessing.get_context("spawn").Process(target=part) for part in PARTS]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    raise SystemExit(max(abs(process.exitcode or 0) for process in processes))
