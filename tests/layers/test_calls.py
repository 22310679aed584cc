"""The calls of layers in a model: who reads whom, what has a gradient, and models within taken apart."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

from checkmate_tf.layers.calls import Value, layer_calls, parameter_bytes  # noqa: E402

L = keras.layers


def test_values_say_which_call_made_them(fresh_keras):
    x = keras.Input((4,), name="x")
    left, right = keras.ops.split(L.Dense(6, name="dense")(x), 2, axis=1)
    known = layer_calls(keras.Model(x, L.Add(name="add")([right, left])), 5)
    dense, split, add = known.calls
    assert dense.arguments == (Value(-1, 0, (5, 4), "float32"),)
    assert dense.outputs == split.arguments == (Value(0, 0, (5, 6), "float32"),)
    assert add.arguments == (Value(1, 1, (5, 3), "float32"), Value(1, 0, (5, 3), "float32"))
    assert [call.inputs for call in known.calls] == [(), (0,), (1,)]
    assert known.readers() == [[1], [2], []]
    assert known.results == (Value(2, 0, (5, 3), "float32"),) and known.outputs == (2,)
    assert known.input_bytes == 5 * 4 * 4
    assert [call.output_bytes for call in known.calls] == [120, 120, 60]


def test_gradients_follow_paths_of_floating_values(fresh_keras):
    x = keras.Input((4,))
    y = L.Dense(4, name="dense")(x)
    largest = keras.ops.argmax(y, axis=1)  # an integer ends the path
    unread = L.ReLU(name="unread")(y)
    model = keras.Model(x, [L.Dense(2, name="out")(y), largest, L.Embedding(4, 3, name="rows")(largest), unread])
    known = layer_calls(model, 2)
    names = [call.name for call in known.calls]
    assert {names[i] for i in known.differentiated()} == {"dense", "out", "rows", "unread"}
    assert list(known.differentiated()) == sorted(known.differentiated(), reverse=True)


def test_a_model_within_is_taken_apart_at_each_call(fresh_keras):
    inner_input = keras.Input((4,))
    inner = keras.Model(inner_input, L.Dense(4, name="inner")(inner_input), name="block")
    x = keras.Input((4,))
    model = keras.Model(x, inner(inner(x)))
    known = layer_calls(model, 2)
    assert [call.name for call in known.calls] == ["inner", "inner:1"]
    assert known.calls[1].inputs == (0,)
    assert parameter_bytes(model) == 4 * (16 + 4)  # the weights of both calls are the same
