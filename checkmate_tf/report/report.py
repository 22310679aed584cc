"""The report that `model.checkmate` holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..draw.memory_map import plot_memory_map
from ..draw.report_plot import plot_report
from ..errors import OutputError
from . import text
from .facts import Attempt, Facts, Peak

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Attempt", "Peak", "Report"]


@dataclass(frozen=True)
class Report(Facts):
    """What `compile` did.

    Sizes are in bytes. Peaks and the budget are totals of the device: they hold parameters, optimizer slots, inputs,
    gradients, activations and workspace. The plain step is the model's own, without recomputation.

    Attributes
    ----------
    model, device : str
    batch_size : int
        The largest batch of each replica.
    replicas : int
        How many devices run this plan, each on its share of the batch.
    asked : str
        The budget as it was given.
    budget_bytes, plain_peak_bytes, predicted_peak_bytes : int
        The budget, the plain step's predicted peak, and the plan's predicted peak.
    measured_peak_bytes : int or None
        The highest of several steps, by the device's allocator. All else on the device (`foreign_bytes`) is in it.
    sure_bytes : int or None
        What no later step is expected to exceed, judged by how much those steps differ. It is within the budget.
    not_measured : str
        Why the peak was not measured; empty if it was.
    foreign_bytes : int
        What else was on the device when the plan was measured, such as other models.
    variable_bytes, input_bytes : int
        Parts of every peak.
    overhead, proven_overhead : float
        Cost of recomputation, as a share of the plain step's cost. The first is the plan's. The second is the least
        that any schedule can have for the plan's target, as the relaxation proves.
    attempts : tuple of Attempt
        Plans tried on the device, in order.
    seconds : mapping from stage ("trace", "costs", "learn", "solve", "emit and measure") to seconds
        If it has "solved before", that is what schedules from the cache took when they were made.
    schedule : Schedule
    training_peak_bytes : int or None
        Most bytes on the device in a step of this plan, input pipeline included. Evaluation runs between steps, and is
        not. Updated in training.
    expected_bytes : tuple of int
        Peaks that were expected before training, with the data of `fit`. They came too near the budget, so each led to
        a new plan.
    exceeded_bytes : tuple of int
        Peaks over the budget that were measured while training. Each led to a new plan.
    encodings : mapping from kind to int
        How many gradients read codes of forward values instead of the values, with `operators="choose"`.
    plain_cost : float or None
        Cost of the plain step, if the schedule's graph has encodings; None if it is the plain step's graph.
    strict : bool
        Whether computations keep one strict order.
    strict_cost : float or None
        What strict order costs in parallelism: seconds of a step in that order over seconds of a step out of order, as
        measured. If no plan was measured in both, seconds of two plans, each over its predicted cost. None if all plans
        were measured in one order.
    packed_peak_bytes, placed_peak_bytes : int or None
        The plan's peak in the best packing that was found for its values, and with the allocator, as its model places
        them. None if there is no model of the allocator.
    memory_map : MemoryUse or None
        Where every chunk lies; None as well then.
    """

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. The schedule and the memory map are not among them: they have their own."""
        left_out = ("schedule", "attempts", "seconds", "memory_map")
        values = {k: v for k, v in self.__dict__.items() if k not in left_out}
        schedule, paged = self.schedule, self.paged
        return {
            **values,
            "overhead": self.overhead,
            "proven_overhead": self.proven_overhead,
            "step_ratio": self.step_ratio,
            "gap": schedule.gap,
            "bound_order": schedule.bound_order,
            "strategy": schedule.strategy,
            "solver": schedule.solver,
            "status": schedule.status,
            "origin": schedule.origin,
            "nodes": self.nodes,
            "recomputations": self.recomputations,
            "paged": None if paged is None else asdict(paged),
            "attempts": [_attempt_values(a) for a in self.attempts],
            "encodings": dict(self.encodings),
            "seconds": dict(self.seconds),
            "expected_bytes": list(self.expected_bytes),
            "exceeded_bytes": list(self.exceeded_bytes),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2)

    def plot(
        self, path: str | Path | None = None, *, samples: Sequence[Sequence[float]] | None = None, **options: Any
    ) -> Figure:
        """Draw memory over a step: predicted, and measured as far as it was. See `draw.report_plot.plot_report`.

        Parameters
        ----------
        path : path, optional
            Where to write the picture; its suffix tells the format.
        samples : sequence of (seconds, bytes), optional
            The allocator's bytes over one step, to be drawn beside the prediction.
        **options
            `size_inches` and `dpi`.

        Returns
        -------
        matplotlib.figure.Figure
        """
        return plot_report(self, path, samples=samples, **options)

    def plot_memory_map(self, path: str | Path | None = None, **options: Any) -> Figure:
        """Draw what lies where in memory over a step. See `draw.memory_map.plot_memory_map`.

        Parameters
        ----------
        path : path, optional
            Where to write the picture; its suffix tells the format.
        **options
            `title`, `size_inches` and `dpi`.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        OutputError
            If there is no map.
        """
        if self.memory_map is None:
            raise OutputError(
                f"there is no map of {self.device}: its allocator has no model, or the plan was not placed; "
                "report.plot() shows memory without addresses"
            )
        title = f"{self.model}, batch {self.batch_size}, on {self.device}"
        names = self.schedule.graph.names
        return plot_memory_map(self.memory_map, path, **{"names": names, "title": title, **options})

    def table(self) -> str:
        """All that is known, a row for each thing; `str(report)` has the ten that matter most."""
        return text.lines(text.rows(self))

    def __str__(self) -> str:
        return text.lines(text.brief(self))


def _attempt_values(attempt: Attempt) -> dict[str, Any]:
    values = {k: v for k, v in asdict(attempt).items() if k != "peak"}
    sure = None if attempt.peak is None else attempt.peak.sure_bytes
    return {**values, "measured_bytes": attempt.measured_bytes, "sure_bytes": sure}
