"""The largest batch for real: the search with fake probes, a child that trains, and how children end."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import keras
import pytest
from graphs import chain
from typer.testing import CliRunner

import checkmate_tf
from checkmate_tf.cli import app
from checkmate_tf.device import process as process_module
from checkmate_tf.device.in_child import FAILED, OUT_OF_MEMORY, REFUSED
from checkmate_tf.device.process import Outcome, run_child
from checkmate_tf.errors import BudgetError, DynamicShapeError, InfeasibleBudgetError, ModelError
from checkmate_tf.keras.sources import load_model
from checkmate_tf.largest_batch import verify
from checkmate_tf.largest_batch.verify import Source, find_largest, saved, try_for_real
from checkmate_tf.strategies.max_batch import Probe

LAYERS = keras.layers
MIB = 2**20

OWN = """
import keras
import numpy as np


class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def own():
    inputs = keras.Input((64,))
    x = inputs
    for _ in range(3):
        x = keras.layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, keras.layers.Dense(4, activation="softmax")(Twice()(x)))
"""


def small(**options):
    inputs = keras.Input((64,))
    x = inputs
    for _ in range(3):
        x = LAYERS.Dense(64, activation="relu")(x)
    model = keras.Model(inputs, LAYERS.Dense(4, activation="softmax")(x), name="small")
    model.compile(**{"optimizer": "adam", "loss": "sparse_categorical_crossentropy"} | options)
    return model


@pytest.fixture
def prediction():
    """Of nothing in particular: 100 samples in 200 MiB."""
    found = checkmate_tf.max_batch_size(chain(3), 300, time_limit=5.0)
    return replace(found, batch_size=100, upper_bound=100, memory_bytes=200 * MIB, fixed_bytes=10 * MIB)


def trained():
    return Outcome(None, 0, {"peak_bytes": 7, "step_seconds": 0.5, "overhead": 0.25}, "", False)


def failed(status, failure, out_of_memory=False, **said):
    return Outcome(None, status, None, failure, out_of_memory, failed=said)


def children(monkeypatch, fits, otherwise):
    """Fake children: what fits trains. Returns the list of what they were given."""
    given = []

    def run(module, argument, limit_mib, tell, log=None, **options):
        given.append({**argument, "limit_mib": limit_mib})
        tell("train", 1, 1, "")
        return trained() if argument["batch_size"] <= fits else otherwise(argument["batch_size"])

    monkeypatch.setattr(verify, "run_child", run)
    return given


@pytest.mark.parametrize("largest", [1, 2, 3, 17, 64, 99, 100])
@pytest.mark.parametrize("helpful", [False, True])
def test_the_search_ends_near_the_largest(largest, helpful):
    told = []

    def probe(batch):
        return Probe(batch, "trained", peak_bytes=1) if batch <= largest else Probe(batch, "out of memory")

    guess = (lambda _: int(1.02 * largest)) if helpful else (lambda _: None)
    probes = find_largest(100, probe, guess, lambda *news: told.append(news))
    best = max(p.batch_size for p in probes if p.trained)
    assert 0.93 * largest <= best <= largest
    assert probes[0].batch_size == 100 and len(probes) == len({p.batch_size for p in probes}) <= 8
    assert told[-1][1] == best and told[-1][2] > largest


def test_the_search_ends_at_one_sample():
    probes = find_largest(1000, lambda batch: Probe(batch, "out of memory"), lambda _: None)
    assert probes[-1].batch_size == 1 and not any(p.trained for p in probes)


def test_an_interrupt_keeps_what_trained():
    def probe(batch):
        if batch == 75:
            raise KeyboardInterrupt
        return Probe(batch, "trained", peak_bytes=1) if batch <= 60 else Probe(batch, "out of memory")

    assert [p.batch_size for p in find_largest(100, probe, lambda _: None)] == [100, 50]
    with pytest.raises(KeyboardInterrupt):
        find_largest(75, probe, lambda _: None)


def test_bisects_down_with_what_the_children_say(monkeypatch, prediction):
    def otherwise(batch):
        if batch > 90:
            return failed(REFUSED, "none", failed="InfeasibleBudgetError", text="none", minimum_bytes=4 * batch * MIB)
        return failed(OUT_OF_MEMORY, "out of memory: somewhere", True)

    given = children(monkeypatch, 40, otherwise)
    stages = []
    found = try_for_real(prediction, Source("model.keras"), 0.5, seed=3, tell=lambda *news: stages.append(news[0]))
    verified = found.verified
    assert (found.batch_size, found.upper_bound) == (100, 100)  # the prediction stays
    assert 38 <= verified.batch_size <= 40
    assert (verified.peak_bytes, verified.step_seconds, verified.overhead) == (7, 0.5, 0.25)
    assert verified.budget_bytes == given[0]["budget_bytes"] == int(200 * MIB / 1.1)
    assert given[0]["limit_mib"] == 200 and given[0]["max_overhead"] == 0.5 and given[0]["seed"] == 3
    tried = [p.batch_size for p in verified.probes]
    assert tried[:2] == [
        100,
        int(100 * (verified.budget_bytes - 10 * MIB) / (390 * MIB)),
    ]  # from the least that it said
    assert stages[0] == "batch 100: train"
    assert json.dumps(given)  # what a child is given is JSON


def test_a_near_miss_is_not_halved(monkeypatch, prediction):
    said = {"failed": "InfeasibleBudgetError", "text": "kept by none", "minimum_bytes": 180 * MIB}
    children(monkeypatch, 76, lambda _: failed(REFUSED, "kept by none", **said))
    found = try_for_real(prediction, Source("m"))
    assert [p.batch_size for p in found.verified.probes] == [100, 75, 79]


def test_crashes_and_lateness_are_bisected_too(monkeypatch, prediction):
    endings = [
        failed(-11, "crashed"),
        failed(-9, "not done after 600 s"),
        failed(FAILED, "InternalError: no", failed="x"),
    ]
    children(monkeypatch, 20, lambda batch: endings[batch % 3])
    assert 19 <= try_for_real(prediction, Source("m")).verified.batch_size <= 20


def test_nothing_trains(monkeypatch, prediction):
    children(monkeypatch, 0, lambda batch: failed(OUT_OF_MEMORY, "out of memory: all of it", True))
    with pytest.raises(InfeasibleBudgetError, match="not even one sample trained .* all of it"):
        try_for_real(prediction, Source("m"))


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (failed(REFUSED, "", failed="DynamicShapeError", text="open"), DynamicShapeError),
        (failed(REFUSED, "", failed="BadInput", text="open"), ModelError),
        (failed(1, "crashed (exit status 1): open"), ModelError),
    ],
)
def test_a_smaller_batch_would_not_help(monkeypatch, prediction, outcome, kind):
    given = children(monkeypatch, 0, lambda _: outcome)
    with pytest.raises(kind, match="100 samples .* open"):
        try_for_real(prediction, Source("m"))
    assert len(given) == 1


def test_what_cannot_be_verified(prediction):
    with pytest.raises(ModelError, match="Graph is not a Keras model"):
        checkmate_tf.max_batch_size(chain(3), "1GB", verify=True)
    plain = keras.Sequential([keras.Input((4,)), LAYERS.Dense(1)])
    with pytest.raises(ModelError, match="not compiled"):
        checkmate_tf.max_batch_size(plain, "1GB", verify=True)
    with pytest.raises(BudgetError, match="this process may fill"):
        try_for_real(replace(prediction, memory_bytes=10**15), Source("m"))


def test_a_model_that_cannot_be_saved():
    class Odd(LAYERS.Layer):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def call(self, x):
            return self.function(x)

    model = keras.Sequential([keras.Input((4,)), Odd(abs)])
    model.compile(loss="mse")
    with pytest.raises(ModelError, match="file.py:function"), saved(model):
        pass


def test_the_public_call_saves_the_model_and_cleans_up(monkeypatch):
    given = children(monkeypatch, 10**9, None)
    heard = []
    found = checkmate_tf.max_batch_size(
        small(), "64MB", time_limit=1.0, verify=True, progress=lambda *news: heard.append(news)
    )
    assert found.verified.batch_size == found.batch_size and len(given) == 1
    assert heard[-1][1:] == (found.batch_size, found.batch_size, 0.0)
    assert given[0]["model"].endswith(".keras") and not Path(given[0]["model"]).parent.exists()


def test_the_command_tells_what_trained(monkeypatch, tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN, encoding="utf-8")
    given = children(monkeypatch, 1000, lambda _: failed(OUT_OF_MEMORY, "out of memory: somewhere", True))
    arguments = [f"{path}:own", "--memory", "64MB", "--time-limit", "1", "--verify", "--optimizer", "sgd", "--json"]
    run = CliRunner().invoke(app, ["max-batch", *arguments])
    assert run.exit_code == 0, run.output
    result = json.loads(run.stdout)
    assert 900 < result["verified_batch_size"] <= 1000 < result["batch_size"]
    assert result["verified_peak_bytes"] == 7
    assert not result["probes"][0]["trained"] and "somewhere" in result["probes"][0]["ending"]
    assert given[0]["model"] == f"{path}:own" and given[0]["optimizer"] == "sgd"
    assert "somewhere" in run.stderr


def test_the_command_refuses_a_graph(tmp_path):
    path = tmp_path / "chain.json"
    path.write_text("{}", encoding="utf-8")
    run = CliRunner().invoke(app, ["max-batch", str(path), "--memory", "1GB", "--verify"])
    assert run.exit_code == 2 and "is a graph" in run.stderr


def test_a_child_trains_under_the_limit(prediction):
    with saved(small()) as source:
        found = try_for_real(replace(prediction, batch_size=4096), source)
    (probe,) = found.verified.probes
    assert probe.trained and found.verified.batch_size == 4096
    # At the least the inputs and the three hidden layers' values, or what they are computed from again.
    assert 4096 * 64 * 4 < found.verified.peak_bytes <= 200 * MIB
    assert found.verified.step_seconds > 0 and found.verified.overhead >= 0


@pytest.mark.long
def test_a_child_refuses_a_file_with_own_classes(prediction, tmp_path):
    path = tmp_path / "own_classes.py"
    path.write_text(OWN, encoding="utf-8")
    model, _ = load_model(f"{path}:own")
    model.compile(loss="mse")
    with pytest.raises(ModelError, match="file.py:function"), saved(model) as source:
        try_for_real(prediction, source)


@pytest.mark.parametrize("ends", ["interrupted", "late"])
def test_no_child_is_left(monkeypatch, prediction, ends):
    started = []
    popen = subprocess.Popen

    def spy(*arguments, **options):
        started.append(popen(*arguments, **options))
        return started[-1]

    def interrupt(*news):
        raise KeyboardInterrupt

    monkeypatch.setattr(process_module.subprocess, "Popen", spy)
    if ends == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            try_for_real(prediction, Source("MobileNet"), tell=interrupt)
    else:
        outcome = run_child("checkmate_tf.largest_batch.trial", {}, 200, lambda *news: None, timeout=0.01)
        assert outcome.failure == "not done after 0 s" and outcome.status < 0
    (child,) = started
    assert child.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
