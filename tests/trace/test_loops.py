"""While loops: their tensor lists count by the distinct tensors they hold, and they never read an assigned variable."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from checkmate_tf.errors import PlanError
from checkmate_tf.keras.built.building import build_training
from checkmate_tf.plan import evaluate, plan_from_sequence
from checkmate_tf.trace.program import build_program
from checkmate_tf.trace.sizes.loops import function_graph
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")

STEPS, BATCH, UNITS, FEATURES = 6, 8, 5, 4
STATE = STEPS * BATCH * UNITS * 4  # bytes of one state kept at each step
INPUT = STEPS * BATCH * FEATURES * 4  # bytes of what is read, kept at each step


def _static(step):
    shapes = [tf.TensorShape([BATCH if d is None else d for d in t.shape]) for t in step.inputs]
    return with_static_batch(step, shapes)


def _list_bytes(step, static, forward=True):
    """Bytes of the lists that the loops return, those of loop counters (a few bytes a step) left out."""
    loops = [op for op in step.operations if "While" in op.type and ("gradient_tape" in op.name) != forward]
    assert loops
    sizes = [static.bytes_of(t) for op in loops for t in op.outputs if t.dtype == tf.variant]
    return [size for size in sizes if size > 8 * STEPS]


def _recurrent(layer):
    inputs = keras.Input((STEPS, FEATURES))
    model = keras.Model(inputs, layer(inputs))
    model.compile("sgd", "mse")
    spec = (tf.TensorSpec([None, STEPS, FEATURES]), tf.TensorSpec([None, STEPS, UNITS]))
    build_training(model, spec, model.train_step)
    return trace_step(model.train_step, spec)


def test_lists_of_an_lstm():
    """Its gradient needs three gates, the candidate, the cell, its tanh and the output: seven states, and the input."""
    step = _recurrent(keras.layers.LSTM(UNITS, return_sequences=True))
    assert sorted(_list_bytes(step, _static(step))) == [INPUT, *[STATE] * 7]


def test_lists_of_a_simple_cell():
    """tanh needs its own output, which is the result as well, and the next step's state: one state, and the input."""
    step = _recurrent(keras.layers.SimpleRNN(UNITS, return_sequences=True))
    assert sorted(_list_bytes(step, _static(step))) == [INPUT, STATE]


def test_what_several_lists_hold_is_counted_with_the_one_that_is_read_last():
    """The result of a recurrent layer and the list for its gradient hold the same tensors. The gradient comes later."""
    step = _recurrent(keras.layers.SimpleRNN(UNITS, return_sequences=True))
    static = _static(step)
    (loop,) = [op for op in step.operations if "While" in op.type and "gradient_tape" not in op.name]
    (kept,) = [t for t in loop.outputs if t.dtype == tf.variant and static.bytes_of(t) == STATE]
    assert any("gradient_tape" in reader.name for reader in kept.consumers())


def test_elements_that_a_loop_passes_on_are_those_of_the_list_that_it_was_given():
    step = _recurrent(keras.layers.SimpleRNN(UNITS, return_sequences=True))
    static = _static(step)
    (loop,) = [op for op in step.operations if "While" in op.type and "gradient_tape" not in op.name]
    assert [static.bytes_of(loop.outputs[k]) for k in static.passed_on[loop]] == [INPUT]


def test_zeros_like_a_list_take_memory_of_their_own():
    """What they are like shares its elements with another list, and counts as nothing."""

    def step(data):
        w = tf.ones((FEATURES, FEATURES))
        with tf.GradientTape() as tape:
            tape.watch(w)
            _, h, array = _loop(data, lambda i, h: tf.tanh(h @ w), keep=True)
            loss = tf.reduce_sum(h)  # nothing reads the array: its gradient is zeros
        return loss, tape.gradient(loss, w), array.stack()

    traced = trace_step(step, tf.TensorSpec([None, STEPS, FEATURES]))
    static = _static(traced)
    zeros = [op.outputs[0] for op in traced.operations if op.type == "ZerosLike" and op.outputs[0].dtype == tf.variant]
    assert [static.bytes_of(t) for t in zeros] == [INPUT]
    (element,) = [static.elements[id(t)] for t in zeros]
    assert element == tf.TensorSpec((BATCH, FEATURES), tf.float32)


