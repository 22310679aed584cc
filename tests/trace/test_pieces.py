"""Pieces along the first dimension: which results lie in their input's buffer, and plans that count on it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_after, compile_quickly, make, program_of
from keras import layers

from checkmate_tf.device.measure import find_device
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.ops import view_of
from checkmate_tf.trace.pieces import PIECES, piece_of

ROWS, INNER = 4, 1024  # rows of whole multiples of 64 bytes

FULL, ONE = (ROWS, INNER, 4), (1, INNER, 4)
RESULTS = {
    "first": (FULL, lambda x: x[0]),
    "last": (FULL, lambda x: x[-1]),
    "rows": (FULL, lambda x: x[1:3]),
    "ellipsis": (FULL, lambda x: x[2, ...]),
    "new axis": (FULL, lambda x: x[0, None]),
    "all, and a new axis": (FULL, lambda x: x[:, None]),
    "an axis of one": ((ROWS, 1, INNER + 1), lambda x: x[:, 0]),
    "every second": (FULL, lambda x: x[::2]),
    "backwards": (FULL, lambda x: x[::-1]),
    "every second, of one": ((ROWS, 1, INNER), lambda x: x[:, ::2]),
    "every second, of two": ((2, INNER, 16), lambda x: x[::2]),
    "backwards, one": (ONE, lambda x: x[::-1]),
    "blocks to batches": ((8, 16, 16, 16), lambda x: tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])),
    "a part of a row": (FULL, lambda x: x[1, : INNER // 2]),
    "along the second": (FULL, lambda x: x[:, :512]),
    "rows of other sizes": ((ROWS, INNER + 1, 5), lambda x: x[1]),
    "in one dimension": ((64 * INNER,), lambda x: x[16:8000]),
    "begins in between": ((64 * INNER,), lambda x: x[8:8000]),
    "ends in between": ((64 * INNER,), lambda x: x[16:8001]),
    "slice": (FULL, lambda x: tf.slice(x, [1, 0, 0], [2, -1, -1])),
    "slice of a column": (FULL, lambda x: tf.slice(x, [0, 1, 0], [-1, 512, -1])),
    "split": (FULL, lambda x: tf.split(x, ROWS)[1]),
    "split along the second": (FULL, lambda x: tf.split(x, 4, axis=1)[1]),
    "split into one": (FULL, lambda x: tf.split(x, 1, axis=1)[0]),
    "split by sizes": (FULL, lambda x: tf.split(x, [1, 3])[0]),
    "unstack": (FULL, lambda x: tf.unstack(x)[1]),
    "unstack one": (ONE, lambda x: tf.unstack(x)[0]),
    "unstack along the second": ((ROWS, 2, INNER), lambda x: tf.unstack(x, axis=1)[0]),
    "transposed": (FULL, lambda x: tf.transpose(x, [1, 0, 2])),
    "transposed by an axis of one": ((ROWS, 1, INNER), lambda x: tf.transpose(x, [0, 2, 1])),
    "stacked alone": (FULL, lambda x: tf.stack([x])),
    "mirrored by nothing": (FULL, lambda x: tf.pad(x, [[0, 0]] * 3, "REFLECT")),
}


def _lies_in_input(result: tf.Tensor) -> bool:
    op, index = result.op, PIECES.get(result.op.type)
    return view_of(op, result.value_index) == 0 or (index is not None and piece_of(op) == index)


@pytest.mark.parametrize("name", RESULTS)
def test_what_shares_memory_here_does_in_the_runtime(name):
    """The input is held meanwhile. So what a result adds is its own buffer, if it has one."""
    shape, function = RESULTS[name]
    given = tf.zeros(shape)
    function(given)
    before = find_device().current_bytes()
    result = function(given)
    added = find_device().current_bytes() - before
    with tf.Graph().as_default():
        said = _lies_in_input(function(tf.compat.v1.placeholder(tf.float32, shape)))
    own = result.dtype.size * int(tf.size(result))
    assert own > 4096 and said == (added < own / 2)


def test_sizes_that_are_open_need_not_be_known_to_divide():
    with tf.Graph().as_default():
        for inner, piece in ((16, 1), (15, None)):
            x = tf.compat.v1.placeholder(tf.float32, [2, None, inner])
            assert piece_of(tf.split(x, 2)[0].op) == piece
            assert piece_of(tf.unstack(x)[0].op) == (None if piece is None else 0)


def test_bounds_that_are_not_known_are_no_pieces():
    with tf.Graph().as_default():
        x, k = tf.compat.v1.placeholder(tf.float32, FULL), tf.compat.v1.placeholder(tf.int32, [])
        assert piece_of(x[k].op) is None and piece_of(tf.split(x, 4, k)[0].op) is None
        assert piece_of(tf.compat.v1.placeholder(tf.float32, [None, INNER])[0].op) is None
        assert piece_of(tf.compat.v1.placeholder(tf.string, FULL)[0].op) is None
        assert piece_of((x + 1).op) is None


class Parts(layers.Layer):
    """Attention whose queries, keys and values are pieces of one tensor, and a piece that alone is read."""

    def build(self, shape):
        self.made, self.out = layers.Dense(3 * shape[-1]), layers.Dense(shape[-1])
        self.made.build(shape)
        self.out.build(shape)

    def call(self, x):
        length, width = x.shape[1:]
        stacked = tf.transpose(tf.reshape(self.made(x), (-1, length, 3, 2, width // 2)), (2, 0, 3, 1, 4))
        queries, keys, values = stacked[0], tf.split(stacked, 3)[1][0], tf.unstack(stacked)[2]
        weights = tf.nn.softmax(tf.matmul(tf.nn.gelu(queries), keys, transpose_b=True))
        found = tf.reshape(tf.transpose(tf.matmul(weights, values), (0, 2, 1, 3)), (-1, length, width))
        return x + self.out(tf.nn.relu(tf.stack([found, 2 * found])[1]))


def _model():
    x = inputs = keras.Input((64, 64))
    for _ in range(3):
        x = Parts()(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
    model.compile(optimizer="adam", loss="mse")
    return model


def _data(n):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, 64, 64)).astype("float32"), rng.standard_normal((n, 1)).astype("float32")


PARTS = Case(_model, _data, budget=0.7, batch=32)


@pytest.mark.long
@pytest.mark.usefixtures("fresh_keras", "no_grappler")
@pytest.mark.parametrize("strict", [False, True])
def test_plans_take_what_is_foreseen_with_the_same_numbers(strict, monkeypatch):
    if strict:
        monkeypatch.setattr("checkmate_tf.fit.policy.Limits.orders", property(lambda _: (True,)))
    others = find_device().current_bytes()  # what other tests left is in the budget, too
    plain, model = make(PARTS), make(PARTS)
    peak = keep_all(program_of(model, PARTS).graph).peak_bytes
    compile_quickly(model, PARTS, verify=True, budget=others + int(PARTS.budget * peak))
    report = model.checkmate
    chosen = [a for a in report.attempts if (a.strict, a.measured_bytes) == (report.strict, report.measured_peak_bytes)]
    assert report.recomputations > 0 and report.placed_peak_bytes in [a.placed_bytes for a in chosen]
    for attempt in report.attempts:
        most = 0.05 if attempt.strict else 0.1
        assert abs(attempt.measured_bytes - attempt.placed_bytes) < most * attempt.placed_bytes
    assert_same_after(
        lambda m: m.fit(*_data(96), batch_size=32, epochs=2, shuffle=False, verbose=0).history, model, plain
    )
