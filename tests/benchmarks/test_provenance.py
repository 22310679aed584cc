"""Results say where they were made, and tables say it of their results."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks import all_figures
from benchmarks.lib import provenance
from benchmarks.lib.cells import in_child, run_cells
from benchmarks.lib.tables import write_table

HERE = {"commit": "abc1234", "processor": "Processor (avx2)", "cores": 2}
CHILD = """
import json, sys
request = json.loads(sys.argv[sys.argv.index("--child") + 1])
if request.get("fails"):
    raise SystemExit("no")
print("RESULT " + json.dumps({"answer": request["asked"] + 1}))
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "commit", lambda: HERE["commit"])
    path = tmp_path / "script.py"
    path.write_text(CHILD, encoding="utf-8")
    return str(path)


def test_answers_say_where_they_were_made(script):
    found = in_child(script, {"asked": 1}, 60)
    assert found["answer"] == 2
    assert found["made"] == provenance.made_here() and found["made"]["commit"] == HERE["commit"]


def test_so_do_failures(script, tmp_path):
    run_cells(script, tmp_path, [{"cell": "cell-a", "fails": True}], lambda _: 60.0)
    assert json.loads((tmp_path / "cell-a.json").read_text())["made"]["commit"] == HERE["commit"]


def text_of(folder, *results):
    for k, result in enumerate(results):
        (folder / f"cell-{k}.json").write_text(json.dumps(result), encoding="utf-8")
    write_table(folder, "| a |\n")
    return (folder / "table.md").read_text(encoding="utf-8")


def test_a_table_of_one_commit_names_it(tmp_path):
    (tmp_path / "graph-a.json").write_text('{"format": "checkmate-graph/1"}', encoding="utf-8")  # no result
    text = text_of(tmp_path, {"made": HERE}, {"made": HERE})
    assert text == "| a |\n\nResults: of commit abc1234, on 2 cores of Processor (avx2).\n"


@pytest.mark.parametrize("other", [{"made": HERE | {"commit": "def"}}, {"made": HERE | {"cores": 1}}, {}])
def test_a_table_of_several_says_so(tmp_path, other):
    text = text_of(tmp_path, {"made": HERE}, other, {"made": HERE})
    assert "**Results of several commits or machines**: 2 of commit abc1234, on 2 cores" in text


def test_a_table_of_older_results_says_so(tmp_path):
    assert "of a commit that they do not say" in text_of(tmp_path, {}, {})


def test_a_table_of_several_time_limits_says_so(tmp_path):
    assert "time limits" not in text_of(tmp_path, {"time_limit": 5.0}, {"time_limit": 5})
    text = text_of(tmp_path, {"time_limit": 5.0}, {"time_limit": 10.0}, {"limit": 10})
    assert "**Results of several time limits**: 1 of 5 s, 2 of 10 s." in text


def test_results_of_parts_say_the_commit_of_each(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"suite": HERE, "networks": HERE | {"commit": "def"}}))
    assert provenance.commits_of(tmp_path) == ["abc1234", "def"]


def test_a_table_without_results_is_made_here(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "made_here", lambda: HERE)
    assert "of commit abc1234" in text_of(tmp_path)


def test_the_commit_of_this_checkout():
    assert int(provenance.commit().rstrip("+"), 16) >= 0 or not (provenance.ROOT / ".git").exists()


def test_one_script_after_the_other_and_the_failed_ones_are_named(tmp_path, monkeypatch, capfd):
    (tmp_path / "good.py").write_text("import sys; print('good', *sys.argv[1:])", encoding="utf-8")
    (tmp_path / "bad.py").write_text("raise SystemExit(3)", encoding="utf-8")
    monkeypatch.setattr(all_figures, "SCRIPTS", {name: tmp_path / f"{name}.py" for name in ("bad", "good")})
    monkeypatch.setattr(sys, "argv", ["all_figures.py", "--full"])
    with pytest.raises(SystemExit, match="failed: bad"):
        all_figures.main()
    said = capfd.readouterr().out
    assert "1 of 2: bad" in said and "2 of 2: good" in said and "good --full" in said


def test_every_script_of_the_figures_is_run():
    assert all(path.is_file() for path in all_figures.SCRIPTS.values())
    figures = (all_figures.HERE / "figures").glob("*.py")
    assert {path.stem for path in figures} - {"__init__"} <= set(all_figures.SCRIPTS)
