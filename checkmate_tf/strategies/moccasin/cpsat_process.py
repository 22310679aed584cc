"""Moccasin's two phases in a process of their own: `python -m checkmate_tf.strategies.moccasin.cpsat_process FILE.npz`.

So CP-SAT shares no process with TensorFlow, and can have limits of time and memory. Ctrl-C is left to its caller. Each
better solution and bound goes to standard output as one line of JSON.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np

from ...files.arrays import graph_from_arrays, graph_to_arrays
from ...graph import Graph
from ...solvers.json_process import JsonProcess, begin, limit_memory, say

__all__ = ["IntervalsProcess"]


class IntervalsProcess(JsonProcess):
    """A running solve.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    copies : (n,) int
        C_v of each node.
    free : bool
        Whether the order is open.
    time_limit : float
        Seconds, from now.
    gap : float
        Stop when (cost - the solver's own bound) / cost is at most this.
    workers : int
        Threads; 0 for one a core.
    seed : int
    memory_limit : int, optional
        Bytes of address space that the process may have.
    start : sequence of int, optional
        A schedule that fits, with no more than C_v computations of any v. Phase 2 begins with it, without phase 1.

    Notes
    -----
    Use as a context manager: the process is ended on exit. Messages have "phase", and "sequence" (which need not fit
    the budget in phase 1), "bound" (on the cost, for this C and order) or "proved" (whether the last sequence is the
    cheapest for this C and order).
    """

    def __init__(
        self,
        graph: Graph,
        budget_bytes: int,
        copies: Sequence[int],
        *,
        free: bool,
        time_limit: float,
        gap: float,
        workers: int = 0,
        seed: int = 0,
        memory_limit: int | None = None,
        start: Sequence[int] = (),
    ) -> None:
        arrays = {
            **graph_to_arrays(graph),
            "bytes": np.array([budget_bytes, memory_limit or 0], dtype=np.int64),
            "copies": np.array(copies, dtype=np.int64),
            "settings": np.array([free, workers, seed], dtype=np.int64),
            "until": time.time() + time_limit,
            "gap": gap,
            "start": np.array(start, dtype=np.int64),
        }
        super().__init__(__name__, arrays)

    def __enter__(self) -> IntervalsProcess:
        return self


def main(path: str) -> None:
    """Solve both phases and tell."""
    from .phases import two_phases

    with np.load(path, allow_pickle=False) as file:
        fields = {key: file[key] for key in file.files}
    budget, memory_limit = fields["bytes"].tolist()
    free, workers, seed = fields["settings"].tolist()
    limit_memory(memory_limit)
    two_phases(
        graph_from_arrays(fields), budget, fields["copies"].tolist(), free=bool(free), until=float(fields["until"]),
        gap=float(fields["gap"]), workers=workers, seed=seed, start=fields["start"].tolist(), tell=say,
    )  # fmt: skip


if __name__ == "__main__":
    begin(sys.argv[1])
    main(sys.argv[1])
