"""Cost models: profiles of small training steps, the cache, and what happens when things go wrong."""

from __future__ import annotations

import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from traced import graph_of, looped, only  # noqa: E402

from checkmate_tf.costs import cache as disk  # noqa: E402
from checkmate_tf.costs import (  # noqa: E402
    op_costs,
    timed,  # noqa: E402
)
from checkmate_tf.costs import setting as settings  # noqa: E402
from checkmate_tf.costs.alone.eager import RUN_ERRORS, as_function  # noqa: E402
from checkmate_tf.costs.alone.fabricate import Fabricator, may_run  # noqa: E402
from checkmate_tf.costs.alone.values import StaticValues  # noqa: E402
from checkmate_tf.costs.calls import iterations_of  # noqa: E402
from checkmate_tf.costs.flops import op_cost_flops  # noqa: E402
from checkmate_tf.costs.roofline import Rates, roofline_costs, roofline_us  # noqa: E402
from checkmate_tf.costs.signature import Signer  # noqa: E402
from checkmate_tf.errors import CostError  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def step_of(model, x, y, optimizer="adam"):
    """Operations of one training step with a static batch."""
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda a, b: model.train_step((a, b)), autograph=False)
    return step.get_concrete_function(x, y).graph.get_operations()


def test_many_functions_of_one_operation_do_not_alarm_tensorflow(caplog):
    """Traced when they are called, functions whose memory is used again look to it like one that is traced again."""
    graph = graph_of(lambda x: tf.nn.relu(x), (3, 5))
    x = tf.ones([3, 5])
    with caplog.at_level(logging.WARNING):
        for _ in range(12):
            assert as_function(only(graph, "Relu"), [x])(x)[0].shape == [3, 5]
    assert "retracing" not in caplog.text


# Values, signatures, fabricated inputs ----------------------------------------------------------------------------


def test_values_follow_from_static_shapes():
    def shapes(x, n):
        rows = tf.raw_ops.Shape(input=x)[0]
        return tf.raw_ops.Fill(dims=[rows, rows * 2], value=1.0), tf.range(rows, n)

    graph = graph_of(shapes, (3, 5), tf.TensorSpec((), tf.int32))
    values = StaticValues()
    assert values(only(graph, "Fill").inputs[0]).tolist() == [3, 6]
    assert values(only(graph, "Range").inputs[1]) is None


def test_operations_that_differ_in_name_only_share_a_signature():
    def two(x, w):
        return (
            tf.nn.conv2d(x, w, 1, "SAME", name="a"),
            tf.nn.conv2d(x, w, 1, "SAME", name="b"),
            tf.nn.conv2d(x, w, 2, "SAME"),
        )

    signs = [Signer()(op) for op in graph_of(two, (1, 8, 8, 2), (3, 3, 2, 2)).get_operations() if op.type == "Conv2D"]
    assert signs[0] == signs[1] != signs[2]


def test_small_integer_inputs_are_signed_by_value():
    graph = graph_of(lambda x: (tf.transpose(x, (0, 2, 1)), tf.transpose(x, (2, 1, 0))), (4, 4, 4))
    signs = {Signer()(op) for op in graph.get_operations() if op.type == "Transpose"}
    assert len(signs) == 2


def test_loops_of_two_traces_share_a_signature():
    signs = {Signer()(only(graph_of(looped, (4, 8), (8, 8)), "StatelessWhile")) for _ in range(2)}
    assert len(signs) == 1


def test_what_is_inside_of_a_loop_is_signed():
    """Its constants, what operations read, their attributes, and the same of what it calls."""

    def loop(limit=3, more=2.0, swapped=False, dilation=1, called=False):
        def round_of(i, x):
            parts = tf.nn.conv2d(x, tf.ones([3, 3, 4, 4]), 1, "SAME", dilations=dilation), tf.sin(x)
            return i + 1, (parts[0] - parts[1] * more) if swapped else (parts[1] - parts[0] * more)

        def round_in_function(i, x):
            return tf.function(round_of, autograph=False)(i, x)

        body = round_in_function if called else round_of
        return lambda x: tf.while_loop(lambda i, x: i < limit, body, (tf.constant(0), x))[1]

    kinds = [{}, {"limit": 3000}, {"more": 3.0}, {"swapped": True}, {"dilation": 2}]
    kinds += [{**kind, "called": True} for kind in kinds]
    for _ in range(2):
        signs = [Signer()(only(graph_of(loop(**kind), (2, 8, 8, 4)), "StatelessWhile")) for kind in kinds]
        assert len(set(signs)) == len(kinds)
        kinds, expected = kinds[::-1], signs[::-1]
    assert signs == expected[::-1]


