"""The constraint program of Moccasin: retention intervals in CP-SAT (Bartan et al., ICML 2023, section 2).

See `moccasin` for the formulas. Times are events: integers from 0. Bytes are counted in their greatest common divisor,
so they are exact; only if the budget is more than 2^30 of it are sizes rounded up and the budget down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ..search.arrays import last_needs

__all__ = ["Interval", "Retention"]

_UNITS = 2**30  # the budget at most: CP-SAT multiplies it by lengths of time
_WEIGHTS = 2**40  # the costs of all nodes together


class Interval(NamedTuple):
    """A computation of a node and how long its value is held: variables or expressions of CP-SAT, or constants.

    Attributes
    ----------
    start, end
        First and last event in which it is held. Both are the least start if it is not active.
    length
        end - start + 1, at least 1: constraint (2).
    active
        Literal.
    slot
        Where it starts: the stage, or with a free order the event.
    slots : range
        Of `slot`.
    """

    start: Any
    end: Any
    length: Any
    active: Any
    slot: Any
    slots: range


class Retention:
    """The model of one phase.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    copies : (n,) int
        C_v: how many intervals node v has at most.
    free : bool
        Whether the order of first computations is open.
    phase : int
        1: minimise max(peak, budget). 2: minimise the cost within the budget.

    Attributes
    ----------
    model : CpModel
    intervals : list of n lists of Interval
    events : int
        How many there are.
    unit, capacity : int
        Bytes that memory is counted in, and the budget without constants in them.
    """

    def __init__(
        self, graph: Graph, budget_bytes: int, copies: Sequence[int], *, free: bool = False, phase: int = 2
    ) -> None:
        from ortools.sat.python import cp_model

        self.graph, self.free, self.phase = graph, free, phase
        self.model = cp_model.CpModel()
        self.yes = self.model.new_constant(1)
        n = len(graph)
        if free:
            count = [int(c) if until else 1 for c, until in zip(copies, graph.recompute_until, strict=True)]
            self.events = sum(count)
            slots = [[range(self.events)] * c for c in count]
        else:
            self.events = n * n
            last = last_needs(graph)
            slots = [self._stages(k, int(copies[k]), int(last[k])) for k in range(n)]
        self.intervals = [self._intervals(k, row) for k, row in enumerate(slots)]
        self._precedence()
        if free:
            self._order()
        peak = self._memory(budget_bytes)
        weights, self.scale = _weights(graph.costs)
        if phase == 1:
            self.model.minimize(peak)
        else:
            spent = [weight * row.active for weight, of in zip(weights, self.intervals, strict=True) for row in of]
            self.model.minimize(sum(spent))

    # -- intervals -----------------------------------------------------------------------------------------------------
    def event(self, slot: Any, node: int) -> Any:
        """When a node is computed: in the input order, as event `node` of stage `slot` (both 0-based).

        Stages have n events here and not as many as nodes so far: starts are then linear in the stage, which CP-SAT
        handles far better than the domain (11) as a set of numbers. The events left over are in nobody's way.
        """
        return slot if self.free else slot * len(self.graph) + node

    def _stages(self, k: int, copies: int, last: int) -> list[range]:
        """The stages in which each interval of node k may start, without those where nobody could use it."""
        end = max(k + 1, min(int(self.graph.recompute_until[k]), last + 1, len(self.graph)))
        return [range(k, k + 1), *(range(k + c, end) for c in range(1, min(copies, end - k)))]

    def _intervals(self, k: int, slots: list[range]) -> list[Interval]:
        model, last = self.model, self.events - 1
        rows: list[Interval] = []
        for c, among in enumerate(slots):
            low = self.event(among[0], k)
            end = model.new_int_var(low, last, "")
            slot: Any = among[0]
            length: Any = end - (low - 1)
            if len(among) > 1:
                slot = model.new_int_var(among[0], among[-1], "")
                length = model.new_int_var(1, self.events, "")
                model.add(self.event(slot, k) + length == end + 1)
            start = self.event(slot, k)
            active = model.new_bool_var("") if c else self.yes
            rows.append(Interval(start, end, length, active, slot, among))
            if c:
                model.add_implication(active, rows[c - 1].active)
                model.add(start > rows[c - 1].end).only_enforce_if(active)  # (3)
                model.add(end == start).only_enforce_if(~active)
                if not self.free:  # with a free order alldifferent wants another event for each
                    model.add(slot == among[0]).only_enforce_if(~active)
        if not self.graph.users[k]:  # a sink
            for row, after in zip(rows, [*rows[1:], None], strict=True):
                held = model.add(row.end == last)
                if after is not None:
                    held.only_enforce_if(row.active, ~after.active)
                elif row.active is not self.yes:
                    held.only_enforce_if(row.active)
        return rows

    # -- constraints ---------------------------------------------------------------------------------------------------
    def _precedence(self) -> None:
        """(5), (10): for each edge a reservoir of the input's intervals, from which a start takes one for a moment."""
        for i, j in self.graph.edges:
            times, changes, actives = [], [], []
            for row in self.intervals[i]:
                times += [row.start + 1, row.end + 1]
                changes += [1, -1]
                actives += [row.active] * 2
            for row in self.intervals[j]:
                times += [row.start, row.start + 1]
                changes += [-1, 1]
                actives += [row.active] * 2
            self.model.add_reservoir_constraint_with_active(times, changes, actives, 0, len(self.intervals[i]))

    def _order(self) -> None:
        """(6), effects in order, and `recompute_until` in terms of first computations."""
        model, until = self.model, self.graph.recompute_until.tolist()
        n = len(until)
        model.add_all_different([row.start for rows in self.intervals for row in rows])
        first = [rows[0].start for rows in self.intervals]
        for i in range(n):
            effect = next((e for e in range(max(i + 1, until[i]), n) if until[e] == 0), None)
            if until[i] < n and effect is not None:
                model.add(first[i] < first[effect])
        latest: dict[int, Any] = {}
        for rows, limit in zip(self.intervals, until, strict=True):
            for row in rows[1:]:
                if limit not in latest:
                    latest[limit] = model.new_int_var(0, self.events - 1, "")
                    model.add_max_equality(latest[limit], first[:limit])
                model.add(row.start < latest[limit]).only_enforce_if(row.active)

    def _memory(self, budget_bytes: int) -> Any:
        """(4), (13): one cumulative. Returns its capacity: the budget, or a variable above it."""
        graph, model = self.graph, self.model
        room = budget_bytes - graph.constant_bytes
        unit = math.gcd(*graph.sizes.tolist(), *graph.workspace.tolist(), *graph.held.tolist()) or 1
        unit *= max(1, -(-room // (unit * _UNITS)))
        in_units = lambda size: -(-int(size) // unit)  # noqa: E731 - rounded up
        capacity = room // unit
        self.unit, self.capacity = unit, capacity
        peak: Any = capacity
        if self.phase == 1:
            plain = evaluate(graph, plan_from_sequence(graph, range(len(graph)))).peak_bytes - graph.constant_bytes
            most = max(capacity, in_units(plain) + len(graph))  # each of its values may be rounded up
            peak = model.new_int_var(max(capacity, 0), most, "")
            model.add_hint(peak, most)
        held: list[tuple[Any, int]] = []
        for k, rows in enumerate(self.intervals):
            size, extra = int(graph.sizes[k]), int(graph.workspace[k])
            for row in rows:
                now = (row.start, 1, row.start + 1, row.active)
                if extra < 0:
                    held.append((model.new_optional_interval_var(*now, ""), in_units(size + extra)))
                    held.append((self._span(row, 1), in_units(size)))
                else:
                    held.append((self._span(row, 0), in_units(size)))
                    held.append((model.new_optional_interval_var(*now, ""), in_units(extra)))
                if graph.held[k] and (outlived := self._outlived(k, row)) is not None:
                    held.append((model.new_optional_interval_var(*now[:3], outlived, ""), in_units(graph.held[k])))
        held = [(interval, demand) for interval, demand in held if demand]
        model.add_cumulative([interval for interval, _ in held], [demand for _, demand in held], peak)
        return peak

    def _span(self, row: Interval, skip: int) -> Any:
        """The interval from `skip` events after its start to its end."""
        return self.model.new_optional_interval_var(row.start + skip, row.length - skip, row.end + 1, row.active, "")

    def _outlived(self, k: int, row: Interval) -> Any:
        """A literal that is true if an input that only node k reads is held beyond this computation of k."""
        model = self.model
        copies = [copy for i in self.graph.inputs[k] if self.graph.users[i] == (k,) for copy in self.intervals[i]]
        if not copies:
            return None
        outlived = model.new_bool_var("")
        model.add_implication(outlived, row.active)
        for copy in copies:
            gone, later = model.new_bool_var(""), model.new_bool_var("")
            model.add(copy.end <= row.start).only_enforce_if(gone)
            model.add(copy.start > row.start).only_enforce_if(later)
            model.add_bool_or(gone, later, ~copy.active, ~row.active, outlived)
        return outlived

    # -- sequences -----------------------------------------------------------------------------------------------------
    def hint(self, sequence: Iterable[int]) -> None:
        """Start from an order of computation, which must have no more than C_v of any node v.

        For the fixed order it must be frontier-advancing.
        """
        graph, model = self.graph, self.model
        spans: list[list[list[int]]] = [[] for _ in self.intervals]  # slot, last event
        slot, used = 0, set()
        for at, node in enumerate(sequence):
            slot = at if self.free else slot
            used.add(slot)
            for i in graph.inputs[node]:
                spans[i][-1][1] = self.event(slot, node)
            spans[node].append([slot, self.event(slot, node)])
            slot += node == slot
        unused = iter([t for t in range(self.events) if t not in used] if self.free else ())
        for k, (rows, given) in enumerate(zip(self.intervals, spans, strict=True)):
            if not graph.users[k]:
                given[-1][1] = self.events - 1
            for c, row in enumerate(rows):
                active = c < len(given)
                slot = given[c][0] if active else next(unused, row.slots[0])
                end = given[c][1] if active else self.event(slot, k)
                model.add_hint(row.end, end)
                if len(row.slots) > 1:
                    model.add_hint(row.slot, slot)
                    model.add_hint(row.length, end - self.event(slot, k) + 1)
                if c:
                    model.add_hint(row.active, active)

    def sequence(self, value: Callable[[Any], int]) -> list[int]:
        """The order of computation of a solution; `value` gives the value of an expression."""
        starts = [
            (value(row.start), k) for k, rows in enumerate(self.intervals) for row in rows if value(row.active)
        ]  # fmt: skip
        return [k for _, k in sorted(starts)]

    def cost(self, objective: float) -> float:
        """A bound on the objective of phase 2 as one on the cost, in the graph's unit."""
        return objective / self.scale


def _weights(costs: NDArray[np.float64]) -> tuple[list[int], float]:
    """Costs as integers, rounded down, and what they were multiplied by."""
    total = float(costs.sum())
    whole = total <= _WEIGHTS and bool((costs == np.floor(costs)).all())
    divisor = math.gcd(*costs.astype(np.int64).tolist()) if whole else 0
    scale = 1 / (divisor or 1) if whole else _WEIGHTS / total
    return np.floor(costs * scale + (0.5 if whole else 0)).astype(np.int64).tolist(), scale
