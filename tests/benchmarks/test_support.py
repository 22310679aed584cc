"""The table of what works has just the features that tests are marked with, and says what became of their tests."""

from __future__ import annotations

from types import SimpleNamespace

import conftest
import pytest

from benchmarks.product import support
from benchmarks.product.support import Feature

PAGE = support.PAGE.read_text(encoding="utf-8")


def test_the_page_lists_the_marked_features():
    names = [line.split(" | ")[0].removeprefix("| ") for line in support.table_in(PAGE)[2:]]
    wanted, group = [], ""
    for feature in support.marked_features():
        if feature.group != group:
            group = feature.group
            wanted.append(f"**{group}**")
        wanted.append(feature.name)
    assert names == wanted


def test_the_page_says_what_the_tests_said():
    made = support.table(support.marked_features(), support.read_outcomes())
    assert support.table_in(PAGE) == made


def test_no_feature_fails_or_was_not_run():
    said = support.table(support.marked_features(), support.read_outcomes())
    assert not [line for line in said if "**fails**" in line or "not run" in line]


SOURCE = """
import pytest

@pytest.mark.feature("Models", "a", name=["x", "y"])
@pytest.mark.feature("XLA", "b", refused="no", note="yet")
def test_it(name): ...
"""


def test_markers_are_read():
    assert [feature for feature, _ in support.features_in(SOURCE)] == [
        Feature("Models", "a"),
        Feature("XLA", "b", "no", "yet"),
    ]
    with pytest.raises(ValueError, match="line 4: give a group"):
        support.features_in(SOURCE.replace("Models", "Modules"))


def test_markers_are_merged_and_in_order(tmp_path):
    (tmp_path / "test_one.py").write_text(SOURCE)
    more = 'import pytest\n@pytest.mark.feature("Models", "a", note="slowly")\ndef test_more(): ...\n'
    (tmp_path / "test_two.py").write_text(more)
    assert support.marked_features(tmp_path) == [
        Feature("Models", "a", note="slowly"),
        Feature("XLA", "b", "no", "yet"),
    ]
    assert support.files_with_features(tmp_path) == ["test_one.py", "test_two.py"]
    (tmp_path / "test_two.py").write_text(more.replace('note="slowly"', 'refused="slow"'))
    with pytest.raises(ValueError, match="test_two.py, line 2: Models: a is refused for another reason"):
        support.marked_features(tmp_path)


def test_a_result_carries_the_features_of_its_case():
    mark = pytest.mark.feature
    made = [
        mark("Models", "a", name=["x", "y"]),
        mark("XLA", "b", name="z", refused="no"),
        mark("Faults", "c", note="here"),
    ]
    markers = [decorator.mark for decorator in made]
    items = [
        SimpleNamespace(
            user_properties=[],
            callspec=SimpleNamespace(params={"name": name}),
            iter_markers=lambda wanted: [mark for mark in markers if mark.name == wanted],
        )
        for name in ("x", "z")
    ]
    conftest.pytest_collection_modifyitems(items)
    assert [[value for _, value in item.user_properties] for item in items] == [
        ["Models: a", "Faults: c"],
        ["XLA: b", "Faults: c"],
    ]


def test_some_cases_of_a_test_are_long():
    only, but, whole = pytest.mark.long(only=("x",)), pytest.mark.long(but=("x", "y")), pytest.mark.long
    for decorator, long in ((only, "x"), (but, "z"), (whole, "xyz")):
        for name in "xyz":
            item = SimpleNamespace(
                user_properties=[],
                callspec=SimpleNamespace(params={"name": name}, id=name),
                own_markers=[decorator.mark],
                iter_markers=lambda wanted, mark=decorator.mark: [mark] if mark.name == wanted else [],
            )
            conftest.pytest_collection_modifyitems([item])
            assert bool(item.own_markers) is (name in long)


JUNIT = """<testsuites><testsuite name="pytest">
<testcase classname="tests.test_one" name="test_it[x]"><properties><property name="feature" value="Models: a" />
<property name="feature" value="Faults: c" /></properties></testcase>
<testcase classname="tests.test_one" name="test_it[y]"><properties><property name="feature" value="Models: a" />
</properties>{0}</testcase>
<testcase classname="tests.test_one" name="test_other" />
</testsuite></testsuites>"""
A = Feature("Models", "a", note="slowly")


@pytest.mark.parametrize(
    ("child", "line"),
    [
        ("", "| a | works; slowly | 3 |"),
        ("<skipped />", "| a | works; slowly | 3 |"),
        ("<failure>no</failure>", "| a | **fails**: test_one.py::test_it[y] | 3 |"),
        ("<error>no</error>", "| a | **fails**: test_one.py::test_it[y] | 3 |"),
    ],
)
def test_outcomes_become_lines(tmp_path, child, line):
    path, more = tmp_path / "junit.xml", tmp_path / "more.xml"
    path.write_text(JUNIT.format(child))
    more.write_text(JUNIT.format("").replace("[x]", "[z]").replace("[y]", "[z]"))
    outcomes = support.outcomes_of(path, more)
    support.write_outcomes(outcomes, tmp_path / "outcomes.json")
    assert support.read_outcomes(tmp_path / "outcomes.json") == outcomes
    assert support.table([A], outcomes)[2:] == ["| **Models** | | |", line]


def test_what_is_refused_or_was_not_run_says_so():
    refused, other = Feature("XLA", "b", "no"), Feature("Faults", "c")
    outcomes = {"test_one.py": {"test_it": {"outcome": "passed", "features": ["XLA: b"]}}}
    lines = support.table([refused, other], outcomes)
    assert "| b | refused: no | 1 |" in lines and "| c | not run | 0 |" in lines
    outcomes["test_one.py"]["test_it"]["outcome"] = "skipped"
    assert "| b | skipped here | 1 |" in support.table([refused], outcomes)


def test_the_table_takes_the_place_of_the_old_one():
    page = f"before\n{support.BEGIN}old\n{support.END}after\n"
    new = support.with_table(page, ["| new |"])
    assert support.table_in(new) == ["| new |"]
    assert new.startswith("before\n") and new.endswith("after\n") and "old" not in new
    with pytest.raises(ValueError, match="once"):
        support.with_table("before", ["| new |"])
