"""Losses, metrics and the optimizer are built for the data that comes, not for what a plan guessed."""

import contextlib

import keras
import numpy as np
import pytest
from keras.layers import Dense, GlobalAveragePooling1D

import checkmate_tf
from checkmate_tf.errors import InfeasibleBudgetError
from checkmate_tf.keras.training.controller import controller_of
from tests.cases import assert_same_state

BATCH = 8
RNG = np.random.default_rng(0)
X = RNG.normal(size=(2 * BATCH, 24, 8)).astype("float32")
Y = RNG.integers(0, 4, len(X))


def _of_classes(y, p):
    """A loss on class numbers, whose name does not say so."""
    k = keras.ops.one_hot(keras.ops.cast(keras.ops.reshape(y, (-1,)), "int32"), 4)[: keras.ops.shape(p)[0]]
    return keras.ops.mean(keras.ops.sum(-k * keras.ops.log(p + 1e-7), -1))


def _hidden():
    inputs = keras.Input((24, 8))
    return inputs, GlobalAveragePooling1D()(Dense(16, "relu")(Dense(16, "relu", name="first")(inputs)))


def own_loss():
    inputs, z = _hidden()
    model = keras.Model(inputs, Dense(4, "softmax")(z))
    model.compile("nadam", _of_classes, metrics=["accuracy"])
    return model


def one_of_two():
    """A loss for one of two outputs."""
    inputs, z = _hidden()
    model = keras.Model(inputs, {"a": Dense(4, "softmax", name="a")(z), "b": Dense(2, name="b")(z)})
    model.compile("adam", {"a": "sparse_categorical_crossentropy"})
    return model


def two_losses():
    """Each of which has a mean."""
    inputs, z = _hidden()
    model = keras.Model(inputs, [Dense(4, "softmax", name="a")(z), Dense(2, name="b")(z)])
    model.compile("adam", ["sparse_categorical_crossentropy", "mse"], metrics=[["accuracy"], ["mae"]])
    return model


def frozen():
    model = own_loss()
    model.get_layer("first").trainable = False
    return model


TARGETS = {own_loss: Y, one_of_two: {"a": Y}, two_losses: [Y, np.ones((len(X), 2), "float32")], frozen: Y}


def _plan(model, budget="1MB", **options):
    options = {"batch_size": BATCH} | options
    return checkmate_tf.compile(
        model, budget, costs="flops", gap=1.0, verify=False, progress=False, cache=False, **options
    )


def _refused(model):
    with contextlib.suppress(InfeasibleBudgetError):
        _plan(model, 1000)
        pytest.fail("it was planned")


def _evaluated(model):
    _plan(model)
    model.evaluate(X, TARGETS[model.made_by], batch_size=BATCH, verbose=0)


def _gradients(model):
    """A function of gradients, planned and called between `compile` and `fit`."""
    loss = checkmate_tf.gradient_function(_plan(model), _of_classes, 1.0, batch_size=BATCH, costs="flops", verify=False)
    loss(X[:BATCH], Y[:BATCH])


WAYS = {
    "planned": _plan,
    "planned twice": lambda model: _plan(_plan(model)),
    "planned, then evaluated": _evaluated,
    "planned, then gradients": _gradients,
    "refused": _refused,
    "restored": lambda model: checkmate_tf.restore(_plan(model)),
    "looked at": lambda model: checkmate_tf.op_graph(model, BATCH, "flops"),
}


def _made(build):
    keras.utils.set_random_seed(1)
    model = build()
    object.__setattr__(model, "made_by", build)
    return model


def _same_training(plain, ours, y, **options):
    for model in (plain, ours):
        model.get_layer("first").trainable = True
    settings = {"batch_size": BATCH, "epochs": 2, "shuffle": False, "verbose": 0, "validation_data": (X, y)} | options
    assert plain.fit(X, y, **settings).history == ours.fit(X, y, **settings).history
    assert_same_state(plain, ours)


@pytest.mark.long(but=("own_loss-planned",))
@pytest.mark.parametrize(
    ("build", "way"),
    [
        *((own_loss, way) for way in WAYS),
        *((one_of_two, way) for way in ("planned", "restored")),
        *((two_losses, way) for way in ("planned, then evaluated", "refused")),
        *((frozen, way) for way in ("planned", "refused", "looked at")),
    ],
)
def test_training_is_the_plain_one(build, way):
    plain, ours = _made(build), _made(build)
    WAYS[way](ours)
    assert not ours.optimizer.built
    if WAYS[way] is _evaluated:
        plain.evaluate(X, TARGETS[build], batch_size=BATCH, verbose=0)
    _same_training(plain, ours, TARGETS[build])


@pytest.mark.long
def test_what_was_planned_for_the_data_that_comes_is_not_planned_again():
    """Weights that come, too, change nothing that is built."""
    plain, ours = _made(two_losses), _plan(_made(two_losses))
    y = TARGETS[two_losses]
    _same_training(plain, ours, y, sample_weight=[np.ones(len(X), "float32")] * 2)
    _same_training(plain, ours, y)
    assert len(controller_of(ours).earlier) == 2


@pytest.mark.long
def test_an_optimizer_that_was_changed_or_built_before_training_is_the_one_that_trains():
    for change in (
        lambda model: model.optimizer.build(model.trainable_variables),
        lambda model: setattr(model.optimizer, "learning_rate", keras.optimizers.schedules.CosineDecay(0.1, 9)),
    ):
        plain, ours = _made(own_loss), _plan(_made(own_loss))
        for model in (plain, ours):
            change(model)
        _same_training(plain, ours, Y)


class _Counts(keras.metrics.Mean):
    """Counts batches, weighted by an attribute."""

    weight = 1.0

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(self.weight)


def test_what_is_set_of_a_metric_after_compiling_stays():
    metric = _Counts(name="counts")
    metric.weight = 2.0
    model = keras.Sequential([keras.Input((8, 8)), *(Dense(16, activation="tanh") for _ in range(3)), Dense(4)])
    model.compile("sgd", "mse", metrics=[metric])
    _plan(model)
    metric.weight, metric.remark = 3.0, "mine"
    x, y = np.zeros((BATCH, 8, 8), "float32"), np.zeros((BATCH, 8, 4), "float32")
    model.fit(x, y, verbose=0)
    assert (metric.weight, metric.remark) == (3.0, "mine")
    assert model.evaluate(x, y, verbose=0, return_dict=True)["counts"] == 3.0


def test_compiling_leaves_a_trained_model_built():
    plain, ours = _made(one_of_two), _made(one_of_two)
    for model in (plain, ours):
        model.fit(X, {"a": Y}, batch_size=BATCH, shuffle=False, verbose=0)
    slots = list(ours.optimizer.variables)
    _refused(ours)
    _plan(ours)
    assert all(a is b for a, b in zip(slots, ours.optimizer.variables, strict=True))
    _same_training(plain, ours, {"a": Y})
