"""Layer-level graphs: the published sizes, and bytes, costs and dependencies of models that can be counted by hand."""

from __future__ import annotations

import logging
import math
import os
from functools import partial

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from traced import graph_of  # noqa: E402

from benchmarks.lib import models as networks  # noqa: E402
from checkmate_tf.costs.counts import TRANSCENDENTAL as T  # noqa: E402
from checkmate_tf.costs.flops import op_flops  # noqa: E402
from checkmate_tf.errors import BatchSizeError, CostError, DynamicShapeError, ModelError, TraceError  # noqa: E402
from checkmate_tf.graph import BACKWARD, FORWARD, LOSS  # noqa: E402
from checkmate_tf.layers.calls import layer_calls  # noqa: E402
from checkmate_tf.layers.flops import layer_flops  # noqa: E402
from checkmate_tf.layers.graph import layer_graph  # noqa: E402
from checkmate_tf.schedule import keep_all  # noqa: E402
from checkmate_tf.strategies.baselines.chen import by_segment_size  # noqa: E402
from checkmate_tf.strategies.baselines.keepset import droppable  # noqa: E402

L, ops = keras.layers, keras.ops


@pytest.fixture(scope="module", autouse=True)
def _weights_of_zero():
    """Nobody reads the weights here, and random ones take half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        zeros = lambda self, shape, dtype=None, **options: ops.zeros(shape, dtype)  # noqa: E731
        patch.setattr(keras.initializers.VarianceScaling, "__call__", zeros)
        patch.setattr(keras.initializers.RandomUniform, "__call__", zeros)
        yield


def edges_of(graph):
    return {(graph.names[i], graph.names[j]) for i, j in graph.edges}


def chain(*layers, shape=(8,), **options):
    """A functional chain."""
    x = inputs = keras.Input(shape, **options)
    for layer in layers:
        x = layer(x)
    return keras.Model(inputs, x)


def flops(layer, *inputs, **options):
    """(multiply-adds, FLOPs) of one call of a layer or function on inputs of these shapes, batch 2."""
    tensors = [keras.Input(shape) for shape in inputs]
    outputs = layer(*tensors, **options)
    (call,) = layer_calls(keras.Model(tensors, outputs), 2).calls
    shapes = call.argument_shapes, call.output_shapes
    return tuple(layer_flops(call.operation, *shapes, convention) for convention in ("multiply-adds", "true"))


# The papers' networks ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vgg19():
    return networks.graph_of("VGG19")


def test_resnet50_has_the_published_nodes_and_edges():
    # CM2 of Moccasin, Table 2; Checkmate's artifact
    graph = networks.graph_of("ResNet50")
    assert (len(graph), len(graph.edges)) == (353, 751)


@pytest.mark.parametrize(
    "name, nodes, edges",
    [
        ("MobileNet", 181, 359), ("transformer", 245, 559), ("U-Net", 71, 148), ("SegNet", 77, 151), ("FCN8", 73, 149),
        ("FCN32", 53, 103), ("PSPNet", 93, 195), ("U-Net, ResNet50 encoder", 327, 699),
        ("SegNet, MobileNet encoder", 181, 359), ("PSPNet, plain encoder", 107, 223),
    ],
)  # fmt: skip
def test_nodes_and_edges(name, nodes, edges):
    graph = networks.graph_of(name)
    assert (len(graph), len(graph.edges)) == (nodes, edges)


@pytest.mark.parametrize("name, layers", [("GoogleNet", 215), ("U-Net, normalised", 67)])
def test_the_networks_of_monet_have_the_published_layers(name, layers):
    assert len(layer_calls(networks.MODELS[name](), 1).calls) == layers  # MONeT, table 7


def test_vgg19_is_a_chain_of_25_layers(vgg19):
    assert (len(vgg19), len(vgg19.edges)) == (51, 4 * 25 - 1)
    assert vgg19.names[24:27] == ("predictions", "loss", "grad_predictions")
    assert vgg19.costs[vgg19.kinds == FORWARD].sum() == pytest.approx(19.632e9, rel=1e-4)
    parameters = 143_667_240
    assert vgg19.constant_bytes == 4 * (2 * parameters + 224 * 224 * 3)


def test_vgg19_trains_with_the_published_batch_without_recomputation(vgg19):
    # Artifact's README: 167. It takes parameters and gradients off the memory and adds them to the peak too.
    fixed = vgg19.constant_bytes - 4 * 224 * 224 * 3
    assert networks.max_batch(networks.retained_peak_bytes(vgg19), 2 * fixed) == 167


def test_vgg19_trains_with_the_published_batch_under_chens_greedy(vgg19):
    """Counted in the same way; 266, artifact's README. What is computed again may be held as well: the same."""
    fixed = vgg19.constant_bytes - 4 * 224 * 224 * 3
    for again in (False, True):
        peaks = (
            networks.retained_peak_bytes(vgg19, set(kept), again)
            for kept in by_segment_size(vgg19, np.flatnonzero(droppable(vgg19)).tolist())
            if kept
        )
        assert networks.max_batch(min(peaks), 2 * fixed) == 266


