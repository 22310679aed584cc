"""What all pictures share: a figure without pyplot, colours, text that is shown as it is, and saving.

Figures are made without pyplot, so a program's own figures and backend are left alone. matplotlib is imported when the
first figure is made.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import OutputError
from ..files.jsonfile import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BLUE", "COLORS", "GREEN", "GREY", "ORANGE", "byte_scale", "finish", "new_figure", "rgb", "short"]

ORANGE, BLUE, GREEN, GREY = "#d55e00", "#0072b2", "#009e73", "#444444"  # Okabe and Ito: told apart by everybody
COLORS = (BLUE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""For curves beside that of the plain step, which is `ORANGE`."""

_SCALES = ((1e3, 1.0, "B"), (1e6, 1e3, "kB"), (1e10, 1e6, "MB"))  # below, what to divide by, unit


def new_figure(size_inches: tuple[float, float]) -> Figure:
    """An empty figure that lays itself out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(figure: Figure, path: str | Path | None, dpi: int) -> Figure:
    """Show all text as it is (a `$` in a name begins no formula), and write the picture if there is a path.

    The path's suffix tells the format, PNG if it has none. Its folder is made. The file is written whole or not at all.

    Raises
    ------
    OutputError
        If the format is unknown, or the folder or the file cannot be written.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
    if path is not None:
        _save(figure, Path(path), dpi)
    return figure


def _save(figure: Figure, path: Path, dpi: int) -> None:
    target = path if path.suffix else Path(f"{path}.png")
    known = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in known:
        raise OutputError(
            f"{str(path)!r} has a suffix that is not a picture format; give one of {', '.join(sorted(known))}"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {str(target.parent)!r} cannot be made: {error.strerror or error}") from None
    buffer = io.BytesIO()
    figure.savefig(buffer, format=target.suffix[1:].lower(), dpi=dpi)
    write_bytes(buffer.getvalue(), target)


def short(name: str, length: int = 40) -> str:
    """A name for a picture: on one line, printable, its middle left out if it is long."""
    text = "".join(c if c.isprintable() else " " for c in name).strip()
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[head + 1 - length :]}"


def byte_scale(largest: float) -> tuple[float, str]:
    """What to divide bytes by on an axis that ends there, and the unit that gives: MB from 1 MB to 10 GB."""
    return next(((scale, unit) for below, scale, unit in _SCALES if largest < below), (1e9, "GB"))


def rgb(color: str) -> tuple[float, float, float]:
    """`"#rrggbb"` as three numbers in [0, 1]."""
    red, green, blue = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue
