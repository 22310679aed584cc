"""Graphs from elsewhere: the versioned JSON format "checkmate-graph/1".

    {"format": "checkmate-graph/1", "name": "vgg", "cost_unit": "us", "constant_bytes": 1000,
     "nodes": [{"name": "conv1", "kind": "forward", "cost": 3.5, "bytes": 4096, "inputs": []}, ...]}

- `nodes` are in an order in which they can be computed; a node is known by its index, from 0. Names need not differ.
- `kind` is "forward", "loss" or "backward"; any order of kinds will do.
- `cost` is finite and not negative, in `cost_unit` (any text). `bytes` is the size of the node's value and may be 0.
- `inputs` are indices of the values that are read, each below the node's own. One that is named twice counts once.
- `constant_bytes` are resident throughout (parameters, optimizer slots, the batch) and part of every budget and peak.

All of these are required. Four more fields of a node may be given, and are written only where they differ from these
defaults:

- `workspace_bytes` (0): held only while the node is computed, beyond its inputs and its value. Negative, at least minus
  `bytes`, if the node computes into the memory of inputs that nobody else reads.
- `held_bytes` (0): added to the workspace if an input that only this node reads is not freed right after the node.
- `recompute_until` (the number of nodes): the node may be computed again only in stages below this. Stage t goes on
  until all nodes up to t have been computed for the first time. 0: never again.
- `waits_for` (none): indices of nodes that come before the node in any order, though it does not read them.

Other fields are ignored, unless one looks like a misspelling of these.
"""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import GraphError, show_value
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from ..units import MOST_BYTES
from .arrays import refuse_copies
from .jsonfile import FieldCheck, read_json, write_json

__all__ = ["GRAPH_FORMAT", "graph_from_dict", "graph_to_dict", "read_graph", "write_graph"]

GRAPH_FORMAT = "checkmate-graph/1"

_KINDS = {"forward": FORWARD, "loss": LOSS, "backward": BACKWARD}
_GRAPH_FIELDS = ("format", "name", "cost_unit", "constant_bytes", "nodes")
_NODE_FIELDS = ("name", "kind", "cost", "bytes", "inputs")
_OPTIONAL_FIELDS = ("workspace_bytes", "held_bytes", "recompute_until", "waits_for")
_MOST_COST = 1e300
_CHECK = FieldCheck(GraphError)


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """A graph as plain values, "checkmate-graph/1".

    Raises
    ------
    GraphError
        If the graph has no nodes: the format knows no empty graphs. If it has nodes that copy to the host.
    """
    n = len(graph)
    if not n:
        raise GraphError(f"graph {graph.name!r} has no nodes: there is nothing to write")
    refuse_copies(graph)
    kind_names = {number: name for name, number in _KINDS.items()}
    until = np.clip(graph.recompute_until, 0, n)
    columns = (graph.kinds, graph.costs, graph.sizes, graph.workspace, graph.held, until)
    nodes = []
    rows = zip(graph.names, graph.inputs, graph.waits, *(column.tolist() for column in columns), strict=True)
    for name, inputs, waits, kind, cost, size, workspace, held, last in rows:
        node = {"name": name, "kind": kind_names[kind], "cost": cost, "bytes": size, "inputs": list(inputs)}
        extra = {"workspace_bytes": (workspace, 0), "held_bytes": (held, 0), "recompute_until": (last, n)}
        node |= {field: value for field, (value, default) in extra.items() if value != default}
        node |= {"waits_for": list(waits)} if waits else {}
        nodes.append(node)
    return {
        "format": GRAPH_FORMAT,
        "name": graph.name,
        "cost_unit": graph.cost_unit,
        "constant_bytes": int(graph.constant_bytes),
        "nodes": nodes,
    }


def graph_from_dict(data: Any, source: str = "graph") -> Graph:
    """The graph that "checkmate-graph/1" describes. Nothing but its values is used: no code is run.

    Parameters
    ----------
    data : dict
        As `json.load` gives it.
    source : str
        Where it is from, for messages.

    Raises
    ------
    GraphError
        Names the source, the node and the field, and says what to do.

    Notes
    -----
    O(nodes + edges).
    """
    _CHECK.fields(data, source, _GRAPH_FIELDS, ())
    if data["format"] != GRAPH_FORMAT:
        _CHECK.refuse(source, "format", data["format"], f'this version reads "{GRAPH_FORMAT}" only')
    name, unit = _CHECK.text(data["name"], source, "name"), _CHECK.text(data["cost_unit"], source, "cost_unit")
    constant = _CHECK.whole(data["constant_bytes"], source, "constant_bytes", 0, MOST_BYTES, "bytes")
    nodes = _CHECK.items(data["nodes"], source, "nodes")
    if not nodes:
        raise GraphError(f"{source}: the graph is empty: give at least one node")
    n = len(nodes)
    columns: dict[str, list[Any]] = {key: [] for key in (*_NODE_FIELDS, *_OPTIONAL_FIELDS)}
    for i, node in enumerate(nodes):
        for key, value in _node(node, i, n, source).items():
            columns[key].append(value)
    total = constant + sum(columns["bytes"]) + sum(map(abs, columns["workspace_bytes"])) + sum(columns["held_bytes"])
    if total > MOST_BYTES:
        raise GraphError(f"{source}: all values together have {total:.2e} bytes: are sizes in the wrong unit?")
    if sum(columns["cost"]) > _MOST_COST:
        raise GraphError(f"{source}: all costs together are above {_MOST_COST:.0e}: use a larger cost_unit")
    return Graph(
        name=name,
        names=columns["name"],
        kinds=np.array(columns["kind"]),
        costs=np.array(columns["cost"]),
        sizes=np.array(columns["bytes"]),
        inputs=columns["inputs"],
        constant_bytes=constant,
        workspace=np.array(columns["workspace_bytes"]),
        held=np.array(columns["held_bytes"]),
        recompute_until=np.array(columns["recompute_until"]),
        waits=columns["waits_for"],
        cost_unit=unit,
    )


def read_graph(path: str | os.PathLike[str]) -> Graph:
    """Read a graph from a JSON file.

    Raises
    ------
    GraphError
        If the file cannot be read, has more than 256 MiB, is not JSON, or is not a graph.
    """
    data = read_json(path, f'a graph in the format "{GRAPH_FORMAT}"', GraphError)
    return graph_from_dict(data, str(path))


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a JSON file, all of it or nothing.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written.
    """
    write_json(graph_to_dict(graph), path)


def _node(node: Any, i: int, n: int, source: str) -> dict[str, Any]:
    """The fields of one node, checked and with defaults."""
    where = f"{source}: node {i}"
    if isinstance(node, dict) and isinstance(node.get("name"), str):
        where = f"{where} ({show_value(node['name'])})"
    _CHECK.fields(node, where, _NODE_FIELDS, _OPTIONAL_FIELDS)
    kind = node["kind"]
    if not isinstance(kind, str) or kind not in _KINDS:
        _CHECK.refuse(where, "kind", kind, 'give "forward", "loss" or "backward"')

    def whole(field: str, default: int, least: int, most: int, unit: str) -> int:
        return _CHECK.whole(node.get(field, default), where, field, least, most, unit)

    size = whole("bytes", 0, 0, MOST_BYTES, "bytes")
    return {
        "name": _CHECK.text(node["name"], where, "name"),
        "kind": _KINDS[kind],
        "cost": _CHECK.number(node["cost"], where, "cost"),
        "bytes": size,
        **{
            theirs: [_input(value, where, theirs, i, n) for value in _CHECK.items(node.get(theirs, []), where, theirs)]
            for theirs in ("inputs", "waits_for")
        },
        "workspace_bytes": whole("workspace_bytes", 0, -size, MOST_BYTES, "bytes"),
        "held_bytes": whole("held_bytes", 0, 0, MOST_BYTES, "bytes"),
        "recompute_until": whole("recompute_until", n, 0, n, "stages"),
    }


def _input(value: Any, where: str, field: str, i: int, n: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        _CHECK.refuse(where, field, value, "an input is the index of a node, a whole number")
    j = int(value)
    if not 0 <= j < n:
        _CHECK.refuse(where, field, j, f"out of range: there are {n} nodes, 0 to {n - 1}")
    if j >= i:
        order = "the graph is cyclic or not in topological order; sort it"
        _CHECK.refuse(where, field, j, f"an input must be below {i}: {order}")
    return j
