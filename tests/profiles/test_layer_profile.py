"""Profiling over batch sizes: what is timed at layer and op level, going on after an interrupt, the command."""

from __future__ import annotations

import json
import math
import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
import tensorflow as tf  # noqa: E402
from commands import invoke  # noqa: E402
from profiles import dense_model, table_of  # noqa: E402

from checkmate_tf.costs import timed as op_timer  # noqa: E402
from checkmate_tf.errors import CostError, OutputError  # noqa: E402
from checkmate_tf.graph import BACKWARD  # noqa: E402
from checkmate_tf.keras.api import op_graph  # noqa: E402
from checkmate_tf.layers.graph import layer_graph  # noqa: E402
from checkmate_tf.layers.runs import layer_runs  # noqa: E402
from checkmate_tf.profiles import layers, steps  # noqa: E402
from checkmate_tf.profiles.file import read_profile  # noqa: E402
from checkmate_tf.profiles.identity import differs_from, facts_of  # noqa: E402
from checkmate_tf.profiles.journal import Journal  # noqa: E402
from checkmate_tf.profiles.layers import Sample, time_layers  # noqa: E402
from checkmate_tf.profiles.run import profile_model  # noqa: E402
from checkmate_tf.profiles.steps import op_costs_from, time_operations  # noqa: E402
from checkmate_tf.profiles.table import FLOOR_US, MOST_US  # noqa: E402

L = keras.layers


@pytest.fixture(autouse=True)
def _few_runs(monkeypatch):
    """As many runs as asked for, no more."""
    monkeypatch.setattr(layers, "_MIN_SECONDS", 0.0)


# What is timed ----------------------------------------------------------------------------------------------------


def exotic():
    """Integer input, attention with two inputs, states, several outputs, a nested model called twice, constants."""
    tokens, sequence = keras.Input((4,), dtype="int32"), keras.Input((4, 3))
    within = keras.Input((4, 4))
    inner = keras.Model(within, L.Dense(4, name="shared")(within))
    embedded = L.Embedding(7, 4)(tokens)
    mixed = L.MultiHeadAttention(1, 2, dropout=0.5)(embedded, L.Dense(4)(sequence))
    x = inner(inner(L.BatchNormalization()(mixed)))
    states, last, cell = L.LSTM(2, return_sequences=True, return_state=True)(x)
    y = L.LSTM(2)(states, initial_state=[last, cell])
    model = keras.Model([tokens, sequence], [L.Dense(3, activation="softmax")(y * 2.0), last])
    model.compile(optimizer="sgd", loss=["sparse_categorical_crossentropy", "mse"])
    return model


def test_every_kind_of_layer_is_timed_and_the_model_stays_as_it_was(fresh_keras):
    model = exotic()
    before = [(v, np.array(v)) for v in model.variables]
    column = time_layers(model, 2, repetitions=2)
    graph = layer_graph(model, 2)
    assert column.names == graph.names
    assert all(sample.repetitions == 2 for sample in column.samples)
    assert all(sample.median_us >= FLOOR_US and math.isfinite(sample.spread_us) for sample in column.samples)
    for variable, value in before:  # averages of the normalisation, seeds of the dropout, weights
        np.testing.assert_array_equal(value, np.array(variable), err_msg=variable.path)
    named = dict(zip(column.names, column.samples, strict=True))
    assert named["shared"] is named["shared:1"]  # equal calls are timed once
    assert named["lstm"] is not named["lstm_1"]


