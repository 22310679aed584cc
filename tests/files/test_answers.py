"""Answers are read, and their plans replayed: claims are checked, not believed."""

from __future__ import annotations

import pytest
from answers import answer
from graphs import chain

from checkmate_tf.errors import PlanError
from checkmate_tf.files.answers import answer_from_dict, load_json
from checkmate_tf.files.jsonfile import read_json
from checkmate_tf.schedule import Schedule


def test_a_result_is_read_and_replayed():
    graph = chain(4)
    found = answer_from_dict(answer(graph), graph)
    schedule = Schedule(graph, **found.fields)
    assert schedule.sequence.tolist() == [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]
    assert found.replayed.cost == schedule.cost == found.claims["cost"]
    assert found.disagreements == []


def test_a_late_deallocation_counts():
    """The plan's own peak is told, not that of a plan that frees earlier."""
    graph = chain(4)
    given = answer(graph, range(9))
    late = [row for row in given["plan"] if row[0] == "compute"]
    found = answer_from_dict(given | {"plan": late}, graph)
    assert found.replayed.peak_bytes == graph.sizes.sum() > Schedule(graph, **found.fields).peak_bytes
    assert any("peak_bytes is claimed" in line for line in found.disagreements)


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        ({"lower_bound": 1e9}, "no plan is claimed to cost less than 1000000000"),
        ({"gap": -3}, "the gap is claimed to be -3"),
        ({"status": "infeasible"}, 'the status is claimed to be "infeasible", and there is a plan'),
        ({"minimum_budget_bytes": 10**9}, "1000000000 bytes are claimed to be the least budget that will do"),
    ],
)
def test_what_cannot_be_is_told_of(claim, says):
    graph = chain(4)
    assert any(says in line for line in answer_from_dict(answer(graph) | claim, graph).disagreements)


def test_an_answer_without_a_plan():
    graph = chain(4)
    none = dict.fromkeys(("plan", "cost", "peak_bytes", "lower_bound", "gap"))
    found = answer_from_dict(answer(graph, status="infeasible", **none), graph)
    assert (found.fields, found.replayed, found.disagreements) == (None, None, [])
    assert found.claims["status"] == "infeasible"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"plan": {}}, "plan is an object of 0; give a list"),
        ({"plan": [["compute", 9]]}, r"plan\[0\] is a list of 2; give .* 0 to 8"),
        ({"plan": [["compute", True]]}, r"plan\[0\] is"),
        ({"plan": [["compute", 0], ["compute"]]}, r"plan\[1\] is"),
        ({"plan": [["jump", 0]]}, r"plan\[0\] is"),
        ({"plan": [["compute", 1]]}, r"plan\[0\] computes node 1 while its input 0 is not in memory"),
        ({"plan": [["compute", 0], ["compute", 0]]}, r"plan\[1\] computes node 0, which is in memory already"),
        ({"plan": [["deallocate", 0]]}, r"plan\[0\] frees node 0, which is not in memory"),
        ({"plan": [["compute", 0]]}, "not one of graph 'chain4': .* never computed"),
        ({"plan": []}, "never computed"),
        ({"cost": "1"}, "cost is '1'; give a number"),
        ({"cost": True}, "cost is True"),
        ({"budget_bytes": 10**400}, "more than 60 digits"),
        ({"strategy": None}, "strategy is missing or null"),
        ({"format": "checkmate-result/2"}, "format is 'checkmate-result/2'"),
    ],
)
def test_bad_results_name_the_place(fields, message):
    with pytest.raises(PlanError, match=f"^bad.json: .*{message}"):
        answer_from_dict(answer() | fields, chain(4), "bad.json")


def test_not_a_result():
    for data in (None, [], "text", 3):
        with pytest.raises(PlanError, match="format is"):
            answer_from_dict(data, chain(4))


def test_bad_files(tmp_path):
    path = tmp_path / "bad.json"
    for content, message in ((b"{", "not JSON"), (b"\xff", "not JSON"), (b"[NaN]", "NaN is no number")):
        path.write_bytes(content)
        with pytest.raises(PlanError, match=message):
            load_json(path)
    path.write_text("[" * 2_000_000)
    with pytest.raises(PlanError, match="nested too deeply"):
        load_json(path)
    with pytest.raises(PlanError, match="more than 1,048,576 bytes"):
        read_json(path, "a graph", PlanError, most_bytes=1 << 20)
    with pytest.raises(PlanError, match="cannot be read"):
        load_json(tmp_path / "missing.json")
