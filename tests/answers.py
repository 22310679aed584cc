"""An answer for a small graph, for the tests of what reads and shows answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphs import chain

from checkmate_tf.files.results import result_to_dict
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import Schedule


def answer(
    graph: Graph | None = None, sequence: Sequence[int] = (0, 1, 2, 3, 4, 5, 2, 6, 7, 8), **fields: Any
) -> dict[str, Any]:
    """A result for a chain of four layers, in which node 2 is computed twice."""
    graph = graph or chain(4)
    schedule = Schedule(graph, sequence, strategy="by hand", budget_bytes=100, lower_bound=graph.base_cost)
    return result_to_dict(schedule) | fields
