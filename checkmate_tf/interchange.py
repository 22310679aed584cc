"""Graphs from elsewhere, and answers that others can check: two versioned JSON formats.

A graph, "checkmate-graph/1":

    {"format": "checkmate-graph/1", "name": "vgg", "cost_unit": "us", "constant_bytes": 1000,
     "nodes": [{"name": "conv1", "kind": "forward", "cost": 3.5, "bytes": 4096, "inputs": []}, ...]}

- `nodes` are in an order in which they can be computed; a node is known by its index, from 0. Names need not differ.
- `kind` is "forward", "loss" or "backward"; any order of kinds will do.
- `cost` is finite and not negative, in `cost_unit` (any text). `bytes` is the size of the node's value and may be 0.
- `inputs` are indices of the values that are read, each below the node's own. One that is named twice counts once.
- `constant_bytes` are resident throughout (parameters, optimizer slots, the batch) and part of every budget and peak.

All of these are required. Three more fields of a node may be given, and are written only where they differ from these
defaults:

- `workspace_bytes` (0): held only while the node is computed, beyond its inputs and its value. Negative, at least minus
  `bytes`, if the node computes into the memory of inputs that nobody else reads.
- `held_bytes` (0): added to the workspace if an input that only this node reads is not freed right after the node.
- `recompute_until` (the number of nodes): the node may be computed again only in stages below this. Stage t goes on
  until node t has been computed for the first time. 0: never again.

Other fields are ignored, unless one looks like a misspelling of these.

An answer, "checkmate-result/1", has "strategy", "solver", "status", "budget_bytes", "cost", "base_cost", "peak_bytes",
"lower_bound", "gap", "seconds", "minimum_budget_bytes" and "plan":

- `plan` is a list of `["compute", i]` and `["deallocate", i]`. At most one copy of a value is in memory at any time.
  Computing i allocates its value while all inputs are there; only then are values freed. The last value of each node
  that nobody reads is kept to the end.
- `cost` sums the costs of all computations, `base_cost` those of every node once. `peak_bytes` is the most memory
  during any computation, constants included.
- `lower_bound`: no schedule within the budget costs less (proven); at least `base_cost`. `gap` is
  cost / lower_bound - 1.
- `status`: "optimal" (proven), "feasible", "infeasible" (proven that no schedule fits) or "unknown" (none was found,
  though none is ruled out). For the last two `plan`, `cost`, `peak_bytes`, `lower_bound` and `gap` are null.
- `minimum_budget_bytes`: the least budget for which a schedule is known, of whatever strategy.
"""

from __future__ import annotations

import math
import os
from numbers import Integral
from typing import Any

import numpy as np

from .errors import GraphError, InfeasibleBudgetError, PlanError
from .graph import BACKWARD, FORWARD, LOSS, Graph
from .jsonfile import FieldCheck, read_json, show_value, write_json
from .plan import COMPUTE, DEALLOCATE, Plan
from .schedule import Schedule

__all__ = [
    "GRAPH_FORMAT",
    "RESULT_FORMAT",
    "graph_from_dict",
    "graph_to_dict",
    "infeasible_result",
    "read_graph",
    "result_to_dict",
    "write_graph",
]

GRAPH_FORMAT, RESULT_FORMAT = "checkmate-graph/1", "checkmate-result/1"

_KINDS = {"forward": FORWARD, "loss": LOSS, "backward": BACKWARD}
_GRAPH_FIELDS = ("format", "name", "cost_unit", "constant_bytes", "nodes")
_NODE_FIELDS = ("name", "kind", "cost", "bytes", "inputs")
_OPTIONAL_FIELDS = ("workspace_bytes", "held_bytes", "recompute_until")
_MOST_BYTES = 2**62  # of all values together, so that no sum overflows
_MOST_COST = 1e300
_CHECK = FieldCheck(GraphError)


# ---------------------------------------------------------------------------------------------------- graphs


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """A graph as plain values, "checkmate-graph/1".

    Raises
    ------
    GraphError
        If the graph has no nodes: the format knows no empty graphs.
    """
    n = len(graph)
    if not n:
        raise GraphError(f"graph {graph.name!r} has no nodes: there is nothing to write")
    kind_names = {number: name for name, number in _KINDS.items()}
    until = np.clip(graph.recompute_until, 0, n)
    columns = (graph.kinds, graph.costs, graph.sizes, graph.workspace, graph.held, until)
    nodes = []
    rows = zip(graph.names, graph.inputs, *(column.tolist() for column in columns), strict=True)
    for name, inputs, kind, cost, size, workspace, held, last in rows:
        node = {"name": name, "kind": kind_names[kind], "cost": cost, "bytes": size, "inputs": list(inputs)}
        extra = {"workspace_bytes": (workspace, 0), "held_bytes": (held, 0), "recompute_until": (last, n)}
        node |= {field: value for field, (value, default) in extra.items() if value != default}
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
    constant = _CHECK.whole(data["constant_bytes"], source, "constant_bytes", 0, _MOST_BYTES, "bytes")
    nodes = _CHECK.items(data["nodes"], source, "nodes")
    if not nodes:
        raise GraphError(f"{source}: the graph is empty: give at least one node")
    n = len(nodes)
    columns: dict[str, list[Any]] = {key: [] for key in (*_NODE_FIELDS, *_OPTIONAL_FIELDS)}
    for i, node in enumerate(nodes):
        for key, value in _node(node, i, n, source).items():
            columns[key].append(value)
    total = constant + sum(columns["bytes"]) + sum(map(abs, columns["workspace_bytes"])) + sum(columns["held_bytes"])
    if total > _MOST_BYTES:
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


