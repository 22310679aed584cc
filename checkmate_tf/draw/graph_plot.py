"""The graph of a training step, drawn: forward nodes in a row from left to right, backward nodes below them.

A node's area is the size of its value, its colour what it costs; a ring marks what a schedule computes again. Edges
along a row are arcs if they skip nodes, those between the rows are straight and faint.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..graph import BACKWARD, LOSS, Graph
from ..units import format_bytes
from .canvas import GREY, ORANGE, finish, new_figure, short
from .plots import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["places", "plot_graph"]

_LABELLED = 45  # columns up to which names are written
_LABEL = 18  # characters of a name
_ROW = 1.0  # between the rows
_EDGES = 30_000  # drawn at most


def places(graph: Graph) -> NDArray[np.float64]:
    """(n, 2) where nodes are drawn.

    Forward nodes and the loss are at height 0, in order. A backward node is below the layer whose gradient it is
    (`grad_layer`), or, where names do not tell, goes back from right to left.
    """
    backward = np.flatnonzero(graph.kinds == BACKWARD)
    upper = np.flatnonzero(graph.kinds != BACKWARD)
    found = np.zeros((len(graph), 2))
    found[upper, 0] = np.arange(len(upper))
    if not len(upper):
        found[backward, 0] = np.arange(len(backward))
        return found
    column = {graph.names[i]: k for k, i in enumerate(upper.tolist())}
    last = len(upper) - 1
    for k, i in enumerate(backward.tolist()):
        otherwise = last * (1 - k / max(len(backward) - 1, 1))
        found[i] = column.get(graph.names[i].removeprefix("grad_"), otherwise), -_ROW
    return found


def plot_graph(
    graph: Graph,
    path: str | Path | None = None,
    *,
    counts: ArrayLike | None = None,
    size_inches: tuple[float, float] = (14.0, 4.6),
    dpi: int = 150,
) -> Figure:
    """Draw a graph.

    Parameters
    ----------
    graph : Graph
    path : path, optional
        Where to write the picture; its suffix tells the format.
    counts : (n,) int, optional
        How often a schedule computes each node (`schedule.evaluation.counts`); those above 1 get a ring.
    size_inches : (width, height)
    dpi : int

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(size_inches)
    axes = figure.add_subplot()
    at = places(graph)
    _draw_edges(axes, graph, at)
    columns = at[:, 0].max(initial=0.0) + 1
    areas = _areas(graph.sizes, columns, size_inches[0])
    unit, scale = time_unit(graph)
    drawn = axes.scatter(
        at[:, 0], at[:, 1], s=areas, c=graph.costs * scale, cmap="viridis_r", edgecolors=GREY, linewidths=0.4, zorder=3
    )
    figure.colorbar(drawn, ax=axes, label=f"cost ({unit})", pad=0.01, fraction=0.03)
    again = np.flatnonzero(np.asarray(counts) > 1) if counts is not None else np.zeros(0, dtype=np.int64)
    if len(again):
        axes.scatter(
            at[again, 0], at[again, 1], s=(areas[again] ** 0.5 + 2.5) ** 2, facecolors="none", edgecolors=ORANGE,
            linewidths=1.6 if columns <= _LABELLED else 1.0, zorder=4, label=f"computed again ({len(again)} nodes)",
        )  # fmt: skip
    _draw_sizes(axes, graph, areas)
    _label(axes, graph, at, columns)
    return finish(figure, path, dpi)


def _draw_edges(axes: Axes, graph: Graph, at: NDArray[np.float64]) -> None:
    """Arcs within a row, lines between the rows."""
    from matplotlib.collections import PathCollection
    from matplotlib.path import Path as Curve

    arcs: list[Curve] = []
    lines: list[Curve] = []
    highest = 0.0
    for i, j in graph.edges[:_EDGES]:
        (x0, y0), (x1, y1) = at[i].tolist(), at[j].tolist()
        if y0 != y1 or abs(x0 - x1) <= 1:
            path = Curve([(x0, y0), (x1, y1)])
            (lines if y0 != y1 else arcs).append(path)
            continue
        height = min(0.12 * abs(x1 - x0) ** 0.5, 0.9) * (1 if y0 == 0 else -1)
        highest = max(highest, abs(height) / 2)  # a Bezier curve ends halfway to its control point
        arcs.append(
            Curve([(x0, y0), ((x0 + x1) / 2, y0 + height), (x1, y1)], [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3])
        )
    for paths, color, alpha in ((lines, "#999999", 0.35), (arcs, GREY, 0.8)):
        axes.add_collection(
            PathCollection(paths, facecolors="none", edgecolors=color, alpha=alpha, linewidths=0.8), autolim=False
        )
    if len(graph.edges) > _EDGES:
        axes.set_title(f"{_EDGES} of {len(graph.edges)} edges drawn", loc="right", fontsize=9)
    lowest = at[:, 1].min(initial=0.0)
    axes.set_ylim(lowest - max(highest, 0.3) - 0.1, max(highest, 0.3) + 0.1)


def _areas(sizes: NDArray[np.int64], columns: float, width: float) -> NDArray[np.float64]:
    """Areas of the markers, in square points; the largest is as wide as a column allows, within reason."""
    widest = float(np.clip(72 * 0.85 * width / max(columns, 1.0), 5.0, 24.0))
    return np.maximum(sizes / max(float(sizes.max(initial=0)), 1.0) * widest**2, 4.0)


def _draw_sizes(axes: Axes, graph: Graph, areas: NDArray[np.float64]) -> None:
    """A legend of areas: the largest value, and a quarter of it."""
    if len(graph):
        k = int(np.argmax(graph.sizes))
        for share in (1.0, 0.25):
            label = format_bytes(share * float(graph.sizes[k]))
            axes.scatter([], [], s=max(share * float(areas[k]), 4.0), color="white", edgecolors=GREY, label=label)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.02), ncols=4, frameon=False, fontsize=9)


def _label(axes: Axes, graph: Graph, at: NDArray[np.float64], columns: float) -> None:
    axes.set_title(f"{short(graph.name, 80)}: {len(graph)} nodes, {len(graph.edges)} edges", loc="left", fontsize=11)
    axes.set_xlim(-0.8, columns - 0.2)
    rows = [(0.0, "forward")] if at[:, 1].min(initial=0.0) == 0 else [(0.0, "forward"), (-_ROW, "backward")]
    axes.set_yticks([y for y, _ in rows], [name for _, name in rows])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    upper = np.flatnonzero(graph.kinds != BACKWARD)
    names = [short(graph.names[i], _LABEL) for i in upper.tolist()]
    ticks = range(len(upper))
    if len(upper) > _LABELLED:  # by number, some of them
        step = -(-len(upper) // 20)
        ticks = range(0, len(upper), step)
        names = [str(upper[k]) for k in ticks]
        axes.xaxis.set_label_position("top")
        axes.set_xlabel("node")
    axes.xaxis.tick_top()
    slanted = len(upper) <= _LABELLED
    axes.set_xticks(list(ticks), names, rotation=60 if slanted else 0, ha="left" if slanted else "center", fontsize=8)
    for i in np.flatnonzero(graph.kinds == LOSS).tolist():
        axes.annotate("loss", at[i], (0, 12), textcoords="offset points", ha="center", fontsize=8)