def test_unet_needs_the_published_memory_at_batch_32():
    graph = networks.graph_of("U-Net", 32)
    inputs = 32 * 4 * math.prod(networks.IMAGE)
    peak = graph.constant_bytes - inputs + networks.retained_peak_bytes(graph)
    assert peak / 1e9 == pytest.approx(23, abs=0.5)  # section 6.2: 23 GB
    one = networks.graph_of("U-Net")
    parameters = one.constant_bytes - inputs // 32
    assert networks.max_batch(networks.retained_peak_bytes(one), parameters, 12_000_000_000) == 16  # figure 6


def test_mobilenet_trains_with_a_fifth_of_the_published_batch_without_recomputation():
    graph = networks.graph_of("MobileNet")
    batch = networks.max_batch(networks.retained_peak_bytes(graph), graph.constant_bytes - 4 * 224 * 224 * 3)
    assert 1105 / batch == pytest.approx(5.1, abs=0.05)  # figure 6


# The rule ---------------------------------------------------------------------------------------------------------


def test_chain_by_hand():
    graph = layer_graph(chain(L.Dense(4, name="a"), L.Dense(2, name="b")), 3)
    assert graph.names == ("a", "b", "loss", "grad_b", "grad_a")
    assert list(graph.kinds) == [FORWARD, FORWARD, LOSS, BACKWARD, BACKWARD]
    assert edges_of(graph) == {
        ("a", "b"), ("b", "loss"), ("b", "grad_b"), ("loss", "grad_b"), ("a", "grad_a"), ("b", "grad_a"),
        ("grad_b", "grad_a"),
    }  # fmt: skip
    assert list(graph.sizes) == [4 * 3 * 4, 4 * 3 * 2, 4 * 3, 4 * 3 * 2, 4 * 3 * 4]
    assert list(graph.costs) == [3 * 8 * 4, 3 * 4 * 2, 0, 2 * 3 * 4 * 2, 2 * 3 * 8 * 4]
    assert graph.constant_bytes == 4 * (3 * 8 + 2 * (8 * 4 + 4 + 4 * 2 + 2))
    assert graph.cost_unit == "multiply-add"


def test_branches_and_several_outputs():
    x = keras.Input((8,))
    a = L.Dense(8, name="a")(x)
    b = L.Dense(8, name="b")(a)
    c = L.Add(name="c")([a, b])
    graph = layer_graph(keras.Model(x, [b, c]), 1)
    edges = edges_of(graph)
    assert {i for i, j in edges if j == "grad_a"} == {"a", "b", "c", "grad_b", "grad_c"}
    assert {i for i, j in edges if j == "grad_b"} == {"b", "c", "grad_c", "loss"}
    assert {i for i, j in edges if j == "grad_c"} == {"c", "loss"}
    assert {i for i, j in edges if j == "loss"} == {"b", "c"}


def test_several_inputs_count_and_are_no_nodes():
    x, y = keras.Input((3,)), keras.Input((5,), dtype="int32")
    model = keras.Model([x, y], L.Concatenate(name="both")([x, ops.cast(y, "float32")]))
    graph = layer_graph(model, 2)
    assert graph.constant_bytes == 2 * 4 * (3 + 5)
    assert "both" in graph.names and len(graph) == 5


def test_a_shared_layer_has_a_node_for_each_call():
    x, dense = keras.Input((8,)), L.Dense(8, name="d")
    graph = layer_graph(keras.Model(x, dense(dense(x))), 1)
    assert graph.names == ("d", "d:1", "loss", "grad_d:1", "grad_d")
    assert graph.constant_bytes == 4 * (8 + 2 * (64 + 8))  # its weights count once


