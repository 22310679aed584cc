"""What only the device knows: how much cuDNN keeps of a recurrent layer. There is no cuDNN here, so a stand-in runs."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, program_of
from traced import graph_of, only

import checkmate_tf
from checkmate_tf.costs.alone import fabricate
from checkmate_tf.costs.alone.fabricate import Fabricator, may_run
from checkmate_tf.costs.flops import op_flops
from checkmate_tf.costs.signature import Signer
from checkmate_tf.emit.emit import emit
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.errors import DynamicShapeError
from checkmate_tf.plan import plan_from_sequence
from checkmate_tf.schedule import keep_all
from checkmate_tf.trace.ops import is_stateful
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


def rnn(dropout=0.0):
    """A recurrent layer of cuDNN's, and its gradient."""

    def forward_and_back(x, params):
        state = tf.zeros([1, BATCH, WIDTH])
        with tf.GradientTape() as tape:
            tape.watch([x, params])
            y = tf.raw_ops.CudnnRNNV3(
                input=x, input_h=state, input_c=state, params=params, sequence_lengths=tf.fill([BATCH], STEPS),
                rnn_mode="lstm", dropout=dropout,
            ).output  # fmt: skip
        return tape.gradient(y, [x, params])

    return graph_of(forward_and_back, (STEPS, BATCH, 3), (1000,))


@pytest.mark.parametrize(("dropout", "effect"), [(0.0, False), (0.5, True)])
def test_a_layer_that_draws_nothing_has_no_effect(dropout, effect):
    graph = rnn(dropout)
    for kind in ("CudnnRNNV3", "CudnnRNNBackpropV3"):
        op = only(graph, kind)
        assert op.op_def.is_stateful and is_stateful(op) is effect
        assert may_run(op) is not effect


def test_a_gradient_reads_what_its_layer_wrote_when_it_runs_alone(monkeypatch):
    """Made-up numbers would not do: cuDNN reads what it kept for itself."""
    gradient = only(rnn(), "CudnnRNNBackpropV3")
    ran = []

    def run(op, inputs):
        ran.append(op.type)
        return [tf.fill([k + 1], 7.0) for k in range(len(op.outputs))]

    monkeypatch.setattr(fabricate, "run_op", run)
    names = [a.name for a in gradient.op_def.input_arg]
    given = dict(zip(names, Fabricator(Signer().values).inputs_of(gradient), strict=True))
    assert ran == ["CudnnRNNV3"]
    assert given["output"].shape == [1] and given["reserve_space"].shape == [4] and given["host_reserved"].shape == [5]
    assert given["input"].shape == [STEPS, BATCH, 3]


def test_a_gradient_whose_layer_is_not_seen_is_not_run():
    def back(x, params, kept):
        state, y = tf.zeros([1, BATCH, WIDTH]), tf.zeros([STEPS, BATCH, WIDTH])
        return tf.raw_ops.CudnnRNNBackpropV3(
            input=x, input_h=state, input_c=state, params=params, sequence_lengths=tf.fill([BATCH], STEPS), output=y,
            output_h=state, output_c=state, output_backprop=y, output_h_backprop=state, output_c_backprop=state,
            reserve_space=kept, host_reserved=tf.zeros([0], tf.int8),
        ).params_backprop  # fmt: skip

    graph = graph_of(back, (STEPS, BATCH, 3), (1000,), (KEPT,))
    assert not may_run(only(graph, "CudnnRNNBackpropV3")), "what it reads only cuDNN can have written"


def test_a_layer_multiplies_by_all_weights_in_each_step():
    graph = rnn()
    flops = 2 * 1000 * STEPS * BATCH
    assert op_flops(only(graph, "CudnnRNNV3")) == flops
    assert op_flops(only(graph, "CudnnRNNBackpropV3")) == 2 * flops


def test_a_layer_may_be_computed_again(cudnn):
    """And TensorFlow runs it again: it does not take two stateful operations for one."""
    cudnn()
    data = lambda n: (np.zeros((n, STEPS, 3), "float32"), np.zeros((n, STEPS, WIDTH), "float32"))  # noqa: E731
    program = program_of(model(), Case(model, data, batch=BATCH))
    layers = [node for op, node in program.node_of.items() if op.type == "CudnnRNNV3"]
    gradients = [node for op, node in program.node_of.items() if op.type == "CudnnRNNBackpropV3"]
    assert len(layers) == 2 and all(program.graph.recompute_until[k] == len(program.nodes) for k in layers)
    for op in (op for op in program.node_of if op.type == "CudnnRNNV3"):  # can be run alone, to measure what it costs
        lengths = Fabricator(Signer().values).inputs_of(program.static.operations[op])[4]
        assert lengths.numpy().tolist() == [STEPS] * BATCH
    sequence = keep_all(program.graph).sequence.tolist()
    sequence.insert(sequence.index(min(gradients)), layers[0])
    plan = plan_from_sequence(program.graph, sequence)
    specs = [tf.TensorSpec(program.static.tensors[id(t)].shape, t.dtype) for t in program.step.inputs]
    step = tf.function(lambda *given: emit(program, plan, Strict(), given), autograph=False)
    graph = step.get_concrete_function(*specs).graph
    copies = [op for op in graph.get_operations() if op.type == "CudnnRNNV3"]
    assert len(copies) == 3 and all(op.op_def.is_stateful for op in copies)
