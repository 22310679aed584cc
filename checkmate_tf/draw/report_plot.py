"""What a compiled step needs, predicted and measured: the picture of a `Report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..units import format_bytes
from .canvas import BLUE, GREEN, GREY, byte_scale, finish, new_figure, short
from .plots import Drawable, draw_memory, measured_curve, plain_curve, predicted_curve, time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Reported", "peaks", "plot_report"]

_LIGHT = "#888888"


class Reported(Protocol):
    """What the picture shows of a report; the fields are those of `Report`."""

    @property
    def model(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def budget_bytes(self) -> int: ...
    @property
    def plain_peak_bytes(self) -> int: ...
    @property
    def predicted_peak_bytes(self) -> int: ...
    @property
    def packed_peak_bytes(self) -> int | None: ...
    @property
    def placed_peak_bytes(self) -> int | None: ...
    @property
    def measured_peak_bytes(self) -> int | None: ...
    @property
    def training_peak_bytes(self) -> int | None: ...
    @property
    def variable_bytes(self) -> int: ...
    @property
    def input_bytes(self) -> int: ...
    @property
    def overhead(self) -> float: ...
    @property
    def schedule(self) -> Drawable: ...


def peaks(report: Reported) -> list[tuple[str, int]]:
    """The peaks that a report knows, each with what it is: the plain step's, the plan's, and that while training.

    The plan's are predicted, in the best packing, as the allocator places it, and measured.
    """
    found = [("plain,\npredicted", report.plain_peak_bytes), ("plan,\npredicted", report.predicted_peak_bytes)]
    further = (
        ("plan, best\npacking", report.packed_peak_bytes),
        ("plan,\nplaced", report.placed_peak_bytes),
        ("plan,\nmeasured", report.measured_peak_bytes),
        ("while\ntraining", report.training_peak_bytes),
    )
    return found + [(name, size) for name, size in further if size is not None]


def plot_report(
    report: Reported,
    path: str | Path | None = None,
    *,
    samples: Sequence[Sequence[float]] | None = None,
    size_inches: tuple[float, float] = (14.0, 5.0),
    dpi: int = 150,
) -> Figure:
    """Memory over the step, plain and planned, and the peaks as bars, each beside the budget.

    Parameters
    ----------
    report : Report
    path : path, optional
        Where to write the picture; its suffix tells the format.
    samples : sequence of (seconds, bytes), optional
        The allocator's bytes over one step of the plan.
    size_inches : (width, height)
    dpi : int

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(size_inches)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    schedule = report.schedule
    curves = [plain_curve(schedule.graph, "plain, predicted"), predicted_curve(schedule, "plan, predicted")]
    if samples is not None:
        curves.append(measured_curve(samples, "plan, measured"))
    marks = [(name.replace("\n", " "), size) for name, size in peaks(report)[2:] if samples is None]
    unit = time_unit(schedule.graph)[0]
    draw_memory(left, curves, budget_bytes=report.budget_bytes, unit=unit, marks=marks)
    left.set_title(f"Memory over the step, {report.overhead:.2%} more cost predicted", loc="left", fontsize=11)
    left.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2, fontsize=9, frameon=False, borderaxespad=0.2)
    _draw_peaks(right, report)
    figure.suptitle(f"{short(report.model, 60)}, batch {report.batch_size}, on {short(report.device)}", fontsize=12)
    return finish(figure, path, dpi)


def _draw_peaks(axes: Axes, report: Reported) -> None:
    """Bars of the peaks: variables, inputs, and all else."""
    found = peaks(report)
    scale, unit = byte_scale(max(report.budget_bytes, *(size for _, size in found)))
    columns = np.arange(len(found))
    sizes = np.array([size for _, size in found], dtype=float)
    fixed = [(report.variable_bytes, "variables", _LIGHT), (report.input_bytes, "inputs", GREEN)]
    below = np.zeros(len(found))
    width = 0.6 if len(found) <= 4 else 0.86  # as wide as what is written in them
    for size, label, color in fixed:
        axes.bar(columns, np.full(len(found), size / scale), width, bottom=below / scale, color=color, label=label)
        below += size
    rest = np.maximum(sizes - below, 0.0)
    label = "activations, gradients, workspace"
    axes.bar(columns, rest / scale, width, bottom=below / scale, color=BLUE, label=label)
    for x, size in zip(columns, sizes, strict=True):  # within the bars, where the budget's line does not cross them
        axes.annotate(
            format_bytes(size), (x, size / scale), (0, -5), textcoords="offset points", ha="center", va="top",
            fontsize=9, color="white",
        )  # fmt: skip
    budget = f"budget ({format_bytes(report.budget_bytes)})"
    axes.axhline(report.budget_bytes / scale, color=GREY, linewidth=1.4, label=budget)
    axes.set_xticks(columns, [name for name, _ in found], fontsize=9)
    axes.set_ylabel(f"peak ({unit})")
    axes.set_ylim(0, 1.12 * max(report.budget_bytes, sizes.max()) / scale)
    axes.set_title("Peaks", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2, fontsize=9, frameon=False, borderaxespad=0.2)
