"""A plan is for the structure in which Keras hands a batch to a step, however the data was given to `compile`."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import assert_same_state

import checkmate_tf
from checkmate_tf.keras.batches.spec import with_tuples
from checkmate_tf.keras.training.controller import controller_of

pytestmark = pytest.mark.usefixtures("fresh_keras", "no_grappler")

X = np.random.default_rng(0).random((16, 12), "float32")


@keras.saving.register_keras_serializable()
class Spread(keras.layers.Layer):
    """A loss of its own."""

    def call(self, x):
        self.add_loss(keras.ops.mean(keras.ops.square(x)))
        return x


def one_input():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12,))
    x = keras.layers.Dense(64, "relu")(inputs)
    return _compiled(keras.Model(inputs, Spread()(keras.layers.Dense(64)(x))))


def two_inputs():
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((12,)), keras.Input((12,))]
    x = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(inputs))
    return _compiled(keras.Model(inputs, Spread()(keras.layers.Dense(64)(x))))


def named_inputs():
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((12,), name=name) for name in "ab"}
    x = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()([inputs["a"], inputs["b"]]))
    return _compiled(keras.Model(inputs, Spread()(keras.layers.Dense(64)(x))))


def _compiled(model):
    model.compile("adam")
    return model


@pytest.mark.long(but=("one_input-x0-told0", "two_inputs-x5-told5", "named_inputs-x7-told7"))
@pytest.mark.parametrize(
    "make, x, told",
    [
        (one_input, X, {"data": X}),
        (one_input, X, {"data": (X,)}),
        (one_input, X, {"batch_size": 16}),
        (one_input, X, {}),
        (two_inputs, [X, X], {"data": ([X, X],)}),
        (two_inputs, [X, X], {"batch_size": 16}),
        (named_inputs, {"a": X, "b": X}, {"data": {"a": X, "b": X}}),
        (named_inputs, {"a": X, "b": X}, {"batch_size": 16}),
    ],
)
def test_one_plan_serves_fit_without_targets(make, x, told):
    plain, ours = make(), make()
    checkmate_tf.compile(ours, budget="200kB", costs="flops", verify=False, progress=False, cache=False, **told)
    fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    assert plain.fit(x, **fit).history == ours.fit(x, **fit).history
    assert_same_state(plain, ours)
    assert len(controller_of(ours).earlier) == 1


def test_a_dataset_keeps_its_structure():
    """What it wraps in a tuple comes wrapped."""
    data = tf.data.Dataset.from_tensors((X,))
    plain, ours = one_input(), one_input()
    checkmate_tf.compile(ours, budget="200kB", data=data, costs="flops", verify=False, progress=False, cache=False)
    assert plain.fit(data, verbose=0).history == ours.fit(data, verbose=0).history
    assert_same_state(plain, ours)
    assert len(controller_of(ours).earlier) == 1


def with_targets():
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((12,)), {name: keras.Input((12,), name=name) for name in "ab"}]
    x = keras.layers.Concatenate()([inputs[0], inputs[1]["a"], inputs[1]["b"]])
    model = keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Dense(64)(x)))
    model.compile("adam", "mse")
    return model


@pytest.mark.long
@pytest.mark.parametrize("told", [{"data": True}, {"batch_size": 16}, {}])
def test_one_plan_serves_lists(told):
    """A pipeline hands them over as tuples."""
    x, y = [X, {"a": X, "b": X}], X[:, :4]
    told = {"data": (x, y)} if told.get("data") else told
    plain, ours = with_targets(), with_targets()
    checkmate_tf.compile(ours, budget="200kB", costs="flops", verify=False, progress=False, cache=False, **told)
    fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
    assert plain.fit(x, y, **fit).history == ours.fit(x, y, **fit).history
    assert_same_state(plain, ours)
    assert len(controller_of(ours).earlier) == 1


def test_a_loop_of_ones_own_hands_lists_over():
    """No pipeline makes tuples of them: the model sees in its plan what it sees without one."""

    class Listed(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def call(self, inputs):
            assert isinstance(inputs, list)
            return self.dense(keras.ops.concatenate(inputs, -1))

    keras.utils.set_random_seed(0)
    model, (x, y) = Listed(), ([X, X], X[:, :4])
    model(x)
    gradients = checkmate_tf.gradient_function(
        model, keras.losses.mean_squared_error, "200kB", data=(x, y), costs="flops", verify=False, progress=False
    )
    assert np.isfinite(float(gradients(x, y)[0]))


def test_lists_are_tuples_in_any_mapping_and_named_tuple():
    pair = namedtuple("pair", "first second")
    nest = OrderedDict(a=[1, [2]], b=pair([3], 4))
    assert with_tuples(nest) == OrderedDict(a=(1, (2,)), b=pair((3,), 4))
    assert type(with_tuples(nest)) is OrderedDict


@pytest.mark.long(but=("fit-told1",))
@pytest.mark.parametrize("told", [{"data": True}, {"batch_size": 16}, {}])
@pytest.mark.parametrize("first", ["fit", "train_on_batch"])
def test_one_plan_serves_single_batches(told, first):
    """`train_on_batch` hands over weights, too, and None where there are none."""
    x, y = [X, {"a": X, "b": X}], X[:, :4]
    told = {"data": (x, y)} if told.get("data") else told
    plain, ours = with_targets(), with_targets()
    checkmate_tf.compile(ours, budget="200kB", costs="flops", verify=False, progress=False, cache=False, **told)
    for k in range(2):
        if first == "fit" or k:
            for model in (plain, ours):
                model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        assert plain.train_on_batch(x, y) == ours.train_on_batch(x, y)
    assert_same_state(plain, ours)
    assert len(controller_of(ours).earlier) == 1


def test_one_plan_serves_all_ways_to_hand_inputs_over():
    plain, ours = one_input(), one_input()
    checkmate_tf.compile(ours, budget="200kB", data=X, costs="flops", verify=False, progress=False, cache=False)
    for model in (plain, ours):
        model.train_on_batch(X)
        model.fit(tf.data.Dataset.from_tensors((X,)), verbose=0)
        for data in (X, (X,), (X, None), [X, None, None]):
            model.train_step(tf.nest.map_structure(lambda t: None if t is None else tf.constant(t), data))
    assert_same_state(plain, ours)
    assert len(controller_of(ours).earlier) == 1


@pytest.mark.long
def test_a_larger_single_batch_is_planned_for():
    """The functions that hold the smaller plan go."""
    plain, ours = one_input(), one_input()
    checkmate_tf.compile(ours, budget="200kB", costs="flops", verify=False, progress=False, cache=False)
    for model in (plain, ours):
        for size in (4, 16, 8):
            model.train_on_batch(X[:size])
        model.fit(X, batch_size=16, verbose=0)
    assert_same_state(plain, ours)
    assert [known.report.batch_size for known in controller_of(ours).earlier] == [4, 16]


@pytest.mark.long
def test_a_larger_batch_of_a_dataset_with_none_is_planned_for():
    """To a pipeline that is a part of its own, to a step it is none."""
    plain, ours = one_input(), one_input()
    checkmate_tf.compile(ours, budget="200kB", costs="flops", verify=False, progress=False, cache=False)
    for model in (plain, ours):
        for size in (4, 16):
            model.fit(tf.data.Dataset.from_tensors((X[:size], None)), verbose=0)
        model.train_on_batch(X)
    assert_same_state(plain, ours)
    assert [known.report.batch_size for known in controller_of(ours).earlier] == [4, 16]


class Weighing(keras.Model):
    """A loss of its own, of its inputs and weights; it looks at how they come."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = keras.ops.mean(keras.ops.square(x[0] - y_pred), -1) + (0.1 if isinstance(x, list) else 0.0)
        return keras.ops.mean(loss if sample_weight is None else loss * sample_weight)


