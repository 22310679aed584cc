"""The traced step: every operation that matters, in an order that runs, with true bytes for the batch asked."""

from __future__ import annotations

import itertools

import keras
import pytest
import tensorflow as tf
from cases import DENSE, LARGE_DENSE, make, program_of, program_of_case

from checkmate_tf.errors import TraceError
from checkmate_tf.trace.ops import inputs_of, is_read_only, is_source, is_stateful, view_of, writes_resource
from checkmate_tf.trace.order import (
    early_updates,
    followers_of,
    in_order_of,
    is_gradient,
    needed_operations,
    topological,
)
from checkmate_tf.trace.sizes.static import with_static_batch
from checkmate_tf.trace.step import trace_step

pytestmark = pytest.mark.usefixtures("fresh_keras")

NAMES = ["residual", "transformer", "recurrent", "own_step", "branches"]


def _traced(function, *specs):
    return trace_step(lambda data: function(*data), specs)


def _static(step, batch):
    shapes = [tf.TensorShape([batch if d is None else d for d in t.shape]) for t in step.inputs]
    return with_static_batch(step, shapes)


def _find(step, kind):
    return next(op for op in step.operations if op.type == kind)


@pytest.mark.parametrize("name", NAMES)
def test_order_is_topological_and_complete(name):
    step = program_of_case(name).step
    position = {op: k for k, op in enumerate(step.operations)}
    assert len(position) == len(step.operations)
    for op in step.operations:
        for before in [*(t.op for t in inputs_of(op)), *op.control_inputs]:
            assert position[before] < position[op], (before.name, op.name)
    assert all(t.op in position for t in step.outputs)
    effects = [op for op in step.graph.get_operations() if is_stateful(op) and not is_source(op)]
    assert effects and all(op in position for op in effects)


@pytest.mark.parametrize("name", NAMES)
def test_early_updates_only_reorders(name):
    step = program_of_case(name).step
    created = topological([op for op in step.graph.get_operations() if op in set(step.operations)])
    roots = {t.op for t in step.outputs} | {op for op in created if is_stateful(op) and not is_source(op)}
    moved = early_updates(created, roots)
    assert sorted(op.name for op in moved) == sorted(op.name for op in created)
    position = {op: k for k, op in enumerate(moved)}
    for op in moved:
        assert all(position[c] < position[op] for c in op.control_inputs)
        assert all(position[t.op] < position[op] for t in inputs_of(op))


def test_weights_are_updated_during_the_backward_pass():
    step = program_of_case("residual").step
    position = {op: k for k, op in enumerate(step.operations)}
    last_gradient = max(k for op, k in position.items() if is_gradient(op))
    updates = [k for op, k in position.items() if op.type == "AssignSubVariableOp"]
    assert sum(k < last_gradient for k in updates) > len(updates) / 2


def test_a_layers_weights_have_their_gradient_before_its_input():
    step = program_of_case("residual").step
    position = {op: k for k, op in enumerate(step.operations)}
    of_weights, of_input = (
        {id(inputs_of(op)[2]): position[op] for op in step.operations if op.type == f"Conv2DBackprop{what}"}
        for what in ("Filter", "Input")
    )
    both = set(of_weights) & set(of_input)
    assert len(both) > 3 and all(of_weights[dy] < of_input[dy] for dy in both)
    for op in step.operations:
        for t in inputs_of(op) if op.type == "Conv2DBackpropInput" else ():
            if t.op.type == "ReadVariableOp":
                (written,) = (w for w in step.operations if writes_resource(w) and t.op.inputs[0] is w.inputs[0])
                assert position[op] < position[written]  # else the variable would be copied
    created = [op for op in step.graph.get_operations() if op.type in ("Conv2DBackpropInput", "Conv2DBackpropFilter")]
    assert created[0].type == "Conv2DBackpropInput"  # the order of a tape


