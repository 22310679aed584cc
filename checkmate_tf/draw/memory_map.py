"""A map of a device's memory over one step: what lies where, when, and what is lost between.

A chunk is a rectangle: from left to right the computations that it is in memory for, from bottom to top its addresses.
White is free. Long stretches that nobody uses are left out; a dotted line shows where. Long ones that were there before
and stay are cut short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from ..units import format_bytes
from .canvas import BLUE, GREEN, GREY, ORANGE, byte_scale, finish, new_figure, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Mapped", "plot_memory_map"]

_KINDS = (("there before", "#c4c4c4"), ("forward", BLUE), ("computed again", ORANGE), ("backward", GREEN))
_PEAK = "#cc0000"
_WIDE, _HIGH = 0.07, 0.022  # shares of the picture: a chunk that is as large has room for a name
_NAMES = 30  # at most
_NAME = 90  # characters of a name that is as wide as the picture
_NEAR = 0.045  # share of the picture: labels of cuts keep as far apart
_GRAIN = 256  # bytes that requests are rounded up to
_UNUSED = 0.01  # of what the step takes: a longer stretch that nobody uses is left out
_STAYS = 0.04  # of what the step takes: so much is shown of a longer stretch that was there before


class Mapped(Protocol):
    """What the picture shows; the fields are those of `MemoryUse`."""

    @property
    def placed_bytes(self) -> int: ...
    @property
    def computations(self) -> int: ...
    @property
    def peak_at(self) -> float: ...
    @property
    def address(self) -> NDArray[np.int64]: ...
    @property
    def size(self) -> NDArray[np.int64]: ...
    @property
    def asked(self) -> NDArray[np.int64]: ...
    @property
    def begin(self) -> NDArray[np.float64]: ...
    @property
    def end(self) -> NDArray[np.float64]: ...
    @property
    def kind(self) -> NDArray[np.int64]: ...
    @property
    def node(self) -> NDArray[np.int64]: ...
    @property
    def chunks(self) -> int: ...


@dataclass(frozen=True)
class _Cut:
    """A stretch of memory, of which so many bytes are shown; something that stays, or nothing."""

    begin: int
    end: int
    shown: float
    stays: bool


def plot_memory_map(
    use: Mapped,
    path: str | Path | None = None,
    *,
    names: Sequence[str] = (),
    title: str = "",
    size_inches: tuple[float, float] = (14.0, 7.0),
    dpi: int = 150,
) -> Figure:
    """Draw what lies where in memory over a step.

    Parameters
    ----------
    use : MemoryUse
    path : path, optional
        Where to write the picture; its suffix tells the format.
    names : sequence of str, optional
        Of the graph's nodes; the largest chunks are labelled with them.
    title : str
    size_inches : (width, height)
    dpi : int

    Returns
    -------
    matplotlib.figure.Figure
    """
    figure = new_figure(size_inches)
    axes = figure.add_subplot()
    cuts = _cuts(use)
    low, high, asked = (_on_map(cuts, at) for at in (use.address, use.address + use.size, use.address + _asked(use)))
    top = float(high.max(initial=1))
    scale, unit = byte_scale(top)
    low, high, asked = low / scale, high / scale, asked / scale
    axes.set_xlim(0, max(use.computations, 1))
    axes.set_ylim(0, 1.01 * top / scale)
    _draw_chunks(axes, use, low, high, asked)
    axes.axvline(use.peak_at, color=_PEAK, linewidth=1.3, label=f"peak ({format_bytes(use.placed_bytes)} in use)")
    _draw_cuts(axes, cuts, scale, top)
    _draw_names(axes, use, low, asked, names)
    axes.set_xlabel("computations of the step, in order")
    axes.set_ylabel(f"address ({unit})" if not cuts else f"address ({unit}, long stretches cut)")
    axes.spines[["top", "right"]].set_visible(False)
    small = use.chunks - len(use.address)
    note = f"; {small} small or short-lived chunks left out" if small else ""
    axes.set_title(f"{short(title, 100) or 'Memory over the step'}: white is free{note}", loc="left", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.08), ncols=6, fontsize=9, frameon=False, borderaxespad=0.2)
    return finish(figure, path, dpi)


def _asked(use: Mapped) -> NDArray[np.int64]:
    """What was asked for of each chunk, rounded up: that little is no loss to see."""
    asked: NDArray[np.int64] = np.minimum(-(-use.asked // _GRAIN) * _GRAIN, use.size)
    return asked


def _cuts(use: Mapped) -> list[_Cut]:
    """Stretches of memory that the picture shortens, in order of addresses."""
    if not len(use.address):
        return []
    order = np.argsort(use.address, kind="stable")
    begins, ends = use.address[order], np.maximum.accumulate((use.address + use.size)[order])
    gaps = begins[1:] - ends[:-1]
    moving = max(_covered(use, use.kind != 0), 1)
    found = [_Cut(int(ends[k]), int(begins[k + 1]), 0.0, False) for k in np.flatnonzero(gaps > _UNUSED * moving)]
    stays = np.flatnonzero((use.kind == 0) & (use.size > 2 * _STAYS * moving))
    found += [_Cut(int(use.address[k]), int(use.address[k] + use.size[k]), _STAYS * moving, True) for k in stays]
    return sorted(found, key=lambda cut: cut.begin)


def _covered(use: Mapped, mine: NDArray[np.bool_]) -> int:
    """Bytes of memory that some chunks take at one time or another."""
    order = np.argsort(use.address[mine], kind="stable")
    begins = use.address[mine][order]
    ends = np.maximum.accumulate(begins + use.size[mine][order])
    before = np.concatenate([[0], ends[:-1]])[: len(ends)]
    return int(np.maximum(ends - np.maximum(begins, before), 0).sum())


def _on_map(cuts: Sequence[_Cut], address: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where addresses are drawn, in bytes."""
    at = address.astype(float)
    for cut in cuts:
        inside = np.clip((address - cut.begin) / (cut.end - cut.begin), 0.0, 1.0)
        at = at - inside * (cut.end - cut.begin - cut.shown)
    return at


