"""Compiles with Numba what the tests call: a minute or two in a new checkout, and nothing from then on, as it is kept.

`make test` runs this beside the linters.
"""

from __future__ import annotations

from checkmate_tf.allocator.compiled import PLACING
from checkmate_tf.numba_jit.beforehand import compile_once
from checkmate_tf.strategies.compiled import SEARCH

__all__ = ["compile_all"]


def compile_all() -> None:
    """Search, order, place: each once, on small graphs."""
    compile_once(SEARCH, PLACING)
    for part in (*SEARCH.parts, *PLACING.parts):  # one kind of arguments is enough for that, and it loads nothing
        part()


if __name__ == "__main__":
    compile_all()
