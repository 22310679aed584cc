"""Graphs and answers as JSON: round trips, answers that replay to what they say, bad input."""

from __future__ import annotations

import copy
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from documents import PAIR, RESULT_FIELDS, check, document, node, without
from graphs import any_graphs, chain, orders, resnet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkmate_tf.errors import CheckmateError, GraphError, InfeasibleBudgetError, OutputError, PlanError
from checkmate_tf.files.graphs import graph_from_dict, graph_to_dict, read_graph, write_graph
from checkmate_tf.files.jsonfile import to_json, write_json
from checkmate_tf.files.results import infeasible_result, result_to_dict
from checkmate_tf.graph import Graph
from checkmate_tf.plan import ALLOCATE, COMPUTE, Plan, Statement
from checkmate_tf.schedule import Schedule, keep_all


def same(a, b):
    columns = ("kinds", "costs", "sizes", "workspace", "held", "recompute_until")
    assert (a.name, a.names, a.inputs, a.constant_bytes, a.cost_unit) == (
        *(b.name, b.names, b.inputs, b.constant_bytes, b.cost_unit),
    )
    for column in columns:
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column))


# --------------------------------------------------------------------------------------------------- round trips


@given(any_graphs())
def test_graphs_round_trip(graph):
    data = graph_to_dict(graph)
    same(graph_from_dict(data), graph)
    same(graph_from_dict(json.loads(to_json(data))), graph)


def test_only_what_differs_from_the_defaults_is_written():
    data = graph_to_dict(chain(2))
    assert list(data) == ["format", "name", "cost_unit", "constant_bytes", "nodes"]
    assert {tuple(v) for v in data["nodes"]} == {("name", "kind", "cost", "bytes", "inputs")}
    assert data["nodes"][3] == {"name": "g1", "kind": "backward", "cost": 2.0, "bytes": 1, "inputs": [0, 1, 2]}


def test_files_round_trip(tmp_path):
    graph = replace(resnet(3), name='naïve "ResNet" \n')
    path = tmp_path / "graph.json"
    write_graph(graph, path)
    same(read_graph(path), graph)
    write_graph(chain(2), path)  # in its place
    same(read_graph(path), chain(2))
    assert os.listdir(tmp_path) == ["graph.json"]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # Windows' mark
    same(read_graph(path), chain(2))


@given(any_graphs(), st.data())
def test_any_schedule_replays_to_its_cost_and_peak(graph, data):
    order = data.draw(orders(graph))
    schedule = Schedule(graph, order)
    result = result_to_dict(schedule, budget_bytes=schedule.peak_bytes)
    check(graph_to_dict(graph), json.loads(to_json(result)))


def test_a_sink_that_is_computed_twice_has_one_copy_at_a_time():
    graph = graph_from_dict(document(node(), node(name="sink", inputs=[0]), node(name="end")))
    result = result_to_dict(Schedule(graph, [0, 1, 0, 1, 2]), budget_bytes=100)
    check(graph_to_dict(graph), result)
    assert result["plan"] == [
        *(["compute", 0], ["compute", 1], ["deallocate", 0], ["deallocate", 1]),
        *(["compute", 0], ["compute", 1], ["deallocate", 0], ["compute", 2]),
    ]


def test_two_copies_at_once_are_refused():
    schedule = keep_all(graph_from_dict(document(node(), node())))
    twice = [Statement(op, i, register) for register, i in enumerate([0, 0, 1]) for op in (ALLOCATE, COMPUTE)]
    vars(schedule)["plan"] = Plan(tuple(twice), 3)
    with pytest.raises(PlanError, match="two copies of node 0"):
        result_to_dict(schedule)


def test_the_bound_of_a_result():
    graph = chain(3)
    schedule = replace(keep_all(graph), lower_bound=0.0, budget_bytes=50)
    assert result_to_dict(schedule)["lower_bound"] == graph.base_cost
    assert result_to_dict(replace(schedule, lower_bound=math.inf))["gap"] == 0.0
    twice = Schedule(graph, [0, 1, 2, 3, 0, 1, 4, 5, 6], lower_bound=10.0)
    assert result_to_dict(twice)["gap"] == pytest.approx(11 / 10 - 1)
    free = graph.with_costs(np.zeros(len(graph)), "us")
    assert result_to_dict(keep_all(free))["gap"] == 0.0