def _draw_chunks(
    axes: Axes, use: Mapped, low: NDArray[np.float64], high: NDArray[np.float64], asked: NDArray[np.float64]
) -> None:
    """All chunks of a kind at once; what a chunk has beyond what was asked for is hatched, above the rest."""
    from matplotlib.collections import PolyCollection

    for kind, (label, color) in enumerate(_KINDS):
        mine = use.kind == kind
        if mine.any():
            shapes = _rectangles(use.begin[mine], use.end[mine], low[mine], asked[mine])
            axes.add_collection(
                PolyCollection(shapes, facecolors=color, edgecolors="white", linewidths=0.25, label=label),
                autolim=False,
            )
    lost = _asked(use) < use.size
    if lost.any():
        shapes = _rectangles(use.begin[lost], use.end[lost], asked[lost], high[lost])
        axes.add_collection(
            PolyCollection(
                shapes, facecolors="#f5e6a8", edgecolors="#8a6d00", linewidths=0.25, hatch="/////", hatch_linewidth=0.4,
                label="lost inside of chunks",
            ),
            autolim=False,
        )  # fmt: skip


def _rectangles(
    begin: NDArray[np.float64], end: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> list[NDArray[np.float64]]:
    """The four corners of each."""
    corners = [(begin, low), (end, low), (end, high), (begin, high)]
    return list(np.stack([np.stack(corner, axis=1) for corner in corners], axis=1))


def _draw_cuts(axes: Axes, cuts: Sequence[_Cut], scale: float, top: float) -> None:
    """Where the picture is shortened, and how long it is there; labels that would lie on each other are one."""
    free: list[tuple[float, int]] = []
    for cut in cuts:
        at = float(_on_map(cuts, np.array([cut.begin]))[0])
        if cut.stays:
            text = f"{format_bytes(cut.end - cut.begin)} that stay, cut short"
            axes.annotate(
                text, (0.01, (at + cut.shown / 2) / scale), xycoords=("axes fraction", "data"), va="center", fontsize=8,
                color=GREY,
            )  # fmt: skip
            continue
        axes.axhline(at / scale, color=GREY, linewidth=0.9, linestyle=(0, (1, 2)))
        if free and at - free[-1][0] < _NEAR * top:
            free[-1] = (free[-1][0], free[-1][1] + cut.end - cut.begin)
        else:
            free.append((at, cut.end - cut.begin))
    for at, length in free:
        axes.annotate(
            f"{format_bytes(length)}\nnot used", (1.0, at / scale), (4, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="left", va="center", fontsize=8, color=GREY, annotation_clip=False,
        )  # fmt: skip


def _draw_names(
    axes: Axes, use: Mapped, low: NDArray[np.float64], high: NDArray[np.float64], names: Sequence[str]
) -> None:
    """What the largest chunks hold, if there is room for a name."""
    wide = (use.end - use.begin) / max(use.computations, 1)
    share = (high - low) / max(float(high.max(initial=0)), 1e-9)
    room = np.flatnonzero((wide > _WIDE) & (share > _HIGH))
    for k in room[np.argsort(-(wide * share)[room], kind="stable")][:_NAMES].tolist():
        node = int(use.node[k])
        if 0 <= node < len(names):
            text = short(names[node], max(6, int(_NAME * float(wide[k]))))
            middle = (use.begin[k] + use.end[k]) / 2, (low[k] + high[k]) / 2
            axes.annotate(text, middle, ha="center", va="center", fontsize=7, color="white")