class _Counting(L.Layer):
    """Assigns a weight that is trained, and draws from Keras's own generator."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        self.scale.assign_add(1.0)
        return self.scale * x + keras.random.normal((1,))


def test_states_seeds_and_weights_that_layers_assign_stay_as_they_were(fresh_keras):
    x = keras.Input((4, 3), batch_size=2)
    recurrent, counting = L.GRU(2, stateful=True), _Counting()
    model = keras.Model(x, L.Dense(1)(counting(recurrent(x))))
    model.compile("sgd", "mse", metrics=["mae"])
    model.train_on_batch(np.ones((2, 4, 3)), np.ones((2, 1)))
    generator = keras.src.random.seed_generator.global_seed_generator()
    kept = [generator.state, *recurrent.states, *model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [np.array(v.numpy()) for v in kept]
    time_layers(model, 2, repetitions=1)
    for variable, value in zip(kept, before, strict=True):
        np.testing.assert_array_equal(value, variable.numpy(), err_msg=variable.path)


class _Adding(L.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x))
        return x


def test_losses_that_layers_add_are_not_in_the_way(fresh_keras):
    x = keras.Input((3,))
    model = keras.Model(x, _Adding(name="adding")(L.Dense(2, activity_regularizer="l2")(x)))
    model.compile("sgd", "mse")
    tf.function(model, autograph=False)(tf.ones((2, 3)))  # leaves the losses of its trace
    before = list(model.losses)
    layer_graph(model, 2)
    assert [id(loss) for loss in model.losses] == [id(loss) for loss in before]
    assert len(time_layers(model, 2, repetitions=1).names) == 5


def test_losses_of_the_last_call_stay(fresh_keras):
    x = keras.Input((3,))
    dense = L.Dense(2, activity_regularizer="l2", kernel_regularizer="l2")
    inner = keras.Sequential([_Adding(name="within"), L.Dense(2)])
    model = keras.Model(x, inner(_Adding(name="adding")(dense(x))))
    model.compile("sgd", "mse")
    model(tf.ones((2, 3)))
    before = [loss.numpy() for loss in model.losses]
    assert len(before) == 4
    layer_graph(model, 2)
    assert [loss.numpy() for loss in model.losses] == before
    time_layers(model, 2, repetitions=1)
    assert [loss.numpy() for loss in model.losses] == before


def test_the_loss_is_left_unbuilt(fresh_keras):
    """It is built for made-up targets here, and for those of the user in `fit`."""
    model = dense_model()
    time_layers(model, 2, repetitions=1)
    assert not model._compile_loss.built


def test_a_run_computes_the_layer_and_its_gradients(fresh_keras):
    x = keras.Input((3,))
    hidden = L.Dense(4, name="hidden")(x)
    model = keras.Model(x, [L.Dense(2, name="left")(hidden), L.Dense(5, name="right")(hidden), hidden])
    runs = {run.call.name: run for run in layer_runs(model, 6)}
    first, left, right = runs["hidden"], runs["left"], runs["right"]
    assert first.arriving == (3,) and first.wanted == (False,)  # two readers and the loss; x needs no gradient
    assert left.arriving == (1,) and left.wanted == (True,)
    assert first.differentiates and right.differentiates
    random = np.random.default_rng(1)
    draw = lambda *shape: tf.constant(random.normal(size=shape), tf.float32)  # noqa: E731
    given, gradients = draw(6, 3), [draw(6, 4) for _ in range(3)]
    (output,), found = layers._gradients(first, [given], [gradients])
    kernel, bias = (np.array(w) for w in first.weights)
    np.testing.assert_allclose(output, given @ kernel + bias, rtol=1e-5)
    total = sum(g.numpy() for g in gradients)
    assert len(found) == 2
    np.testing.assert_allclose(found[0], given.numpy().T @ total, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[1], total.sum(axis=0), rtol=1e-4, atol=1e-5)
    upstream = draw(6, 2)
    _, found = layers._gradients(left, [draw(6, 4)], [[upstream]])
    assert len(found) == 3
    np.testing.assert_allclose(found[0], upstream @ np.array(left.weights[0]).T, rtol=1e-4, atol=1e-5)


def test_layers_run_as_in_training(fresh_keras):
    model = keras.Sequential([keras.Input((1000,)), L.Dropout(0.5), L.BatchNormalization()])
    dropout, normalisation = layer_runs(model, 2)
    zeros = float(np.mean(np.array(dropout([tf.ones((2, 1000))])[0]) == 0))
    assert 0.3 < zeros < 0.7
    two = tf.concat([tf.zeros((1, 1000)), tf.ones((1, 1000))], 0)
    np.testing.assert_allclose(np.abs(normalisation([two])[0]), 1, rtol=0.01)  # of the batch, not of the averages


def test_what_nothing_needs_is_not_timed(fresh_keras):
    model = keras.Sequential([keras.Input((3,)), L.Rescaling(2.0), L.Dense(2), L.Flatten(), L.Dense(2)])
    model.layers[-1].trainable = False
    named = dict(zip(*_names_and_samples(model), strict=True))
    graph = layer_graph(model, 2)
    rescaling = graph.names[list(graph.kinds).index(BACKWARD) + 3]
    assert rescaling.startswith("grad_rescaling")
    assert named[rescaling] == Sample(FLOOR_US, 0.0, 0)
    assert all(sample.repetitions for name, sample in named.items() if name != rescaling)


def _names_and_samples(model):
    column = time_layers(model, 2, repetitions=1)
    return column.names, column.samples


def test_equal_layers_have_equal_keys_and_others_have_not(fresh_keras):
    def key(layer, shape=(6, 6, 2), batch=2):
        inputs = keras.Input(shape)
        return layer_runs(keras.Model(inputs, layer(inputs)), batch)[0].key()

    conv = key(L.Conv2D(2, 3, name="a"))
    assert conv == key(L.Conv2D(2, 3, name="b", kernel_initializer="zeros"))
    others = [
        L.Conv2D(2, 3, strides=2),
        L.Conv2D(2, 3, padding="same"),
        L.Conv2D(2, 3, activation="relu"),
        L.Conv2D(2, 3, dtype="mixed_float16"),
        L.Conv2D(2, 3, trainable=False),
        L.Conv2D(2, 3, activity_regularizer="l2"),
        L.DepthwiseConv2D(3),
        lambda x: x * 2.0,
        lambda x: x * 3.0,
        lambda x: x + 2.0,
    ]
    keys = {conv, key(L.Conv2D(2, 3), batch=4), *map(key, others)}
    assert len(keys) == 2 + len(others)


class _Clock:
    """Time that only the functions under test take."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def taking(self, *seconds):
        todo = list(seconds)

        def run():
            self.now += todo.pop(0)

        return run


