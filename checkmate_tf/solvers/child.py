"""The bound in a process of its own: `python -m checkmate_tf.solvers.child GRAPH.npz`.

A solver that crashes, hangs or is killed then costs only the bound, and it has a core of its own. The graph comes as an
NPZ file of plain arrays (no pickle); each better bound goes to standard output as one line of JSON.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import Graph

__all__ = ["BoundProcess"]

log = logging.getLogger(__name__)


class BoundProcess:
    """A running search for a lower bound.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    time_limit : float
        Seconds.
    max_cost : float, optional
        Bound the peak of schedules that cost no more than this, instead of the cost of those that fit the budget.

    Notes
    -----
    Use as a context manager: the process is ended on exit. Nothing is raised if it fails; there is no bound then.
    """

    def __init__(self, graph: Graph, budget_bytes: int, time_limit: float, max_cost: float | None = None) -> None:
        self._lines: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="checkmate_tf_")
        path = Path(self._folder.name) / "graph.npz"
        np.savez(
            path,
            kinds=graph.kinds,
            costs=graph.costs,
            sizes=graph.sizes,
            workspace=graph.workspace,
            until=graph.recompute_until,
            edges=np.array(graph.edges, dtype=np.int64).reshape(-1, 2),
            limits=np.array([graph.constant_bytes, budget_bytes], dtype=np.int64),
            time_limit=time_limit,
            max_cost=np.nan if max_cost is None else max_cost,
        )
        root = str(Path(__file__).resolve().parents[2])
        # Appended, so that the folder which holds the package (often site-packages) shadows nothing.
        paths = [os.environ.get("PYTHONPATH", ""), root]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:
            log.warning("no lower bound: the solver process did not start (%s)", error)
            return
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a solver's banner
            if isinstance(message, dict) and "cost" in message:
                self._lines.put(message)

    @property
    def running(self) -> bool:
        """Whether more may come."""
        return self._process is not None and (self._process.poll() is None or self._reader.is_alive())

    def news(self) -> list[dict[str, Any]]:
        """Messages since the last call: "cost" (infinite if infeasible; bytes if there is a `max_cost`), "boundaries", "kept" (rows as lists)."""
        result = []
        while not self._lines.empty():
            result.append(self._lines.get())
        return result

    def __enter__(self) -> BoundProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._reader.join(1.0)
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._folder.cleanup()


def main(path: str) -> None:
    """Print each better bound as a line of JSON."""
    from ..strategies.bound import bounds, peak_bounds

    with np.load(path, allow_pickle=False) as file:
        n = len(file["kinds"])
        inputs: list[list[int]] = [[] for _ in range(n)]
        for i, j in file["edges"].tolist():
            inputs[j].append(i)
        graph = Graph(
            name="child",
            names=[str(i) for i in range(n)],
            kinds=file["kinds"],
            costs=file["costs"],
            sizes=file["sizes"],
            inputs=inputs,
            constant_bytes=int(file["limits"][0]),
            workspace=file["workspace"],
            recompute_until=file["until"],
        )
        budget_bytes, time_limit = int(file["limits"][1]), float(file["time_limit"])
        max_cost = float(file["max_cost"])
    if np.isnan(max_cost):
        found = bounds(graph, budget_bytes, time_limit)
    else:
        found = peak_bounds(graph, max_cost, time_limit)
    for bound in found:
        message = {
            "cost": bound.cost,
            "boundaries": bound.boundaries.tolist(),
            "kept": np.round(bound.kept, 3).tolist(),
        }
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