def test_models_within_are_taken_apart():
    inner = chain(L.Dense(8, name="p"), L.ReLU(name="q"))
    sequential = keras.Sequential([keras.Input((8,)), inner, L.Dense(1, name="r")])
    x = keras.Input((8,))
    nested = keras.Model(x, sequential(inner(x)))
    assert layer_graph(nested, 1).names[:5] == ("p", "q", "p:1", "q:1", "r")
    flat = chain(L.Dense(8), L.ReLU(), L.Dense(8), L.ReLU(), L.Dense(1))
    assert layer_graph(nested, 1).edges == layer_graph(flat, 1).edges


def test_sequential_is_its_functional_model():
    layers = lambda: [L.Dense(4, name="a"), L.Dense(2, name="b")]  # noqa: E731
    sequential = layer_graph(keras.Sequential([keras.Input((8,)), *layers()]), 2)
    functional = layer_graph(chain(*layers()), 2)
    assert (sequential.names, sequential.edges) == (functional.names, functional.edges)
    assert keep_all(sequential).peak_bytes == keep_all(functional).peak_bytes


def test_operations_are_nodes_and_follow_the_batch_wherever_it_goes():
    x = keras.Input((6, 8))
    folded = L.Dense(4, name="dense")(ops.reshape(x, (-1, 8)))  # the batch in the first axis of 6 x batch
    turned = ops.transpose(ops.reshape(folded, (-1, 6, 4)), (1, 0, 2))
    graph = layer_graph(keras.Model(x, ops.matmul(turned, ops.ones((4, 5)))), 3)
    assert [*graph.sizes[:5]] == [4 * 3 * 6 * 8, 4 * 18 * 4, 4 * 18 * 4, 4 * 18 * 4, 4 * 18 * 5]
    assert [*graph.costs[:5]] == [0, 18 * 8 * 4, 0, 0, 18 * 4 * 5]


class Windows(L.Layer):
    """Folds positions into the batch, as window attention does."""

    def call(self, x):
        return ops.reshape(x, (-1, 2, x.shape[-1]))


@pytest.mark.parametrize("layer", [Windows(), L.Lambda(lambda x: ops.reshape(x, (-1, 2, x.shape[-1])))])
def test_layers_that_run_the_users_code_may_fold_the_batch(layer):
    graph = layer_graph(chain(layer, L.Dense(5, name="dense"), shape=(6, 4)), 3)
    assert [*graph.sizes[:2]] == [4 * 9 * 2 * 4, 4 * 9 * 2 * 5]
    assert graph.costs[graph.names.index("dense")] == 9 * 2 * 4 * 5


def test_batches_may_be_concatenated():
    x, y = keras.Input((4,)), keras.Input((4,))
    both = [L.Concatenate(axis=axis)([x, y]) for axis in (0, -2)]
    graph = layer_graph(keras.Model([x, y], [*both, L.Concatenate()([x, y])]), 3)
    assert [*graph.sizes[:3]] == [4 * 6 * 4, 4 * 6 * 4, 4 * 3 * 8]


def test_masks_are_values_without_gradients():
    model = chain(L.Embedding(10, 4, mask_zero=True), L.LSTM(3, name="lstm"), shape=(7,), dtype="int32")
    graph = layer_graph(model, 2)
    mask = graph.names.index("not_equal")
    assert graph.sizes[mask] == 2 * 7 and "grad_not_equal" not in graph.names
    assert graph.costs[graph.names.index("lstm")] == 2 * 7 * 4 * 3 * (4 + 3)


def test_no_gradient_where_no_floating_path_leads_to_the_outputs():
    x = keras.Input((8,))
    a = L.Dense(8, name="a")(x)
    model = keras.Model(x, [L.Dense(1, name="b")(x), ops.argmax(a, axis=-1)])
    assert [n for n in layer_graph(model, 1).names if n.startswith("grad")] == ["grad_b"]


def test_half_precision_halves_values_and_not_variables():
    sizes = {}
    for policy in ("float32", "mixed_bfloat16"):
        graph = layer_graph(chain(L.Dense(4, dtype=policy), L.Dense(2, dtype=policy)), 1)
        sizes[policy] = graph.sizes[:2].sum(), graph.constant_bytes
    assert sizes["float32"][0] == 2 * sizes["mixed_bfloat16"][0]
    assert sizes["float32"][1] == sizes["mixed_bfloat16"][1]


