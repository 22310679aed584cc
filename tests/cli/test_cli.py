"""The command line: what it prints where, its exit statuses, and how the demo's children end."""

import inspect
import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
from commands import flat, invoke

from checkmate_tf import __version__, cli
from checkmate_tf.cli.demo.run import Run
from checkmate_tf.device import process as process_module
from checkmate_tf.device.in_child import OUT_OF_MEMORY
from checkmate_tf.device.process import _explain, run_child
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.strategies import STRATEGIES

FAST = ["--costs", "flops", "--time-limit", "2", "--no-verify", "--batch-size", "64"]

MODELS = '''
import keras
import numpy as np

L = keras.layers


def wide():
    """Not compiled."""
    stack = [L.Conv2D(8, 3, padding="same", activation="relu") for _ in range(8)]
    return keras.Sequential([keras.Input((16, 16, 3)), *stack, L.Flatten(), L.Dense(4, activation="softmax")])


def with_data():
    model = wide()
    model.compile(optimizer="sgd", loss="mse")
    return model, (np.zeros((5, 16, 16, 3), "float32"), np.zeros((5, 4), "float32"))


def nothing():
    return None


def broken():
    raise RuntimeError("no such weights")
'''


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS, encoding="utf-8")
    return path


def test_help_is_fast_since_it_imports_nothing_heavy():
    code = """
import sys
from typer.testing import CliRunner
from checkmate_tf.cli import app
for arguments in (["--help"], ["plan", "--help"], ["--version"]):
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
heavy = {"tensorflow", "keras", "ortools", "gurobipy", "matplotlib", "numba", "scipy", "pandas"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version():
    assert invoke("--version").stdout.strip() == f"checkmate-tf {__version__}"


@pytest.mark.parametrize("command", [cli.plan, cli.report])
@pytest.mark.parametrize("option", ["gap", "time_limit", "strategy", "costs", "verify"])
def test_planning_is_that_of_compile_by_default(command, option):
    assert inspect.signature(command).parameters[option].default == getattr(PlanOptions(), option)


def test_doctor_as_one_json_document(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "not" / "yet" / "there"))
    result = invoke("doctor", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["checkmate_tf"] == __version__
    assert any(device["used"] and device["memory_bytes"] for device in found["devices"])
    assert found["solvers"]["ortools"]["version"]
    assert found["solvers"]["gurobi"]["licence"] in ("none", "size-limited", "full")
    assert found["allocator_statistics"].keys() == {"in_this_command", "in_your_programs", "how"}
    assert found["cache"]["writable"]
    assert found["numba"]


def test_doctor_never_fails(monkeypatch):
    def absent(*arguments, **options):
        raise OSError("no processes today")

    monkeypatch.setattr(subprocess, "run", absent)
    result = invoke("doctor")
    assert result.exit_code == 0
    assert "no processes today" in flat(result.stdout)


@pytest.mark.long
def test_plan_of_a_function_with_a_picture(models, tmp_path):
    picture = tmp_path / "schedule.png"
    result = invoke("plan", f"{models}:wide", "--budget", "70%", *FAST, "--plot", picture, "--json")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)  # nothing else on standard output
    assert report["batch_size"] == 64
    assert report["predicted_peak_bytes"] <= report["budget_bytes"] < report["plain_peak_bytes"]
    assert "sparse_categorical_crossentropy" in report["compiled"]
    assert "was not compiled" in flat(result.stderr)
    assert picture.stat().st_size > 1000


def test_a_saved_plan_is_used_instead_of_solving(models, tmp_path):
    saved = tmp_path / "schedule.json"
    first = invoke("plan", f"{models}:wide", "--budget", "70%", *FAST, "--no-cache", "--save", saved, "--json")
    assert first.exit_code == 0, first.stderr
    again = invoke("plan", f"{models}:wide", "--budget", "70%", *FAST, "--schedule", saved, "--json")
    assert again.exit_code == 0, again.stderr
    one, other = json.loads(first.stdout), json.loads(again.stdout)
    assert one["saved"] == str(saved) and "solve" not in other["seconds"]
    assert (other["predicted_peak_bytes"], other["overhead"]) == (one["predicted_peak_bytes"], one["overhead"])
    result = invoke("plan", f"{models}:wide", "--schedule", tmp_path / "absent.json")
    assert result.exit_code == 2 and "no such file" in flat(result.stderr)


def test_plan_takes_the_batch_from_the_functions_data(models):
    result = invoke("plan", f"{models}:with_data", "--budget", "100%", *FAST[:-2])
    assert result.exit_code == 0, result.stderr
    assert "batch 5" in result.stdout
    assert "compiled with" not in result.stderr


def test_plan_of_a_keras_file(tmp_path):
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1, activation="sigmoid")])
    path = tmp_path / "saved.keras"
    model.save(path)
    result = invoke("plan", path, "--budget", "1GB", *FAST)
    assert result.exit_code == 0, result.stderr
    assert "binary_crossentropy" in result.stderr
    assert "predicted peak" in result.stdout


@pytest.mark.feature("Faults", "no code is run from a file")
def test_a_keras_file_never_runs_code(tmp_path):
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Lambda(lambda x: x + 1), keras.layers.Dense(1)])
    path = tmp_path / "lambda.keras"
    model.save(path)
    result = invoke("plan", path, *FAST)
    assert result.exit_code == 2
    assert "file.py:function" in flat(result.stderr)
    (tmp_path / "damaged.keras").write_bytes(b"not a model")
    result = invoke("plan", tmp_path / "damaged.keras", *FAST)
    assert result.exit_code == 2
    assert "does not load" in flat(result.stderr)


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("ResNet51", [], "Did you mean ResNet50"),
        ("nowhere.keras", [], "there is no file"),
        ("nowhere.py:make", [], "there is no file"),
        ("old.h5", [], "model.save('model.keras')"),
        ("{models}", [], "no function in it"),
        ("{models}:missing", [], "it has wide, with_data, nothing, broken"),
        ("{models}:nothing", [], "must return a Keras model"),
        ("{models}:broken", [], "failed at line 25: RuntimeError: no such weights"),
        ("{models}:wide", ["--classes", "3"], "are for keras.applications"),
        ("{models}:wide", ["--budget", "lots"], "cannot be read"),
        ("{models}:wide", ["--strategy", "magic"], "choose one of"),
        ("{models}:wide", ["--operators", "all"], "default, choose"),
        ("{models}:wide", ["--operators", "choose", "--schedule", "s.json"], "does not go with --schedule"),
        ("{models}:wide", ["--operators", "choose", "--save", "s.json"], "only schedules of the plain step"),
        ("{models}:wide", ["--page", "always"], "auto, never"),
        ("{models}:wide", ["--costs", "guess"], "profile, flops, roofline"),
        ("{models}:wide", ["--optimizer", "adamant"], "Keras refuses optimizer"),
        ("{models}:wide", ["--loss", "weight"], "Keras refuses"),
        ("{models}:wide", ["--plot", "picture.txt"], "must end with .png"),
        ("{models}:wide", ["--plot", "/no/such/folder/picture.png"], "there is no folder"),
        ("{models}:wide", ["--save", "/"], "it is not a file"),
        ("MobileNet", ["--input-shape", "big"], "is not a shape"),
        ("MobileNet", ["--input-shape", "3,3,3"], "change --input-shape"),
    ],
)
def test_bad_input_is_one_block_and_status_2(models, model, options, says):
    result = invoke("plan", model.format(models=models), *options)
    assert result.exit_code == 2
    assert says in flat(result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_infeasible_budget_is_status_3_and_json_tells_the_least(models):
    result = invoke("plan", f"{models}:wide", "--budget", "20kB", *FAST, "--json")
    assert result.exit_code == 3
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "InfeasibleBudgetError"
    assert error["minimum_bytes"] > error["budget_bytes"] == 20_000
    assert "raise the budget" in flat(result.stderr)


def test_how_a_child_failed():
    said = {"failed": "ResourceExhaustedError", "text": "OOM when allocating tensor with shape[32,8]"}
    assert _explain(OUT_OF_MEMORY, said, "") == (
        "out of memory: ResourceExhaustedError: OOM when allocating tensor with shape[32,8]",
        True,
    )
    text, out_of_memory = _explain(-11, {}, "W0 mkl_util.h:848 : RESOURCE_EXHAUSTED: OOM when allocating tensor\n\n")
    assert out_of_memory
    assert text == "out of memory: crashed (signal SIGSEGV) after: OOM when allocating tensor"
    assert _explain(1, {}, "a\nModuleNotFoundError: x") == ("crashed (exit status 1): ModuleNotFoundError: x", False)
    assert _explain(2, {"failed": "BudgetError", "text": "bad"}, "") == ("BudgetError: bad", False)


@pytest.mark.long
def test_a_child_trains_and_is_watched():
    heard = []
    run = asdict(Run("MobileNet", 32, 4, 5))
    outcome = run_child("checkmate_tf.cli.demo.run", run, None, lambda *news: heard.append(news[0]))
    assert outcome.trained, outcome.failure
    result = outcome.result
    assert len(result["losses"]) == len(result["peaks_bytes"]) == 5
    assert max(size for _, size in result["memory"]) <= result["peak_bytes"]
    assert {"start", "train"} <= set(heard)


def test_ctrl_c_ends_the_child(monkeypatch):
    started = []
    popen = subprocess.Popen

    def spy(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupt(*news):
        raise KeyboardInterrupt

    monkeypatch.setattr(process_module.subprocess, "Popen", spy)
    with pytest.raises(KeyboardInterrupt):
        run_child("checkmate_tf.cli.demo.run", asdict(Run("MobileNet", 32, 4, 5)), None, interrupt)
    (child,) = started
    assert child.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


def test_strategies_are_listed_with_their_traits():
    listed = {row.pop("name"): row for row in json.loads(invoke("strategies", "--json").stdout)}
    assert set(listed) == set(STRATEGIES)
    assert {"general", "cost_aware", "memory_aware", "proves"} <= set(listed["checkmate"])
    assert all(listed["checkmate"][trait] is True for trait in ("general", "cost_aware", "memory_aware", "proves"))
    assert (listed["chen-greedy"]["general"], listed["chen-greedy"]["memory_aware"]) == (False, "partly")
    table = invoke("strategies").stdout
    assert all(name in table for name in STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_can_be_loaded(name):
    assert callable(STRATEGIES[name].load())