def test_medians_and_spreads_are_of_runs_in_turn(monkeypatch):
    clock = _Clock()
    timer = layers._LayerTimer(3, False)
    monkeypatch.setattr(layers, "time", clock)
    forward, both = clock.taking(9, 9, 1e-3, 2e-3, 6e-3), clock.taking(9, 9, 5e-3, 4e-3, 9e-3)
    times = timer.runs(forward, both)
    np.testing.assert_allclose(times, [[1e3, 5e3], [2e3, 4e3], [6e3, 9e3]])  # two rounds to warm up
    gradient = Sample.of(times[:, 1] - times[:, 0])
    assert (gradient.median_us, gradient.spread_us, gradient.repetitions) == pytest.approx((3e3, 1e3, 3))
    assert Sample.of([-5.0, -4.0, -3.0]).median_us == FLOOR_US


def test_runs_are_repeated_for_a_while_but_not_for_ever(monkeypatch):
    clock = _Clock()
    timer = layers._LayerTimer(3, False)
    monkeypatch.setattr(layers, "time", clock)
    monkeypatch.setattr(layers, "_MIN_SECONDS", 0.02)
    assert len(timer.runs(clock.taking(*[1e-3] * 99))) == 20
    assert len(timer.runs(clock.taking(*[1e-6] * 999))) == layers._MAX_REPETITIONS


@keras.saving.register_keras_serializable("test_layer_profile")
class _Picky(L.Layer):
    """Runs on negative numbers only, which are not made up."""

    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_less(x, 0.0)]):
            return tf.identity(x)


def test_a_layer_that_cannot_be_run_alone_is_named(fresh_keras):
    x = keras.Input((3,))
    model = keras.Model(x, _Picky(name="picky")(L.Dense(2)(x)))
    with pytest.raises(CostError, match=r"layer 'picky' \(_Picky\) cannot be run alone on \[2, 2\]"):
        time_layers(model, 2, repetitions=1)