@pytest.mark.parametrize("name", NAMES)
def test_what_follows_a_node_comes_after_it(name):
    program = program_of_case(name)
    followers, _ = followers_of(program.step.operations, program.node_of, program.step.controls_of)
    assert all(min(later, default=k + 1) > k for k, later in enumerate(followers))
    for k, users in enumerate(program.graph.users):
        assert set(users) - {len(program.nodes)} <= followers[k] | {len(followers)}  # a result has a node of its own
    handles = {}
    for op, k in program.node_of.items():
        for t in op.inputs if writes_resource(op) else ():
            if t.dtype == tf.resource:
                handles.setdefault(t.op, []).append(k)
    readers = [(t.op.inputs[0].op, k) for op, k in program.node_of.items() for t in inputs_of(op)
               if t.op.type == "ReadVariableOp"]  # fmt: skip
    pairs = [(r, w) for handle, r in readers for w in handles.get(handle, ()) if r != w]
    assert pairs and all(max(pair) in followers[min(pair)] for pair in pairs)


def test_operations_go_where_their_nodes_go():
    program = program_of(make(LARGE_DENSE), LARGE_DENSE)
    step, nodes = program.step, [k for k in range(len(program.graph)) if k < len(program.nodes)]
    followers, _ = followers_of(step.operations, program.node_of, step.controls_of)
    first = next(k for k in nodes if "wide_512" in program.graph.names[k] and "MatMul_1" in program.graph.names[k])
    moving = {first}
    for k in nodes[first:-1]:
        moving |= followers[k] - {nodes[-1]} if k in moving else set()
    order = [k for k in nodes[:-1] if k not in moving] + sorted(moving) + nodes[-1:]
    assert order != nodes
    moved = in_order_of(step.operations, program.node_of, order)
    assert sorted(op.name for op in moved) == sorted(op.name for op in step.operations)
    position = {op: k for k, op in enumerate(moved)}
    for op in moved:
        assert all(position[p] < position[op] for p in [*(t.op for t in inputs_of(op)), *op.control_inputs])
    places = [program.node_of[op] for op in moved if op in program.node_of]
    assert [k for k, _ in itertools.groupby(places)] == order


def test_operations_nobody_needs_are_left_out():
    def step(x, y):
        tf.exp(x)
        return tf.tanh(x)

    kinds = {op.type for op in _traced(step, tf.TensorSpec([None, 3]), tf.TensorSpec([None])).operations}
    assert "Tanh" in kinds and "Exp" not in kinds


def test_needed_operations_of_side_effects_alone():
    v = tf.Variable(1.0)

    @tf.function(autograph=False)
    def step(x):
        v.assign_add(tf.reduce_sum(x))

    graph = step.get_concrete_function(tf.TensorSpec([None])).graph
    assert {"AssignAddVariableOp", "Sum"} <= {op.type for op in needed_operations(graph, [])}


def test_sizes_are_those_of_the_batch_asked():
    spec = tf.TensorSpec([None, 8, 8, 3])
    kernel = tf.Variable(tf.ones((3, 3, 3, 16)))

    def step(x):
        y = tf.nn.relu(tf.nn.conv2d(x, kernel, 2, "SAME"))
        flat = tf.reshape(y, (tf.shape(y)[0], -1))
        return tf.cast(flat, tf.bfloat16) * tf.cast(tf.shape(x)[0], tf.bfloat16)

    traced = _traced(step, spec)
    for batch in (1, 7, 32):
        static = _static(traced, batch)
        activation = batch * 4 * 4 * 16
        assert static.bytes_of(_find(traced, "Conv2D").outputs[0]) == 4 * activation
        assert static.bytes_of(_find(traced, "Relu").outputs[0]) == 4 * activation
        assert static.bytes_of(_find(traced, "Reshape").outputs[0]) == 4 * activation
        assert static.bytes_of(_find(traced, "Mul").outputs[0]) == 2 * activation
        assert static.bytes_of(traced.inputs[0]) == 4 * batch * 8 * 8 * 3


