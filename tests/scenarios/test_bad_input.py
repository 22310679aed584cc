"""What cannot be served is refused by a typed error that says what to do, and the model is left as it was."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import BATCH, CASES, DENSE, Subclassed, assert_same_state, compile_quickly, make, state, train

import checkmate_tf
from checkmate_tf.errors import (
    BatchSizeError,
    BudgetError,
    CheckmateError,
    CostError,
    DynamicShapeError,
    InfeasibleBudgetError,
    JitCompileError,
    ModelError,
    StrategyError,
    TraceError,
)

pytestmark = [
    pytest.mark.usefixtures("fresh_keras"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def _refused(model, error, match, **options):
    """`compile` raises, and leaves everything about the model as it was."""
    attributes = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    before = {k: v.tobytes() for k, v in state(model).items()}
    with pytest.raises(error, match=match) as caught:
        compile_quickly(model, DENSE, **{"time_limit": 1} | options)
    assert isinstance(caught.value, CheckmateError)
    after = {k: v for k, v in vars(model).items() if not k.startswith("_")}
    assert after.keys() == attributes.keys() and all(after[k] is attributes[k] for k in after)
    assert not hasattr(model, "checkmate")
    now = {k: v.tobytes() for k, v in state(model).items()}
    assert all(now[k] == before[k] for k in before)
    return caught.value


@pytest.fixture(scope="module")
def trained():
    """A model whose optimizer has a state. Whatever is refused leaves it as it is, so one serves all tests."""
    model = make(DENSE)
    train(model, DENSE, steps=1)
    return model


def test_unbuilt():
    model = keras.Sequential([keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    _refused(model, ModelError, "not built.*call it on a batch")


def test_uncompiled():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    with pytest.raises(ModelError, match=r"not compiled: call model\.compile"):
        checkmate_tf.compile(model, 0.5, batch_size=4)


@pytest.mark.parametrize("thing", [None, "resnet50", keras.layers.Dense(3), lambda x: x])
@pytest.mark.parametrize(
    "call", [checkmate_tf.compile, lambda m, *a, **k: checkmate_tf.gradient_function(m, "mse", *a, **k)]
)
def test_not_a_keras_model(thing, call):
    with pytest.raises(ModelError, match="Keras 3 model is needed"):
        call(thing, 0.5, batch_size=4)


def test_what_has_no_layers_has_no_largest_batch():
    with pytest.raises(ModelError, match="a Keras model is needed, not str"):
        checkmate_tf.max_batch_size("ResNet50", "16GB")


@pytest.mark.parametrize("loss", [None, {"dense": "mse"}, ["mse"]])
def test_a_loss_that_is_no_function(loss):
    with pytest.raises(ModelError, match=r"no function of \(y, y_pred\)"):
        checkmate_tf.gradient_function(make(DENSE), loss, 0.8)


def test_an_impossible_budget_names_the_least_and_the_operation():
    model = make(DENSE)
    error = _refused(
        model, InfeasibleBudgetError, r"below .* \(\S+\).*raise the budget or lower the batch", budget="100kB"
    )
    assert error.proven and error.budget_bytes == 100_000 < error.minimum_bytes
    compile_quickly(model, DENSE, budget=int(error.minimum_bytes * 1.2))
    train(model, DENSE)


@pytest.mark.parametrize("budget", ["7 apples", "", -5, 0, 0.0, float("nan"), None, True, "150%", [1], "-1GB"])
def test_unreadable_budget(trained, budget):
    _refused(trained, BudgetError, "budget", budget=budget)


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, "32", True])
def test_no_batch_size(trained, batch_size):
    _refused(trained, BatchSizeError, "batch", batch_size=batch_size)


def test_batch_sizes_that_disagree(trained):
    x, y = DENSE.data(BATCH)
    _refused(trained, BatchSizeError, "agree", data=(x, y), batch_size=4)
    _refused(trained, BatchSizeError, "disagree", data=(x, y[:3]), batch_size=None)


def test_open_batch_in_the_spec(trained):
    spec = (tf.TensorSpec([None, 64, 8]), tf.TensorSpec([None], tf.int64))
    _refused(trained, BatchSizeError, "open", input_spec=spec, batch_size=None)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input_spec": 3}, "has a int, which is no tf.TensorSpec"),
        ({"data": "abc"}, "no array with a batch dimension, but str"),
    ],
)
def test_what_is_no_batch(trained, given, says):
    _refused(trained, ModelError, says, **given, batch_size=None)


def test_subclassed_model_needs_data():
    model = CASES["subclassed"].build()
    _refused(model, ModelError, "give data=")


def test_open_sequence_length():
    inputs = keras.Input((None,), dtype="int32")
    x = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(50, 8)(inputs))
    model = keras.Model(inputs, keras.layers.Dense(4, "softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy")
    _refused(model, DynamicShapeError, "open dimension.*input_spec=")
    spec = (tf.TensorSpec([8, 12], tf.int32), tf.TensorSpec([8], tf.int64))
    compile_quickly(model, DENSE, input_spec=spec, batch_size=None, budget="1MB")  # as the message says
    model.fit(np.ones((8, 12), "int32"), np.zeros(8, "int64"), batch_size=8, verbose=0)


class _Functional(keras.layers.Layer):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)

    def compute_output_shape(self, shape):
        return shape


def _with_layer(function, **options):
    inputs = keras.Input((64, 8))
    x = keras.layers.Dense(32, activation="tanh")(inputs)
    x = keras.layers.GlobalAveragePooling1D()(_Functional(function)(x))
    model = keras.Model(inputs, keras.layers.Dense(4, "softmax")(x))
    model.compile("sgd", "sparse_categorical_crossentropy", **options)
    return model


@pytest.mark.feature(
    "Models", "sizes of data, ragged and sparse inputs, with a batch size that is told",
    refused="the error says to leave it out",
)  # fmt: skip
def test_sizes_that_data_decides():
    def count(x):
        return x + tf.reduce_sum(tf.range(tf.cast(x[0, 0, 0], tf.float32)))

    _refused(
        _with_layer(count), DynamicShapeError, "does not follow from the batch size.*fixed size.*leave batch_size="
    )


def test_python_decision_on_a_tensor():
    def decide(x):
        if isinstance(x, keras.KerasTensor):
            return x
        return x if tf.reduce_sum(x) > 0 else -x

    model = _with_layer(lambda x: x)
    model.layers[2].function = decide
    error = _refused(model, TraceError, r"(?s)cannot be traced.*tf\.cond")
    assert error.__cause__ is not None


def test_a_step_that_fails():
    class Broken(keras.Model):
        def train_step(self, data):
            raise ZeroDivisionError("on purpose")

    inputs = keras.Input((64, 8))
    model = Broken(inputs, keras.layers.Dense(4)(inputs))
    model.compile("sgd", "mse")
    _refused(model, TraceError, "ZeroDivisionError: on purpose")


def test_operations_on_two_accelerators():
    def split(x):
        with tf.device("/GPU:0"):
            x = tf.square(x)
        with tf.device("/GPU:1"):
            return tf.tanh(x)

    _refused(_with_layer(split), ModelError, r"several devices \(.*GPU:0.*GPU:1.*\).*without tf\.device")


@pytest.mark.long(only=("inf", "-1.0"))
@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0, "dear"])
def test_costs_that_are_no_costs(trained, cost):
    _refused(trained, CostError, "cost", costs=lambda op: cost)


def test_unknown_names(trained):
    _refused(trained, CostError, "'guess' is not a cost model; there are 'profile'", costs="guess")
    _refused(trained, StrategyError, "'magic' is unknown; choose one of", strategy="magic")


@pytest.mark.feature("XLA", "jit_compile=True with what XLA does not know", refused="its own message")
def test_a_step_that_xla_cannot_compile():
    def as_text(x):
        return x + tf.strings.to_number(tf.strings.as_string(tf.stop_gradient(tf.reduce_sum(x))))

    stack = [keras.layers.Lambda(as_text), keras.layers.Flatten(), keras.layers.Dense(4, "softmax")]
    model = keras.Sequential([keras.Input((64, 8)), *stack])
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    _refused(model, JitCompileError, "XLA cannot compile.*jit_compile=False", verify=True, budget="1GB")


@pytest.mark.feature(
    "Models", "sizes of data, ragged and sparse inputs, with a batch size that is told",
    refused="the error says to leave it out",
)  # fmt: skip
def test_ragged_and_sparse_data(trained):
    y = np.zeros(2, "int64")
    ragged = tf.data.Dataset.from_tensors((tf.ragged.constant([[1.0], [1.0, 2.0]]), y))
    _refused(trained, ModelError, "leave batch_size=.* out", data=ragged, batch_size=4)


@pytest.mark.long
@pytest.mark.parametrize("way", ["fit", "fit_dataset", "train_on_batch"])
def test_a_larger_batch_than_planned(way):
    """Refused before anything runs, whether the size is known while tracing or not."""
    x, y = DENSE.data(2 * BATCH + 3)
    plain, model = make(DENSE), compile_quickly(make(DENSE), DENSE)
    train(model, DENSE), train(plain, DENSE)
    before = {k: v.tobytes() for k, v in state(model).items() if not k.startswith("metrics")}
    act = {
        "fit": lambda: model.fit(x, y, batch_size=2 * BATCH, shuffle=False, verbose=0),
        "fit_dataset": lambda: model.fit(tf.data.Dataset.from_tensors((x, y)), verbose=0),
        "train_on_batch": lambda: model.train_on_batch(x, y),
    }[way]
    with pytest.raises(BatchSizeError, match=rf"planned for {BATCH}.*batches of at most {BATCH}"):
        act()
    assert before == {k: v.tobytes() for k, v in state(model).items() if not k.startswith("metrics")}
    train(model, DENSE)
    train(plain, DENSE)


def test_a_larger_batch_for_gradients():
    model = make(DENSE)
    options = {"costs": "flops", "gap": 1.0, "progress": False, "verify": False}
    function = checkmate_tf.gradient_function(model, "sparse_categorical_crossentropy", 0.7, batch_size=4, **options)
    x, y = DENSE.data(9)
    before = {k: v.tobytes() for k, v in state(model).items()}
    for n in (5, 9):
        with pytest.raises(BatchSizeError, match="planned for 4"):
            function(x[:n], y[:n])
    assert before == {k: v.tobytes() for k, v in state(model).items()}
    function(x[:4], y[:4])


@pytest.mark.feature("Faults", "a refused model trains as it did")
def test_a_refused_model_trains_as_before(no_grappler):
    plain, refused = make(DENSE), make(DENSE)
    for model in (plain, refused):
        train(model, DENSE)
    _refused(refused, InfeasibleBudgetError, "budget", budget="50kB")
    _refused(refused, CostError, "cost", costs="guess")
    assert train(plain, DENSE) == train(refused, DENSE)
    assert_same_state(plain, refused)


@pytest.mark.long
@pytest.mark.feature("Faults", "a refused model trains as it did")
def test_a_refused_second_compile_keeps_the_first():
    model = compile_quickly(make(DENSE), DENSE)
    first, step = model.checkmate, model.train_step
    with pytest.raises(InfeasibleBudgetError):
        compile_quickly(model, DENSE, budget="50kB", time_limit=1)
    assert model.checkmate is first and model.train_step is step
    train(model, DENSE)


@pytest.mark.long
@pytest.mark.feature("Faults", "a refused model trains as it did")
def test_a_model_refused_before_its_first_fit(no_grappler):
    """Building optimizer slots and metrics on the way to a refusal changes no number."""
    case = CASES["subclassed"]
    plain, refused = make(case), make(case)
    with pytest.raises(InfeasibleBudgetError):
        compile_quickly(refused, case, budget="20kB", time_limit=1)
    assert train(plain, case) == train(refused, case)
    assert_same_state(plain, refused)


def test_subclassed_with_a_batch_only():
    model = Subclassed()
    model.compile("sgd", "mse")
    with pytest.raises(ModelError, match="not built"):
        checkmate_tf.compile(model, 0.5, batch_size=4)
