"""Graphs and answers as JSON: round trips, a replayer that knows only the format's rules, bad input, the commands."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bruteforce import least_cost
from graphs import chain, random_graphs, resnet, training
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from checkmate_tf.cli import app
from checkmate_tf.cli.solve import solve_budget
from checkmate_tf.errors import BudgetError, CheckmateError, GraphError, InfeasibleBudgetError, OutputError, PlanError
from checkmate_tf.graph import Graph
from checkmate_tf.interchange import (
    graph_from_dict,
    graph_to_dict,
    infeasible_result,
    read_graph,
    result_to_dict,
    write_graph,
)
from checkmate_tf.jsonfile import to_json, write_json
from checkmate_tf.plan import ALLOCATE, COMPUTE, Plan, Statement
from checkmate_tf.schedule import Schedule, keep_all

RESULT_FIELDS = [
    *("format", "strategy", "solver", "status", "budget_bytes", "cost", "base_cost", "peak_bytes", "lower_bound"),
    *("gap", "seconds", "minimum_budget_bytes", "plan"),
]


def node(**fields):
    return {"name": "v", "kind": "forward", "cost": 1.0, "bytes": 8, "inputs": [], **fields}


def document(*nodes, **fields):
    start = {"format": "checkmate-graph/1", "name": "g", "cost_unit": "us", "constant_bytes": 0}
    return {**start, "nodes": list(nodes), **fields}


PAIR = document(node(), node(name="w", kind="backward", inputs=[0]))


def without(data, field):
    return {key: value for key, value in data.items() if key != field}


def replay(graph, result):
    """Cost and peak of an answer, by the rules of the format alone: an output is allocated before inputs are freed."""
    nodes, plan, n = graph["nodes"], result["plan"], len(graph["nodes"])
    readers = [{j for j, v in enumerate(nodes) if i in v["inputs"]} for i in range(n)]
    live, computed, stage = set(), set(), 0
    cost, memory = 0.0, graph["constant_bytes"]
    peak = memory
    for at, (action, i) in enumerate(plan):
        v = nodes[i]
        if action == "deallocate":
            live.remove(i)
            memory -= v["bytes"]
            continue
        assert action == "compute"
        assert i not in live
        assert live.issuperset(v["inputs"])
        assert i not in computed or stage < v.get("recompute_until", n)
        freed = set()
        for what, k in plan[at + 1 :]:
            if what == "compute":
                break
            freed.add(k)
        held = any(readers[k] == {i} and k not in freed for k in v["inputs"])
        scratch = v.get("workspace_bytes", 0) + (v.get("held_bytes", 0) if held else 0)
        live.add(i)
        computed.add(i)
        memory += v["bytes"]
        cost += v["cost"]
        peak = max(peak, memory + scratch)
        while stage in computed:
            stage += 1
    assert computed == set(range(n))
    assert live == {i for i in range(n) if not readers[i]}
    return cost, peak


def check(graph, result):
    """An answer with a plan holds what it says."""
    assert list(result) == RESULT_FIELDS
    cost, peak = replay(graph, result)
    base = math.fsum(v["cost"] for v in graph["nodes"])
    assert result["format"] == "checkmate-result/1"
    assert result["status"] in ("optimal", "feasible")
    assert result["cost"] == pytest.approx(cost)
    assert result["base_cost"] == pytest.approx(base)
    assert result["peak_bytes"] == peak <= result["budget_bytes"]
    assert base <= result["lower_bound"] * (1 + 1e-9)
    assert result["lower_bound"] <= result["cost"]
    if base:
        assert result["gap"] == pytest.approx(result["cost"] / result["lower_bound"] - 1)
    assert result["minimum_budget_bytes"] <= peak


def same(a, b):
    columns = ("kinds", "costs", "sizes", "workspace", "held", "recompute_until")
    assert (a.name, a.names, a.inputs, a.constant_bytes, a.cost_unit) == (
        *(b.name, b.names, b.inputs, b.constant_bytes, b.cost_unit),
    )
    for column in columns:
        np.testing.assert_array_equal(getattr(a, column), getattr(b, column))


@st.composite
def any_graphs(draw):
    """Random graphs with what only ours have: nodes that compute in place, and pay if they cannot."""
    graph = draw(random_graphs(8))
    n = len(graph)
    held = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    workspace = [draw(st.integers(-size, 2)) for size in graph.sizes.tolist()]
    return replace(graph, held=np.array(held), workspace=np.array(workspace), cost_unit=draw(st.text(max_size=3)))


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
    order = []
    for t in range(len(graph)):
        again = [i for i in range(t) if graph.recompute_until[i] > t]
        order += sorted(data.draw(st.sets(st.sampled_from(again)))) if again else []
        order.append(t)
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
        (document(*[node(bytes=2**61)] * 3), "wrong unit"),
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


def test_the_readme_has_a_graph():
    text = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
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


# --------------------------------------------------------------------------------------------------- budgets

GIGABYTES = training([[], [0]], [1.0, 1.0], [10**9, 10**9], constant_bytes=10**9)  # 4 GB at least, and 4 GB plainly


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("5000000000", 5 * 10**9),
        ("5_000_000_000", 5 * 10**9),
        ("5e9", 5 * 10**9),
        ("4GB", 4 * 10**9),
        ("0.5 GiB", 2**29),
        ("16MB", 16 * 10**6),
        ("100%", 4 * 10**9),
        ("50%", 25 * 10**8),
        ("29%", 10**9 + 87 * 10**7),
        ("12.5 %", 1375 * 10**6),
        ("0%", 10**9),
        ("150%", 55 * 10**8),
    ],
)
def test_budgets(budget, expected):
    assert solve_budget(budget, GIGABYTES) == pytest.approx(expected, abs=6)


def test_a_percentage_is_exact_and_of_what_can_be_saved():
    graph = graph_from_dict(document(node(bytes=100), constant_bytes=7))
    assert solve_budget("29%", graph) == 7 + 29


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("16", "16 is 16 bytes; the graph needs at least 4.00 GB: did you mean 16GB"),
        ("5000", "did you mean 5000MB"),
        ("0", "0 is 0 bytes"),
        ("0.6", "write 60% for a share"),
        ("1.5", "write 150% for a share"),
        ("-3", "negative"),
        ("-20%", "negative"),
        ("auto", "cannot be read"),
        ("nan", "cannot be read"),
        ("inf", "cannot be read"),
        ("", "cannot be read"),
        ("4XB", "cannot be read"),
        ("1e99", "2\\*\\*62"),
    ],
)
def test_bad_budgets(budget, says):
    with pytest.raises(BudgetError, match=says):
        solve_budget(budget, GIGABYTES)


def test_tiny_graphs_take_tiny_budgets():
    assert solve_budget("4", chain(4)) == 4
    assert solve_budget("0", graph_from_dict(document(node(bytes=0)))) == 0


# --------------------------------------------------------------------------------------------------- commands


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def flat(text):
    return " ".join(text.replace("│", " ").split())


@pytest.fixture
def path(tmp_path):
    write_graph(chain(8), tmp_path / "chain.json")
    return tmp_path / "chain.json"


def test_solve_to_a_file(path, tmp_path):
    output = tmp_path / "result.json"
    done = invoke("solve", path, "--budget", 8, "--gap", 0, "--seed", 3, "--time-limit", 20, "--output", output)
    assert done.exit_code == 0, done.stderr
    result = json.loads(output.read_text())
    check(graph_to_dict(chain(8)), result)
    assert (result["status"], result["cost"], result["budget_bytes"]) == ("optimal", 29.0, 8)
    assert result["minimum_budget_bytes"] <= 7
    assert "optimal" in done.stdout
    assert "cost 29" in done.stderr  # progress


def test_solve_to_standard_output(path):
    done = invoke("solve", path, "--budget", "100%", "--strategy", "checkpoint-all", "--memory-limit", "1GB")
    assert done.exit_code == 0, done.stderr
    result = json.loads(done.stdout)
    check(graph_to_dict(chain(8)), result)
    assert (result["status"], result["gap"], result["strategy"]) == ("optimal", 0.0, "checkpoint-all")
    assert result["minimum_budget_bytes"] < result["peak_bytes"]


@pytest.mark.parametrize(
    ("options", "status"),
    [(["--budget", 3], "infeasible"), (["--budget", 9, "--strategy", "checkpoint-all"], "unknown")],
)
def test_no_schedule_is_status_3_and_still_an_answer(path, tmp_path, options, status):
    output = tmp_path / "result.json"
    done = invoke("solve", path, *options, "--time-limit", 2, "--output", output, "--json")
    assert done.exit_code == 3
    result = json.loads(output.read_text())
    assert json.loads(done.stdout) == result
    assert list(result) == RESULT_FIELDS
    assert (result["status"], result["plan"], result["cost"]) == (status, None, None)
    assert 4 < result["minimum_budget_bytes"] <= 8
    assert "InfeasibleBudgetError" in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--strategy", "magic"], "choose one of"),
        (["--solver", "cplex"], "choose one of auto, gurobi, highs, scip, cp-sat, pdlp"),
        (["--time-limit", "inf"], "give a number"),
        (["--gap", "inf"], "give a number"),
        (["--memory-limit", "60%"], "--memory-limit '60%' cannot be read"),
        (["--output", "/no/such/folder/r.json"], "no folder"),
        (["--budget", "0.6"], "60%"),
    ],
)
def test_bad_options_are_status_2(path, options, says):
    done = invoke("solve", path, "--budget", 8, *options)
    assert done.exit_code == 2
    assert says in flat(done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_a_bad_graph_is_status_2_and_json_says_why(tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document(node(inputs=[0]))))
    done = invoke("solve", path, "--budget", 8, "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["error"]["type"] == "GraphError"


def test_odd_graphs_have_right_answers(tmp_path):
    """Twelve decades of costs, values of no bytes, double edges, a node apart, two sinks: as by brute force."""
    inputs = [[], [0, 0], [1], [], [2, 1], [0, 4], [1]]
    costs = [1e-6, 1.0, 1e6, 0.0, 1e-6, 1e3, 1.0]
    sizes = [2, 3, 1, 0, 2, 1, 0]
    rows = zip(inputs, costs, sizes, strict=True)
    data = document(*(node(inputs=i, cost=c, bytes=b) for i, c, b in rows), constant_bytes=4)
    graph = graph_from_dict(data)
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(data))
    plain = keep_all(graph).peak_bytes
    best = {budget: least_cost(graph, budget) for budget in range(4, plain + 1)}
    least = min(budget for budget, cost in best.items() if math.isfinite(cost))
    assert best[least] > graph.base_cost
    for budget in (least - 1, least, plain):
        done = invoke("solve", path, "--budget", budget, "--time-limit", 5, "--gap", 0)
        result = json.loads(done.stdout)
        if budget < least:
            assert (done.exit_code, result["plan"]) == (3, None)
            continue
        check(data, result)
        assert result["cost"] == pytest.approx(best[budget], rel=1e-12)
        assert result["minimum_budget_bytes"] == least


def test_the_command_as_a_process_without_tensorflow(path):
    """Exit statuses as a shell sees them; `solve` imports neither TensorFlow nor Keras."""
    code = (
        "import sys\nfrom checkmate_tf.cli import main\ntry:\n    main()\nfinally:\n"
        "    assert not {'tensorflow', 'keras', 'gurobipy', 'matplotlib'} & set(sys.modules)"
    )
    solved = subprocess.run(
        [sys.executable, "-c", code, "solve", path, "--budget", "8"], capture_output=True, text=True
    )
    assert solved.returncode == 0, solved.stderr
    check(graph_to_dict(chain(8)), json.loads(solved.stdout))
    for budget, status in (("2", 3), ("lots", 2)):
        run = [sys.executable, "-m", "checkmate_tf", "solve", str(path), "--budget", budget, "--time-limit", "1"]
        assert subprocess.run(run, capture_output=True).returncode == status


MODEL = """
import keras