def test_shapes_go_through_what_has_a_shape_as_an_attribute():
    def step(x):
        rows, _ = tf.unstack(tf.ensure_shape(tf.shape(x), [2]))
        shape = tf.raw_ops.PlaceholderWithDefault(input=[rows, 6], shape=[2])
        return tf.reshape(x, tf.stack(tf.ensure_shape(tf.shape(x), [None])) // [2, 1] * [1, 2]), tf.zeros(shape)

    traced = _traced(step, tf.TensorSpec([None, 5]))
    static = _static(traced, 8)
    assert static.tensors[id(traced.outputs[0])].shape == [4, 10]


def test_a_size_that_data_decides_and_bounds_is_the_largest():
    step = _traced(lambda x: tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0)), tf.TensorSpec([None, 3]))
    static = _static(step, 4)
    assert static.bounded and static.bytes_of(_find(step, "Where").outputs[0]) == 4 * 8
    assert static.bytes_of(_find(step, "GatherV2").outputs[0]) == 4 * 3 * 4


def test_a_size_that_nothing_bounds_is_unknown_and_not_zero():
    step = _traced(lambda x: tf.reduce_sum(tf.range(tf.cast(tf.reduce_sum(x), tf.int32))), tf.TensorSpec([None, 3]))
    static = _static(step, 4)
    assert not static.bounded and static.bytes_of(_find(step, "Range").outputs[0]) is None


@pytest.mark.parametrize("optimizer", ["rmsprop", "adagrad", "adam", "sgd"])
def test_sparse_gradients_have_a_bound(optimizer):
    """An embedding's gradient divided by a dense slot: at most all rows of the table, or one for each token."""
    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(50, 8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1)(x))
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    spec = (tf.TensorSpec([None, 6], tf.int32), tf.TensorSpec([None, 1]))
    step = trace_step(model.train_step, spec)
    for batch in (2, 20):
        static = _static(step, batch)
        for op in step.operations:
            if op.type == "StatelessIf":
                rows = max(50, 6 * batch)
                assert [static.bytes_of(t) for t in op.outputs if t.dtype.is_floating] == [rows * 8 * 4]


def test_views_share_buffers():
    def step(x):
        y = tf.exp(x)
        return tf.transpose(tf.squeeze(tf.expand_dims(tf.identity(tf.reshape(y, (-1, 4, 3))), 1), 1), (0, 2, 1))

    traced = _traced(step, tf.TensorSpec([None, 12]))
    static = _static(traced, 5)
    views = {op.type for op in traced.operations if view_of(static.operations[op], 0) is not None}
    assert {"Reshape", "Identity", "ExpandDims", "Squeeze"} <= views
    assert view_of(static.operations[_find(traced, "Transpose")], 0) is None
    assert view_of(static.operations[_find(traced, "Exp")], 0) is None


def test_a_reduction_over_nothing_is_a_view():
    def step(x):
        return tf.exp(tf.reduce_sum(tf.exp(x), [])) + tf.reduce_sum(x, 1, keepdims=True)

    traced = _traced(step, tf.TensorSpec([None, 12]))
    static = _static(traced, 5)
    sums = [op for op in traced.operations if op.type == "Sum"]
    assert sorted(str(view_of(static.operations[op], 0)) for op in sums) == ["0", "None"]


def test_identity_n_is_looked_through():
    def step(x):
        a, b = tf.identity_n([tf.exp(x), tf.tanh(x)])
        return tf.sin(a), tf.cos(b)

    traced = _traced(step, tf.TensorSpec([None, 2]))
    assert "IdentityN" not in {op.type for op in traced.operations}
    assert [t.op.type for t in inputs_of(_find(traced, "Sin"))] == ["Exp"]
    assert [t.op.type for t in inputs_of(_find(traced, "Cos"))] == ["Tanh"]