@pytest.mark.sixteen_bits
def test_mixed_precision_is_run_and_said(fresh_keras):
    x = keras.Input((3,))
    model = keras.Model(x, L.Dense(2, dtype="mixed_float16")(L.Dense(2, dtype="mixed_float16")(x)))
    assert facts_of(model).precision == "mixed_float16"
    calls = [run.call for run in layer_runs(model, 2)]
    assert [v.dtype for call in calls for v in (*call.arguments, *call.outputs)] == ["float32"] + ["float16"] * 3
    table, path = profile_model(model, [2], repetitions=1)
    assert table.precision == "mixed_float16" and path is None
    assert differs_from(model)(table) == ""
    other = keras.Model(x, L.Dense(2)(L.Dense(2)(x)))
    assert "mixed_float16" in differs_from(other)(table)
    wider = keras.Model(x, L.Dense(3)(L.Dense(2)(x)))
    assert "parameters" in differs_from(wider)(table)


# Long work --------------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch):
    """Names of the layers that were timed, instead of timing them; `stop_after` interrupts."""

    class Timed(list):
        stop_after = math.inf

    names = Timed()

    def fake(timer, run):
        if len(names) >= names.stop_after:
            raise KeyboardInterrupt
        names.append(run.call.name)
        return [Sample(10.0 * len(names), 1.0, 5), Sample(20.0 * len(names), 2.0, 5)]

    monkeypatch.setattr(layers, "_time_call", fake)
    monkeypatch.setattr(layers, "_time_loss", lambda *_: [Sample(5.0, 0.0, 5)])
    return names


def chain():
    layers = [L.Dense(width, name=f"width{width}") for width in (2, 3, 4)]
    return keras.Sequential([keras.Input((3,)), *layers], name="chain")


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, timed, fresh_keras):
    model, heard = chain(), []
    timed.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        profile_model(model, [4, 2], tmp_path, tell=lambda *news: heard.append(news))
    assert timed == ["width2", "width3", "width4", "width2"]  # smallest batch first
    assert heard[0][0] == "batch 2" and heard[-1][0] == "batch 4" and heard[0][2] == 4
    (file,) = tmp_path.glob("*.json")
    assert read_profile(file).batch_sizes == (2,)  # what is finished serves already
    timed.stop_after = math.inf
    table, path = profile_model(model, [4, 2], tmp_path)
    assert timed[4:] == ["width3", "width4"]
    assert path == file and table.batch_sizes == (2, 4) and os.listdir(tmp_path) == [file.name]
    assert table.median_us[:, 0].tolist() == [10, 20, 30, 5, 60, 40, 20]
    assert table.median_us[:, 1].tolist() == [40, 50, 60, 5, 120, 100, 80]
    assert not table.same_setting(read_profile(file))


def test_batch_sizes_are_added_and_none_is_run_twice(tmp_path, timed, fresh_keras):
    profile_model(chain(), [2], tmp_path)
    table, _ = profile_model(chain(), [2, 8], tmp_path)
    assert len(timed) == 6 and table.batch_sizes == (2, 8)


def test_a_file_of_another_setting_is_left_alone(tmp_path, timed, fresh_keras):
    _, path = profile_model(chain(), [2], tmp_path)
    document = json.loads(path.read_text()) | {"device": "quipu"}
    path.write_text(json.dumps(document))
    with pytest.raises(CostError, match="another setting.*quipu"):
        profile_model(chain(), [4], tmp_path)
    with pytest.raises(OutputError, match="cannot be made"):
        profile_model(chain(), [2], path / "below")


def test_a_journal_is_not_trusted(tmp_path):
    path = tmp_path / "j.part"
    journal = Journal(path, "here")
    journal.put("a", [1.0, 2.0])
    journal.save()
    assert Journal(path, "here").get("a", 2) == [1.0, 2.0]
    assert Journal(path, "here").get("a", 3) is None
    assert Journal(path, "elsewhere").get("a", 2) is None
    document = json.loads(path.read_text())
    for values in ([1.0, "2"], [1.0, -2.0], [True, 1.0], "12", [1.0, 1e99], [1.0, 2 * MOST_US]):
        document["measured"][0]["values"] = values
        path.write_text(json.dumps(document))
        assert Journal(path, "here").get("a", 2) is None
    path.write_text("{")
    assert Journal(path, "here").found == 0
    Journal(path, "here").remove()
    assert not path.exists()


