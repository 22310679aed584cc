"""Cost models: FLOPs by hand, profiles of small training steps, the cache, and what happens when things go wrong."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from checkmate_tf.costs import COST_MODELS, cost_unit, op_costs  # noqa: E402
from checkmate_tf.costs import cache as disk  # noqa: E402
from checkmate_tf.costs import profile as profiling  # noqa: E402
from checkmate_tf.costs.calls import trip_count  # noqa: E402
from checkmate_tf.costs.eager import RUN_ERRORS  # noqa: E402
from checkmate_tf.costs.fabricate import Fabricator, may_run  # noqa: E402
from checkmate_tf.costs.flops import TRANSCENDENTAL, op_cost_flops, op_flops  # noqa: E402
from checkmate_tf.costs.roofline import Rates, op_traffic_bytes, roofline_costs, roofline_us  # noqa: E402
from checkmate_tf.costs.signature import Signer  # noqa: E402
from checkmate_tf.costs.sizes import num_bytes, output_elements  # noqa: E402
from checkmate_tf.costs.values import StaticValues  # noqa: E402
from checkmate_tf.errors import CostError  # noqa: E402


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def graph_of(function, *specs):
    """Operations of a traced function, without those that only name its inputs and results."""
    given = [s if isinstance(s, tf.TensorSpec) else tf.TensorSpec(s) for s in specs]
    return tf.function(function, autograph=False).get_concrete_function(*given).graph


def only(graph, kind):
    (op,) = (op for op in graph.get_operations() if op.type == kind)
    return op


def step_of(model, x, y, optimizer="adam"):
    """Operations of one training step with a static batch."""
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda a, b: model.train_step((a, b)), autograph=False)
    return step.get_concrete_function(x, y).graph.get_operations()


# FLOPs ------------------------------------------------------------------------------------------------------------


def test_convolutions_count_two_for_each_multiply_add():
    def forward_and_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv2d(x, w, strides=2, padding="SAME")
        return tape.gradient(y, [x, w])

    graph = graph_of(forward_and_back, (2, 8, 8, 3), (3, 3, 3, 16))
    flops = 2 * (2 * 4 * 4 * 16) * (3 * 3 * 3)
    assert op_flops(only(graph, "Conv2D")) == flops
    assert op_flops(only(graph, "Conv2DBackpropInput")) == flops
    assert op_flops(only(graph, "Conv2DBackpropFilter")) == flops


def test_grouped_convolution_counts_the_channels_of_a_group():
    graph = graph_of(lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"), (1, 4, 4, 8), (3, 3, 2, 16))
    assert op_flops(only(graph, "Conv2D")) == 2 * (4 * 4 * 16) * (3 * 3 * 2)


def test_depthwise_convolutions():
    def forward_and_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.depthwise_conv2d(x, w, (1, 1, 1, 1), "SAME")
        return tape.gradient(y, [x, w])

    graph = graph_of(forward_and_back, (2, 8, 8, 4), (3, 3, 4, 2))
    flops = 2 * (2 * 8 * 8 * 4 * 2) * 9
    for kind in ("", "BackpropInput", "BackpropFilter"):
        assert op_flops(only(graph, "DepthwiseConv2dNative" + kind)) == flops


def test_conv3d():
    def forward_and_back(x, w):
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = tf.nn.conv3d(x, w, (1, 1, 1, 1, 1), "VALID")
        return tape.gradient(y, [x, w])

    graph = graph_of(forward_and_back, (1, 4, 4, 4, 2), (2, 2, 2, 2, 5))
    flops = 2 * (3**3 * 5) * (2**3 * 2)
    for kind in ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2"):
        assert op_flops(only(graph, kind)) == flops


def test_matrix_products():
    graph = graph_of(lambda a, b: tf.matmul(a, b, transpose_a=True), (7, 3), (7, 5))
    assert op_flops(only(graph, "MatMul")) == 2 * 3 * 5 * 7
    graph = graph_of(lambda a, b: tf.matmul(a, b, transpose_b=True), (2, 4, 3, 7), (2, 4, 5, 7))
    assert op_flops(only(graph, "BatchMatMulV2")) == 2 * (2 * 4) * 3 * 5 * 7


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("ab,bc->ac", [(2, 3), (3, 5)], 2 * 2 * 3 * 5),
        ("BTNH,BSNH->BNTS", [(2, 6, 4, 8), (2, 7, 4, 8)], 2 * 2 * 6 * 7 * 4 * 8),
        ("...ij,jk->...ik", [(9, 2, 3), (3, 4)], 2 * 9 * 2 * 3 * 4),
        ("ij->j", [(4, 5)], 20),
    ],
)
def test_einsum(equation, shapes, flops):
    graph = graph_of(lambda *t: tf.raw_ops.Einsum(inputs=t, equation=equation), *shapes)
    assert op_flops(only(graph, "Einsum")) == flops


def test_batch_normalisation():
    def forward_and_back(x, s):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.compat.v1.nn.fused_batch_norm(x, s, s, is_training=True)[0]
        return tape.gradient(y, x)

    graph = graph_of(forward_and_back, (2, 4, 4, 8), (8,))
    assert op_flops(only(graph, "FusedBatchNormV3")) == 6 * 256
    assert op_flops(only(graph, "FusedBatchNormGradV3")) == 9 * 256


def test_pooling():
    def forward_and_back(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool2d(x, 3, 2, "SAME"), tf.nn.avg_pool2d(x, 2, 2, "SAME")
        return tape.gradient(y, x)

    graph = graph_of(forward_and_back, (1, 8, 8, 2))
    assert op_flops(only(graph, "MaxPool")) == op_flops(only(graph, "MaxPoolGrad")) == 9 * (4 * 4 * 2)
    assert op_flops(only(graph, "AvgPool")) == op_flops(only(graph, "AvgPoolGrad")) == 4 * (4 * 4 * 2)


@pytest.mark.parametrize(
    ("function", "kind", "flops"),
    [
        (lambda x: x + x, "AddV2", 12),
        (tf.math.squared_difference, "SquaredDifference", 24),
        (tf.exp, "Exp", 12 * TRANSCENDENTAL),
        (tf.tanh, "Tanh", 12 * TRANSCENDENTAL),
        (tf.nn.softmax, "Softmax", 12 * (TRANSCENDENTAL + 4)),
        (lambda x: tf.reduce_sum(x, 0), "Sum", 12),
        (lambda x: tf.reduce_mean(x, 0), "Mean", 12 + 4),
        (lambda x: tf.add_n([x, x, x]), "AddN", 24),
        (tf.transpose, "Transpose", 12),
        (lambda x: tf.gather(x, [0, 1, 0, 2]), "GatherV2", 16),
        (lambda x: tf.raw_ops.Identity(input=x), None, 0),
        (lambda x: tf.reshape(x, (4, 3)), "Reshape", 0),
        (lambda x: tf.random.stateless_uniform((5, 2), (1, 2)), "StatelessRandomUniformV2", 100),
        (lambda x: tf.raw_ops.MatrixBandPart(input=x, num_lower=0, num_upper=0), "MatrixBandPart", 12),  # unknown here
    ],
)
def test_elementwise_reductions_views_and_unknown(function, kind, flops):
    specs = [(3, 4)] * (2 if kind == "SquaredDifference" else 1)
    graph = graph_of(function, *specs)
    ops = [op for op in graph.get_operations() if op.type == kind] or [graph.get_operations()[1]]
    assert op_flops(ops[0]) == flops


def test_updates_of_variables_count_the_value():
    variable = tf.Variable(tf.zeros((6, 5)))
    graph = graph_of(lambda x: variable.assign_add(x), (6, 5))
    assert op_flops(only(graph, "AssignAddVariableOp")) == 30
    assert op_traffic_bytes(only(graph, "AssignAddVariableOp")) == 3 * 30 * 4


def looped(x, w, limit=7):
    return tf.while_loop(lambda i, h: i < limit, lambda i, h: (i + 1, tf.matmul(h, w)), (0, x), maximum_iterations=9)[1]


def test_a_loop_costs_its_body_times_its_bound():
    loop = only(graph_of(looped, (4, 8), (8, 8)), "StatelessWhile")
    assert trip_count(loop) == 7
    assert op_flops(loop) >= 7 * 2 * 4 * 8 * 8
    assert op_flops(loop) < 7 * (2 * 4 * 8 * 8 + 100)


def test_an_open_batch_in_a_body_is_read_from_the_inputs_of_the_loop():
    def open_loop(x, w):
        h = tf.while_loop(
            lambda i, h: i < 3,
            lambda i, h: (i + 1, tf.matmul(h, w)),
            (0, x),
            shape_invariants=(tf.TensorShape(()), tf.TensorShape((None, 8))),
        )
        return h[1]

    loop = only(graph_of(open_loop, (64, 8), (8, 8)), "StatelessWhile")
    products = 3 * 2 * 64 * 8 * 8
    assert products <= op_flops(loop) < 1.1 * products


def test_a_gradient_loop_takes_the_count_of_its_forward_loop():
    def back(x, w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            y = looped(x, w, 100)
        return tape.gradient(y, w)

    loops = [op for op in graph_of(back, (4, 8), (8, 8)).get_operations() if "While" in op.type]
    assert [trip_count(op) for op in loops] == [9, 9]


def test_a_loop_without_a_constant_bound_counts_once():
    def until(x, n):
        return tf.while_loop(lambda i, h: i < n, lambda i, h: (i + 1, tf.matmul(h, h)), (0, x))[1]

    loop = only(graph_of(until, (8, 8), tf.TensorSpec((), tf.int32)), "StatelessWhile")
    assert trip_count(loop) is None
    assert 2 * 8**3 <= op_flops(loop) < 2 * 8**3 + 100


def test_an_unknown_size_is_not_zero():
    graph = graph_of(lambda x, n: tf.tile(x, n), (8, 8), tf.TensorSpec((2,), tf.int32))
    tile = only(graph, "Tile")
    assert tile.outputs[0].shape.as_list() == [None, None]
    assert output_elements(tile.outputs[0]) == op_flops(tile) == 64
    assert num_bytes(tile.outputs[0]) == 256


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


@pytest.mark.parametrize("build", [small_cnn, small_transformer, small_lstm])
def test_a_profile_covers_every_operation(build):
    ops = build()
    seen = []
    result = profiling.profile(ops, progress=lambda *a: seen.append(a), repetitions=1)
    assert result.cost_us.shape == result.measured.shape == (len(ops),)
    assert np.isfinite(result.cost_us).all() and (result.cost_us > 0).all()
    assert [op.type for op, known in zip(ops, result.measured, strict=True) if not known] == []
    assert 0 < result.signatures < len(ops) and result.cache_hits == 0
    assert seen[-1] == (result.signatures, result.signatures, "done")
    again = profiling.profile(ops, repetitions=1)
    assert again.cache_hits == again.signatures == result.signatures
    np.testing.assert_array_equal(again.cost_us, result.cost_us)


def test_loops_are_run_as_long_as_they_are():
    loops = [op for op in small_lstm() if "While" in op.type]
    assert len(loops) == 4 and all(may_run(op) for op in loops)
    assert [trip_count(op) for op in loops] == [6] * 4
    assert op_cost_flops(loops).min() > 6 * 2 * 8 * 32 * 4 * 32


BIG = (64, 256)


def test_after_the_time_budget_the_rest_is_estimated():
    ops = graph_of(lambda x: (tf.exp(x), x * x, tf.matmul(x, x, transpose_b=True)), BIG).get_operations()
    result = profiling.profile(ops, time_budget=0.0)
    large = [op.type in ("Exp", "Mul", "MatMul") for op in ops]
    assert (~result.measured).tolist() == large
    assert np.isfinite(result.cost_us).all() and (result.cost_us > 0).all()


def test_an_operation_that_cannot_be_run_is_estimated():
    graph = graph_of(lambda x: tf.numpy_function(lambda v: v, [x], tf.float32) + tf.exp(x), BIG)
    ops = graph.get_operations()
    result = profiling.profile(ops, repetitions=1)
    assert {op.type for op, known in zip(ops, result.measured, strict=True) if not known} == {
        "PyFunc",
        "AddV2",
    }  # AddV2 reads an unknown shape
    assert np.isfinite(result.cost_us).all() and (result.cost_us > 0).all()


@pytest.mark.parametrize("error", [tf.errors.ResourceExhaustedError(None, None, "out of memory"), MemoryError()])
def test_an_allocation_that_fails_is_estimated(monkeypatch, error):
    assert isinstance(error, RUN_ERRORS)
    original = profiling.run_op

    def run_op(op, *rest):
        if op.type == "Exp":
            raise error
        return original(op, *rest)

    monkeypatch.setattr(profiling, "run_op", run_op)
    ops = graph_of(lambda x: tf.exp(x) * x, BIG).get_operations()
    result = profiling.profile(ops, repetitions=1)
    assert [op.type for op, known in zip(ops, result.measured, strict=True) if not known] == ["Exp"]
    assert result.cost_us.min() > 0


def test_an_interrupt_propagates_and_keeps_what_was_measured(folder):
    ops = graph_of(lambda x: (tf.exp(x), x * x), BIG).get_operations()

    def interrupt(done, total, text):
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiling.profile(ops, progress=interrupt)
    (file,) = folder.glob("*.json")
    assert sum(key.startswith(("Exp", "Mul")) for key in json.loads(file.read_text())["us"]) == 1


def test_profiling_inside_a_trace_runs_eagerly():
    ops = graph_of(lambda x: tf.exp(x), BIG).get_operations()
    found = []
    tf.function(lambda: found.append(profiling.profile(ops, repetitions=1)), autograph=False)()
    assert found[0].measured.all()


# The cache --------------------------------------------------------------------------------------------------------


def test_cache_round_trip_merges(folder):
    path = disk.cache_path("Some CPU @ 2 GHz, tf 2.x")
    assert path.parent == folder and path.name == "Some-CPU-2-GHz-tf-2.x.json"
    assert disk.load(path) == {}
    assert disk.save(path, {"a": 1.5}) and disk.save(path, {"b": 2.0, "a": 3.0})
    assert disk.load(path) == {"a": 3.0, "b": 2.0}
    assert [p.name for p in folder.iterdir()] == [path.name]  # no temporary file is left


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"format": 99, "us": {}}', '{"format": 1, "us": 3}', "\x00\xff"])
def test_a_corrupt_cache_is_a_warning(folder, caplog, content):
    folder.mkdir()
    path = folder / "x.json"
    path.write_text(content)
    with caplog.at_level(logging.WARNING, "checkmate_tf"):
        assert disk.load(path) == {}
    assert "is not used" in caplog.text
    assert disk.save(path, {"a": 1.0}) and disk.load(path) == {"a": 1.0}


def test_implausible_entries_are_dropped(folder):
    folder.mkdir()
    entries = {"good": 2, "nan": float("nan"), "inf": float("inf"), "zero": 0, "minus": -1, "text": "3", "yes": True}
    (folder / "x.json").write_text(json.dumps({"format": 1, "us": entries}))
    assert disk.load(folder / "x.json") == {"good": 2}
    assert not disk.save(folder / "y.json", {"nan": float("nan")})


def test_an_unwritable_cache_is_a_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path / "file" / "cache"))
    ops = graph_of(lambda x: tf.exp(x), BIG).get_operations()
    with caplog.at_level(logging.WARNING, "checkmate_tf"):
        assert profiling.profile(ops, repetitions=1).measured.all()
    assert "could not be cached" in caplog.text


def test_the_cache_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", "")
    assert disk.cache_path("x") is None and disk.load(None) == {} and not disk.save(None, {"a": 1.0})


# Roofline ---------------------------------------------------------------------------------------------------------


def test_roofline_is_the_longer_of_computing_and_moving():
    graph = graph_of(lambda x: (tf.matmul(x, x), x + x), (100, 100))
    rates = Rates(flops_per_second=1e9, bytes_per_second=1e9, op_us=1.0)
    assert roofline_us(only(graph, "MatMul"), rates) == pytest.approx(1 + 2e6 / 1e3)
    assert roofline_us(only(graph, "AddV2"), rates) == pytest.approx(1 + 3 * 4e4 / 1e3)
    assert roofline_costs(graph.get_operations(), rates=rates).min() > 0
    assert (op_costs(graph.get_operations(), "roofline") > 0).all()  # rates of this device


@pytest.mark.parametrize("bad", [{"flops_per_second": 0}, {"bytes_per_second": float("nan")}, {"op_us": -1}])
def test_rates_must_make_sense(bad):
    with pytest.raises(CostError):
        Rates(**bad)


# The registry -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three():
    return graph_of(lambda x: tf.exp(x) * x, BIG).get_operations()[:3]


def test_every_model_gives_a_cost_for_each_operation(three):
    for name in COST_MODELS:
        costs = op_costs(three, name)
        assert costs.shape == (3,) and np.isfinite(costs).all() and (costs >= 0).all()
    assert [cost_unit(c) for c in ("profile", "flops", len)] == ["us", "flop", ""]


def test_costs_may_be_given(three):
    assert op_costs(three, lambda op: len(op.inputs)).tolist() == [0, 1, 2]
    assert op_costs(three, [1, 2, 3]).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ("v100", "'profile', 'flops', 'roofline'"),
        (lambda op: float("nan"), "Placeholder.*nan"),
        (lambda op: -1.0 if op.type == "Exp" else 1.0, "Exp.*-1"),
        (lambda op: None if op.type == "Exp" else 1.0, "Exp"),
        (lambda op: "dear", "dear"),
        ([1.0, np.inf, 1.0], "Exp.*inf"),
        ([1.0], "3 operations"),
    ],
)
def test_bad_costs_are_refused(three, costs, message):
    with pytest.raises(CostError, match=message):
        op_costs(three, costs)


def test_options_are_for_named_models(three):
    with pytest.raises(CostError, match="time_budget"):
        op_costs(three, [1, 2, 3], time_budget=3)


def test_importing_costs_does_not_import_tensorflow():
    code = "import sys, checkmate_tf.costs; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
