"""A graph as plain arrays, for an NPZ file that another process reads without pickle.

Names and the unit of the costs stay behind: a process that solves does not need them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..graph import Graph

__all__ = ["graph_from_arrays", "graph_to_arrays", "refuse_copies"]

_COLUMNS = ("kinds", "costs", "sizes", "workspace", "held", "recompute_until")


def refuse_copies(graph: Graph) -> None:
    """Refuse a graph with nodes that copy to the host: a file of a graph cannot say what copies cost.

    Raises
    ------
    GraphError
        If it is one.
    """
    if graph.host is not None:
        raise GraphError(f"copies to the host are not written to files: write paging.without_host of {graph.name!r}")


def graph_to_arrays(graph: Graph) -> dict[str, NDArray[Any]]:
    """All that a schedule depends on: the graph's columns, its edges and its constant bytes.

    Returns
    -------
    dict
        "kinds", "costs", "sizes", "workspace", "held" and "recompute_until", as in `Graph`, (n,) each; "edges",
        (edges, 2) int64, whose rows (i, j) say that node j reads node i; "waits", the same of nodes that wait;
        "constant_bytes", () int64.

    Raises
    ------
    GraphError
        As `refuse_copies`.
    """
    refuse_copies(graph)
    return {
        **{column: getattr(graph, column) for column in _COLUMNS},
        "edges": np.array(graph.edges, dtype=np.int64).reshape(-1, 2),
        "waits": np.array([(i, j) for j, row in enumerate(graph.waits) for i in row], dtype=np.int64).reshape(-1, 2),
        "constant_bytes": np.array(graph.constant_bytes, dtype=np.int64),
    }


def graph_from_arrays(arrays: Mapping[str, NDArray[Any]], name: str = "graph") -> Graph:
    """The graph in the arrays of `graph_to_arrays`. Its nodes are named by their indices.

    Parameters
    ----------
    arrays : mapping of str to array
        As `numpy.load` gives them. Other arrays than the graph's are ignored.
    name : str
        Of the graph.

    Raises
    ------
    KeyError
        If an array is missing.
    GraphError, CostError
        As `Graph` raises.
    """
    columns: dict[str, Any] = {column: arrays[column] for column in _COLUMNS}
    rows: dict[str, list[list[int]]] = {key: [[] for _ in columns["kinds"]] for key in ("edges", "waits")}
    for key, row in rows.items():
        for i, j in arrays[key].tolist():
            row[j].append(i)
    names = [str(i) for i in range(len(columns["kinds"]))]
    constant = int(arrays["constant_bytes"])
    return Graph(name, names, inputs=rows["edges"], waits=rows["waits"], constant_bytes=constant, **columns)