def test_two_processes_share_a_journal(tmp_path):
    path = tmp_path / "j.part"
    one, other = Journal(path, "here"), Journal(path, "here")
    one.put("a", [1.0])
    other.put("b", [2.0])
    one.save()
    other.save()
    assert Journal(path, "here").found == 2
    one.remove()
    assert Journal(path, "here").get("a", 1) is None
    assert Journal(path, "here").get("b", 1) == [2.0]
    other.remove()
    assert os.listdir(tmp_path) == []


# Op level ---------------------------------------------------------------------------------------------------------


def test_op_level_takes_medians_of_passes_and_costs_any_batch(tmp_path, monkeypatch, fresh_keras):
    passes = []

    def fake(ops, **options):
        assert options["cache"] is False
        passes.append(len(ops))
        k = (1, 5, 2)[(len(passes) - 1) % 3]
        batch = max(int(t.shape[0] or 1) for op in ops for t in op.outputs if t.shape.rank)
        cost = np.array([k * batch * (2.0 if op.type == "MatMul" else 1.0) for op in ops])
        return op_timer.OpTimes(cost, cost > 0, 0.0, 1, 0, op_timer.Rates())

    monkeypatch.setattr(op_timer, "time_ops", fake)
    model = dense_model(units=2)
    table, path = profile_model(model, [8, 16], tmp_path, level="op")
    assert len(passes) == 6 and set(passes) == {len(table)}
    products = [i for i, kind in enumerate(table.kinds) if kind == "MatMul"]
    assert len(products) >= 2
    np.testing.assert_allclose(table.median_us[products], [[2 * 2 * 8, 2 * 2 * 16]] * len(products))
    np.testing.assert_allclose(table.spread_us[products], [[2 * 2 * 8, 2 * 2 * 16]] * len(products))  # of 1, 2, 5
    profile_model(model, [8], tmp_path, level="op")
    assert len(passes) == 6
    cost = op_costs_from(read_profile(path), 32)
    graph = op_graph(model, 32, cost)
    one = op_graph(model, 32, lambda op: (1.0 + (op.type == "MatMul")) * (op.type != "Placeholder"))
    np.testing.assert_allclose(graph.costs, 2 * 32 * one.costs)
    with pytest.raises(CostError, match="has no cost of"):
        op_graph(two_layers(), 32, cost)
    with pytest.raises(CostError, match="layer level"):
        op_costs_from(table_of(), 4)


def two_layers():
    model = keras.Sequential([keras.Input((3,)), L.Dense(2, activation="relu"), L.Dense(2)])
    model.compile(optimizer="sgd", loss="mse")
    return model


# The command ------------------------------------------------------------------------------------------------------

TINY = """
import keras

def tiny():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(3), keras.layers.Dense(3, activation="softmax")])
"""


def costs_in(result):
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["cost_unit"] == "us"
    return [node["cost"] for node in document["nodes"]]


def test_the_commands_measure_a_model_and_use_what_they_measured(tmp_path, timed, fresh_keras):
    (tmp_path / "models.py").write_text(TINY)
    model, folder = f"{tmp_path / 'models.py'}:tiny", tmp_path / "profiles"
    result = invoke("profile", model, "--batch-sizes", "4,2", "--output", folder, "--json")
    assert result.exit_code == 0, result.output
    (said,) = json.loads(result.stdout)["profiles"]
    assert said["batch_sizes"] == [2, 4] and said["nodes"] == 5 and said["precision"] == "float32"
    assert said["sum"] == [95.0, 215.0] and said["noisy_share"] == 0.0  # (10 + 20) * 3 + 5, and (30 + 40) * 3 + 5
    table = read_profile(said["file"])
    for batch in (2, 8):
        for place in (folder, said["file"]):
            graph = invoke("graph", model, "--batch-size", batch, "--costs", "profile", "--profile", place, "--json")
            assert costs_in(graph) == pytest.approx(table.costs(batch).tolist())
    runs = len(timed)
    now = costs_in(invoke("graph", model, "--batch-size", 4, "--costs", "profile", "--json"))
    assert len(timed) == runs + 2 and now[2] == 5.0  # the loss
    np.save(tmp_path / "b4_here.npy", np.arange(1.0, 6.0))
    own = ["graph", model, "--costs", "profile", "--profile", tmp_path / "b4_here.npy", "--json", "--batch-size"]
    assert costs_in(invoke(*own, 4)) == [1, 2, 3, 4, 5]
    assert invoke(*own, 8).exit_code == 2
    table = invoke("profile", model, "--batch-sizes", "2", "--output", folder)
    assert table.exit_code == 0 and "written to" in table.stdout and "median, us" in table.stdout


