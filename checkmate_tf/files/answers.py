"""Reads answers, "checkmate-result/1" (`interchange.py`), and checks what a replay of their plans can tell."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..evaluator import COST_TOLERANCE, Evaluation, evaluate
from ..graph import Graph
from ..statements import ALLOCATE, COMPUTE, DEALLOCATE, Statement, reads_of
from .jsonfile import FieldCheck, read_json
from .results import BOUND_ORDERS, NO_PLAN, RESULT_FORMAT

__all__ = ["Answer", "ScheduleFields", "answer_from_dict", "load_json"]

_MOST_STATEMENTS, _MOST_READS = 4_000_000, 20_000_000
_NUMBERS = ("budget_bytes", "cost", "base_cost", "peak_bytes", "lower_bound", "gap", "seconds", "minimum_budget_bytes")
_TEXTS = ("strategy", "solver", "status")
_MOST = 1e300
_CHECK = FieldCheck(PlanError)


class ScheduleFields(TypedDict):
    """What is read of a schedule, checked: `Schedule(graph, **fields)` makes it."""

    sequence: NDArray[np.int64]
    strategy: str
    solver: str
    status: str
    budget_bytes: int | None
    lower_bound: float
    bound_order: str
    seconds: float
    origin: str


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer for a graph.

    Attributes
    ----------
    source : str
        Where it is from.
    claims : mapping
        Its fields as given, the plan left out; numbers or None.
    fields : ScheduleFields or None
        Of a `Schedule` with the plan's order of computation, which frees each value as early as it can be. None if
        there is no plan.
    replayed : Evaluation or None
        Cost and peak of the plan as it is given.
    """

    source: str
    claims: Mapping[str, Any]
    fields: ScheduleFields | None
    replayed: Evaluation | None

    @property
    def disagreements(self) -> list[str]:
        """In words: where the replay does not give what the answer claims, or what it claims cannot be."""
        if self.replayed is None:
            return []
        found = []
        measured = {
            "cost": self.replayed.cost,
            "base_cost": self.replayed.base_cost,
            "peak_bytes": float(self.replayed.peak_bytes),
        }
        for field, value in measured.items():
            claim = self.claims[field]
            if claim is not None and not math.isclose(claim, value, rel_tol=COST_TOLERANCE):
                found.append(f"{field} is claimed to be {claim:.10g}, and is {value:.10g}")
        return [*found, *self._impossible(self.replayed.cost, self.replayed.peak_bytes)]

    def _impossible(self, cost: float, peak_bytes: int) -> Iterator[str]:
        """What cannot be said of a plan of this cost and peak."""
        budget, least, bound, gap = (
            self.claims[field] for field in ("budget_bytes", "minimum_budget_bytes", "lower_bound", "gap")
        )
        if budget is not None and peak_bytes > budget:
            yield f"the plan needs {peak_bytes} bytes, which is above its budget of {budget:.0f}"
        if least is not None and least > peak_bytes:
            yield f"{least:.0f} bytes are claimed to be the least budget that will do, and the plan needs {peak_bytes}"
        if bound is not None and bound > cost * (1 + COST_TOLERANCE):
            yield f"no plan is claimed to cost less than {bound:.10g}, and this one costs {cost:.10g}"
        if gap is not None and gap < -COST_TOLERANCE:
            yield f"the gap is claimed to be {gap:.3g}, and cannot be below 0"
        if self.claims["status"] in NO_PLAN:
            yield f'the status is claimed to be "{self.claims["status"]}", and there is a plan'


def load_json(path: str | os.PathLike[str]) -> Any:
    """The values in a file that should hold a graph or a result.

    Raises
    ------
    PlanError
        If it cannot be read, is too large, or is not JSON.
    """
    return read_json(path, "a graph or a result of checkmate-tf", PlanError)