def test_what_is_stateful():
    v = tf.Variable(tf.ones((3,)))

    def step(x):
        _, y = tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * v), (0, x), maximum_iterations=3)
        v.assign_add(tf.reduce_sum(y, 0))
        return tf.random.uniform((3,)) + tf.random.stateless_uniform((3,), [1, 2]) + y + v

    traced = _traced(step, tf.TensorSpec([None, 3]))
    loop = next(op for op in traced.operations if "While" in op.type)
    assert not is_stateful(loop) and is_read_only(loop)
    assert is_stateful(_find(traced, "AssignAddVariableOp")) and is_stateful(_find(traced, "RandomUniform"))
    assert not any(is_stateful(op) for op in traced.operations if op.type.startswith("Stateless"))
    assert not is_stateful(_find(traced, "ReadVariableOp"))


def test_a_loop_that_writes_is_stateful():
    v = tf.Variable(0.0)

    def step(x):
        def body(i, y):
            v.assign_add(1.0)
            return i + 1, y * 2.0

        return tf.while_loop(lambda i, y: i < 3, body, (0, x), maximum_iterations=3)[1]

    traced = _traced(step, tf.TensorSpec([None, 3]))
    assert is_stateful(next(op for op in traced.operations if "While" in op.type))


def test_a_failing_step_names_its_cause():
    with pytest.raises(TraceError, match="KeyError: 'x'") as caught:
        trace_step(lambda data: data["y"] + {}["x"], {"y": tf.TensorSpec([None])})
    assert isinstance(caught.value.__cause__, KeyError)


def test_tracing_changes_no_variable():
    model = make(DENSE)
    before = [v.numpy() for v in model.variables]
    program_of(model, DENSE)
    assert all((a == v.numpy()).all() for a, v in zip(before, model.variables, strict=True))


@pytest.mark.parametrize("way", [tf.py_function, tf.numpy_function])
def test_the_shape_of_what_python_returns_is_the_told_one(way):
    def step(x, told):
        found = way(lambda v: v, [x], tf.float32)
        found.set_shape(told)
        return found

    for told, known in (((None, 3), (5, 3)), ((7, 3), (7, 3)), ((None, None), None), (None, None)):
        traced = _traced(lambda x, told=told: step(x, told), tf.TensorSpec([None, 3]))
        static = with_static_batch(traced, [tf.TensorShape([5, 3])])
        (op,) = [op for op in traced.operations if "PyFunc" in op.type]
        assert static.bytes_of(op.outputs[0]) == (None if known is None else 4 * known[0] * known[1])


def test_the_largest_sizes_of_what_differs_and_of_parts():
    def step(x):
        kinds = tf.cast(x[:, 0], tf.int32)
        found, place, count = tf.unique_with_counts(kinds)
        rows, _ = tf.raw_ops.UniqueV2(x=x, axis=[0])
        parts = tf.dynamic_partition(x, kinds, 3)
        rest, _ = tf.raw_ops.ListDiff(x=kinds, y=kinds[:1])
        return found, place, count, rows, *parts, rest

    static = _static(traced := _traced(step, tf.TensorSpec([None, 3])), 5)
    sizes = {
        kind: [static.bytes_of(t) for t in _find(traced, kind).outputs] for kind in ("UniqueWithCounts", "UniqueV2")
    }
    assert sizes == {"UniqueWithCounts": [20, 20, 20], "UniqueV2": [60, 20]}
    assert [static.bytes_of(t) for t in _find(traced, "DynamicPartition").outputs] == [60, 60, 60]
    assert [static.bytes_of(t) for t in _find(traced, "ListDiff").outputs] == [20, 20]


