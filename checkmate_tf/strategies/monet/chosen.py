"""What is found for an operator graph: a choice of implementations, and a schedule of the graph that it gives."""

from __future__ import annotations

from dataclasses import dataclass

from ...operators import ChosenGraph
from ...schedule import Schedule

__all__ = ["Chosen"]


@dataclass(frozen=True, eq=False)
class Chosen:
    """A choice of implementations and a schedule.

    Attributes
    ----------
    schedule : Schedule
        Of `chosen.graph`. Its own overhead is told against computing that graph once.
    chosen : ChosenGraph
    base_cost : float
        Cost of computing everything once in the default ways, in the graph's unit.
    status : str
        "optimal" if the optimum of what was solved was proved, else "feasible".
    bound : float
        Proven least cost of what was solved, in the graph's unit; minus infinity if nothing was proved. Each function
        that gives a `Chosen` says what it is a bound of.
    """

    schedule: Schedule
    chosen: ChosenGraph
    base_cost: float
    status: str
    bound: float

    @property
    def overhead(self) -> float:
        """Cost over that of the default ways without recomputation, minus 1; below 0 where a choice is cheaper."""
        return self.schedule.cost / self.base_cost - 1 if self.base_cost else 0.0
