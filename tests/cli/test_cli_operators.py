"""`checkmate-tf operators`: each method chooses within the budget, and says what."""

import json

import pytest
from commands import flat, invoke

MODEL = """
import keras

L = keras.layers


def small():
    x = inputs = keras.Input((16, 16, 4))
    for width in (8, 8, 8):
        x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same")(x)))
    x = L.MaxPooling2D()(x)
    return keras.Model(inputs, L.Dense(4, activation="softmax")(L.Flatten()(x)))
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODEL)
    return f"{path}:small"


def answer(model, *options):
    done = invoke("operators", model, "--batch-size", 64, "--time-limit", 6, *options, "--json")
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def test_every_method_keeps_the_budget_and_choices_cost_less(model):
    found = {method: answer(model, "--budget", "50%", "--method", method) for method in ("checkmate", "choose")}
    for method, told in found.items():
        assert told["method"] == method
        assert told["peak_bytes"] <= told["budget_bytes"] < told["plain_peak_bytes"]
        assert told["overhead"] == pytest.approx(told["cost"] / told["base_cost"] - 1)
        assert set(told["implementations"]) >= {"mask", "index", "input", "output"}
        assert told["implementations"]["mask"]["offered"] == 3
    assert found["choose"]["cost"] <= found["checkmate"]["cost"]
    assert sum(count["chosen"] for count in found["choose"]["implementations"].values()) > 0
    assert sum(count["chosen"] for count in found["checkmate"]["implementations"].values()) == 0
    assert found["choose"]["implementations"]["output"]["chosen"] == 0  # it does not give the same bits


def test_monet_solves_its_program(model):
    told = answer(model, "--budget", "90%", "--method", "monet", "--solver", "highs", "--gap", 1)
    assert told["peak_bytes"] <= told["budget_bytes"]
    assert told["bound"] <= told["cost"] * (1 + 1e-6)


def test_gist_computes_nothing_again_and_knows_no_budget(model):
    told = answer(model, "--budget", "100%", "--method", "gist", "--sparsity", 0.5)
    assert told["recomputed"] == 0 and told["status"] == "feasible" and told["bound"] is None
    assert told["implementations"]["index"] == {"chosen": 1, "offered": 1}
    done = invoke("operators", model, "--batch-size", 64, "--budget", "10%", "--method", "gist")
    assert done.exit_code == 3
    assert "too small for Gist" in flat(done.stderr)


def test_the_answer_in_words(model):
    done = invoke("operators", model, "--budget", "100%", "--method", "checkmate")
    assert done.exit_code == 0, done.stderr
    assert "overhead" in done.stdout and "0.00% over" in done.stdout
    assert "chosen in 0 of 3 nodes that have it" in done.stdout


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--method", "magic"], "choose one of choose, monet, gist, checkmate"),
        (["--solver", "cplex"], "choose one of auto"),
        (["--sparsity", 2], "share of zeros"),
        (["--bits", 12], "choose one of 8, 10, 16"),
        (["--gap", "inf"], "--gap is inf: give a number"),
        (["--time-limit", "inf"], "--time-limit is inf"),
        (["--bits", 16], "add --inexact"),
        (["--budget", "lots"], "cannot be read"),
        (["--budget", "0.6"], "write 60%"),
    ],
)
def test_bad_options_are_status_2(model, options, says):
    done = invoke("operators", model, *options)
    assert done.exit_code == 2
    assert says in flat(done.stderr)
