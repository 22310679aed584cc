"""Gist's rules: which gradients read which codes, and what that saves and costs."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from checkmate_tf.errors import StrategyError  # noqa: E402
from checkmate_tf.layers.operators import layer_operators  # noqa: E402
from checkmate_tf.schedule import keep_all  # noqa: E402
from checkmate_tf.strategies.monet import gist  # noqa: E402

L = keras.layers


def operators_of(**options):
    """Convolutions; a ReLU before a max-pooling, one before a convolution, one before both an addition and that."""
    x = inputs = keras.Input((16, 16, 4))
    x = L.MaxPooling2D(name="pool")(L.ReLU(name="pooled")(L.Conv2D(8, 3, name="a")(x)))
    x = L.ReLU(name="read")(L.BatchNormalization(name="norm")(L.Conv2D(8, 3, name="b")(x)))
    x = L.Conv2D(8, 1, name="c")(x)
    model = keras.Model(inputs, L.Conv2D(1, 1, name="d")(L.ReLU(name="last")(x)))
    return layer_operators(model, 2, **options)


def choice_of(operators, **options):
    """From nodes to the names of their ways, where not the default."""
    found = gist(operators, **options)
    return {operators.graph.names[i]: operators.ways(i)[way].name for i, way in found.chosen.choice.items()}


def test_lossless():
    operators = operators_of(sparsity=0.5)
    assert choice_of(operators) == {
        "grad_pooled": "mask", "grad_pool": "index", "grad_read": "sparse", "grad_weights_c": "sparse",
        "grad_last": "sparse", "grad_weights_d": "sparse",
    }  # fmt: skip
    found = gist(operators)
    assert not any(operators.ways(i)[way].error for i, way in found.chosen.choice.items())
    assert found.overhead > 0 and found.schedule.cost == found.chosen.graph.base_cost


def test_without_sparse_storage_only_what_no_convolution_reads_is_encoded():
    operators = operators_of()
    assert choice_of(operators) == {"grad_pooled": "mask", "grad_pool": "index"}
    assert gist(operators).schedule.peak_bytes < keep_all(operators.choose().graph).peak_bytes


def test_fewer_bits_only_on_request_and_said():
    operators = operators_of(bits=16)
    assert "float16" not in choice_of(operators).values()
    reduced = choice_of(operators, reduced=True)
    assert reduced["grad_norm"] == reduced["grad_weights_c"] == reduced["grad_weights_b"] == "float16"
    assert reduced["grad_pooled"] == "mask"
    names = operators.graph.names
    said = {way.error for way in operators.ways(names.index("grad_weights_b")) if way.name == "float16"}
    assert said == {"values in 16 bits"}
    with pytest.raises(StrategyError, match="bits=16"):
        gist(operators_of(), reduced=True)


def test_the_sparser_the_lighter():
    sizes = [gist(operators_of(sparsity=share)).chosen.graph.sizes.sum() for share in (0.3, 0.9)]
    assert sizes[1] < sizes[0]