@pytest.mark.parametrize("inside", ["", "a loop", "a conditional"])
def test_what_draws_random_regions_is_computed_once(inside):
    """Fractional poolings: another copy would draw others."""

    def step(data):
        (x,) = data
        pool = lambda a: tf.nn.fractional_avg_pool(a, [1, 1.2, 1.2, 1])[0]  # noqa: E731
        if inside == "a loop":
            return tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + tf.reduce_sum(pool(a))), (0, x))
        if inside == "a conditional":
            return tf.cond(tf.reduce_sum(x) > 0.0, lambda: tf.reduce_sum(pool(x)), lambda: 0.0)
        return pool(x)

    kinds = {"": ["FractionalAvgPool"], "a loop": ["While", "StatelessWhile"], "a conditional": ["If", "StatelessIf"]}
    traced = _traced(lambda x: step((x,)), tf.TensorSpec([None, 24, 24, 4]))
    assert all(is_stateful(op) for op in traced.operations if op.type in kinds[inside])
    assert any(op.type in kinds[inside] for op in traced.operations)


def test_lists_that_are_read_outside_of_loops_have_known_sizes():
    """Their gradients ask for the shape of an element, and add lists."""

    def step(data):
        (x,) = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            array = tf.TensorArray(tf.float32, 3)
            for k in range(3):
                array = array.write(k, tf.sin(x * (k + 1.0)))
            loss = tf.reduce_sum(array.stack()) + tf.reduce_sum(tf.exp(array.read(1)))
        return tape.gradient(loss, x)

    traced = trace_step(step, (tf.TensorSpec([None, 5, 7]),))
    static = _static(traced, 4)
    assert any(op.type == "AddN" and op.outputs[0].dtype == tf.variant for op in traced.operations)
    for op in traced.operations:
        for t in op.outputs:
            assert static.bytes_of(t) is not None, op.name


def test_a_list_is_as_long_as_one_that_it_asks_for_its_length():
    """As the gradient of a map over the batch does."""

    def step(data):
        (x,) = data
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.map_fn(lambda a: tf.sin(a) + tf.random.normal(tf.shape(a), seed=3), x))
        return tape.gradient(loss, x)

    traced = trace_step(step, (tf.TensorSpec([None, 5, 7]),))
    static = _static(traced, 4)
    (gradient,) = traced.outputs
    assert static.tensors[id(gradient)].shape == (4, 5, 7)


@pytest.mark.parametrize(
    ("where", "length"),
    [("in line", 2), ("a loop", 3), ("a loop backwards", 3), ("a loop by data", None), ("a branch", None)],
)
def test_a_list_that_grows_is_as_long_as_its_last_index_asks_for(where, length):
    """And not as it began. Where that depends on data it is not known."""

    def step(data):
        (x,) = data
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=x.shape)
        count = tf.cast(tf.reduce_sum(x), tf.int32) if where == "a loop by data" else 3
        if where == "a loop backwards":
            write = lambda i, a: (i - 1, a.write(i, x))  # noqa: E731
            array = tf.while_loop(lambda i, _: i >= 0, write, (2, array))[1]
        elif where.startswith("a loop"):
            write = lambda i, a: (i + 1, a.write(i, x))  # noqa: E731
            array = tf.while_loop(lambda i, _: i < count, write, (0, array))[1]
        elif where == "a branch":
            array = tf.cond(tf.reduce_sum(x) > 0.0, lambda: array.write(1, x), lambda: array)
        else:
            array = array.write(0, x).write(1, x)
        return tf.zeros([array.size(), 1000]), array.stack()

    traced = trace_step(step, (tf.TensorSpec([None, 4]),))
    static = _static(traced, 5)
    zeros, stacked = (static.tensors[id(t)].shape.as_list() for t in traced.outputs)
    assert (zeros, stacked) == ([length, 1000], [length, 5, 4])


def test_the_length_of_a_list_that_a_loop_fills_is_known():
    def step(data):
        (x,) = data
        array = tf.TensorArray(tf.float32, 3, element_shape=x.shape)
        array = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a.write(i, x)), (0, array))[1]
        return tf.zeros([array.size(), 1000]), array.stack()

    traced = trace_step(step, (tf.TensorSpec([None, 4]),))
    static = _static(traced, 5)
    assert [static.tensors[id(t)].shape.as_list() for t in traced.outputs] == [[3, 1000], [3, 5, 4]]