def test_branches_of_two_traces_share_a_signature():
    pick = lambda x: tf.switch_case(tf.cast(x[0], tf.int32), [lambda: tf.sin(x), lambda: tf.cos(x)])  # noqa: E731
    other = lambda x: tf.switch_case(tf.cast(x[0], tf.int32), [lambda: tf.sin(x), lambda: tf.exp(x)])  # noqa: E731
    signs = [Signer()(only(graph_of(f, (8,)), "StatelessCase")) for f in (pick, pick, other)]
    assert signs[0] == signs[1] != signs[2]


def test_python_and_io_are_never_run():
    graph = graph_of(lambda x: tf.py_function(lambda v: v, [x], tf.float32), (8, 8))
    assert not may_run(only(graph, "EagerPyFunc"))


def test_an_unknown_shape_cannot_be_fabricated():
    graph = graph_of(lambda x: tf.nn.relu(x), (None, 8))
    with pytest.raises(ValueError, match="has shape"):
        Fabricator(StaticValues()).inputs_of(only(graph, "Relu"))


# Profiles ---------------------------------------------------------------------------------------------------------


def small_cnn():
    inputs = keras.Input((16, 16, 3))
    x = keras.layers.Conv2D(8, 3, padding="same")(inputs)
    x = keras.layers.Activation("relu")(keras.layers.BatchNormalization()(x))
    x = keras.layers.DepthwiseConv2D(3)(keras.layers.MaxPooling2D()(x))
    x = keras.layers.Dropout(0.5)(keras.layers.Flatten()(x))
    model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x))
    return step_of(model, tf.TensorSpec((8, 16, 16, 3)), tf.TensorSpec((8,), tf.int32))


def small_transformer():
    inputs = keras.Input((16,), dtype="int32")
    x = keras.layers.Embedding(50, 32)(inputs)
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 16, dropout=0.1)(x, x))
    x = x + keras.layers.Dense(32)(keras.layers.Dense(64, activation="gelu")(x))
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Dropout(0.1)(x))
    model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x))
    return step_of(model, tf.TensorSpec((8, 16), tf.int32), tf.TensorSpec((8,), tf.int32))


def small_lstm():
    inputs = keras.Input((6, 16))
    x = keras.layers.LSTM(32)(keras.layers.LSTM(32, return_sequences=True)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(10, activation="softmax")(x))
    return step_of(model, tf.TensorSpec((8, 6, 16)), tf.TensorSpec((8,), tf.int32))


@pytest.mark.long(only=("small_transformer",))
@pytest.mark.parametrize("build", [small_cnn, small_transformer, small_lstm])
def test_a_profile_covers_every_operation(build):
    ops = build()
    seen = []
    result = timed.time_ops(ops, progress=lambda *a: seen.append(a), repetitions=1)
    assert result.cost_us.shape == result.measured.shape == (len(ops),)
    assert np.isfinite(result.cost_us).all() and (result.cost_us > 0).all()
    assert [op.type for op, known in zip(ops, result.measured, strict=True) if not known] == []
    assert 0 < result.signatures < len(ops) and result.cache_hits == 0
    assert seen[-1] == (result.signatures, result.signatures, "done")
    again = timed.time_ops(ops, repetitions=1)
    assert again.cache_hits == again.signatures == result.signatures
    np.testing.assert_array_equal(again.cost_us, result.cost_us)


def test_loops_are_run_as_long_as_they_are():
    loops = [op for op in small_lstm() if "While" in op.type]
    assert len(loops) == 4 and all(may_run(op) for op in loops)
    assert [iterations_of(op) for op in loops] == [6] * 4
    assert op_cost_flops(loops).min() > 6 * 2 * 8 * 32 * 4 * 32


BIG = (64, 256)