def test_everything_but_parameters_grows_with_the_batch():
    model = chain(L.Conv1D(4, 3), L.BatchNormalization(), L.Flatten(), L.Dense(2), shape=(9, 3))
    one, many = layer_graph(model, 1), layer_graph(model, 7)
    assert (many.costs == 7 * one.costs).all() and (many.sizes == 7 * one.sizes).all()
    assert many.constant_bytes - one.constant_bytes == 6 * 4 * 9 * 3


def test_an_inner_model_of_any_size_takes_the_size_of_its_call():
    inner = chain(L.Conv2D(2, 3), L.MaxPooling2D(), shape=(None, None, 3))
    x = keras.Input((10, 12, 3))
    graph = layer_graph(keras.Model(x, inner(x)), 2)
    assert [*graph.sizes[:2]] == [2 * 8 * 10 * 2 * 4, 2 * 4 * 5 * 2 * 4]


# Costs ------------------------------------------------------------------------------------------------------------


def test_named_callable_and_given_costs():
    model = chain(L.Dense(4, activation="relu"), L.Dense(2))
    assert [*layer_graph(model, 1, "true").costs[:2]] == [2 * 32 + 4 + 4, 2 * 8 + 2]
    assert [*layer_graph(model, 1, lambda call: len(call.inputs) + 1).costs] == [1, 2, 0, 4, 2]
    assert [*layer_graph(model, 1, np.arange(5)).costs] == [0, 1, 2, 3, 4]
    with pytest.raises(CostError, match="shape .4,., .* 5 nodes"):
        layer_graph(model, 1, [1, 2, 3, 4])
    with pytest.raises(CostError, match="profile"):
        layer_graph(model, 1, "profile")
    with pytest.raises(CostError, match="multiply-adds"):
        layer_flops(model.layers[1], [(1, 8)], [(1, 4)], "gigaflops")


def test_the_artifact_counts_some_elementwise_layers():
    x = keras.Input((6, 6, 3))
    y = L.ReLU(name="relu")(L.BatchNormalization(name="norm")(L.Conv2D(3, 1, name="conv")(x)))
    y = L.Conv2DTranspose(2, 2, strides=2, name="up")(L.MaxPooling2D(name="pool")(L.Add(name="add")([x, y, y])))
    graph = layer_graph(keras.Model(x, L.UpSampling2D(name="wide")(y)), 2, "artifact")
    n = 2 * 6 * 6 * 3
    assert dict(zip(graph.names[:7], graph.costs, strict=False)) == {
        "conv": 3 * n, "norm": 4 * n, "relu": n, "add": 3 * n, "pool": 0, "up": 2 * 6 * 6 * 2 * 3, "wide": 2 * 144 * 2,
    }  # fmt: skip


def test_dense_and_convolutions():
    assert flops(L.Dense(5), (3, 8)) == (2 * 3 * 8 * 5, 2 * 2 * 3 * 8 * 5 + 2 * 3 * 5)
    assert flops(L.EinsumDense("abc,cd->abd", (None, 5)), (3, 8))[0] == 2 * 3 * 8 * 5
    assert flops(L.EinsumDense("...c,cd->...d", 5), (3, 8))[0] == 2 * 3 * 8 * 5
    assert flops(L.Conv1D(4, 3), (9, 6))[0] == 2 * 7 * 4 * 3 * 6
    assert flops(L.Conv2D(4, 3, padding="same", groups=2), (9, 9, 6))[0] == 2 * 81 * 4 * 9 * 3
    assert flops(L.Conv3D(4, 3, use_bias=False), (5, 5, 5, 2)) == (2 * 27 * 4 * 27 * 2, 2 * 2 * 27 * 4 * 27 * 2)
    assert flops(L.DepthwiseConv2D(3, depth_multiplier=2), (9, 9, 6))[0] == 2 * 49 * 12 * 9
    assert flops(L.SeparableConv2D(4, 3, depth_multiplier=2), (9, 9, 6))[0] == 2 * 49 * (12 * 9 + 12 * 4)
    assert flops(L.Conv2DTranspose(4, 2, strides=2), (5, 5, 6))[0] == 2 * 25 * 6 * 4 * 4