@pytest.mark.parametrize(("proven", "status"), [(True, "infeasible"), (False, "unknown")])
def test_no_schedule(proven, status):
    error = InfeasibleBudgetError("too small", 4, 9, proven)
    result = infeasible_result(chain(3), error, strategy="checkmate", minimum_budget_bytes=7)
    assert list(result) == RESULT_FIELDS
    assert (result["status"], result["budget_bytes"], result["minimum_budget_bytes"]) == (status, 4, 7)
    assert [result[key] for key in ("plan", "cost", "peak_bytes", "lower_bound", "gap")] == [None] * 5


# --------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (None, "file.json is null; give an object"),
        ([PAIR], "file.json is a list of 1; give an object"),
        (without(PAIR, "format"), "no field 'format'"),
        ({**PAIR, "format": "checkmate-graph/2"}, "format is 'checkmate-graph/2'; this version reads"),
        ({**PAIR, "format": 1}, "format is 1"),
        (without(PAIR, "cost_unit"), "no field 'cost_unit'"),
        ({**PAIR, "name": 3}, "name is 3; give text"),
        ({**PAIR, "constant_bytes": -1}, "constant_bytes is -1; give at least 0"),
        ({**PAIR, "constant_bytes": True}, "constant_bytes is True; give a whole number of bytes"),
        ({**PAIR, "constants_bytes": 3}, "unknown field 'constants_bytes'; is 'constant_bytes' meant"),
        (document(), "the graph is empty"),
        (document(nodes={}), "nodes is an object of 0; give a list"),
        (document(node(), 7), "node 1 is 7; give an object"),
        (document(without(node(), "cost")), r"node 0 \('v'\) has no field 'cost'"),
        (document(node(kind="froward")), "kind is 'froward'; give \"forward\""),
        (document(node(kind=["loss"])), "kind is a list"),
        (document(node(cost=-1.5)), r"file.json: node 0 \('v'\): cost is -1.5; .* not negative"),
        (document(node(cost=math.nan)), "cost is nan"),
        (document(node(cost=math.inf)), "cost is inf"),
        (document(node(cost=10**400)), "more than 60 digits"),
        (document(node(cost="3")), "cost is '3'; give a number"),
        (document(node(cost=False)), "cost is False; give a number"),
        (document(*[node(cost=1e300)] * 2), "use a larger cost_unit"),
        (document(node(bytes=-4)), "bytes is -4; give at least 0"),
        (document(node(bytes=1.5)), "bytes is 1.5; give a whole number"),
        (document(node(bytes=math.nan)), "bytes is nan"),
        (document(node(bytes=1e30)), "bytes is 1e"),
        (document(*[node(bytes=2**52)] * 3), "wrong unit"),
        (document(node(bytes=10**400)), "bytes is a number of more than 60 digits; give at most"),
        (document(node(recompute_until=-(10**400))), "recompute_until is a number of more"),
        (document(node(), node(inputs=[10**400])), "out of range"),
        (document(node(bytes=None)), "bytes is null"),
        (document(node(inputs=0)), "inputs is 0; give a list"),
        (document(node(inputs=[0])), "cyclic or not in topological order"),
        (document(node(inputs=[1]), node()), "cyclic or not in topological order"),
        (document(node(), node(inputs=[2])), "out of range: there are 2 nodes, 0 to 1"),
        (document(node(), node(inputs=[-1])), "out of range"),
        (document(node(), node(inputs=[0.0])), "whole number"),
        (document(node(), node(inputs=[False])), "whole number"),
        (document(node(workspace_bytes=-9)), "workspace_bytes is -9; give at least -8"),
        (document(node(held_bytes=-1)), "held_bytes is -1"),
        (document(node(recompute_until=2)), "recompute_until is 2; give at most 1"),
        (document(node(workspace_byte=2)), "is 'workspace_bytes' meant"),
        (document(node(name="\ud800")), "not valid Unicode"),
    ],
)
def test_bad_graphs(data, says):
    with pytest.raises(GraphError, match=says) as caught:
        graph_from_dict(data, "file.json")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe\xff", "is not JSON"),
        (b"\x80graph", "is not JSON"),
        (b"null", "is null"),
        (b"[" * 100_000, "nested too deeply"),
        (b"1" * 10_000, "is not JSON"),
        (json.dumps(document(node(cost=math.nan))).encode(), "NaN is no number"),
        (json.dumps(document(node(cost=-math.inf))).encode(), "-Infinity is no number"),
        (json.dumps(PAIR).replace('"cost": 1.0', '"cost": 1e999').encode(), "cost is inf"),
        (json.dumps(PAIR).replace('"cost": 1.0', '"cost": 1.0, "cost": 2.0').encode(), "the field 'cost' twice"),
    ],
)
def test_bad_files(tmp_path, content, says):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(GraphError, match=says) as caught:
        read_graph(path)
    assert "bad.json" in str(caught.value)