def test_after_the_time_budget_the_rest_is_estimated():
    ops = graph_of(lambda x: (tf.exp(x), x * x, tf.matmul(x, x, transpose_b=True)), BIG).get_operations()
    result = timed.time_ops(ops, time_budget=0.0)
    large = [op.type in ("Exp", "Mul", "MatMul") for op in ops]
    assert (~result.measured).tolist() == large
    assert np.isfinite(result.cost_us).all() and (result.cost_us > 0).all()


def test_an_operation_that_cannot_be_run_is_estimated():
    graph = graph_of(lambda x: tf.numpy_function(lambda v: v, [x], tf.float32) + tf.exp(x), BIG)
    ops = graph.get_operations()
    result = timed.time_ops(ops, repetitions=1)
    assert {op.type for op, known in zip(ops, result.measured, strict=True) if not known} == {
        "PyFunc",
        "AddV2",
    }  # AddV2 reads an unknown shape
    assert np.isfinite(result.cost_us).all() and (result.cost_us > 0).all()


@pytest.mark.parametrize("error", [tf.errors.ResourceExhaustedError(None, None, "out of memory"), MemoryError()])
def test_an_allocation_that_fails_is_estimated(monkeypatch, error):
    assert isinstance(error, RUN_ERRORS)
    original = timed.run_op

    def run_op(op, *rest):
        if op.type == "Exp":
            raise error
        return original(op, *rest)

    monkeypatch.setattr(timed, "run_op", run_op)
    ops = graph_of(lambda x: tf.exp(x) * x, BIG).get_operations()
    result = timed.time_ops(ops, repetitions=1)
    assert [op.type for op, known in zip(ops, result.measured, strict=True) if not known] == ["Exp"]
    assert result.cost_us.min() > 0


def test_an_interrupt_propagates_and_keeps_what_was_measured(folder):
    ops = graph_of(lambda x: (tf.exp(x), x * x), BIG).get_operations()

    def interrupt(done, total, text):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timed.time_ops(ops, progress=interrupt)
    (file,) = folder.glob("*.json")
    assert sum(key.startswith(("Exp", "Mul")) for key in json.loads(file.read_text())["us"]) == 1


def test_timing_inside_a_trace_runs_eagerly():
    ops = graph_of(lambda x: tf.exp(x), BIG).get_operations()
    found = []
    tf.function(lambda: found.append(timed.time_ops(ops, repetitions=1)), autograph=False)()
    assert found[0].measured.all()


# The cache --------------------------------------------------------------------------------------------------------


def test_cache_round_trip_merges(folder):
    path = disk.cache_path("Some CPU @ 2 GHz, tf 2.x")
    assert path.parent == folder and path.name == "Some-CPU-2-GHz-tf-2.x.v3.json"
    assert disk.load(path) == {}
    assert disk.save(path, {"a": 1.5}) and disk.save(path, {"b": 2.0, "a": 3.0})
    assert disk.load(path) == {"a": 3.0, "b": 2.0}
    assert [p.name for p in folder.iterdir()] == [path.name]  # no temporary file is left


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"format": 99, "us": {}}', '{"format": 3, "us": 3}', "\x00\xff"])
def test_a_corrupt_cache_is_a_warning(folder, caplog, content):
    folder.mkdir()
    path = folder / "x.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING, "checkmate_tf"):
        assert disk.load(path) == {}
    assert "is not used" in caplog.text
    assert disk.save(path, {"a": 1.0}) and disk.load(path) == {"a": 1.0}


def test_versions_of_another_format_have_a_file_of_their_own(folder, monkeypatch):
    assert disk.save(disk.cache_path("x"), {"a": 1.0})
    monkeypatch.setattr(disk, "_FORMAT", 4)
    assert disk.load(disk.cache_path("x")) == {} and disk.save(disk.cache_path("x"), {"a": 2.0})
    monkeypatch.undo()
    assert disk.load(folder / "x.v3.json") == {"a": 1.0}


def test_implausible_entries_are_dropped(folder):
    folder.mkdir()
    entries = {"good": 2, "nan": float("nan"), "inf": float("inf"), "zero": 0, "minus": -1, "text": "3", "yes": True}
    entries |= {"tiny": 1e-320, "huge": 10**400}
    (folder / "x.json").write_text(json.dumps({"format": 3, "us": entries}))
    assert disk.load(folder / "x.json") == {"good": 2}
    assert not disk.save(folder / "y.json", {"nan": float("nan")})


