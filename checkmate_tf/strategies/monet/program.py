"""Points of MONeT's 0-1 program as choices and orders of computation, and back; `formulation` builds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...operators import OperatorGraph
from ...solvers import Milp

__all__ = ["ONE", "MonetProgram"]

ONE = 0
"""The variable that is 1."""

_Ids = NDArray[np.int64]

_SLACK = 1e-9


@dataclass(frozen=True, eq=False)
class MonetProgram:
    """The program for one operator graph and budget. N forward nodes, K backward nodes, n of both.

    Attributes
    ----------
    milp : Milp
        Objective in units of `unit_cost`, bytes in units of the budget without constants or of their divisor.
    operators : OperatorGraph
    unit_cost : float
    chosen : n arrays of (ways,) int
        The variable of each way of each node; 0, the variable that is 1, where there is no choice.
    once : N arrays of (ways,) int
        delta: the forward pass computes the node in that way.
    ways_again : N arrays of (K, ways) int
        Of again[k, i, l]; -1 where it is 0.
    first : (N,) int
        The forward pass computes the node.
    kept : (K + 1, N) int
        Of s.
    again : (K, N) int
        Of r.
    least : (2, pairs) int
        Rows that say "at least" of an auxiliary variable, and the variable.
    running : (2, pairs) int
        Rows that define U, and its variables, in the order of `again`.
    """

    milp: Milp
    operators: OperatorGraph
    unit_cost: float
    chosen: Sequence[_Ids]
    once: Sequence[_Ids]
    ways_again: Sequence[_Ids]
    first: _Ids
    kept: _Ids
    again: _Ids
    least: _Ids
    running: _Ids

    @property
    def statistics(self) -> dict[str, int]:
        """Forward nodes, constraints, variables and terms, as in the paper's Table 7 (there after the presolve)."""
        rows, columns = self.milp.matrix.shape
        return {"forward": len(self.first), "constraints": rows, "variables": columns, "terms": self.milp.matrix.nnz}

    def unpack(self, x: NDArray[np.float64]) -> tuple[dict[int, int], list[int]]:
        """The choice, and an order of computation of nodes of the operator graph; the choice may leave some out."""
        on = np.append(x > 0.5, False)
        choice = {i: int(np.argmax(on[ids])) for i, ids in enumerate(self.chosen) if len(ids) > 1}
        order = np.flatnonzero(on[self.first]).tolist()
        for k in range(len(self.again)):
            order += [*np.flatnonzero(on[self.again[k]]).tolist(), len(self.first) + k]
        return choice, order

    def pack(self, choice: Mapping[int, int], order: Sequence[int]) -> NDArray[np.float64] | None:
        """The point of a choice and an order of computation, or None if the program has none or it is not feasible."""
        at: dict[int, int] = {}  # stage in which the newest copy of a value was made; -1 in the forward pass
        stage, on = -1, [ONE]
        for node in order:
            forward = node < len(self.first)
            if not forward and node != len(self.first) + (stage := max(stage, 0)):
                return None
            if forward and stage < 0 and node in at:
                stage = 0
            if stage >= len(self.again) or (forward and at.get(node, -1) >= 0 and at[node] == stage):
                return None
            way = choice.get(node, 0)
            for i in self.operators.ways(node)[way].inputs:
                if i < len(self.first) and at[i] < stage:
                    on += self.kept[at[i] + 1 : stage + 2, i].tolist()
            on.append(int(self.chosen[node][way]))
            if not forward:
                stage += 1
            elif stage < 0:
                on += [int(self.first[node]), int(self.once[node][way])]
            else:
                on += [int(self.again[stage, node]), int(self.ways_again[node][stage, way])]
            if forward:
                at[node] = stage
        x = np.zeros(len(self.milp.objective))
        x[on] = 1.0
        rows, ids = self.least
        np.maximum.at(x, ids, (self.milp.row_lower - self.milp.matrix @ x)[rows])
        rows, ids = self.running
        change, stages = -(self.milp.matrix @ x)[rows], np.nonzero(self.again >= 0)[0]
        for k in np.unique(stages):
            x[ids[stages == k]] = np.cumsum(change[stages == k])
        milp, value = self.milp, self.milp.matrix @ x
        inside = (value >= milp.row_lower - _SLACK) & (value <= milp.row_upper + _SLACK)
        return x if min(on) >= 0 and inside.all() and (x <= milp.upper + _SLACK).all() else None
