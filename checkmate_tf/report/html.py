"""One self-contained page of HTML: tables and pictures, everything escaped, nothing loaded from elsewhere.

The page forbids itself scripts and anything from the network (its content security policy), and pictures are inline.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Picture", "Section", "Table", "page", "picture"]

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em; color: #1a1a1a;
       background: #ffffff; }
h1 { font-size: 1.6em; } h2 { font-size: 1.25em; margin-top: 2.2em; border-bottom: 1px solid #cccccc; }
table { border-collapse: collapse; margin: 1em 0; } caption { text-align: left; font-weight: 600; padding: 0.3em 0; }
th, td { text-align: left; vertical-align: top; padding: 0.25em 0.9em 0.25em 0; border-bottom: 1px solid #eeeeee;
         overflow-wrap: anywhere; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1.5em 0; } img { max-width: 100%; height: auto; } figcaption { color: #555555; font-size: 0.9em; }
p.warning { border-left: 4px solid #d55e00; padding-left: 0.8em; }
"""


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row. A head may be empty."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A picture as PNG, with what it shows in words."""

    caption: str
    png: bytes


@dataclass(frozen=True)
class Section:
    """A heading with what is under it, in this order: warnings, tables, pictures, further tables."""

    title: str
    warnings: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    lists: Sequence[Table] = ()


def picture(figure: Figure, caption: str, dpi: int = 110) -> Picture:
    """Draw a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return Picture(caption, buffer.getvalue())


def page(title: str, sections: Sequence[Section], foot: str = "") -> str:
    """The page as text.

    Parameters
    ----------
    title : str
    sections : sequence of Section
    foot : str
        Shown below everything.
    """
    parts = [
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>",
        f"<h1>{_text(title)}</h1>",
    ]
    for section in sections:
        parts.append(f"<section>\n<h2>{_text(section.title)}</h2>")
        parts += [f'<p class="warning">{_text(warning)}</p>' for warning in section.warnings]
        parts += map(_table, section.tables)
        parts += map(_picture, section.pictures)
        parts += map(_table, section.lists)
        parts.append("</section>")
    if foot:
        parts.append(f"<footer><p>{_text(foot)}</p></footer>")
    parts.append("</body>\n</html>\n")
    return "\n".join(parts)


def _text(text: str) -> str:
    """Escaped; characters that HTML may not have (controls, lone surrogates) are replaced."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    return escape(shown)


def _table(table: Table) -> str:
    rows = [f"<caption>{_text(table.caption)}</caption>"] if table.caption else []
    if any(table.head):
        rows.append(f"<tr>{''.join(f'<th>{_text(cell)}</th>' for cell in table.head)}</tr>")
    for first, *others in table.rows:
        cells = "".join(f"<td{_number(cell)}>{_text(cell)}</td>" for cell in others)
        rows.append(f"<tr><th>{_text(first)}</th>{cells}</tr>")
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _number(cell: str) -> str:
    return ' class="number"' if cell[:1].isdigit() and len(cell) <= 16 else ""


def _picture(picture: Picture) -> str:
    data, caption = base64.b64encode(picture.png).decode("ascii"), _text(picture.caption)
    return (
        f'<figure>\n<img alt="{caption}" src="data:image/png;base64,{data}">\n'
        f"<figcaption>{caption}</figcaption>\n</figure>"
    )