# ---------------------------------------------------------------------------------------------------- results


def result_to_dict(
    schedule: Schedule, *, minimum_budget_bytes: int | None = None, budget_bytes: int | None = None
) -> dict[str, Any]:
    """A schedule as plain values, "checkmate-result/1".

    Parameters
    ----------
    schedule : Schedule
    minimum_budget_bytes : int, optional
        The least budget with a known schedule. The schedule's own peak is one such budget.
    budget_bytes : int, optional
        What was asked, constants included. Default: the schedule's.

    Raises
    ------
    PlanError
        If the plan has two copies of one value in memory, which the format cannot tell apart. No plan of
        `plan_from_sequence` has: a value is freed after its last reader before its node is computed again.
    """
    cost, base = float(schedule.cost), float(schedule.graph.base_cost)
    bound = float(schedule.lower_bound) if math.isfinite(schedule.lower_bound) else base
    bound = min(cost, max(bound, base))
    return {
        "format": RESULT_FORMAT,
        "strategy": schedule.strategy,
        "solver": schedule.solver,
        "status": schedule.status,
        "budget_bytes": schedule.budget_bytes if budget_bytes is None else int(budget_bytes),
        "cost": cost,
        "base_cost": base,
        "peak_bytes": int(schedule.peak_bytes),
        "lower_bound": bound,
        "gap": max(0.0, cost / bound - 1) if bound else 0.0,
        "seconds": float(schedule.seconds),
        "minimum_budget_bytes": int(min(schedule.peak_bytes, minimum_budget_bytes or schedule.peak_bytes)),
        "plan": _statements(schedule.plan),
    }


def infeasible_result(
    graph: Graph,
    error: InfeasibleBudgetError,
    *,
    strategy: str,
    solver: str = "",
    seconds: float = 0.0,
    minimum_budget_bytes: int | None = None,
) -> dict[str, Any]:
    """The answer "checkmate-result/1" when there is no schedule: "infeasible" if that is proven, else "unknown".

    Parameters
    ----------
    error : InfeasibleBudgetError
        As the strategy raised it.
    strategy, solver : str
        What was asked.
    seconds : float
        Time taken.
    minimum_budget_bytes : int, optional
        The least budget with a known schedule, if it is below the error's.
    """
    least = error.minimum_bytes if minimum_budget_bytes is None else min(error.minimum_bytes, minimum_budget_bytes)
    return {
        "format": RESULT_FORMAT,
        "strategy": strategy,
        "solver": solver,
        "status": "infeasible" if error.proven else "unknown",
        "budget_bytes": int(error.budget_bytes),
        "cost": None,
        "base_cost": float(graph.base_cost),
        "peak_bytes": None,
        "lower_bound": None,
        "gap": None,
        "seconds": float(seconds),
        "minimum_budget_bytes": int(least),
        "plan": None,
    }


def _statements(plan: Plan) -> list[list[Any]]:
    statements: list[list[Any]] = []
    live: set[int] = set()
    for statement in plan:
        if statement.op == COMPUTE:
            if statement.node in live:
                raise PlanError(f"two copies of node {statement.node} are in memory at once; please report this")
            live.add(statement.node)
        elif statement.op == DEALLOCATE:
            live.remove(statement.node)
        else:
            continue  # ALLOCATE: "compute" says it
        statements.append([statement.op, statement.node])
    return statements


# ---------------------------------------------------------------------------------------------------- validation


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

    size = whole("bytes", 0, 0, _MOST_BYTES, "bytes")
    return {
        "name": _CHECK.text(node["name"], where, "name"),
        "kind": _KINDS[kind],
        "cost": _CHECK.number(node["cost"], where, "cost"),
        "bytes": size,
        "inputs": [_input(value, where, i, n) for value in _CHECK.items(node["inputs"], where, "inputs")],
        "workspace_bytes": whole("workspace_bytes", 0, -size, _MOST_BYTES, "bytes"),
        "held_bytes": whole("held_bytes", 0, 0, _MOST_BYTES, "bytes"),
        "recompute_until": whole("recompute_until", n, 0, n, "stages"),
    }


def _input(value: Any, where: str, i: int, n: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        _CHECK.refuse(where, "inputs", value, "an input is the index of a node, a whole number")
    j = int(value)
    if not 0 <= j < n:
        _CHECK.refuse(where, "inputs", j, f"out of range: there are {n} nodes, 0 to {n - 1}")
    if j >= i:
        order = "the graph is cyclic or not in topological order; sort it"
        _CHECK.refuse(where, "inputs", j, f"an input must be below {i}: {order}")
    return j
