"""Tables in Markdown and CSV, and empty pictures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.lib.provenance import origins, time_limits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["geometric_mean", "markdown", "new_figure", "write_csv", "write_rows", "write_table"]


def geometric_mean(values: Sequence[float]) -> float:
    """Not a number if there is none."""
    from statistics import geometric_mean as mean

    return mean(values) if values else float("nan")


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_rows(output: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """All results of a folder as its cells.csv; ends the script if there are none."""
    if not rows:
        raise SystemExit(f"there is no result in {output}")
    write_csv(output / "cells.csv", columns, rows)


def write_table(output: Path, text: str, name: str = "table.md") -> None:
    """A folder's table, with a sentence on where its results were made, and one on time limits if they had several."""
    said = "\n\n".join(filter(None, (origins(output), time_limits(output))))
    (output / name).write_text(f"{text.rstrip()}\n\n{said}\n", encoding="utf-8")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
