"""Numbers that were published: `data/published.csv` and `data/v100_published.csv`."""

from __future__ import annotations

import csv

from benchmarks.lib.paths import ROOT

__all__ = ["published", "published_times"]


def published(table: str | None = None, system: str = "checkmate") -> list[dict[str, str]]:
    """The rows of `data/published.csv` of one paper, of all its figures and tables or of one."""
    rows = _rows("published.csv")
    return [row for row in rows if row["system"] == system and table in (None, row["table"])]


def published_times() -> list[dict[str, str]]:
    """The rows of `data/v100_published.csv`: milliseconds of networks on a V100."""
    return _rows("v100_published.csv")


def _rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "data" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
