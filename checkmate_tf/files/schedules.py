"""Schedules in files: an answer, "checkmate-result/1" (`interchange.py`), and the graph that it is for.

Besides the fields of an answer such a file has "graph":

    {"name": "resnet50", "nodes": 353, "edges": 751, "constant_bytes": 102400, "structure": "9f86...", "kinds": "...",
     "sizes": "...", "workspace": "...", "held": "...", "recompute_until": "...", "costs": "..."}

The texts are digests: the first 32 hexadecimal digits of the SHA-256 of the column's numbers, 8 bytes each and
little-endian (of `structure`: for each node the number of its inputs, then their indices). All but `name` and `costs`
must be those of the graph that the schedule is loaded for. A graph in which nodes wait for others has a digest of
these, too, "waits". Names may differ, since Keras numbers layers as they come.
Costs may, since each device has its own: they say what a schedule is worth, not whether it can run. What was proved
under other costs is forgotten.

If the graph's last nodes copy values to the host, "copies" is the index of the first of these, and `costs` has the
times of copies, too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError, show_value
from ..evaluator import CLOSED_GAP
from ..graph import Graph
from .answers import ScheduleFields, answer_from_dict
from .jsonfile import read_json, write_json
from .results import RESULT_FORMAT, Answering, result_to_dict

__all__ = ["fingerprint", "read_schedule", "schedule_fields", "schedule_to_dict", "write_schedule"]

MAX_FILE_BYTES = 64 << 20

_HOW = "save one for this graph with Schedule.save"
_MOST_TEXT = 200  # characters of what a file says of its solver
_MEANS = {
    "copies": "the schedule was made without copies to the host",
    "nodes": "another model, or another version of TensorFlow or Keras",
    "edges": "another model, or another version of TensorFlow or Keras",
    "structure": "another model, or another version of TensorFlow or Keras",
    "kinds": "another model, or another version of TensorFlow or Keras",
    "waits": "nodes wait for other nodes",
    "sizes": "another batch size, input shape or precision",
    "constant_bytes": "another batch size, optimizer or number of parameters",
    "recompute_until": "other nodes may be computed again",
    "workspace": "another device or number of threads: kernels take other memory for themselves there",
    "held": "another device or number of threads: kernels take other memory for themselves there",
}


def fingerprint(graph: Graph) -> dict[str, int | str]:
    """All that a schedule depends on, in a few words: counts, and digests of columns.

    Notes
    -----
    O(nodes + edges).
    """
    structure = _flat(graph.inputs)
    columns: dict[str, NDArray[Any]] = {
        "structure": structure,
        "kinds": graph.kinds,
        "sizes": graph.sizes,
        "workspace": graph.workspace,
        "held": graph.held,
        "recompute_until": np.clip(graph.recompute_until, 0, len(graph)),
    }
    if any(graph.waits):
        columns["waits"] = _flat(graph.waits)
    digests = {key: _digest(column.astype("<i8")) for key, column in columns.items()}
    host, costs = graph.host, graph.costs
    copies = {} if host is None else {"copies": host.first}
    if host is not None:
        costs = np.concatenate([costs, host.to_host, host.from_host])
    return {
        **copies,
        "nodes": len(graph),
        "edges": len(structure) - len(graph),
        "constant_bytes": int(graph.constant_bytes),
        **digests,
        "costs": _digest((costs + 0.0).astype("<f8")),  # -0.0 is 0.0
    }


def _flat(rows: Sequence[Collection[int]]) -> NDArray[np.int64]:
    """Of each row its length, then what is in it."""
    return np.array(list(chain.from_iterable((len(row), *row) for row in rows)), dtype=np.int64)


def _digest(column: NDArray[Any]) -> str:
    return hashlib.sha256(column.tobytes()).hexdigest()[:32]


def schedule_to_dict(schedule: Answering) -> dict[str, Any]:
    """A schedule and the fingerprint of its graph as plain values.

    Raises
    ------
    PlanError
        If the schedule is not one of its graph.
    """
    answer = result_to_dict(schedule)
    plan = answer.pop("plan")
    return {**answer, "graph": {"name": schedule.graph.name, **fingerprint(schedule.graph)}, "plan": plan}


def schedule_fields(data: Any, graph: Graph, source: str = "schedule") -> ScheduleFields:
    """The fields of the schedule in plain values, if it is one of a graph; `Schedule(graph, **fields)` makes it.

    Its plan is replayed: cost and peak are those of the replay. What it says was proved, its lower bound and status, is
    taken over if it agrees with that.

    Parameters
    ----------
    data : dict
        As `read_schedule` gives it.
    graph : Graph
    source : str
        Where it is from, for messages; the schedule's `origin`.

    Raises
    ------
    PlanError
        If this is no schedule, or one of another graph; names the place.
    """
    _check_format(data, source)
    if not _same_costs(data.get("graph"), graph, source):
        data = {**data, "cost": None, "base_cost": None, "lower_bound": None}
    answer = answer_from_dict(data, graph, source)
    if answer.fields is None or answer.replayed is None:
        raise PlanError(f"{source} has no plan: its status is {show_value(answer.claims['status'])}; {_HOW}")
    if answer.disagreements:
        raise PlanError(f"{source} is damaged: {answer.disagreements[0]}; {_HOW}")
    fields, cost = answer.fields, answer.replayed.cost
    lower = min(fields["lower_bound"], cost)
    closed = cost - max(lower, graph.base_cost) <= CLOSED_GAP * cost
    return {
        **fields,
        "strategy": fields["strategy"][:_MOST_TEXT],
        "solver": fields["solver"][:_MOST_TEXT],
        "status": "optimal" if closed and fields["status"] == "optimal" else "feasible",
        "lower_bound": lower,
        "seconds": max(0.0, fields["seconds"]),
        "origin": source,
    }


def _check_format(data: Any, source: str) -> None:
    if not isinstance(data, dict) or data.get("format") != RESULT_FORMAT:
        given = data.get("format") if isinstance(data, dict) else data
        raise PlanError(f'{source}: format is {show_value(given)}, not "{RESULT_FORMAT}"; {_HOW}')


def _same_costs(given: Any, graph: Graph, source: str) -> bool:
    """Whether the costs are those of the graph; refuses if anything else is not."""
    if not isinstance(given, dict):
        raise PlanError(f"{source} does not say which graph it is for (graph is {show_value(given)}); {_HOW}")
    wanted: dict[str, int | str | None] = {**fingerprint(graph)}
    wanted.setdefault("waits", None)
    if "copies" in given and graph.host is None:
        raise PlanError(
            f"{source} copies values to the memory of the host, and graph {graph.name[:60]!r} has no nodes that copy: "
            'save a schedule that was made with page="never", or load it for a graph of paging.with_host'
        )
    different = [key for key, value in wanted.items() if key != "costs" and given.get(key) != value]
    if different:
        told = ", ".join(_difference(key, given.get(key), wanted[key]) for key in different)
        raise PlanError(f"{source} is not for graph {graph.name[:60]!r}: {told} ({_MEANS[different[0]]}); {_HOW}")
    return given.get("costs") == wanted["costs"]


def _difference(field: str, given: Any, wanted: int | str | None) -> str:
    if given is None:
        return f"{field} is missing"
    return f"{field} is {show_value(given)}, not {wanted}" if isinstance(wanted, int) else f"{field} differs"


def read_schedule(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The values in a file of at most 64 MiB, for `schedule_fields`. No code is run.

    Raises
    ------
    PlanError
        If it cannot be read, is too large, is not JSON, or is no answer.
    """
    data = read_json(path, "a schedule as Schedule.save writes it", PlanError, MAX_FILE_BYTES)
    _check_format(data, str(path))
    return dict(data)


def write_schedule(schedule: Answering, path: str | os.PathLike[str]) -> None:
    """Write a schedule to a JSON file, all of it or nothing.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written.
    PlanError
        If the schedule is not one of its graph.
    """
    write_json(schedule_to_dict(schedule), path)