def test_multi_head_attention_by_hand():
    heads, key, value, length, source, width = 2, 8, 5, 6, 4, 16
    pairs = heads * length * source
    projections = length * width * heads * key + source * width * heads * (key + value) + length * heads * value * width
    layer = L.MultiHeadAttention(heads, key, value_dim=value, use_bias=False)
    macs, true = flops(lambda q, v: layer(query=q, value=v), (length, width), (source, width))
    assert macs == 2 * (projections + pairs * (key + value))
    assert true == 2 * macs + 2 * (length * heads * key + pairs * (T + 4))
    # keys of a width of their own, in whatever order they are given, and with bias
    layer = L.MultiHeadAttention(heads, key, value_dim=value)
    macs, biased = flops(lambda q, v, k: layer(key=k, value=v, query=q), (length, width), (source, width), (source, 3))
    assert macs == 2 * (projections - source * heads * key * (width - 3) + pairs * (key + value))
    biases = length * (heads * key + width) + source * heads * (key + value)
    assert biased == 2 * macs + 2 * (biases + length * heads * key + pairs * (T + 4))


def test_attention_is_what_its_weights_say():
    """The projections multiply each position by each weight once."""
    layer = L.MultiHeadAttention(4, 8)
    macs, _ = flops(lambda q: layer(q, q), (10, 32))
    kernels = sum(math.prod(w.shape) for w in layer.weights if "kernel" in w.name)
    assert macs == 2 * (10 * kernels + 2 * 4 * 10 * 10 * 8)


def test_other_attention():
    pairs = 2 * 6 * 4
    assert flops(lambda q, v: L.Attention()([q, v]), (6, 8), (4, 8))[0] == pairs * 16
    assert flops(lambda q, v: L.AdditiveAttention()([q, v]), (6, 8), (4, 8))[0] == pairs * 16
    grouped = L.GroupQueryAttention(8, 4, 2)
    assert flops(lambda q: grouped(q, q), (6, 16))[0] == 2 * 6 * 16 * 8 * (4 + 2 + 2 + 4) + 2 * 2 * 4 * 6 * 6 * 8
    assert flops(lambda q, v: L.Dot(axes=2)([q, v]), (6, 8), (4, 8))[0] == pairs * 8


@pytest.mark.parametrize("kind, gates", [(L.LSTM, 4), (L.GRU, 3), (L.SimpleRNN, 1)])
def test_recurrences(kind, gates):
    once = 2 * 7 * gates * 5 * (3 + 5)
    macs, true = flops(kind(5), (7, 3))
    assert macs == once and true > 2 * once
    assert flops(L.Bidirectional(kind(5, return_sequences=True)), (7, 3))[0] == 2 * once


def test_cells_and_convolutional_recurrences():
    cells = [L.LSTMCell(5), L.GRUCell(4)]
    assert flops(L.RNN(cells), (7, 3))[0] == 2 * 7 * (4 * 5 * (3 + 5) + 3 * 4 * (5 + 4))
    assert flops(L.ConvLSTM2D(4, 3, return_sequences=True), (5, 8, 8, 3))[0] == 2 * 5 * 36 * 4 * 4 * 9 * (3 + 4)


class ImageCell(L.Layer):
    """A cell of one's own that reads an image at each step."""

    state_size = output_size = 3

    def call(self, x, states):
        y = ops.mean(x, axis=(1, 2)) + states[0]
        return y, [y]


def test_a_recurrence_over_images_by_a_cell_of_ones_own_is_not_known(caplog):
    with caplog.at_level(logging.INFO):
        assert flops(L.RNN(ImageCell()), (5, 4, 4, 3)) == (0, 0)
    assert "are not known" in caplog.text


def test_cells_that_are_called_by_themselves_are_one_step():
    h = keras.Input((5,))
    for cell, states, macs in [
        (L.LSTMCell(5), [h, h], 4 * 5 * (3 + 5)), (L.GRUCell(5), [h], 3 * 5 * (3 + 5)),
        (L.SimpleRNNCell(5), [h], 5 * (3 + 5)),
        (L.StackedRNNCells([L.GRUCell(5), L.SimpleRNNCell(5)]), [h, h], 3 * 5 * (3 + 5) + 5 * (5 + 5)),
    ]:  # fmt: skip
        x = keras.Input((3,))
        (call,) = layer_calls(keras.Model([x, h], cell(x, states)[0]), 2).calls
        shapes = call.argument_shapes, call.output_shapes
        assert layer_flops(call.operation, *shapes, "multiply-adds") == 2 * macs
        assert layer_flops(call.operation, *shapes, "true") > 2 * 2 * macs


