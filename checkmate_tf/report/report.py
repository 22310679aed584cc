"""The report that `model.checkmate` holds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..draw.memory_map import plot_memory_map
from ..draw.report_plot import plot_report
from ..errors import OutputError
from ..schedule import Schedule
from ..units import format_bytes
from .memory_use import MemoryUse
from .paged import Paged, paged_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Attempt", "Peak", "Report"]


@dataclass(frozen=True)
class Peak:
    """Most bytes allocated on a device in several steps.

    Attributes
    ----------
    bytes : int
        The most of all steps.
    sure_bytes : int
        What no later step is expected to exceed: `bytes`, and once more what it is above the median of the steps.
    seconds : float
        The least that a step took: other work on the machine makes the others slower.
    """

    bytes: int
    sure_bytes: int
    seconds: float

    @classmethod
    def of(cls, steps: Sequence[int], seconds: Sequence[float]) -> Peak:
        """Of the peaks of several steps, and what each took."""
        most = max(steps)
        return cls(most, most + int(most - statistics.median(steps)), min(seconds))

    def __str__(self) -> str:
        more = f" (at most {format_bytes(self.sure_bytes)} expected)" if self.sure_bytes > self.bytes else ""
        return format_bytes(self.bytes) + more


@dataclass(frozen=True)
class Attempt:
    """One plan that was tried on the device.

    Attributes
    ----------
    target_bytes : int
        What the schedule had to fit, by prediction.
    predicted_bytes : int
        The schedule's peak by the evaluator.
    peak : Peak or None
        Measured by the allocator; None if it ran out of memory or could not be measured.
    overhead : float
        Predicted cost over the plain step's, minus 1.
    strict : bool
        Whether computations keep one strict order.
    codes : int
        How many gradients read codes.
    placed_bytes : int or None
        The schedule's peak by the model of the device's allocator; None if there is none.
    copies : int
        How many values it copies to the host.
    """

    target_bytes: int
    predicted_bytes: int
    peak: Peak | None
    overhead: float
    strict: bool = False
    codes: int = 0
    placed_bytes: int | None = None
    copies: int = 0

    @property
    def measured_bytes(self) -> int | None:
        """The most of all steps that were measured."""
        return None if self.peak is None else self.peak.bytes


@dataclass(frozen=True)
class Report:
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
        Most bytes on the device since this plan was made, evaluation and input pipeline included. Updated in training.
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
        measured. None if no plan was measured in both.
    packed_peak_bytes, placed_peak_bytes : int or None
        The plan's peak in the best packing that was found for its values, and with the allocator, as its model places
        them. None if there is no model of the allocator.
    memory_map : MemoryUse or None
        Where every chunk lies; None as well then.
    """

    model: str
    device: str
    batch_size: int
    asked: str
    budget_bytes: int
    plain_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    not_measured: str
    foreign_bytes: int
    variable_bytes: int
    input_bytes: int
    costs: str
    attempts: tuple[Attempt, ...]
    seconds: Mapping[str, float]
    schedule: Schedule = field(repr=False)
    training_peak_bytes: int | None = None
    sure_bytes: int | None = None
    expected_bytes: tuple[int, ...] = ()
    exceeded_bytes: tuple[int, ...] = ()
    replicas: int = 1
    encodings: Mapping[str, int] = field(default_factory=dict)
    plain_cost: float | None = None
    strict: bool = False
    strict_cost: float | None = None
    packed_peak_bytes: int | None = None
    placed_peak_bytes: int | None = None
    memory_map: MemoryUse | None = field(default=None, repr=False)

    @property
    def base_cost(self) -> float:
        """Cost of the plain step, in the unit of the costs."""
        return self.schedule.graph.base_cost if self.plain_cost is None else self.plain_cost

    @property
    def overhead(self) -> float:
        return self.schedule.cost / self.base_cost - 1 if self.base_cost else 0.0

    @property
    def step_ratio(self) -> float:
        """Expected time of a step over the plain step's: recomputation times what strict order was measured to take."""
        order = self.strict_cost if self.strict and self.strict_cost is not None else 1.0
        return (1 + self.overhead) * order

    @property
    def proven_overhead(self) -> float:
        base = self.base_cost
        return max(0.0, self.schedule.lower_bound / base - 1) if base else 0.0

    @property
    def replanned(self) -> int:
        """How many plans were made anew, to leave room for what else is on the device."""
        return len(self.expected_bytes) + len(self.exceeded_bytes)

    @property
    def recomputations(self) -> int:
        """How many computations the plan adds to those of the plain step. What is brought back is not computed."""
        return int((self.schedule.evaluation.counts[: self._nodes] - 1).sum())

    @property
    def paged(self) -> Paged | None:
        """What the plan copies to the host; None if it copies nothing."""
        return paged_of(self.schedule)

    @property
    def _nodes(self) -> int:
        """How many nodes the step has, those that copy apart."""
        return self.schedule.graph.first_copy

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
            "nodes": self._nodes,
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

    def __str__(self) -> str:
        s, paged = self.schedule, self.paged
        if self.measured_peak_bytes is not None:
            verdict = "within" if self.measured_peak_bytes <= self.budget_bytes else "OVER"
            measured = f"{format_bytes(self.measured_peak_bytes)}, {verdict} the budget"
            if (self.sure_bytes or 0) > self.measured_peak_bytes:
                measured += f", at most {format_bytes(self.sure_bytes or 0)} expected"
            if self.foreign_bytes > 1e6:
                measured += f" ({format_bytes(self.foreign_bytes)} of it other tenants of the device)"
        else:
            measured = f"not measured: {self.not_measured}"
        these = "with these operators " if self.encodings else ""
        these += "in any order " if s.bound_order == "free" else "in this order "
        where = self.device if self.replicas == 1 else f"each of {self.replicas} devices"
        rows = [
            ("model", f"{self.model}, batch {self.batch_size}, on {where}"),
            ("budget", f"{format_bytes(self.budget_bytes)} (asked: {self.asked})"),
            (
                "plain step",
                f"{format_bytes(self.plain_peak_bytes)} predicted, of it {format_bytes(self.variable_bytes)} variables "
                f"and {format_bytes(self.input_bytes)} inputs",
            ),
            ("predicted peak", format_bytes(self.predicted_peak_bytes)),
            ("measured peak", measured),
            (
                "recomputation",
                f"{self.recomputations} of {self._nodes} nodes again, {self.overhead:.2%} of the step's cost "
                f"({self.costs}{', waits for copies included' * (paged is not None)})",
            ),
            (
                "proven",
                f"no schedule {these}within {format_bytes(s.budget_bytes or self.budget_bytes)} by prediction costs "
                f"less than {self.proven_overhead:.2%} more; gap {s.gap:.2%}",
            ),
            (
                "solved by",
                f"{s.strategy} ({s.solver or 'no solver'}), {s.status}" + (f"; from {s.origin}" if s.origin else ""),
            ),
            ("time", ", ".join(f"{k} {v:.1f} s" for k, v in self.seconds.items())),
        ]
        if self.strict:
            took = "" if self.strict_cost is None else f", {self.strict_cost:.2f} times the seconds, measured"
            rows.insert(6, ("order", f"computations keep one strict order{took}; step {self.step_ratio:.2f}x expected"))
        if self.encodings:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.encodings.items())
            rows.insert(6, ("operators", f"{sum(self.encodings.values())} gradients read codes ({kinds}), exactly"))
        if paged is not None:
            text = f"{paged.values} values wait on the host, {format_bytes(paged.host_bytes)} at most"
            rows.insert(6, ("paging", f"{text}; computations wait for copies in {paged.waiting:.2%} of the step"))
        if len(self.attempts) > 1:
            tries = "; ".join(
                f"{format_bytes(a.predicted_bytes)} predicted{' with codes' * (a.codes > 0)}"
                f"{' with copies' * (a.copies > 0)}, "
                + (f"{format_bytes(a.placed_bytes)} placed, " if a.placed_bytes is not None else "")
                + (f"{a.peak} measured" if a.peak is not None else "out of memory")
                for a in self.attempts
            )
            rows.insert(5, ("plans tried", tries))
        if self.training_peak_bytes is not None:
            verdict = "within" if self.training_peak_bytes <= self.budget_bytes else "OVER"
            text = f"{format_bytes(self.training_peak_bytes)}, {verdict} the budget"
            rows.insert(5, ("while training", text))
        if self.exceeded_bytes:
            peaks = ", ".join(format_bytes(b) for b in self.exceeded_bytes)
            rows.insert(5, ("planned again", f"for {peaks} while training, over the budget"))
        if self.expected_bytes:
            peaks = ", ".join(format_bytes(b) for b in self.expected_bytes)
            rows.insert(5, ("room for data", f"made before training, which would have taken {peaks}"))
        rows[4:4] = self._placed_rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    def _placed_rows(self) -> list[tuple[str, str]]:
        """What the allocator's model says, as far as there is one."""
        rows = []
        if self.packed_peak_bytes is not None:
            text = f"{format_bytes(self.packed_peak_bytes)}, if each value had the best address that was found"
            rows.append(("best packing", text))
        if self.placed_peak_bytes is not None:
            text = f"{format_bytes(self.placed_peak_bytes)}, as the allocator places values"
            found = self.memory_map
            if found is not None:
                text += f"; with the holes between them it reaches {format_bytes(found.range_bytes)}"
                text += "; OUT OF MEMORY: a request finds no room" * found.out_of_memory
            rows.append(("placed peak", text))
        return rows


def _attempt_values(attempt: Attempt) -> dict[str, Any]:
    values = {k: v for k, v in asdict(attempt).items() if k != "peak"}
    sure = None if attempt.peak is None else attempt.peak.sure_bytes
    return {**values, "measured_bytes": attempt.measured_bytes, "sure_bytes": sure}
