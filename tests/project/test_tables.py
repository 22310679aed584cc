"""Tables of the README, the benchmarks' page and the guide are as the results say."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks.lib.paths import RESULTS
from benchmarks.lib.provenance import commits_of

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))

import pivots
import tables

HELD = """| network | budget | peak |
| --- | --- | --- |
| A | 60%: 7 MB | 6 MB |
| B | 60%: 9 MB |  |
| B | 30%: 5 MB | 4 MB |

Below it.

## Other

| network | x |
| --- | --- |
| C | 1 |
"""


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "benchmarks" / "results" / "held").mkdir(parents=True)
    (tmp_path / "benchmarks" / "results" / "held" / "table.md").write_text(HELD, encoding="utf-8")


@pytest.mark.parametrize("path", list(tables.pages()), ids=lambda path: path.relative_to(tables.ROOT).as_posix())
def test_tables_are_as_the_results_say(path):
    """Where this fails, `python docs/tables.py` writes them."""
    text = path.read_text(encoding="utf-8")
    assert text == tables.made(text)


@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ("results/held; columns: network | peak; rows: 60%", [["network", "peak"], ["A", "6 MB"], ["B", ""]]),
        ("results/held; columns: budget; rows: peak is given", [["budget"], ["60%: 7 MB"], ["30%: 5 MB"]]),
        ("results/held; below: Other", [["network", "x"], ["C", "1"]]),
    ],
)
def test_a_table_has_what_was_asked_for(results, asked, rows):
    assert tables.table_of(asked) == rows


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("results/held; columns: network | pique", "no column 'pique'"),
        ("results/hold", "no table of 'results/hold'"),
        ("results/held; rows: 50%", "no such row"),
        ("results/held; below: Elsewhere", "no heading 'Elsewhere'"),
        ("results/held; order: network", "none of columns, rows and below"),
    ],
)
def test_what_is_not_there_is_an_error(results, asked, says):
    with pytest.raises(ValueError, match=says):
        tables.table_of(asked)


def test_an_old_table_is_replaced_and_the_rest_stays(results):
    text = "Before.\n\n<!-- table: results/held; columns: peak; rows: B -->\n{}\nAfter.\n| own |\n"
    old, new = "| old |\n| --- |\n| 3 |\n", "| peak |\n| --- |\n| |\n| 4 MB |\n"
    assert tables.made(text.format(old)) == text.format(new) == tables.made(text.format(new))


@pytest.mark.parametrize("name", pivots.PIVOTED)
def test_tables_of_single_results_have_a_row_for_each_network_or_budget(name):
    rows = tables.table_of(name)
    named = 2 if rows[0][1] == "budget" else 1
    assert len({tuple(row[:named]) for row in rows}) == len(rows) > 2
    assert all(len(row) == len(rows[0]) and all(row) for row in rows)


FOLDERS = sorted(path.name for path in RESULTS.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_results_are_of_the_newest_version_or_say_why_they_are_older(name):
    """`version.json` names the commits of the newest version; what is not of these alone has its reason there."""
    told = json.loads((RESULTS / "version.json").read_text(encoding="utf-8"))
    newest = set(commits_of(RESULTS / name)) <= set(told["commits"])
    assert newest != (name in told["older"])
    assert newest or told["older"][name]["why"]


def test_only_what_there_is_has_a_reason():
    assert set(json.loads((RESULTS / "version.json").read_text(encoding="utf-8"))["older"]) <= set(FOLDERS)