def test_files_that_cannot_be_read_or_written(tmp_path):
    for path, says in ((tmp_path / "none.json", "No such file"), (tmp_path, "directory"), ("a\0b", "null byte")):
        with pytest.raises(GraphError, match=says):
            read_graph(path)
    for path, says in (
        (tmp_path / "no" / "g.json", "no folder"),
        (tmp_path, "not a file"),
        ("/dev/full", "not a file"),
        ("a\0b", "null"),
    ):
        with pytest.raises(OutputError, match=says):
            write_graph(chain(2), path)
    with pytest.raises(OutputError, match="File name too long"):
        write_graph(chain(2), tmp_path / ("x" * 300))
    with pytest.raises(GraphError, match="no nodes"):
        graph_to_dict(Graph("none", [], np.zeros(0), np.zeros(0), np.zeros(0), []))
    assert os.listdir(tmp_path) == []


def test_a_link_stays_a_link_and_a_failure_leaves_the_old_file(tmp_path):
    write_graph(chain(2), tmp_path / "old.json")
    (tmp_path / "link.json").symlink_to("old.json")
    write_graph(chain(3), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    same(read_graph(tmp_path / "old.json"), chain(3))
    with pytest.raises(ValueError, match="JSON"):
        write_json({"cost": math.nan}, tmp_path / "old.json")
    same(read_graph(tmp_path / "old.json"), chain(3))
    assert sorted(os.listdir(tmp_path)) == ["link.json", "old.json"]
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OutputError, match="cannot be written"):
        write_graph(chain(2), tmp_path / "circle")


def test_what_is_allowed():
    graph = graph_from_dict(
        document(
            node(name="same", bytes=0, comment="ignored"),
            node(name="same", kind="backward", inputs=[0, 0, 0], bytes=1e9),
            node(name="", kind="forward", cost=0),
            node(kind="loss", inputs=(2, 0), cost=np.float64(2), bytes=np.int64(3)),
            constant_bytes=5.0,
            source="a profiler",
        )
    )
    assert graph.inputs == ((), (0,), (), (0, 2))
    assert graph.sizes.tolist() == [0, 10**9, 8, 3]
    assert graph.kinds.tolist() == [0, 2, 0, 1]
    assert graph.constant_bytes == 5


def test_the_guide_has_a_graph():
    text = Path(__file__).parents[2].joinpath("docs", "command_line.md").read_text(encoding="utf-8")
    graph = graph_from_dict(json.loads(text.split("```json")[1].split("```")[0]))
    assert graph.names == ("conv", "loss", "grad_conv")


def test_ten_thousand_nodes(tmp_path):
    graph = resnet(1666)
    write_graph(graph, tmp_path / "big.json")
    same(read_graph(tmp_path / "big.json"), graph)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["forward", "loss", "checkmate-graph/1", 2**63, 10**400, 1e19, -1e-300]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@given(any_graphs(), st.data())
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_fuzzed_graphs_are_graphs_or_refused(graph, data):
    mutated = copy.deepcopy(graph_to_dict(graph))
    for _ in range(data.draw(st.integers(1, 3))):
        place = mutated
        while isinstance(place, (dict, list)) and place:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            below = place[key]
            if isinstance(below, (dict, list)) and below and data.draw(st.integers(0, 4)):
                place = below
                continue
            action = data.draw(st.sampled_from(["replace", "replace", "remove", "double"]))
            if action == "replace":
                place[key] = data.draw(VALUES)
            elif action == "remove":
                del place[key]
            elif isinstance(place, list):
                place.insert(key, copy.deepcopy(below))
            else:
                place[key + data.draw(st.text(max_size=3))] = below
            break
    try:
        found = graph_from_dict(mutated)
    except CheckmateError:
        return
    same(graph_from_dict(graph_to_dict(found)), found)
    schedule = keep_all(found)
    check(graph_to_dict(found), result_to_dict(schedule, budget_bytes=schedule.peak_bytes))


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_fuzzed_files_are_graphs_or_refused(tmp_path, data):
    content = bytearray(json.dumps(PAIR).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    path = tmp_path / "fuzzed.json"
    path.write_bytes(content)
    try:
        graph = read_graph(path)
    except CheckmateError:
        return
    assert len(graph) == 2
