"""Keras 2 models (tf_keras) train within a budget too: the same object, the same numbers, and back again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.errors import BatchSizeError, JitCompileError, ModelError

tf_keras = pytest.importorskip("tf_keras", reason="tf_keras is not installed: pip install 'checkmate-tf[test]'")
layers = tf_keras.layers

pytestmark = pytest.mark.usefixtures("no_grappler", "fresh_tf_keras")

BATCH = 16
CROSSENTROPY = "sparse_categorical_crossentropy"


@pytest.fixture
def fresh_tf_keras():
    yield
    tf_keras.backend.clear_session()


def functional() -> Any:
    """Convolutions, statistics, masks of dropout; seeds given, since Keras 2 draws others each time that it traces."""
    inputs = x = tf_keras.Input((16, 16, 3))
    for k in range(3):
        x = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same", use_bias=False)(x))
        x = layers.Dropout(0.2, seed=k)(layers.ReLU()(x))
    x = layers.GlobalAveragePooling2D()(x)
    return compiled(tf_keras.Model(inputs, layers.Dense(4, activation="softmax")(x)), "adam")


def sequential() -> Any:
    stack = [layers.Conv2D(8, 3, padding="same", activation="tanh", kernel_regularizer="l2") for _ in range(4)]
    model = tf_keras.Sequential([tf_keras.Input((16, 16, 3)), *stack, layers.Flatten(), layers.Dense(4, "softmax")])
    return compiled(model, tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9, clipnorm=1.0))


class Chooses(layers.Layer):
    """A decision on a tensor in Python: Keras 2 makes a conditional of it."""

    def call(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0:  # noqa: SIM108
            x = tf.tanh(x)
        else:
            x = tf.sin(x)
        return x


class Subclassed(tf_keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.wide = [layers.Conv2D(8, 3, padding="same") for _ in range(4)]
        self.choice, self.pool, self.head = Chooses(), layers.GlobalMaxPooling2D(), layers.Dense(4, "softmax")

    def call(self, x: Any, training: bool = False) -> Any:
        for layer in self.wide:
            x = self.choice(layer(x))
        return self.head(self.pool(x))


def subclassed() -> Any:
    model = Subclassed()
    model(np.zeros((2, 16, 16, 3), "float32"))
    return compiled(model, tf_keras.optimizers.AdamW(1e-2))


def several_steps() -> Any:
    """Keras 2 makes a loop of them, traced three times; a seed of dropout's own counts up each time: none has one."""
    stack = [
        layer
        for _ in range(4)
        for layer in (layers.Conv2D(8, 3, padding="same", activation="tanh"), layers.Dropout(0.3))
    ]
    model = tf_keras.Sequential([tf_keras.Input((16, 16, 3)), *stack, layers.Flatten(), layers.Dense(4, "softmax")])
    model.compile("rmsprop", CROSSENTROPY, steps_per_execution=2)
    return model