def test_time_distributed_layers_and_models():
    assert flops(L.TimeDistributed(L.Dense(5)), (7, 3))[0] == 2 * 7 * 3 * 5
    assert flops(L.TimeDistributed(chain(L.Dense(4), L.Dense(2), shape=(3,))), (7, 3))[0] == 2 * 7 * (3 * 4 + 4 * 2)


def test_elementwise_layers_are_free_or_counted():
    n = 2 * 6 * 6 * 3
    for layer, true in [
        (L.MaxPooling2D(2), 2 * 9 * 3 * 4), (L.GlobalAveragePooling2D(), n), (L.BatchNormalization(), 6 * n),
        (L.LayerNormalization(), 6 * n), (L.ReLU(), n), (L.Activation("tanh"), T * n), (L.Softmax(), (T + 4) * n),
        (L.Dropout(0.1), 12 * n), (L.ZeroPadding2D(), 0), (L.UpSampling2D(), 0), (L.Flatten(), 0),
    ]:  # fmt: skip
        assert flops(layer, (6, 6, 3)) == (0, true), layer.name
    assert flops(lambda a, b, c: L.Add()([a, b, c]), (5,), (5,), (5,)) == (0, 2 * 2 * 5)
    assert flops(lambda a, b: L.Concatenate()([a, b]), (5,), (5,)) == (0, 0)


def test_operations():
    assert flops(lambda a, b: a @ b, (6, 8), (8, 4))[0] == 2 * 6 * 8 * 4
    assert flops(lambda a, b: ops.einsum("abc,adc->abd", a, b), (6, 8), (4, 8))[0] == 2 * 6 * 8 * 4
    assert flops(lambda a: ops.tensordot(a, ops.ones((8, 5)), axes=1), (6, 8))[0] == 2 * 6 * 8 * 5
    assert flops(lambda a: ops.conv(a, ops.ones((3, 6, 4))), (9, 6))[0] == 2 * 7 * 4 * 3 * 6
    assert flops(lambda a: a + 1.0, (5,)) == (0, 10)
    assert flops(ops.exp, (5,)) == (0, T * 10)
    assert flops(lambda a: keras.activations.relu(a, max_value=4.0), (5,)) == (0, 20)
    assert flops(lambda a: ops.sum(a, axis=-1), (5,)) == (0, 10)


def test_factorisations_and_fourier_transforms():
    assert flops(ops.cholesky, (6, 6))[0] == pytest.approx(2 * 6**3 / 6)
    assert flops(ops.inv, (6, 6))[0] == 2 * 6**3
    assert flops(ops.lu_factor, (6, 6))[0] == pytest.approx(2 * 6**3 / 3)
    assert flops(lambda a, b: ops.solve_triangular(a, b), (6, 6), (6, 5))[0] == 2 * 6**2 * 5 / 2
    assert flops(lambda a, b: ops.linalg.solve(a, b), (6, 6), (6, 5))[0] == pytest.approx(2 * (6**3 / 3 + 6**2 * 5))
    assert flops(lambda a, b: ops.fft((a, b)), (3, 8), (3, 8)) == (0, 2 * 3 * 5 * 8 * 3)
    assert flops(lambda a, b: ops.fft2((a, b)), (4, 8), (4, 8)) == (0, 2 * 5 * 32 * 5)
    assert (
        flops(ops.rfft, (3, 8)) == flops(lambda a, b: ops.irfft((a, b)), (3, 5), (3, 5)) == (0, 2 * 3 * 5 * 8 * 3 / 2)
    )
    frames = 1 + (64 - 16) // 8
    assert flops(lambda a: ops.stft(a, 16, 8, 16, center=False), (64,)) == (0, 2 * frames * 5 * 16 * 4 / 2)


