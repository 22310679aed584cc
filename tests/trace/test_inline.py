"""Steps that call functions: they are planned as if the functions' operations were their own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import Case, assert_same_state, compile_quickly, make, program_of, train
from keras import layers

import checkmate_tf
from checkmate_tf.trace.rewrites.inline import inlined
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")


class Block(layers.Layer):
    """Dense, normalised, dropped out: in a function of its own, which calls another."""

    def __init__(self, width, seed):
        super().__init__()
        self.dense, self.norm = layers.Dense(width, "relu"), layers.BatchNormalization()
        self.dropout = layers.Dropout(0.2, seed=seed)

    def build(self, shape):
        self.dense.build(shape)
        self.norm.build(self.dense.compute_output_shape(shape))

    @tf.function(autograph=False)
    def inner(self, x, training):
        return self.norm(self.dense(x), training=training)

    @tf.function(autograph=False)
    def call(self, x, training=None):
        return self.dropout(self.inner(x, training), training=training)


class Helped(keras.Model):
    """All of the step is in a function."""

    def train_step(self, data):
        return self.whole(*data)

    @tf.function(autograph=False)
    def whole(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def _model(cls, block):
    x = inputs = keras.Input((32, 16))
    for k in range(4):
        x = block(24, seed=k)(x)
    model = cls(inputs, layers.Dense(4, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def _plain_block(width, seed):
    parts = [layers.Dense(width, "relu"), layers.BatchNormalization(), layers.Dropout(0.2, seed=seed)]
    return keras.Sequential(parts)


def _data(samples):
    rng = np.random.default_rng(0)
    return rng.random((samples, 32, 16), np.float32), rng.integers(0, 4, (samples, 32))


CASES = {
    "layers": Case(lambda: _model(keras.Model, Block), _data, budget=0.8),
    "train_step": Case(lambda: _model(Helped, _plain_block), _data, budget=0.8),
    "both": Case(lambda: _model(Helped, Block), _data, budget=0.8),
}


@pytest.mark.long(but=("both",))
@pytest.mark.feature("Models", "layers and steps of one's own decorated with `tf.function`")
@pytest.mark.parametrize("name", CASES)
def test_functions_are_planned_through(name, no_grappler):
    case = CASES[name]
    model, plain = make(case), make(case)
    compile_quickly(model, case)
    report = model.checkmate
    assert report.schedule.evaluation.counts.max() > 1 and report.predicted_peak_bytes <= report.budget_bytes
    assert train(model, case) == train(plain, case)
    assert_same_state(model, plain)


@pytest.mark.long
def test_a_step_has_no_calls():
    step = program_of(make(CASES["both"]), CASES["both"]).step
    assert not [op for op in step.operations if op.type.endswith("PartitionedCall")]
    plain = program_of(make(CASES["train_step"]), CASES["train_step"]).step
    kinds = [sum(op.type == "MatMul" or op.type == "BatchMatMulV2" for op in s.operations) for s in (step, plain)]
    assert kinds[0] == kinds[1] > 8


def test_effects_keep_their_order():
    v, w = tf.Variable(1.0), tf.Variable(0.0)

    @tf.function(autograph=False)
    def double():
        v.assign(2 * v)

    def step(x):
        before = v.read_value()
        double()
        between = v.read_value()
        v.assign_add(x[0])
        double()
        w.assign(v)
        return before, between, v.read_value()

    traced = trace_step(step, tf.TensorSpec([None]))
    position = {op: k for k, op in enumerate(traced.operations)}
    reads = [t.op for t in traced.outputs]
    assert [op.type for op in traced.operations].count("AssignVariableOp") == 3

    def ancestors(op):
        found, todo = set(), [op]
        while todo:
            op = todo.pop()
            for p in [*(t.op for t in op.inputs), *op.control_inputs]:
                if p not in found:
                    found.add(p)
                    todo.append(p)
        return found

    assigned = [op for op in traced.operations if op.type.startswith("Assign")]
    assert len(assigned) == 4
    for earlier, later in zip(assigned, assigned[1:], strict=False):
        assert position[earlier] < position[later] and earlier in ancestors(later)
    last = reads[2]
    while last.type != "ReadVariableOp":
        last = last.inputs[0].op
    assert set(assigned[:3]) <= ancestors(last)


def test_what_xla_compiles_stays_a_call():
    compiled = tf.function(lambda x: tf.exp(x) * x, autograph=False, jit_compile=True)
    traced = trace_step(lambda x: compiled(x), tf.TensorSpec([None, 8]))
    assert any(op.type.endswith("PartitionedCall") for op in traced.operations)


def test_a_step_without_calls_is_left_as_it_is():
    graph = tf.function(lambda x: tf.exp(x), autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    assert inlined(graph, graph.inputs, [], []).graph is graph


@pytest.mark.long
def test_gradients_of_a_loop_of_ones_own(no_grappler):
    case = CASES["layers"]
    model = make(case)
    x, y = case.data(case.batch)
    options = {"batch_size": case.batch, "costs": "flops", "verify": False, "progress": False, "time_limit": 5}
    loss = "sparse_categorical_crossentropy"
    seeds = [v for v in model.variables if "seed" in v.path]
    start = [v.numpy() for v in seeds]
    results = []
    for budget in ("10GB", case.budget):
        for v, value in zip(seeds, start, strict=True):
            v.assign(value)
        results.append(checkmate_tf.gradient_function(model, loss, budget=budget, **options)(x, y))
    for a, b in zip(*map(tf.nest.flatten, results), strict=True):
        assert a.numpy().tobytes() == b.numpy().tobytes()