def dense():
    layers = [keras.layers.Dense(8, activation="relu") for _ in range(3)]
    return keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(4, activation="softmax")])
"""


def test_graphs_of_models(tmp_path):
    """Both levels, in one process that imports TensorFlow."""
    (tmp_path / "models.py").write_text(MODEL)
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom checkmate_tf.cli import app\n"
        "for level in ('layer', 'op'):\n"
        "    done = CliRunner().invoke(app, ['graph', 'models.py:dense', '--batch-size', '64', '--level', level,\n"
        "                                    '--output', level + '.json'])\n"
        "    assert done.exit_code == 0, done.output\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    layers, ops = read_graph(tmp_path / "layer.json"), read_graph(tmp_path / "op.json")
    assert len(layers) == 2 * 4 + 1
    assert layers.sizes[0] == 64 * 8 * 4
    assert ops.cost_unit == "flop"
    assert ops.base_cost > 0
    assert ops.constant_bytes > 64 * 16 * 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--costs", "v100", "--level", "op"], 'costs "v100" (modelled V100 kernel costs) are of layers, not of ops'),
        (["--costs", "guess", "--level", "op"], "--level op has flops, profile, roofline"),
        (["--costs", "roofline"], "unknown at --level layer"),
        (["--level", "kernel"], "choose one of layer, op"),
        (["--loss", "mse"], "for --level op"),
        (["--output", "/no/such/folder/g.json"], "no folder"),
    ],
)
def test_bad_options_of_graph_are_refused_before_tensorflow_starts(options, says):
    done = invoke("graph", "MobileNet", *options)
    assert done.exit_code == 2
    assert says in flat(done.stderr.replace("─", " ").replace("╭", " ").replace("╮", " "))
