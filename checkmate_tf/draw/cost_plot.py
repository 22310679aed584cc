"""Cost and memory by layer: what the step's time and its values go to, and what a schedule adds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..graph import BACKWARD, Graph
from .canvas import BLUE, GREEN, ORANGE, byte_scale, finish, new_figure, short
from .plots import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Layers", "layers", "plot_costs"]

_ROWS = 30  # layers drawn at most


@dataclass(frozen=True, eq=False)
class Layers:
    """Costs and sizes of a graph's layers, in the order of their first nodes.

    Attributes
    ----------
    names : tuple of str
        A gradient (`grad_layer`) belongs to its layer; every other node is a layer of its own.
    forward, backward, again : (layers,) float
        Cost of computing each node once, forward (the loss included) and backward; cost of all further computations.
    forward_bytes, backward_bytes : (layers,) int
        Sizes of values and of gradients.
    """

    names: tuple[str, ...]
    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    again: NDArray[np.float64]
    forward_bytes: NDArray[np.int64]
    backward_bytes: NDArray[np.int64]


def layers(graph: Graph, counts: ArrayLike | None = None) -> Layers:
    """Sum a graph's nodes by layer.

    Parameters
    ----------
    counts : (n,) int, optional
        How often a schedule computes each node. Default: once.
    """
    times = np.ones(len(graph)) if counts is None else np.asarray(counts, dtype=np.float64)
    back = graph.kinds == BACKWARD
    known = {name for name, is_back in zip(graph.names, back, strict=True) if not is_back}
    rows: dict[str, int] = {}
    row = np.zeros(len(graph), dtype=np.int64)
    for i, name in enumerate(graph.names):
        layer = name.removeprefix("grad_")
        key = layer if back[i] and layer in known else name
        row[i] = rows.setdefault(key, len(rows))

    def total(values: NDArray, which: NDArray[np.bool_] | None = None) -> NDArray:
        sums = np.zeros(len(rows), dtype=values.dtype)
        np.add.at(sums, row if which is None else row[which], values if which is None else values[which])
        return sums

    return Layers(
        tuple(rows),
        total(graph.costs, ~back),
        total(graph.costs, back),
        total(graph.costs * (times - 1)),
        total(graph.sizes, ~back),
        total(graph.sizes, back),
    )


def plot_costs(
    graph: Graph,
    path: str | Path | None = None,
    *,
    counts: ArrayLike | None = None,
    size_inches: tuple[float, float] | None = None,
    dpi: int = 150,
) -> Figure:
    """Bars of cost and of bytes by layer; of more than 30 layers, the dearest and the largest.

    Parameters
    ----------
    graph : Graph
    path : path, optional
        Where to write the picture.
    counts : (n,) int, optional
        How often a schedule computes each node (`schedule.evaluation.counts`); further computations are a bar of their
        own.
    size_inches : (width, height), optional
        Default: as high as the layers need.
    dpi : int

    Returns
    -------
    matplotlib.figure.Figure
    """
    found = layers(graph, counts)
    shown = min(len(found.names), _ROWS + 1)
    figure = new_figure(size_inches or (14.0, 1.9 + 0.22 * shown))
    left, right = figure.subplots(1, 2)
    unit, scale = time_unit(graph)
    parts = [("forward", found.forward * scale, BLUE), ("backward", found.backward * scale, GREEN)]
    if found.again.any():
        parts.append(("computed again", found.again * scale, ORANGE))
    _bars(left, found.names, parts, f"cost ({unit})")
    largest = max(int(found.forward_bytes.max(initial=0)), int(found.backward_bytes.max(initial=0)))
    bytes_scale, bytes_unit = byte_scale(largest)
    sizes = [
        ("value", found.forward_bytes / bytes_scale, BLUE),
        ("gradient", found.backward_bytes / bytes_scale, GREEN),
    ]
    _bars(right, found.names, sizes, f"size ({bytes_unit})")
    figure.suptitle(f"{short(graph.name, 80)}: cost and size by layer", fontsize=12)
    return finish(figure, path, dpi)


def _bars(axes: Axes, names: tuple[str, ...], parts: list[tuple[str, NDArray, str]], label: str) -> None:
    """Stacked bars, in the graph's order from above; what is left out is one row more, said in words."""
    totals = np.sum([values for _, values, _ in parts], axis=0)
    chosen = np.sort(np.argsort(-totals, kind="stable")[:_ROWS])
    begin = np.zeros(len(chosen))
    rows = np.arange(len(chosen))
    for part, values, color in parts:
        axes.barh(rows, values[chosen], left=begin, height=0.8, color=color, label=part)
        begin = begin + values[chosen]
    axes.set_yticks(rows, [short(names[k], 30) for k in chosen], fontsize=8)
    axes.set_ylim(len(chosen) - 0.4, -0.6)
    left_out = len(names) - len(chosen)
    if left_out:
        share = 1 - totals[chosen].sum() / (totals.sum() or 1.0)
        axes.set_title(f"{left_out} smaller layers left out: {share:.1%} of all", loc="left", fontsize=9)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", fontsize=9)