def heads() -> Any:
    """Names for inputs and outputs, and a loss each."""
    inputs = x = tf_keras.Input((16, 16, 3), name="image")
    for _ in range(3):
        x = layers.Conv2D(8, 3, padding="same", activation="gelu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = {"kind": layers.Dense(4, "softmax", name="kind")(x), "score": layers.Dense(1, name="score")(x)}
    model = tf_keras.Model({"image": inputs}, outputs)
    model.compile("sgd", {"kind": CROSSENTROPY, "score": "mse"}, metrics={"kind": "accuracy"})
    return model


def mixed() -> Any:
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return functional()
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


def compiled(model: Any, optimizer: Any) -> Any:
    model.compile(optimizer, CROSSENTROPY, metrics=["accuracy"])
    return model


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return rng.normal(size=(n, 16, 16, 3)).astype("float32"), rng.integers(0, 4, n)


def named(n: int) -> tuple[Any, Any]:
    x, y = images(n)
    return {"image": x}, {"kind": y, "score": x[:, 0, 0, :1]}


MODELS = {m.__name__: m for m in (functional, sequential, subclassed, several_steps, heads, mixed)}


def make(name: str) -> Any:
    tf_keras.utils.set_random_seed(7)
    return MODELS[name]()


def plan(model: Any, data: Any = None, **options: Any) -> Any:
    given = {"batch_size": BATCH} if data is None else {"data": data}
    settings = {"budget": 0.75, "costs": "flops", "gap": 1.0, "time_limit": 60, "progress": False, "verify": False}
    return checkmate_tf.compile(model, **given | settings | options)


def train(model: Any, data: Any, epochs: int = 1) -> dict[str, list[float]]:
    return model.fit(*data, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0).history


def variables(model: Any) -> list[Any]:
    """Every variable that training changes."""
    slots = model.optimizer.variables
    metrics = [v for metric in model.metrics for v in metric.variables]
    return [*model.variables, *(slots() if callable(slots) else slots), *metrics]


def assert_same_state(ours: Any, plain: Any) -> None:
    for mine, theirs in zip(variables(ours), variables(plain), strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.name)


@pytest.mark.long(but=("functional",))
@pytest.mark.feature(
    "Models",
    "legacy models (tf_keras)",
    note="a Dropout with a seed of its own draws other masks where steps_per_execution is above 1",
)
@pytest.mark.parametrize("name", MODELS)
def test_training_is_equal(name):
    data_of = named if name == "heads" else images
    plain, ours = make(name), make(name)
    assert plan(ours, data_of(BATCH) if name == "subclassed" else None) is ours
    assert ours.checkmate.recomputations > 0
    assert train(ours, data_of(2 * BATCH)) == train(plain, data_of(2 * BATCH))
    assert_same_state(ours, plain)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_planning_at_the_first_batch(name):
    data_of = named if name == "heads" else images
    plain, ours = make(name), make(name)
    plan(ours, batch_size=None)
    assert ours.checkmate is None
    data = data_of(2 * BATCH + 5)
    assert train(ours, data, epochs=2) == train(plain, data, epochs=2)
    assert ours.checkmate.batch_size == BATCH and ours.checkmate.recomputations > 0
    if name in ("sequential", "subclassed"):  # a dropout with a seed of its own draws others when it is traced again
        larger = images(2 * BATCH)
        assert ours.train_on_batch(*larger) == plain.train_on_batch(*larger)
        assert ours.checkmate.batch_size == 2 * BATCH
    assert_same_state(ours, plain)


@pytest.mark.long
def test_around_training(tmp_path):
    """A smaller last batch, batches by hand, compiling again, freezing, checkpoints; and as before if restored."""
    plain, ours = make("functional"), make("functional")
    before = plan(ours).train_step
    for model in (plain, ours):
        model.seen = [train(model, images(2 * BATCH + 5)), model.train_on_batch(*images(BATCH))]
        model.save_weights(tmp_path / model.name)
        model.compile("sgd", CROSSENTROPY)
        model.seen.append(train(model, images(BATCH)))
        model.layers[1].trainable = False
        model.compile(tf_keras.optimizers.SGD(0.1, use_ema=True), CROSSENTROPY)
        model.seen += [train(model, images(BATCH)), model.evaluate(*images(BATCH), verbose=0)]
    assert ours.seen == plain.seen
    assert_same_state(ours, plain)
    assert checkmate_tf.restore(ours) is ours
    assert not hasattr(ours, "checkmate") and ours.train_step != before
    plain.make_train_function(force=True)  # as restored, it is traced again, and its masks begin anew
    assert train(ours, images(BATCH)) == train(plain, images(BATCH))
    assert_same_state(ours, plain)


@pytest.mark.long
def test_saving_a_compiled_model(tmp_path):
    ours = plan(make("functional"))
    train(ours, images(BATCH))
    for name in ("model.keras", "folder"):
        ours.save(tmp_path / name)
        loaded = tf_keras.models.load_model(tmp_path / name)
        np.testing.assert_array_equal(loaded.predict(images(4)[0], verbose=0), ours.predict(images(4)[0], verbose=0))
        assert not hasattr(loaded, "checkmate")
    assert ours.checkmate.recomputations > 0


def test_gradients_for_a_loop_of_ones_own():
    model = make("subclassed")
    x, y = images(BATCH)
    settings = {"costs": "flops", "gap": 1.0, "progress": False, "verify": False}
    function = checkmate_tf.gradient_function(model, CROSSENTROPY, 0.75, data=(x, y), **settings)
    loss, gradients = function(tf.constant(x), tf.constant(y))

    @tf.function
    def plain(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(tf_keras.losses.get(CROSSENTROPY)(y, model(x, training=True)))
        return value, tape.gradient(value, model.trainable_variables)

    expected, others = plain(tf.constant(x), tf.constant(y))
    assert function.checkmate.recomputations > 0
    assert loss.numpy() == expected.numpy()
    for mine, theirs in zip(gradients, others, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_what_is_refused():
    model = make("functional")
    plan(model)
    with pytest.raises(BatchSizeError, match=f"planned for {BATCH}"):
        model.fit(*images(2 * BATCH), batch_size=2 * BATCH, verbose=0)
    with pytest.raises(ModelError, match="not compiled"):
        plan(tf_keras.Sequential([tf_keras.Input((4,)), layers.Dense(2)]))
    with pytest.raises(ModelError, match="not built"):
        plan(tf_keras.Sequential([layers.Dense(2)]))
    model = make("functional")
    model.compile("sgd", CROSSENTROPY, jit_compile=True)
    with pytest.raises(JitCompileError, match="jit_compile=False"):
        plan(model)