@pytest.mark.parametrize(
    ("name", "options", "shape", "factorized"),
    [
        ("qr", {}, (6, 3), "Qr"),
        ("qr", {"mode": "complete"}, (6, 3), "Qr"),
        ("qr", {}, (3, 6), "Qr"),
        ("svd", {}, (6, 3), "Svd"),
        ("svd", {"full_matrices": False}, (3, 6), "Svd"),
        ("svd", {"compute_uv": False}, (6, 3), "Svd"),
        ("eigh", {}, (6, 6), "SelfAdjointEigV2"),
        ("eig", {}, (6, 6), "Eig"),
        ("matrix_rank", {}, (6, 3), "Svd"),
        ("pinv", {}, (6, 3), "Svd"),
    ],
)
def test_what_factorizes_counts_as_its_operations_do(name, options, shape, factorized):
    if not hasattr(ops.linalg, name):
        pytest.skip("this Keras does not have it")
    function = partial(getattr(ops.linalg, name), **options)
    operations = graph_of(function, (2, *shape)).get_operations()
    products = [op for op in operations if op.type in (factorized, "BatchMatMulV2")]
    assert factorized in {op.type for op in products}
    assert flops(function, shape)[1] == pytest.approx(sum(op_flops(op) for op in products))


@pytest.mark.parametrize("pool", [ops.max_pool, ops.average_pool])
@pytest.mark.parametrize("size", [2, (2, 2)])
def test_poolings_of_operations_read_their_windows(pool, size):
    assert flops(lambda a: pool(a, size), (8, 8, 6)) == (0, 2 * 4 * 4 * 6 * 4)


def test_an_embedding_and_an_unknown_layer_cost_nothing(caplog):
    class Mine(L.Layer):
        def call(self, x):
            return x * 2

    with caplog.at_level(logging.INFO, logger="checkmate_tf"):
        graph = layer_graph(chain(L.Embedding(100, 4), Mine(name="mine"), shape=(3,), dtype="int32"), 1)
    assert not graph.costs.any()
    assert [r.message for r in caplog.records] == ["the FLOPs of mine (Mine) are not known and count as 0"]


# Errors -----------------------------------------------------------------------------------------------------------


def test_subclassed_models_are_sent_to_the_op_level():
    class Subclassed(keras.Model):
        def call(self, x):
            return x

    class Override(keras.Model):
        def call(self, x):
            return super().call(x) + 1

    x = keras.Input((8,))
    inside = keras.Model(x, L.Dense(1)(Subclassed(name="within")(x)))
    for model in (Subclassed(), inside, Override(x, L.Dense(1)(x))):
        with pytest.raises(ModelError, match="op level"):
            layer_graph(model, 1)


def test_models_that_are_not_ready():
    with pytest.raises(ModelError, match="keras.Input"):
        layer_graph(keras.Sequential([L.Dense(1)], name="open"), 1)
    x = keras.Input((8,))
    with pytest.raises(ModelError, match="nothing to schedule"):
        layer_graph(keras.Model(x, x), 1)


@pytest.mark.parametrize("batch", [0, -1, 2.5, True, None])
def test_a_batch_is_a_positive_whole_number(batch):
    with pytest.raises(BatchSizeError, match="batch_size"):
        layer_graph(chain(L.Dense(1)), batch)


def test_a_fixed_batch_is_kept_to():
    x = keras.Input(batch_shape=(4, 8))
    model = keras.Model(x, L.Dense(1)(x))
    assert layer_graph(model, 4).sizes[0] == 16
    with pytest.raises(BatchSizeError, match="fixes a batch of 4"):
        layer_graph(model, 8)


def test_open_sizes_are_named():
    with pytest.raises(DynamicShapeError, match="keras.Input"):
        layer_graph(chain(L.Conv1D(2, 3), shape=(None, 3)), 1)


def test_sparse_values_have_no_size():
    x = keras.Input((6,), sparse=True)
    with pytest.raises(DynamicShapeError, match="an input of model .* is sparse"):
        layer_graph(keras.Model(x, L.Dense(2)(x)), 1)
    coded = L.CategoryEncoding(6, sparse=True, name="coded")
    with pytest.raises(DynamicShapeError, match="coded is sparse"):
        layer_graph(chain(coded, L.Dense(2), shape=(3,), dtype="int64"), 1)
    own = Windows()
    own.sparse = True  # whatever that means there
    assert layer_graph(chain(own, shape=(6, 4)), 1).sizes[0] == 4 * 6 * 4


def test_a_model_within_is_called_on_its_inputs():
    a, b = keras.Input((3,), name="a"), keras.Input((3,), name="b")
    inner = keras.Model({"a": a}, L.Dense(1)(a))
    with pytest.raises(TraceError, match="1 inputs, .* on 2"):
        layer_graph(keras.Model([a, b], inner({"a": a, "b": b})), 1)
