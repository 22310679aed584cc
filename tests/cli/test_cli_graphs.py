"""The commands on graphs as JSON: `solve` and its status, `graph` of a model."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from bruteforce import least_cost
from commands import assert_refused, flat, invoke
from documents import RESULT_FIELDS, check, document, node
from graphs import chain, result_in_the_way

from checkmate_tf.files.graphs import graph_from_dict, graph_to_dict, read_graph, write_graph
from checkmate_tf.schedule import keep_all

# --------------------------------------------------------------------------------------------------- commands


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
    ("options", "status", "order"),
    [
        (["--strategy", "lp-rounding", "--order", "free"], "infeasible", "fixed"),
        (["--strategy", "twremat"], "unknown", "free"),
        (["--order", "fixed"], "infeasible", "fixed"),
        (["--order", "free", "--budget", 4], "infeasible", "free"),
    ],
)
def test_a_failure_tells_which_schedules_it_is_about(tmp_path, options, status, order):
    write_graph(result_in_the_way(), tmp_path / "late.json")
    done = invoke("solve", tmp_path / "late.json", "--budget", 6, "--time-limit", 2, "--json", *options)
    result = json.loads(done.stdout)
    assert (done.exit_code, result["status"], result["bound_order"]) == (3, status, order)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--strategy", "magic"], "choose one of"),
        (["--solver", "cplex"], "choose one of auto, gurobi, highs, scip, cp-sat, pdlp"),
        (["--order", "any"], "choose one of fixed, free"),
        (["--time-limit", "inf"], "give a number"),
        (["--gap", "inf"], "give a number"),
        (["--memory-limit", "60%"], "--memory-limit '60%' cannot be read"),
        (["--output", "/no/such/folder/r.json"], "no folder"),
        (["--budget", "0.6"], "60%"),
    ],
)
def test_bad_options_are_status_2(path, options, says):
    assert_refused(invoke("solve", path, "--budget", 8, *options), says)


def test_a_graph_is_not_written_over(path):
    before = path.read_text()
    assert_refused(invoke("solve", path, "--budget", 8, "--output", path), "is read, too, and would be lost")
    assert_refused(invoke("report", path, "--html", path), "is read, too, and would be lost")
    assert path.read_text() == before


def test_what_the_system_refuses_is_told_of_as_json_too(path, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("checkmate_tf.cli.solve.read_graph", refused)
    done = invoke("solve", path, "--budget", 8, "--json")
    assert done.exit_code == 2
    assert "Permission denied" in json.loads(done.stdout)["error"]["message"]


def test_a_full_standard_output_is_told_of(path):
    command = [sys.executable, "-m", "checkmate_tf", "solve", path, "--budget", "100%"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert "No space left on device" in flat(done.stderr) and "Traceback" not in done.stderr


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


def test_graphs_of_models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODEL)
    for level in ("layer", "op"):
        output = f"{level}.json"
        done = invoke("graph", "models.py:dense", "--batch-size", 64, "--level", level, "--output", output)
        assert done.exit_code == 0, done.stderr
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


def test_random_graphs_without_a_model(tmp_path):
    for seed, name in ((3, "a"), (3, "b"), (4, "c")):
        done = invoke("graph", "--random", 100, "--seed", seed, "--output", tmp_path / f"{name}.json")
        assert done.exit_code == 0, done.stderr
    a, b, c = ((tmp_path / f"{name}.json").read_text() for name in "abc")
    assert a == b != c
    graph = read_graph(tmp_path / "a.json")
    assert (len(graph), len(graph.edges)) == (100, 236)  # as in Moccasin's paper
    done = invoke("graph", "--random", 20, "--edges", 40, "--json")
    assert (done.exit_code, len(graph_from_dict(json.loads(done.stdout)).edges)) == (0, 40)


def test_a_log_of_calls_becomes_a_graph(tmp_path):
    lines = [
        {"INSTRUCTION": "CALL", "NAME": "f", "ARGS": [], "RESULT": ["a"], "TIME": "1500"},
        {"INSTRUCTION": "MEMORY", "NAME": "a", "MEMORY": "100"},
        {"INSTRUCTION": "ALIAS", "NAME": "a", "ALIAS": "-1"},
    ]
    (tmp_path / "step.log").write_text("\n".join(map(json.dumps, lines)))
    done = invoke("graph", "--dtr-log", tmp_path / "step.log", "--output", tmp_path / "step.json")
    assert done.exit_code == 0, done.stderr
    graph = read_graph(tmp_path / "step.json")
    assert (graph.names, graph.costs.tolist()) == (("f", "outputs"), [1.5, 0.0])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a MODEL, --random"),
        (["MobileNet", "--random", 10, "--batch-size", 4], "leave out MODEL, --batch-size"),
        (["MobileNet", "--seed", 1], "for --random"),
        (["--random", 6, "--edges", 100], "give another number of edges"),
        (["--random", 100, "--output", "/no/such/folder/g.json"], "no folder"),
        (["MobileNet", "--dtr-log", "step.log", "--random", 10], "leave out MODEL, --random"),
        (["--dtr-log", "/no/such/step.log"], "cannot be read"),
    ],
)
def test_bad_options_of_random_graphs(arguments, says):
    done = invoke("graph", *arguments)
    assert done.exit_code == 2
    assert says in flat(done.stderr)