@pytest.mark.long(but=("told1",))
@pytest.mark.parametrize("told", [{}, {"batch_size": 16}, {"data": True}])
def test_weights_without_targets(told):
    """And lists, which a loss of one's own may look at."""
    weights = np.linspace(0, 2, 16).astype("float32")
    told = {"data": ([X, X], None, weights)} if told.get("data") else told
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        inputs = [keras.Input((12,)), keras.Input((12,))]
        x = keras.layers.Dense(64, "relu")(keras.layers.Concatenate()(inputs))
        models.append(_compiled(Weighing(inputs, keras.layers.Dense(12)(x))))
    plain, ours = models
    checkmate_tf.compile(ours, budget="200kB", costs="flops", verify=False, progress=False, cache=False, **told)
    for _ in range(2):
        assert plain.train_on_batch([X, X], sample_weight=weights) == ours.train_on_batch([X, X], sample_weight=weights)
    assert plain.train_on_batch([X, X]) == ours.train_on_batch([X, X])
    assert_same_state(plain, ours)


def test_a_step_of_ones_own_gets_what_keras_hands_over():
    seen = []

    class Own(keras.Model):
        def train_step(self, data):
            seen.append(len(data))
            return super().train_step(data)

    keras.utils.set_random_seed(0)
    inputs = keras.Input((12,))
    model = Own(inputs, keras.layers.Dense(4)(keras.layers.Dense(64, "relu")(inputs)))
    model.compile("adam", "mse")
    checkmate_tf.compile(model, "200kB", data=(X, X[:, :4]), costs="flops", verify=False, progress=False, cache=False)
    assert set(seen) == {2}
    model.train_on_batch(X, X[:, :4])
    assert set(seen) == {2, 3}
    assert len(controller_of(model).earlier) == 2
