"""The registry of cost models of layers: every name loads, units agree, and unknown names are refused as for ops."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from checkmate_tf.costs import op_costs  # noqa: E402
from checkmate_tf.errors import CostError  # noqa: E402
from checkmate_tf.layers import LAYER_COSTS  # noqa: E402
from checkmate_tf.layers.calls import layer_calls  # noqa: E402
from checkmate_tf.layers.flops import CONVENTIONS  # noqa: E402
from checkmate_tf.layers.graph import layer_graph  # noqa: E402

L = keras.layers


@pytest.fixture(scope="module")
def model():
    x = keras.Input((8,))
    return keras.Model(x, L.Dense(2)(L.Dense(4, activation="relu")(x)))


@pytest.mark.parametrize("name", LAYER_COSTS)
def test_every_model_costs_all_nodes(name, model):
    graph, known = layer_graph(model, 3, name), layer_calls(model, 3)
    entry = LAYER_COSTS.find(name)
    assert graph.cost_unit == entry.unit and entry.name == name
    assert (graph.costs > 0).tolist() == [True, True, name == "v100", True, True]  # FLOPs of the loss are none
    np.testing.assert_array_equal(entry.load()(known, known.differentiated()), graph.costs)


def test_conventions_of_flops_are_names_and_flops_is_what_the_artifact_counts(model):
    assert {*LAYER_COSTS} == {"flops", "v100", *CONVENTIONS}
    np.testing.assert_array_equal(layer_graph(model, 2).costs, layer_graph(model, 2, "artifact").costs)


@pytest.mark.parametrize("name", ["profile", "roofline", "v101", ""])
def test_unknown_names_are_refused_alike_at_both_levels(name, model):
    with pytest.raises(CostError) as of_layers:
        layer_graph(model, 1, name)
    assert str(of_layers.value) == (
        f"costs={name!r} is not a cost model; there are 'flops', 'multiply-adds', 'artifact', 'true', 'v100' for "
        "layers, or give a callable (LayerCall -> cost) or one cost for each node"
    )
    if name in ("v101", ""):
        with pytest.raises(CostError) as of_ops:
            op_costs([], name)
        assert str(of_ops.value) == (
            f"costs={name!r} is not a cost model; there are 'profile', 'flops', 'roofline' for ops, or give a callable "
            "(op -> cost) or one cost for each operation"
        )