@pytest.mark.parametrize("batch", [1, 32])
def test_lists_grow_with_the_batch(batch, monkeypatch):
    monkeypatch.setitem(globals(), "BATCH", batch)
    step = _recurrent(keras.layers.SimpleRNN(UNITS, return_sequences=True))
    assert sorted(_list_bytes(step, _static(step))) == [STEPS * batch * FEATURES * 4, STEPS * batch * UNITS * 4]


def _loop(x, body, keep):
    array = tf.TensorArray(tf.float32, size=STEPS, element_shape=(None, FEATURES))

    def step(i, h, array):
        h = body(i, h)
        return i + 1, h, array.write(i, h) if keep else array

    start = (0, tf.zeros_like(x[:, 0]), array)
    return tf.while_loop(lambda i, *_: i < STEPS, step, start, maximum_iterations=STEPS)


def test_an_accumulator_of_a_tensor_that_is_kept_anyway_is_free():
    w = tf.Variable(tf.ones((FEATURES, FEATURES)))

    def step(data):
        (x,) = data
        with tf.GradientTape() as tape:
            h = _loop(x, lambda i, h: tf.tanh(h @ w + x[:, i]), keep=True)[2].stack()
            loss = tf.reduce_sum(h * h)
        return loss, tape.gradient(loss, w)

    traced = trace_step(step, (tf.TensorSpec([None, STEPS, FEATURES]),))
    assert _list_bytes(traced, _static(traced)) == [STEPS * BATCH * FEATURES * 4]


@pytest.mark.parametrize("read", [False, True])
def test_what_a_loop_gives_back_takes_nothing_if_nobody_reads_it(read):
    """Loops return their constants, too."""

    def step(x):
        body = lambda i, h, c: (i + 1, tf.tanh(h + c), c)  # noqa: E731
        _, h, c = tf.while_loop(lambda i, h, c: i < 3, body, (0, tf.sin(x), tf.cos(x)), maximum_iterations=3)
        return tf.reduce_sum(h), tf.reduce_max(c) if read else 0.0

    traced = trace_step(step, tf.TensorSpec([None, FEATURES]))
    static = _static(traced)
    loop = next(op for op in traced.operations if "While" in op.type)
    h, c = (t for t in loop.outputs if t.dtype == tf.float32)
    whole = BATCH * FEATURES * 4
    assert [static.bytes_of(t) for t in (h, c)] == [whole, whole if read else 0]


def test_nothing_is_kept_without_a_gradient():
    traced = trace_step(lambda data: _loop(data, lambda i, h: tf.tanh(h), False)[1], tf.TensorSpec([None, 6, FEATURES]))
    assert _list_bytes(traced, _static(traced)) == []


def test_a_loop_without_a_bound_has_lists_of_unknown_size():
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            more = lambda i, h: tf.reduce_sum(h) < 100.0  # noqa: E731
            _, h = tf.while_loop(more, lambda i, h: (i + 1, tf.exp(h)), (0, x))
            loss = tf.reduce_sum(h)
        return tape.gradient(loss, x)

    traced = trace_step(step, tf.TensorSpec([None, 3]))
    static = _static(traced)
    loop = next(op for op in traced.operations if op.type in ("While", "StatelessWhile"))
    assert None in [static.bytes_of(t) for t in loop.outputs if t.dtype == tf.variant and t.consumers()]


