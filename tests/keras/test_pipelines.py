"""`data=` a tf.data pipeline: what it tells, without being read."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.errors import BatchSizeError, DynamicShapeError, ModelError
from checkmate_tf.keras.batches.spec import data_spec
from tests.cases import BATCH, DENSE, assert_same_state, compile_quickly, make

X, Y = DENSE.data(2 * BATCH + 5)


def _rows(n=None):
    return tf.data.Dataset.from_tensor_slices((X[:n], Y[:n]))


def _column(k):
    return _rows().map(lambda *row: row[k])


def _twice(x, y):
    return tf.concat([x, x], 0), tf.concat([y, y], 0)


def _unread(*batches):
    """A stream of batches that fails where it is read."""

    def read():
        raise AssertionError("it was read")
        yield batches

    return tf.data.Dataset.from_generator(
        read, output_signature=(tf.TensorSpec([None, 64, 8]), tf.TensorSpec([None], tf.int64))
    )


PIPELINES = {
    "batches": (_rows().batch(BATCH), BATCH),
    "made in parallel": (_rows().batch(BATCH, num_parallel_calls=2), BATCH),
    "padded": (_rows().padded_batch(BATCH), BATCH),
    "fewer rows than a batch": (_rows(5).batch(BATCH), 5),
    "without end": (_rows().repeat().batch(BATCH), BATCH),
    "handed on": (_rows().batch(BATCH).cache().shuffle(3).repeat().with_options(tf.data.Options()).prefetch(1), BATCH),
    "mapped": (_rows().batch(BATCH).map(lambda x, y: (x + 1, y)).map(_twice, num_parallel_calls=2), 2 * BATCH),
    "zipped": (tf.data.Dataset.zip((_column(0).batch(BATCH), _column(1).batch(BATCH))), BATCH),
    "unbatched": (_rows().batch(3).unbatch().batch(BATCH), BATCH),
    "rebatched": (_unread().unbatch().batch(BATCH), BATCH),
}  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
def test_the_size_is_found_without_reading(name):
    data, size = PIPELINES[name]
    assert data_spec(make(DENSE), None, None, data)[1] == size


@pytest.mark.parametrize("data", [_unread(), _unread().map(lambda x, y: (x + 1, y))])
def test_a_size_that_is_not_told_is_asked_for(data):
    with pytest.raises(BatchSizeError, match="does not tell the size.*give batch_size="):
        data_spec(make(DENSE), None, None, data)
    assert data_spec(make(DENSE), BATCH, None, data)[1] == BATCH


def test_whoever_cannot_be_helped_by_a_size_is_not_asked_for_one():
    words = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1], [1, 2]])).batch(2)
    with pytest.raises(ModelError, match="ragged"):
        data_spec(make(DENSE), None, None, words)
    lengths = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=tf.TensorSpec([None, None]))
    with pytest.raises(DynamicShapeError, match="open dimension"):
        data_spec(make(DENSE), None, None, lengths)


def test_data_that_shuffles_comes_in_the_same_order():
    """From one data set to the next, its order goes on."""
    plain, ours = make(DENSE), make(DENSE)
    for model in (plain, ours):
        keras.utils.set_random_seed(3)
        data = _rows().shuffle(40, seed=5).batch(BATCH)
        if model is ours:
            compile_quickly(model, DENSE, data=data, batch_size=None)
        model.fit(data, epochs=2, verbose=0)
    assert_same_state(plain, ours)


def test_a_stream_that_comes_once_loses_no_batch():
    spec = (tf.TensorSpec([None, 64, 8]), tf.TensorSpec([None], tf.int64))
    stream = iter([(X[:BATCH].astype("float32"), Y[:BATCH])])
    data = tf.data.Dataset.from_generator(lambda: stream, output_signature=spec)
    model = compile_quickly(make(DENSE), DENSE, data=data, batch_size=BATCH)
    assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()