def test_what_several_write_at_once_stays(folder):
    def write(name):
        for k in range(10):
            assert disk.save(folder / "x.json", {f"{name} {k}": 1.0})

    with ThreadPoolExecutor(8) as writers:
        list(writers.map(write, range(8)))
    assert len(disk.load(folder / "x.json")) == 80
    assert [path.name for path in folder.iterdir()] == ["x.json"]


def test_a_cached_time_of_small_operations_is_within_what_is_measured():
    ops = graph_of(lambda x: tf.exp(x), (4,)).get_operations()
    path = disk.cache_path(settings.setting(settings.device_name()))
    for cached, most in ((1e9, 10.0), (1e-3, 0.1)):
        disk.save(path, {"an operation of a graph": cached})
        assert timed.time_ops(ops).cost_us.max() == most


def test_an_unwritable_cache_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "file" / "cache"))
    ops = graph_of(lambda x: tf.exp(x), BIG).get_operations()
    with caplog.at_level(logging.WARNING, "checkmate_tf"):
        assert timed.time_ops(ops, repetitions=1).measured.all()
    assert "could not be cached" in caplog.text


def test_the_cache_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", "")
    assert disk.cache_path("x") is None and disk.load(None) == {} and not disk.save(None, {"a": 1.0})


@pytest.mark.parametrize("change", [{"TF_ENABLE_ONEDNN_OPTS": "0"}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "avx2 amx_tile"])
def test_other_kernels_are_another_setting(monkeypatch, change):
    """Their times and workspaces are not those of this setting."""
    for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    before = settings.setting("/CPU:0")
    if isinstance(change, str):
        monkeypatch.setattr(settings, "_of_processor", lambda what: change if what == "flags" else "a processor")
    else:
        monkeypatch.setenv(*next(iter(change.items())))
    assert settings.setting("/CPU:0") != before
    assert len(disk.cache_path(f"workspace {settings.setting('/CPU:0')}").name) < 140  # so nothing of it is cut off


def test_threads_of_the_environment_are_another_setting(monkeypatch):
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 0)
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    found = [settings.setting("/CPU:0")]
    for given in ("1", "2", "many"):
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", given)
        found.append(settings.setting("/CPU:0"))
    assert len(set(found)) == 3 and found[0] == found[3]  # TensorFlow reads no words
    monkeypatch.setattr(tf.config.threading, "get_intra_op_parallelism_threads", lambda: 2)
    assert settings.setting("/CPU:0") == found[2]  # what the program says goes before it


# Roofline ---------------------------------------------------------------------------------------------------------


def test_roofline_is_the_longer_of_computing_and_moving():
    graph = graph_of(lambda x: (tf.matmul(x, x), x + x), (100, 100))
    rates = Rates(flops_per_second=1e9, bytes_per_second=1e9, op_us=1.0)
    assert roofline_us(only(graph, "MatMul"), rates) == pytest.approx(1 + 2e6 / 1e3)
    assert roofline_us(only(graph, "AddV2"), rates) == pytest.approx(1 + 3 * 4e4 / 1e3)
    assert roofline_costs(graph.get_operations(), rates=rates).min() > 0
    assert (op_costs(graph.get_operations(), "roofline") > 0).all()  # rates of this device


def test_the_roofline_of_a_loop_is_that_of_each_operation_in_each_round():
    loop = only(graph_of(looped, (4, 8), (8, 8)), "StatelessWhile")
    rates = Rates(flops_per_second=1e9, bytes_per_second=1e9, op_us=0.0)
    work, overhead = roofline_us(loop, rates), roofline_us(loop, replace(rates, op_us=1.0)) - roofline_us(loop, rates)
    assert work >= 7 * 2 * 4 * 8 * 8 / 1e3
    assert overhead >= 1 + 7 * 2  # of each round at least a product and a sum


@pytest.mark.parametrize("bad", [{"flops_per_second": 0}, {"bytes_per_second": float("nan")}, {"op_us": -1}])
def test_rates_must_make_sense(bad):
    with pytest.raises(CostError):
        Rates(**bad)
