"""Writes the tables of the README and the guide, from results of the benchmarks.

A comment above a table says what it is made from:

    <!-- table: results/NAME; columns: A | B; rows: TEXT -->

That is the first table of `benchmarks/results/NAME/table.md`: of all columns or these, of all rows or those in which
some cell begins with TEXT. `below: HEADING` takes the first table below a heading. `rows: A is given` takes the rows
that have something in column A. In place of `results/NAME` there may be a name of `PIVOTED`: a table that is put
together from single results.

    python docs/tables.py            # writes all of them
    python docs/tables.py --check    # writes nothing; ends with 1 if one is not as its results
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.lib.paths import RESULTS  # noqa: E402
from benchmarks.lib.provenance import UNSAID, commits_of  # noqa: E402

__all__ = ["PIVOTED", "made", "pages", "table_of"]

MARKED = re.compile(r"^<!-- table: (?P<asked>.+) -->\n(?P<table>(?:\|.*\n)*)", re.MULTILINE)

Rows = list[list[str]]  # of cells; the first row has the names of columns


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
    path = ROOT / "benchmarks" / source / "table.md"
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


# Tables that are put together from single results


def batches() -> Rows:
    """The largest batch that trains under a hard limit: a row a network, a column a way."""
    ways = {
        "plain": "plain", "remat-scope": "`keras.RematScope`", "recompute-grad": "`tf.recompute_grad`",
        "ours": "`checkmate_tf`",
    }  # fmt: skip
    rows = [["hard limit", *ways.values()]]
    for network, found in _by_network("batch_size_real").items():
        limit = int(found["plain"]["limit_mb"]) * 2**20
        size = f"{limit / 1e9:.0f} GB" if limit > 1e9 else f"{limit / 1e7:.0f}0 MB"
        cells = [found[way]["batch"] for way in ways]
        cells[-1] = f"**{cells[-1]}, {float(found['ours']['over_plain']):.1f}x plain**"
        rows.append([f"{_title(network)}, {size}", *cells])
    return rows


def peers() -> Rows:
    """Peak, step time and errors of each way to train in less memory: a row a network."""
    head = [
        "network", "plain", "`tf.recompute_grad`", "wrong in it", "`keras.RematScope`, peak", "`checkmate_tf`",
        "within 60% of the activations", "wrong in ours",
    ]  # fmt: skip
    rows = [head]
    for network, found in _by_network("peers").items():
        plain, theirs = found["plain"], found["recompute-grad"]
        more = float(found["remat-scope"]["peak_bytes"]) / float(plain["peak_bytes"]) - 1
        scope = f"{abs(more):.0%} {'more' if more > 0 else 'less'} than plain"
        ours = [found["ours"], found["ours, 60%"]]
        wrong = sorted({_wrong(cell) for cell in ours} - {"none"}) or ["none"]
        rows.append([
            _title(network), f"{_megabytes(plain)} MB", _taken(theirs), _wrong(theirs), scope, f"**{_taken(ours[0])}**",
            _taken(ours[1]), "; ".join(wrong),
        ])  # fmt: skip
    return rows


def _by_network(name: str) -> dict[str, dict[str, dict[str, str]]]:
    """Results of a folder by network and way."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    with (RESULTS / name / "cells.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            way = "ours, 60%" if "60% of activations" in row["variant"] else row["way"]
            found.setdefault(row["network"], {})[way] = row
    return found


def _title(network: str) -> str:
    from checkmate_tf.check.networks import NETWORKS

    return NETWORKS[network].title


def _megabytes(cell: dict[str, str]) -> str:
    return f"{float(cell['peak_bytes']) / 1e6:.0f}"


def _taken(cell: dict[str, str]) -> str:
    return f"{_megabytes(cell)} MB, {float(cell['step_ratio']):.2f}x"


_ROUNDING = 1e-4  # relative: errors of gradients below it are of rounding


def _wrong(cell: dict[str, str]) -> str:
    """What differs from the plain model by more than rounding."""
    wrong = []
    if float(cell["gradient_error"] or 0) > _ROUNDING:
        wrong.append(f"gradients ({float(cell['gradient_error']):.0%})")
    if float(cell["statistics_error"] or 0) > _ROUNDING:
        wrong.append(f"BN statistics ({float(cell['statistics_error']):.2f} of their change)")
    if int(float(cell["seeds_off"] or 0)):
        wrong.append(f"{float(cell['seeds_off']):.0f} of {float(cell['seeds']):.0f} seeds")
    return ", ".join(wrong) or "none"


def ages() -> Rows:
    """Of which commits the results of each folder are; and why, if that is not the newest version."""
    told = json.loads((RESULTS / "version.json").read_text(encoding="utf-8"))
    rows = [["results", "of commit", "why they are older"]]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        older = told["older"].get(folder.name, {"why": "not older"})
        commits = [f"{name} ({older['day']})" if name == UNSAID else name for name in commits_of(folder)]
        rows.append([folder.name, ", ".join(commits), older["why"]])
    return rows


PIVOTED: dict[str, Callable[[], Rows]] = {"ages": ages, "batches": batches, "peers": peers}


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
