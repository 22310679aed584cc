"""Pictures: memory over a step, and a schedule's matrices. matplotlib is imported when a picture is drawn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..evaluator import Evaluation, evaluate
from ..graph import Graph
from ..statements import COMPUTE, DEALLOCATE, Statement, brought_back, statements_of
from ..units import format_bytes
from .canvas import BLUE, COLORS, GREY, ORANGE, byte_scale, finish, new_figure, rgb, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "Curve",
    "Drawable",
    "draw_memory",
    "measured_curve",
    "plain_curve",
    "plot_memory",
    "plot_schedule",
    "predicted_curve",
    "time_unit",
]

_CELLS = 600  # at most, of a drawn matrix in each direction
_TIMES = ("us", "ms", "s")
_SEEN = 120  # rows or columns up to which a single cell is large enough to be seen


class Drawable(Protocol):
    """What a picture shows of a schedule; the fields are those of `Schedule`."""

    @property
    def graph(self) -> Graph: ...
    @property
    def sequence(self) -> NDArray[np.int64]: ...
    @property
    def strategy(self) -> str: ...
    @property
    def budget_bytes(self) -> int | None: ...
    @property
    def plan(self) -> Iterable[Statement]: ...
    @property
    def evaluation(self) -> Evaluation: ...
    @property
    def frontier_advancing(self) -> bool: ...
    @property
    def R(self) -> NDArray[np.bool_]: ...
    @property
    def S(self) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, eq=False)
class Curve:
    """Memory over one step.

    Parameters
    ----------
    label : str
        For the legend.
    time_ms : (points,) float
        Ends of the intervals, for a step curve (`measured` False), or times of the samples.
    memory_bytes : (points,) float
    measured : bool
        A measured curve is drawn solid, a predicted one as dashed steps.
    color : str
    """

    label: str
    time_ms: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    measured: bool = False
    color: str = BLUE

    def __post_init__(self) -> None:
        for key in ("time_ms", "memory_bytes"):
            object.__setattr__(self, key, np.asarray(getattr(self, key), dtype=np.float64))
        if self.time_ms.shape != self.memory_bytes.shape or self.time_ms.ndim != 1 or not len(self.time_ms):
            raise ValueError(
                f"curve {self.label!r} needs as many times as memory values, and at least one: "
                f"{self.time_ms.shape} and {self.memory_bytes.shape} were given"
            )


def predicted_curve(schedule: Drawable, label: str, color: str = BLUE) -> Curve:
    """Memory by the evaluator against the cost spent so far, in ms (in the graph's own unit if it is not us)."""
    return _curve(schedule.graph, schedule.sequence, schedule.evaluation, label, color)


def plain_curve(graph: Graph, label: str = "plain", color: str = ORANGE) -> Curve:
    """As `predicted_curve`, of the step that computes nothing twice."""
    order = np.arange(graph.first_copy)
    return _curve(graph, order, evaluate(graph, statements_of(graph, order)), label, color)


def _curve(graph: Graph, sequence: NDArray[np.int64], evaluation: Evaluation, label: str, color: str) -> Curve:
    costs = np.where(_brought_back(graph, sequence), 0.0, graph.costs[sequence])
    scale = time_unit(graph)[1]
    return Curve(label, np.cumsum(costs) * scale, evaluation.memory.astype(float), False, color)


def _brought_back(graph: Graph, sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which places of a sequence bring a value back from the host, beside the computations."""
    registers = brought_back(graph, statements_of(graph, sequence))  # numbered by places
    return np.isin(np.arange(len(sequence)), list(registers))


def time_unit(graph: Graph) -> tuple[str, float]:
    """The unit that costs are drawn in, and what to multiply them by: microseconds are drawn as ms."""
    return ("ms", 1e-3) if graph.cost_unit == "us" else (short(graph.cost_unit, 30) or "unit of cost", 1.0)


def measured_curve(samples: Sequence[Sequence[float]], label: str, color: str = BLUE) -> Curve:
    """Samples (seconds, bytes) of the device's allocator over one step."""
    table = np.asarray(samples, dtype=np.float64).reshape(-1, 2)
    return Curve(label, table[:, 0] * 1e3, table[:, 1], True, color)


def plot_memory(
    curves: Sequence[Curve],
    path: str | Path | None = None,
    *,
    budget_bytes: int | None = None,
    limit_bytes: int | None = None,
    title: str = "",
    unit: str = "ms",
    size_inches: tuple[float, float] = (9.0, 5.0),
    dpi: int = 150,
) -> Figure:
    """Memory over a step.

    Parameters
    ----------
    curves : sequence of Curve
    path : path, optional
        Where to write the picture; its suffix tells the format.
    budget_bytes, limit_bytes : int, optional
        Drawn as horizontal lines.
    title : str
    unit : str
        Of the horizontal axis.
    size_inches : (width, height)
    dpi : int
        The picture is `size_inches * dpi` pixels.

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(size_inches)
    axes = figure.add_subplot()
    draw_memory(axes, curves, budget_bytes=budget_bytes, limit_bytes=limit_bytes, unit=unit)
    if title:
        axes.set_title(title, loc="left", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=2, fontsize=9, frameon=False, borderaxespad=0.2)
    return finish(figure, path, dpi)


def plot_schedule(
    schedule: Drawable,
    path: str | Path | None = None,
    *,
    size_inches: tuple[float, float] = (14.0, 5.0),
    dpi: int = 150,
) -> Figure:
    """A schedule's R and S beside its memory over the step, with the plain step's.

    Where a schedule has no stages, a row is a computation: what it computes, and what was in memory before it.

    Parameters
    ----------
    schedule : Schedule
    path : path, optional
        Where to write the picture.
    size_inches : (width, height)
    dpi : int

    Returns
    -------
    matplotlib.figure.Figure
    """
    graph = schedule.graph
    n = len(graph)
    figure = new_figure(size_inches)
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.5))
    rows, computed, again, kept = _matrices(schedule)
    _draw_matrix(left, computed, again, f"R: computed ({int(again.sum())} of them again)", rows)
    _draw_matrix(middle, kept, None, "S: kept in memory", rows)
    curves = [plain_curve(graph), predicted_curve(schedule, short(schedule.strategy))]
    draw_memory(right, curves, budget_bytes=schedule.budget_bytes, unit=time_unit(graph)[0])
    right.set_title(f"Predicted memory, {schedule.evaluation.overhead:.2%} more cost", loc="left", fontsize=11)
    right.legend(loc="lower center", fontsize=9)
    figure.suptitle(f"{short(graph.name, 80)}: {n} nodes", fontsize=12)
    return finish(figure, path, dpi)


def draw_memory(
    axes: Axes,
    curves: Sequence[Curve],
    *,
    budget_bytes: int | None = None,
    limit_bytes: int | None = None,
    unit: str = "ms",
    marks: Sequence[tuple[str, float]] = (),
) -> None:
    """Draw curves and horizontal lines on axes, labelled for a legend; parameters as `plot_memory`.

    Parameters
    ----------
    marks : sequence of (label, bytes)
        Further horizontal lines, at most five, for instance a measured peak.
    """
    lines: list[tuple[str, float | None, Any, str]] = [
        ("budget", budget_bytes, "-", GREY),
        ("allocator's hard limit", limit_bytes, ":", GREY),
        *((name, size, (0, (6, 2 + 2 * k)), COLORS[k + 1]) for k, (name, size) in enumerate(marks)),
    ]
    sizes = [*(float(curve.memory_bytes.max()) for curve in curves), *(size for _, size, *_ in lines if size)]
    scale, size_unit = byte_scale(max(sizes, default=0.0))
    for curve in curves:
        memory = curve.memory_bytes / scale
        label = f"{curve.label} (peak {format_bytes(curve.memory_bytes.max())})"
        if curve.measured:
            axes.plot(curve.time_ms, memory, color=curve.color, linewidth=1.6, label=label)
        else:
            edges = np.concatenate([[0.0], curve.time_ms])
            axes.stairs(
                memory, edges, baseline=None, color=curve.color, linewidth=1.2, linestyle=(0, (2, 1)), label=label
            )
    for name, size, style, color in lines:
        if size is not None:
            label = f"{name} ({format_bytes(size)})"
            axes.axhline(size / scale, color=color, linewidth=1.4, linestyle=style, label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{'time in the step' if unit in _TIMES else 'cost spent in the step'} ({unit})")
    axes.set_ylabel(f"memory ({size_unit})")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _matrices(schedule: Drawable) -> tuple[str, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """What a row is; computed, computed again, and kept (rows, nodes)."""
    n = len(schedule.graph)
    if schedule.frontier_advancing:
        return "stage", schedule.R, schedule.R & ~np.eye(n, dtype=bool), schedule.S
    m = len(schedule.sequence)
    computed, kept = np.zeros((m, n), dtype=bool), np.zeros((m, n), dtype=bool)
    computed[np.arange(m), schedule.sequence] = True
    again = computed.copy()
    nodes, first = np.unique(schedule.sequence, return_index=True)
    again[first, nodes] = False
    again[_brought_back(schedule.graph, schedule.sequence)] = False
    made: dict[int, int] = {}
    ends: dict[int, int] = {}
    for statement in schedule.plan:
        if statement.op == COMPUTE:
            made[statement.register] = len(made)
        elif statement.op == DEALLOCATE:
            ends[statement.register] = len(made) - 1
    for register, row in made.items():
        kept[row + 1 : ends.get(register, m) + 1, schedule.sequence[row]] = True
    return "computation", computed, again, kept


def _draw_matrix(
    axes: Axes, matrix: NDArray[np.bool_], marked: NDArray[np.bool_] | None, title: str, rows: str
) -> None:
    """Stages downwards, nodes to the right; large matrices are pooled so that a lone entry stays visible."""
    pooled = _pool(matrix)
    shown: NDArray[Any] = np.ones((*pooled.shape, 3))
    shown[pooled] = rgb(BLUE)
    m, n = matrix.shape
    if marked is not None:
        shown[_pool(marked)] = rgb(ORANGE)
        if max(m, n) > _SEEN:
            stages, nodes = np.nonzero(marked)
            axes.plot(nodes + 0.5, stages + 0.5, linestyle="", marker="s", markersize=2.5, color=ORANGE)
    axes.imshow(shown, extent=(0, n, m, 0), interpolation="nearest", aspect="equal" if m == n else "auto")
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel("node")
    axes.set_ylabel(rows)


def _pool(matrix: NDArray[np.bool_]) -> NDArray[np.bool_]:
    rows, columns = (np.arange(0, n, max(1, -(-n // _CELLS))) for n in matrix.shape)
    pooled: NDArray[np.bool_] = np.logical_or.reduceat(np.logical_or.reduceat(matrix, rows, axis=0), columns, axis=1)
    return pooled
