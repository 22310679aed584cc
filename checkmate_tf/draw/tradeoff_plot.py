"""What less memory costs: overhead against the budget."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .canvas import BLUE, GREY, ORANGE, byte_scale, finish, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_tradeoff"]


def plot_tradeoff(
    budget_bytes: Sequence[int],
    overhead: Sequence[float],
    least_overhead: Sequence[float],
    *,
    title: str,
    knee: tuple[int, float] | None,
    impossible_bytes: int,
    path: str | Path | None = None,
    dpi: int = 150,
) -> Figure:
    """Draw what each budget costs, between what is known and what is proven.

    Parameters
    ----------
    budget_bytes, overhead, least_overhead : sequences of equal length
        Budgets, the overhead of the schedules known, and what no schedule can stay below.
    knee : (bytes, overhead), optional
        To be marked.
    impossible_bytes : int
        Below this no schedule fits.
    path : path, optional
        Where to save it (PNG, PDF or SVG).

    Raises
    ------
    OutputError
        As `canvas.finish`.
    """
    divisor, unit = byte_scale(max(budget_bytes))
    x = [size / divisor for size in budget_bytes]
    figure = new_figure((7.0, 4.0))
    axes = figure.subplots()
    known, proven = ([100 * share for share in shares] for shares in (overhead, least_overhead))
    axes.fill_between(x, proven, known, color=BLUE, alpha=0.15, linewidth=0, label="not known to be needed")
    axes.plot(x, known, "o-", color=BLUE, label="known")
    axes.plot(x, proven, ":", color=GREY, label="no schedule stays below, by proof")
    if knee is not None:
        where = [knee[0] / divisor], [100 * knee[1]]
        axes.plot(*where, "o", color=ORANGE, markersize=10, fillstyle="none", label="knee")
    axes.axvspan(0, impossible_bytes / divisor, color=ORANGE, alpha=0.12, linewidth=0, label="impossible")
    axes.set_xlim(max(0.0, 0.9 * impossible_bytes / divisor), 1.02 * max(x))
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"budget, {unit}")
    axes.set_ylabel("more computation, %")
    axes.set_title(title)
    axes.legend()
    axes.grid(alpha=0.3)
    return finish(figure, path, dpi)