def answer_from_dict(data: Any, graph: Graph, source: str = "result") -> Answer:
    """An answer in plain values, as `load_json` gives them, for the graph that it answers.

    Parameters
    ----------
    data : dict
    graph : Graph
    source : str
        Where it is from, for messages.

    Raises
    ------
    PlanError
        If it is not an answer, or its plan is not one of this graph; names the place.
    """
    if not isinstance(data, dict) or data.get("format") != RESULT_FORMAT:
        given = data.get("format") if isinstance(data, dict) else data
        _CHECK.refuse(source, "format", given, f'give a result of checkmate-tf solve ("{RESULT_FORMAT}")')
    claims: dict[str, Any] = {field: _text(data, field, source) for field in _TEXTS}
    claims |= {field: _number(data, field, source) for field in _NUMBERS}
    claims["bound_order"] = "fixed" if data.get("bound_order") is None else _text(data, "bound_order", source)
    if claims["bound_order"] not in BOUND_ORDERS:
        given = " or ".join(f'"{order}"' for order in BOUND_ORDERS)
        _CHECK.refuse(source, "bound_order", claims["bound_order"], f"give {given}")
    plan = data.get("plan")
    if plan is None:
        return Answer(source, claims, None, None)
    statements = _plan(plan, graph, source)
    try:
        replayed = evaluate(graph, statements)
    except PlanError as error:
        raise PlanError(f"{source}: the plan is not one of graph {graph.name[:60]!r}: {error}") from None
    budget = claims["budget_bytes"]
    fields: ScheduleFields = {
        "sequence": np.array([s.node for s in statements if s.op == COMPUTE], dtype=np.int64),
        "strategy": claims["strategy"],
        "solver": claims["solver"],
        "status": claims["status"],
        "budget_bytes": None if budget is None else int(budget),
        "lower_bound": claims["lower_bound"] or 0.0,
        "bound_order": claims["bound_order"],
        "seconds": claims["seconds"] or 0.0,
        "origin": "",
    }
    return Answer(source, claims, fields, replayed)


def _plan(rows: Any, graph: Graph, source: str) -> list[Statement]:
    """The statements with a register each: at most one copy of a value is in memory, so a node tells its register."""
    rows = _CHECK.items(rows, source, "plan", most=_MOST_STATEMENTS)
    statements: list[Statement] = []
    live: dict[int, int] = {}
    computed: set[int] = set()
    registers = read = 0
    for k, row in enumerate(rows):
        where = f"plan[{k}]"
        op, node = _statement(row, len(graph), source, where)
        if op == DEALLOCATE:
            if node not in live:
                raise PlanError(f"{source}: {where} frees node {node}, which is not in memory")
            statements.append(Statement(DEALLOCATE, node, live.pop(node)))
            continue
        if node in live:
            raise PlanError(f"{source}: {where} computes node {node}, which is in memory already: free it first")
        reads = reads_of(graph, node, computed)
        missing = [i for i in reads if i not in live]
        if missing:
            raise PlanError(f"{source}: {where} computes node {node} while its input {missing[0]} is not in memory")
        read += len(reads)
        if read > _MOST_READS:
            raise PlanError(f"{source}: the plan reads more than {_MOST_READS:,} values; give a shorter plan")
        live[node] = registers
        statements.append(Statement(ALLOCATE, node, registers))
        statements.append(Statement(COMPUTE, node, registers, tuple(live[i] for i in reads)))
        computed.add(node)
        registers += 1
    return statements


def _statement(row: Any, n: int, source: str, where: str) -> tuple[str, int]:
    op: Any
    node: Any
    op, node = row if isinstance(row, list) and len(row) == 2 else (None, None)
    whole = isinstance(node, int) and not isinstance(node, bool)
    if op not in (COMPUTE, DEALLOCATE) or not whole or not 0 <= node < n:
        _CHECK.refuse(source, where, row, f'give ["compute", i] or ["deallocate", i] with a node i from 0 to {n - 1}')
    return op, node


def _number(data: dict[str, Any], field: str, source: str) -> float | None:
    value = data.get(field)
    return None if value is None else _CHECK.number(value, source, field, -_MOST, _MOST, "give a number, or null")


def _text(data: dict[str, Any], field: str, source: str) -> str:
    if data.get(field) is None:
        raise PlanError(f"{source}: {field} is missing or null; give text")
    return _CHECK.text(data[field], source, field)