@pytest.mark.sixteen_bits
def test_precision_and_shapes_are_of_names(tmp_path, timed, monkeypatch, fresh_keras):
    def small(weights=None, input_shape=(8, 8, 3), classes=2):
        x = keras.Input(input_shape)
        return keras.Model(x, L.Dense(classes)(L.GlobalAveragePooling2D()(L.Conv2D(2, 3)(x))), name="small")

    monkeypatch.setattr(keras.applications, "MobileNet", small)
    shapes = ["--input-shape", "8,8,3", "--input-shape", "9,9,3"]
    common = ["profile", "MobileNet", "--batch-sizes", "2", "--output", tmp_path]
    assert invoke(*common, "--precision", "mixed_float16", *shapes).exit_code == 0
    assert keras.config.dtype_policy().name == "float32"
    names = sorted(os.listdir(tmp_path))
    assert names == ["small-8x8x3-layer-mixed_float16.json", "small-9x9x3-layer-mixed_float16.json"]
    graph = ["graph", "MobileNet", "--batch-size", "2", "--costs", "profile", "--json", "--profile"]
    half = invoke(*graph, tmp_path / names[0], "--input-shape", "8,8,3")  # built in the precision of the file
    assert json.loads(half.stdout)["nodes"][0]["bytes"] == 2 * 6 * 6 * 2 * 2
    assert invoke(*graph, tmp_path / names[0], "--input-shape", "9,9,3").exit_code == 2
    assert invoke(*graph, tmp_path).exit_code == 2  # a folder: the model is built in float32


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile", "{m}", "--batch-sizes", "8,x", "--output", "{d}"], "'8,x' is not a list"),
        (["profile", "{m}", "--batch-sizes", "0", "--output", "{d}"], "'0' is not a list"),
        (["profile", "{m}", "--batch-sizes", "8", "--output", "{m}"], "is not a folder"),
        (["profile", "{m}:tiny", "--batch-sizes", "8", "--output", "{d}", "--precision", "mixed_float16"], "keeps its"),
        (["profile", "VGG16", "--batch-sizes", "8", "--output", "{d}", "--precision", "int1"], "'int1' is unknown"),
        (["profile", "VGG16", "--batch-sizes", "8", "--output", "{d}", "--level", "atom"], "'atom' is unknown"),
        (["graph", "{m}:tiny", "--profile", "{d}"], "add --costs profile"),
        (["graph", "{m}:tiny", "--profile", "{d}/none.json", "--costs", "profile"], "there is no"),
        (["graph", "{m}:tiny", "--profile", "{d}/a.npy", "--costs", "profile", "--level", "op"], "costs of layers"),
    ],
)
def test_bad_arguments_are_one_block(tmp_path, arguments, said):
    (tmp_path / "models.py").write_text(TINY)
    result = invoke(*(a.format(m=tmp_path / "models.py", d=tmp_path) for a in arguments))
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())


def test_time_operations_runs_the_real_profiler(fresh_keras):
    column = time_operations(dense_model(), 2, repetitions=1)
    assert len(column.names) == len(set(column.names)) and "MatMul" in column.kinds
    assert all(sample.repetitions == 1 and sample.median_us > 0 for sample in column.samples)
    assert steps.step_operations(dense_model(), 2)[0].name
