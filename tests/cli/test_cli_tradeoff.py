"""`checkmate-tf tradeoff`: a table, JSON and a picture, of a model or a graph."""

from __future__ import annotations

import json

import pytest
from commands import flat, invoke
from graphs import chain

from checkmate_tf.files.graphs import write_graph

MODEL = """
import keras

def network():
    x = inputs = keras.Input((32, 8))
    for _ in range(3):
        x = keras.layers.Dense(64, "tanh")(x)
    model = keras.Model(inputs, keras.layers.Dense(2)(x), name="network")
    model.compile("adam", "mse")
    return model
"""


@pytest.fixture
def graph(tmp_path):
    write_graph(chain(10), tmp_path / "chain.json")
    return tmp_path / "chain.json"


def test_a_graph_as_a_table_and_a_picture(graph, tmp_path):
    done = invoke("tradeoff", graph, "--budgets", 4, "--time-limit", 3, "--plot", tmp_path / "curve.png")
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "more computation" in lines[0] and "samples" not in lines[0] and "100%" in lines[1]
    assert lines[-1].startswith("below ") and "by proof" in lines[-1]
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_model_as_json(tmp_path):
    (tmp_path / "nets.py").write_text(MODEL)
    options = ("--batch-size", 64, "--budgets", 3, "--costs", "flops", "--time-limit", 4, "--json")
    done = invoke("tradeoff", f"{tmp_path}/nets.py:network", *options)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["name"], found["batch_size"], len(found["offers"])) == ("network", 64, 3)
    first, _, last = found["offers"]
    assert (first["overhead"], first["batch_plain"]) == (0, 64)
    assert last["overhead"] > 0 and last["batch_most"] == 64 and first["batch_most"] > 64
    assert found["impossible_bytes"] <= found["least_bytes"] == last["budget_bytes"]


@pytest.mark.parametrize(("options", "text"), [
    (("--costs", "guessed"), "--costs 'guessed' is unknown"),
    (("--input-shape", "big"), "input-shape"),
    (("--gap", "inf"), "--gap is inf: give a number"),
    (("--plot", "/dev/null/curve.png"), "/dev/null"),
    (("--optimizer", "sgd", "--costs", "flops"), "is a graph, not a model: leave out --optimizer, --costs"),
])  # fmt: skip
def test_bad_input(graph, options, text):
    done = invoke("tradeoff", graph, *options)
    assert done.exit_code == 2 and text in flat(done.stderr)
