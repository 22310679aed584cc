"""The matrix of machines: outcomes are counted, nothing that failed is good, and the page says what was found."""

from __future__ import annotations

import os
import sys

import pytest

from benchmarks.product import machines
from benchmarks.product.machines import CELLS, Cell

SUITE = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><failure message="no"/></testcase>
<testcase classname="tests.a" name="three"><error message="no"/></testcase>
<testcase classname="tests.b" name="four"><skipped message="not installed"/></testcase>
</testsuite></testsuites>"""
TRAINED = {"network": "unet", "budget": 100, "peak_bytes": 90, "fit_peak_bytes": 97, "bit_equal": True}
SETTING = {"commit": "abc", "tensorflow": "2.21", "keras": "3.15", "gurobipy": "absent"}


def test_outcomes_are_counted(tmp_path):
    path = tmp_path / "a.xml"
    path.write_text(SUITE, encoding="utf-8")
    found = machines.outcomes(path)
    assert (found["passed"], found["failed"], found["skipped"]) == (1, 2, 1)
    assert found["which_failed"] == ["tests.a::two", "tests.a::three"]
    assert found["why_skipped"] == {"not installed": 1}


def test_a_part_without_outcome_is_a_failure(tmp_path):
    found = machines.outcomes(tmp_path / "crashed.xml")
    assert found["failed"] == 1 and not machines.good(found)


@pytest.mark.parametrize(
    ("change", "good"),
    [({}, True), ({"fit_peak_bytes": 101}, False), ({"peak_bytes": 101}, False), ({"bit_equal": False}, False)],
)
def test_networks_are_exact_and_within_the_budget(change, good):
    assert machines.good({"cells": [TRAINED, {**TRAINED, **change}]}) is good


def test_what_was_not_run_is_not_good():
    assert not machines.good(None)
    assert not machines.good({"cells": [{"network": "unet", "infeasible": "at least 120"}]})
    assert machines.good({"failed": 0}) and not machines.good({"failed": 1})


def test_the_table_says_what_was_found():
    suite = {**SETTING, "passed": 5, "failed": 1, "skipped": 2}
    refused = {"network": "lstm", "infeasible": "at least 120"}
    lines = machines.table({"avx2": {"suite": suite, "networks": {**SETTING, "cells": [TRAINED, refused]}}, "own": {}})
    assert "| 5, 1, 2 (16-bit types left out) | unet 97%, equal; lstm refused | abc |" in lines[2]
    assert "Keras 3.15, no gurobipy" in lines[2] and lines[3].count("not run") == 2


def test_the_page_has_the_table_of_the_results():
    page = machines.PAGE.read_text(encoding="utf-8")
    assert machines.table_in(page) == machines.table({name: machines.read(name) for name in CELLS})
    assert machines.with_table(page, machines.table_in(page)) == page


def test_a_cell_has_one_core_and_neighbours_while_it_runs():
    before = os.sched_getaffinity(0)
    with machines.prepared(Cell("", {"A": "1"}, one_core=True, busy=True)) as (python, environment):
        assert len(os.sched_getaffinity(0)) == 1
        assert str(python) == sys.executable and environment["A"] == "1"
    assert os.sched_getaffinity(0) == before
