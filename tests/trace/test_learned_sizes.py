"""What only the device knows: how much cuDNN keeps of a recurrent layer. There is no cuDNN here, so a stand-in runs."""

import sys

import keras
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.errors import DynamicShapeError
from checkmate_tf.trace.sizes import learned

pytestmark = pytest.mark.usefixtures("fresh_keras")

BATCH, STEPS, WIDTH = 4, 12, 64
KEPT = BATCH * STEPS * WIDTH * 9  # floats


@pytest.fixture
def cudnn(monkeypatch):
    """Keras traces as if there were a GPU. Returns what the operation is run with."""
    monkeypatch.setattr(learned, "_known", {})
    monkeypatch.setattr(sys.modules["keras.src.backend.tensorflow.rnn"], "_is_gpu_available", lambda: True)
    given, real = [], tf.raw_ops.CudnnRNNV3

    def run(input, input_h, input_c, params, sequence_lengths, **attributes):
        if not tf.executing_eagerly():  # Keras traces
            return real(
                input=input, input_h=input_h, input_c=input_c, params=params, sequence_lengths=sequence_lengths,
                **attributes,
            )  # fmt: skip
        given.append((sequence_lengths, attributes))
        steps = input.shape[0 if attributes["time_major"] else 1]
        assert (sequence_lengths.numpy() == steps).all(), "cuDNN refuses sequences of no length"
        output = tf.zeros([*input.shape[:2], input_h.shape[-1]])
        return output, input_h, input_c, tf.zeros([KEPT]), tf.zeros([0], tf.int8)

    return lambda: monkeypatch.setattr(tf.raw_ops, "CudnnRNNV3", run) or given


def model():
    layers = [keras.layers.LSTM(WIDTH, return_sequences=True) for _ in range(2)]
    built = keras.Sequential([keras.Input((STEPS, 3)), *layers])
    built.compile("sgd", "mse")
    return built


def planned(built):
    return checkmate_tf.op_graph(built, batch_size=BATCH, costs="flops")


def test_the_size_is_that_of_a_run(cudnn):
    given = cudnn()
    graph = planned(model())
    assert len(given) == 2 and given[0][1]["rnn_mode"] == b"lstm"  # two shapes, of two layers
    states = 2 * BATCH * WIDTH
    assert list(graph.sizes).count(4 * (KEPT + BATCH * STEPS * WIDTH + states)) == 2


def test_what_cannot_be_run_here_is_refused(cudnn):
    with pytest.raises(DynamicShapeError, match="CudnnRNNV3.*use_cudnn=False"):
        planned(model())


def test_unknown_inputs_are_not_guessed():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.compat.v1.placeholder(tf.float32, [None, 2, 3])
        h = tf.zeros([1, 2, WIDTH])
        op = tf.raw_ops.CudnnRNNV3(
            input=x, input_h=h, input_c=h, params=tf.zeros([9]), sequence_lengths=tf.constant([1, 1])
        ).output.op
    assert learned.learn_shapes(op) is None
