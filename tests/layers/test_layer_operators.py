"""Layer level with implementations: what each kind of layer's gradient reads, sizes of codes, what a choice saves."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from checkmate_tf.errors import BatchSizeError, CostError, ModelError  # noqa: E402
from checkmate_tf.layers.operators import layer_operators  # noqa: E402
from checkmate_tf.layers.reads import gradient_kind  # noqa: E402
from checkmate_tf.layers.v100 import LayerTime, layer_us  # noqa: E402
from checkmate_tf.schedule import keep_all  # noqa: E402

L = keras.layers
IMAGE = (8, 8, 4)
BATCH = 3
PIXELS = 8 * 8 * 4 * BATCH  # elements of an image as wide as the input


def chain(*layers, shape=IMAGE):
    """A convolution, the layers, and another: the gradients of what is between lead to weights."""
    x = inputs = keras.Input(shape)
    for layer in (L.Conv2D(4, 1, name="first"), *layers):
        x = layer(x)
    return keras.Model(inputs, L.Dense(2, name="last")(L.Flatten(name="flat")(x)))


def operators_of(*layers, **options):
    return layer_operators(chain(*layers), BATCH, **options)


def reads(graph, name):
    return {graph.names[i] for i in graph.inputs[graph.names.index(name)]}


def ways(operators, name):
    """From the ways of a node to the names of what they read."""
    names = operators.graph.names
    return {way.name: {names[i] for i in way.inputs} for way in operators.ways(names.index(name))}


def size(operators, name):
    return operators.graph.sizes[operators.graph.names.index(name)]


def chosen(operators, **names):
    """The graph in which the nodes of these names are computed in these ways."""
    choice = {}
    for node, way in names.items():
        i = operators.graph.names.index(node)
        choice[i] = [w.name for w in operators.ways(i)].index(way)
    return operators.choose(choice).graph


# What gradients read ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layer, values",
    [
        (L.ReLU(name="x"), {"x"}), (L.Activation("relu6", name="x"), {"x"}), (L.Softmax(name="x"), {"x"}),
        (L.Activation("tanh", name="x"), {"x"}), (L.Activation("silu", name="x"), {"first"}),
        (L.Activation("gelu", name="x"), {"first"}), (L.BatchNormalization(name="x"), {"first"}),
        (L.MaxPooling2D(name="x"), {"first", "x"}), (L.AveragePooling2D(2, name="x"), set()),
        (L.ZeroPadding2D(name="x"), set()), (L.Dropout(0.5, name="x"), {"x/mask"}),
        (L.LayerNormalization(name="x"), {"first", "x"}),
    ],
)  # fmt: skip
def test_gradients_read_what_their_kernels_read(layer, values):
    graph = operators_of(layer).choose().graph
    assert {name for name in reads(graph, "grad_x") if "grad" not in name} == values


def test_a_convolution_has_a_gradient_of_its_weights_and_one_of_its_input():
    graph = operators_of(L.Conv2D(4, 3, padding="same", name="x")).choose().graph
    assert reads(graph, "grad_weights_x") == {"first", "grad_last"}  # views pass a gradient on
    assert reads(graph, "grad_x") == {"grad_last"}
    at = graph.names.index("grad_weights_x")
    assert graph.sizes[at] == 0 and graph.sizes[graph.names.index("grad_x")] == 4 * PIXELS
    assert "grad_first" not in graph.names and reads(graph, "grad_weights_first") == {"grad_x"}  # the image is constant


def test_gradients_of_several_readers_are_summed_and_additions_pass_theirs_on():
    x = inputs = keras.Input(IMAGE)
    x = L.ReLU(name="a")(L.Conv2D(4, 1, name="first")(x))
    x = L.Add(name="add")([x, L.Conv2D(4, 1, name="b")(x)])
    graph = layer_operators(keras.Model(inputs, L.Conv2D(1, 1, name="c")(x)), BATCH).choose().graph
    assert "grad_add" not in graph.names
    assert reads(graph, "sum_a") == {"grad_c", "grad_b"}
    assert reads(graph, "grad_a") == {"sum_a", "a"}
    assert reads(graph, "grad_weights_b") == {"grad_c", "a"}


def test_an_activation_within_a_layer_is_a_node():
    operators = operators_of(L.Conv2D(4, 3, activation="relu", name="x"), L.Conv2D(4, 3, name="y"))
    graph = operators.choose().graph
    assert reads(graph, "x") == {"x/linear"} and reads(graph, "x/linear") == {"first"}
    assert reads(graph, "grad_x") == {"grad_y", "x"}
    assert reads(graph, "grad_weights_x/linear") == {"grad_x", "first"}
    whole = layer_us(L.Conv2D(4, 1, activation="relu"), [(BATCH, *IMAGE)], [(BATCH, *IMAGE)])
    model = keras.Model(x := keras.Input(IMAGE), L.Conv2D(4, 1, activation="relu", name="x")(x))
    one = layer_operators(model, BATCH).choose().graph
    costs = dict(zip(one.names, one.costs, strict=True))
    assert costs["x"] + costs["x/linear"] == pytest.approx(whole.forward)
    assert costs["grad_x"] + costs["grad_weights_x/linear"] == pytest.approx(whole.gradients(False, True))


def test_elementwise_kernels_compute_into_what_nobody_else_reads():
    graph = operators_of(L.BatchNormalization(name="n"), L.ReLU(name="x")).choose().graph
    over = {graph.names[i] for i in range(len(graph)) if graph.workspace[i] < 0}
    assert over == {"x", "grad_x"}  # not the view: the gradient of x reads x, too
    assert (graph.workspace + graph.held == 0).all()


@pytest.mark.parametrize("first", ["shortcut", "branch"])
def test_an_addition_computes_into_whichever_input_nobody_else_reads(first):
    x = inputs = keras.Input(IMAGE)
    x = L.Conv2D(4, 1, name="shortcut")(x)
    branch = L.Conv2D(4, 1, name="branch")(x)
    x = L.Add(name="add")([x, branch] if first == "shortcut" else [branch, x])
    graph = layer_operators(keras.Model(inputs, L.Conv2D(1, 1, name="c")(x)), BATCH).choose().graph
    assert graph.workspace[graph.names.index("add")] == -4 * PIXELS


def test_a_dropout_computes_into_its_input_whatever_it_reads_as_mask():
    operators = operators_of(L.Conv2D(4, 1, name="x"), L.Dropout(0.5, name="d"))
    at = operators.graph.names.index("d")
    default, packed = operators.choose(), operators.choose({at: 1})
    for graph in (default.graph, packed.graph):
        assert graph.workspace[graph.names.index("d")] == -4 * PIXELS


# Codes ------------------------------------------------------------------------------------------------------------


def test_sizes_of_codes():
    model = chain(L.ReLU(name="r"), L.MaxPooling2D(name="p"), L.Dropout(0.5, name="d"), L.Conv2D(4, 1, name="c"))
    operators = layer_operators(model, 1, sparsity=0.75, bits=10)
    n, pooled = 256, 64
    assert size(operators, "r/mask") == n // 8
    assert size(operators, "p/index") == pooled
    assert size(operators, "d/mask") == pooled and size(operators, "d/mask/packed") == pooled // 8
    assert size(operators, "r/sparse") == n // 4 * 5 + 4
    assert size(operators, "r/float10") == n * 10 // 8
    odd = layer_operators(chain(L.ReLU(name="r"), shape=(1, 1, 5)), 1)
    assert size(odd, "r/mask") == 1


def test_other_ways():
    operators = operators_of(
        L.BatchNormalization(name="n"), L.ReLU(name="r"), L.MaxPooling2D(name="p"), L.Dropout(0.5, name="d")
    )
    assert ways(operators, "grad_r") == {
        "default": {"grad_p", "r"}, "mask": {"grad_p", "r/mask"}, "input": {"grad_p", "n"},
    }  # fmt: skip
    assert ways(operators, "grad_p") == {"default": {"grad_d", "r", "p"}, "index": {"grad_d", "p/index"}}
    assert ways(operators, "grad_d") == {"default": {"grad_last", "d/mask"}, "packed": {"grad_last", "d/mask/packed"}}
    assert ways(operators, "d") == {"default": {"p", "d/mask"}, "packed": {"p", "d/mask/packed"}}
    assert ways(operators, "grad_n") == {"default": {"grad_r", "first"}, "output": {"grad_r", "n"}}
    inexact = {way.name for i in range(len(operators)) for way in operators.ways(i) if way.error}
    assert inexact == {"output"}


def test_no_index_where_a_byte_is_too_little():
    assert "index" not in ways(operators_of(L.MaxPooling2D(16, padding="same", name="p")), "grad_p")
    assert "index" in ways(operators_of(L.MaxPooling2D(3, 2, name="p")), "grad_p")


def test_masks_of_a_dropout_are_drawn_once():
    graph = operators_of(L.Dropout(0.5, name="d")).graph
    assert graph.recompute_until[graph.names.index("d/mask")] == 0
    assert gradient_kind(L.Dropout(0.0)) == "view"


def test_a_choice_is_lighter():
    operators = operators_of(
        *[layer for k in range(3) for layer in (L.ReLU(name=f"r{k}"), L.MaxPooling2D(name=f"p{k}"))]
    )
    plain = keep_all(operators.choose().graph).peak_bytes
    assert keep_all(chosen(operators, grad_r0="mask", grad_p0="index")).peak_bytes < plain
    exact = {way.error for node in ("grad_r0", "grad_p0") for way in operators.ways(operators.graph.names.index(node))}
    assert exact == {""}


def test_costs_may_be_given():
    operators = operators_of(L.ReLU(name="r"), costs=lambda *_: LayerTime(1.0, 2.0, 4.0, 8.0))
    costs = dict(zip(operators.graph.names, operators.graph.costs, strict=True))
    assert costs["r"] == 1 and costs["grad_r"] == 6
    assert costs["grad_last"] == 6 and costs["grad_weights_last"] == 8 and costs["grad_weights_first"] == 10


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"sparsity": 1.5}, {"bits": 4}, {"sparse_bytes_per_us": 0.0}])
def test_what_cannot_be_is_refused(options):
    with pytest.raises(CostError, match=next(iter(options))):
        operators_of(**options)


def test_models_that_cannot_be_drawn():
    with pytest.raises(BatchSizeError, match="batch_size"):
        layer_operators(chain(), 0)
    x = keras.Input((8,))
    with pytest.raises(ModelError, match="nothing to schedule"):
        layer_operators(keras.Model(x, x), 1)