def test_a_function_graph_knows_the_functions_it_calls():
    def step(x):
        def body(i, h):
            return i + 1, tf.cond(tf.reduce_sum(h) > 0, lambda: h * 2.0, lambda: -h)

        return tf.while_loop(lambda i, h: i < 3, body, (0, x), maximum_iterations=3)[1]

    traced = trace_step(step, tf.TensorSpec([None, 3]))
    loop = next(op for op in traced.operations if "While" in op.type)
    body = function_graph(loop.graph, loop.get_attr("body").name)
    branch = next(op for op in body.get_operations() if op.type.endswith("If"))
    assert function_graph(body, branch.get_attr("then_branch").name).outputs


def test_a_loop_is_not_recomputed_after_its_variable_is_assigned():
    w = tf.Variable(tf.ones((256, 256)))

    def step(data):
        (x,) = data
        _, h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ w)), (0, x), maximum_iterations=3)
        w.assign_sub(tf.matmul(h, h, transpose_a=True))
        return tf.exp(h) @ h, tf.reduce_sum(tf.sin(tf.sin(h)))

    traced = trace_step(step, (tf.TensorSpec([256, 256]),))
    program = build_program(traced, _static(traced), "loop")
    node = {op.type: k for op, k in program.node_of.items()}
    loop = node.get("While", node.get("StatelessWhile"))
    assert program.graph.recompute_until[loop] == node["AssignSubVariableOp"] < len(program.graph)
    assert program.graph.recompute_until[node["AssignSubVariableOp"]] == 0


def test_nor_in_an_order_in_which_the_assignment_comes_early():
    w = tf.Variable(tf.ones((256, 256)))

    def step(data):
        (x,) = data
        beside = tf.reduce_sum(tf.sin(tf.sin(x)))
        _, h = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ w)), (0, x), maximum_iterations=3)
        w.assign_sub(tf.matmul(h, h, transpose_a=True))
        return tf.exp(h) @ h, beside

    traced = trace_step(step, (tf.TensorSpec([256, 256]),))
    program = build_program(traced, _static(traced), "loop")
    graph, node = program.graph, {op.type: k for op, k in program.node_of.items()}
    loop, assign, sin = node.get("While", node.get("StatelessWhile")), node["AssignSubVariableOp"], node["Sin"]
    assert sin < loop < assign
    rest = [k for k in range(len(graph)) if k not in (loop, assign, sin)]
    before = [k for k in rest if k < assign]
    after = [k for k in rest if k > assign]
    evaluate(graph, plan_from_sequence(graph, [loop, loop, *before, sin, assign, *after]))
    with pytest.raises(PlanError):
        evaluate(graph, plan_from_sequence(graph, [loop, assign, loop, sin, *rest]))


def test_a_loop_within_a_loop():
    """The body of a body is found, and its state has the shape that it enters with."""

    def step(x):
        def body(i, h):
            return i + 1, tf.while_loop(lambda j, g: j < 2, lambda j, g: (j + 1, tf.sin(g)), (0, h))[1]

        return tf.while_loop(lambda i, h: i < 3, body, (0, x), maximum_iterations=3)[1]

    traced = trace_step(step, tf.TensorSpec([None, 3]))
    loop = next(op for op in traced.operations if "While" in op.type)
    assert [_static(traced).bytes_of(t) for t in loop.outputs if t.dtype.is_floating] == [BATCH * 3 * 4]


def test_what_is_stacked_has_as_many_entries_as_the_list():
    def step(x):
        steps = tf.shape(x)[1]
        array = tf.TensorArray(tf.float32, size=steps, element_shape=(None, FEATURES))
        more = lambda i, a: (i + 1, a.write(i, tf.exp(x[:, i])))  # noqa: E731
        return tf.while_loop(lambda i, _: i < steps, more, (0, array))[1].stack()

    traced = trace_step(step, tf.TensorSpec([None, STEPS, FEATURES]))
    static = _static(traced)
    (stacked,) = [op.outputs[0] for op in traced.operations if op.type == "TensorListStack"]
    assert static.tensors[id(stacked)].shape == (STEPS, BATCH, FEATURES)
