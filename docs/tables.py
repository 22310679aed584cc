"""Writes the tables of the README and the guide, from results of the benchmarks.

A comment above a table says what it is made from:

    <!-- table: results/NAME; columns: A | B; rows: TEXT -->

That is the first table of `benchmarks/results/NAME/table.md`, or of a file `results/NAME.md`: of all columns or these,
of all rows or those in which some cell begins with TEXT. `below: HEADING` takes the first table below a heading.
`rows: A is given` takes the rows that have something in column A. In place of `results/NAME` there may be a name of
`pivots.PIVOTED`: a table that is put together from single results.

    python docs/tables.py            # writes all of them
    python docs/tables.py --check    # writes nothing; ends with 1 if one is not as its results
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from pivots import PIVOTED, Rows

ROOT = Path(__file__).resolve().parents[1]

__all__ = ["made", "pages", "table_of"]

MARKED = re.compile(r"^<!-- table: (?P<asked>.+) -->\n(?P<table>(?:\|.*\n)*)", re.MULTILINE)


def pages() -> Iterator[Path]:
    """All texts that may have such tables."""
    yield ROOT / "README.md"
    yield ROOT / "benchmarks" / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def made(text: str) -> str:
    """A text with its tables as the results are now."""
    return MARKED.sub(lambda found: f"<!-- table: {found['asked']} -->\n{_markdown(table_of(found['asked']))}", text)


def table_of(asked: str) -> Rows:
    """The table that a comment asks for.

    Raises
    ------
    ValueError
        If there is no such table or column, or no such row.
    """
    source, *options = (part.strip() for part in asked.split(";"))
    chosen = dict(_option(asked, option) for option in options)
    rows = PIVOTED[source]() if source in PIVOTED else _read(source, chosen.get("below"))
    if "rows" in chosen:
        rows = [rows[0], *_rows(rows, chosen["rows"])]
    if len(rows) < 2:
        raise ValueError(f"{asked!r}: there is no such row")
    if "columns" not in chosen:
        return rows
    at = [_column(rows, name.strip()) for name in chosen["columns"].split(" | ")]
    return [[row[k] for k in at] for row in rows]


def _option(asked: str, option: str) -> tuple[str, str]:
    name, _, value = option.partition(": ")
    if name not in ("columns", "rows", "below"):
        raise ValueError(f"{asked!r}: {option!r} is none of columns, rows and below")
    return name, value


def _column(rows: Rows, name: str) -> int:
    if rows[0].count(name) != 1:
        raise ValueError(f"there is no column {name!r}, or more than one, among {rows[0]}")
    return rows[0].index(name)


def _rows(rows: Rows, wanted: str) -> Rows:
    if wanted.endswith(" is given"):
        at = _column(rows, wanted.removesuffix(" is given"))
        return [row for row in rows[1:] if row[at]]
    return [row for row in rows[1:] if any(cell.startswith(wanted) for cell in row)]


def _read(source: str, heading: str | None) -> Rows:
    """The first table of a folder's table.md, below a heading if there is one."""
    path = ROOT / "benchmarks" / (source if source.endswith(".md") else f"{source}/table.md")
    if not path.is_file():
        raise ValueError(f"there is no table of {source!r}")
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    if heading is not None and not any(line.lstrip("# ") == heading and line.startswith("#") for line in lines):
        raise ValueError(f"{source} has no heading {heading!r}")
    rows: Rows = []
    for line in lines:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif rows:
            break
    return [row for row in rows if not set("".join(row)) <= set("- ")]


def _markdown(rows: Rows) -> str:
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows]
    return "\n".join([lines[0], f"|{' --- |' * len(rows[0])}", *lines[1:]]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; end with 1 if a table is not as it should be"
    )
    options = parser.parse_args(arguments)
    old = [path for path in pages() if made(path.read_text(encoding="utf-8")) != path.read_text(encoding="utf-8")]
    for path in old:
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
        if not options.check:
            path.write_text(made(path.read_text(encoding="utf-8")), encoding="utf-8")
    if old and options.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
