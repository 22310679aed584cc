"""A batch that was taken out of a pipeline comes to the step as it was, and is freed there."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.device.measure import find_device
from checkmate_tf.keras.batches.handing import Hand

SIZE = 256


def _dataset(structure):
    x = np.arange(6 * SIZE, dtype="float32").reshape(6, SIZE)
    ragged = tf.RaggedTensor.from_row_lengths(np.arange(12), [1, 3, 0, 4, 2, 2])
    sparse = tf.sparse.from_dense(np.eye(6, 4))
    words = tf.constant(list("abcdef"))
    return tf.data.Dataset.from_tensor_slices(
        {
            "array": x,
            "pair": (x, x[:, 0].astype("int64")),
            "nested": ({"b": x, "a": (x[:, :3], words)}, x[:, 0], x[:, 1]),
            "ragged": (ragged, {"sparse": sparse}),
        }[structure]
    ).batch(2)


def _parts(batch):
    return [np.asarray(part) for part in tf.nest.flatten(batch, expand_composites=True)]


@pytest.mark.parametrize("structure", ["array", "pair", "nested", "ragged"])
def test_batches_come_as_they_were(structure):
    hand, data = Hand(), _dataset(structure)
    read = tf.function(lambda iterator: next(iterator), reduce_retracing=True)
    for batch in [*data.unbatch().batch(3), *data]:
        one = hand.over(batch, data.element_spec)
        assert one.element_spec == data.element_spec
        came = read(one)
        tf.nest.assert_same_structure(batch, came, expand_composites=True)
        assert all(map(np.array_equal, _parts(batch), _parts(came)))
        with pytest.raises(tf.errors.OutOfRangeError):
            read(one)
    assert read.experimental_get_tracing_count() == 1
    assert len(hand._pipelines) == 1


@pytest.mark.parametrize("words", [None, b"word"])
def test_what_is_no_tensor_comes_too(words):
    data = tf.data.Dataset.from_tensors((np.ones(2, "float32"), {"a": words, "b": np.zeros(3)}))
    hand, batch = Hand(), (np.ones(2, "float32"), {"a": words, "b": np.zeros(3)})
    came = next(hand.over(batch, data.element_spec))
    assert came[0].numpy().tolist() == [1, 1] and came[1]["b"].shape == 3
    assert came[1]["a"] == words


def test_a_batch_that_nobody_read_is_forgotten():
    hand = Hand()
    one = hand.over((np.ones(2, "float32"),), (tf.TensorSpec([2]),))
    hand.drop()
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(one)


def test_pipelines_do_not_keep_it():
    hand = Hand()
    next(hand.over((np.ones(2, "float32"),), (tf.TensorSpec([2]),)))
    gone = weakref.ref(hand)
    del hand
    gc.collect()
    assert gone() is None


def test_a_batch_is_freed_by_the_step_that_reads_it():
    device, hand = find_device(), Hand()
    gc.collect()
    before, size = device.current_bytes(), 1 << 20
    kept = []
    for k in range(2):
        batch = (tf.fill([size], float(k)),)
        kept.append(hand.over(batch, (tf.TensorSpec([None]),)))
        del batch
        assert device.current_bytes() >= before + 4 * size
        assert float(next(kept[-1])[0][5]) == k
        assert device.current_bytes() < before + 4 * size
