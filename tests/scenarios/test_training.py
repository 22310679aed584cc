"""Everything around the step trains as before: optimizers, policies, callbacks, data; bit by bit.

`tests/test_keras.py` has weights, datasets with a smaller last batch, several steps an execution and saving; here is
what it leaves out. The model looks up rows of a table, so that every optimizer meets a sparse gradient too.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import CROSSENTROPY, Case, assert_same_state, compile_quickly, make, tokens, train
from keras import layers, optimizers

pytestmark = [
    pytest.mark.usefixtures("fresh_keras", "no_grappler"),
    pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer"),
]

BATCH, STEPS, BUDGET = 16, 3, 0.75


def sentences(optimizer: Any = None, policy: str = "float32", dropout: float = 0.2, **options: Any) -> keras.Model:
    """A table of words, wide layers, dropout and a normalisation."""
    keras.config.set_dtype_policy(policy)
    try:
        inputs = keras.Input((24,), dtype="int32")
        x = layers.Embedding(50, 32, name="table")(inputs)
        for _ in range(2):
            x = layers.Dense(32, activation="tanh")(x)
        x = layers.BatchNormalization()(layers.Dropout(dropout)(x))
        x = layers.GlobalAveragePooling1D()(x)
        model = keras.Model(inputs, layers.Dense(4, activation="softmax", dtype="float32", name="kind")(x))
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(**{"optimizer": optimizer or optimizers.SGD(0.1, momentum=0.9), "loss": CROSSENTROPY} | options)
    return model


def case_of(**options: Any) -> Case:
    return Case(
        lambda: sentences(**{k: v() if k == "optimizer" else v for k, v in options.items()}), tokens(24), BUDGET
    )


def pair(case: Case) -> tuple[keras.Model, keras.Model]:
    plain, compiled = make(case), compile_quickly(make(case), case, time_limit=60)
    assert compiled.checkmate.recomputations > 0
    return plain, compiled


adam = functools.partial(optimizers.Adam, 1e-2)
decay = optimizers.schedules.CosineDecay

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "adafactor": lambda: optimizers.Adafactor(1e-2),
    "adagrad": lambda: optimizers.Adagrad(1e-2),
    "adam": lambda: adam(amsgrad=True),
    "adamax": lambda: optimizers.Adamax(1e-2),
    "adamw": lambda: optimizers.AdamW(decay(1e-2, 3, warmup_target=2e-2, warmup_steps=1), weight_decay=0.1),
    "ftrl": lambda: optimizers.Ftrl(1e-2, l1_regularization_strength=1e-3),
    "lamb": lambda: optimizers.Lamb(1e-2),
    "lion": lambda: optimizers.Lion(1e-3, weight_decay=0.1),
    "muon": lambda: optimizers.Muon(1e-2, exclude_embeddings=True),
    "nadam": lambda: optimizers.Nadam(1e-2),
    "rmsprop": lambda: optimizers.RMSprop(1e-2, centered=True, momentum=0.5),
    "schedule_free": lambda: optimizers.ScheduleFreeAdamW(1e-2, warmup_steps=2),
    "sgd": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "clipnorm": lambda: adam(clipnorm=1e-2),
    "global_clipnorm": lambda: adam(global_clipnorm=1e-2),
    "clipvalue": lambda: adam(clipvalue=1e-4),
    "accumulation": lambda: adam(
        gradient_accumulation_steps=2, use_ema=True, ema_overwrite_frequency=2, weight_decay=0.1, clipnorm=1.0
    ),
    "loss_scale": lambda: optimizers.LossScaleOptimizer(adam(), initial_scale=2.0**10, dynamic_growth_steps=1),
}


@pytest.mark.long(but=("sgd", "loss_scale"))
@pytest.mark.feature("Training", "all Keras optimizers, learning-rate schedules, weight decay")
@pytest.mark.feature(
    "Training", "gradient clipping by value, norm and global norm", name=["clipnorm", "global_clipnorm", "clipvalue"]
)
@pytest.mark.feature("Training", "gradient accumulation and EMA of weights", name="accumulation")
@pytest.mark.feature("Training", "LossScaleOptimizer", name="loss_scale")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    case = case_of(optimizer=OPTIMIZERS[name])
    plain, compiled = pair(case)
    if name == "schedule_free":  # built in the traced step, it would begin anew from the weights in every step
        plain.optimizer.build(plain.trainable_variables)
    assert train(compiled, case, STEPS) == train(plain, case, STEPS)
    assert_same_state(plain, compiled)


@pytest.mark.long
@pytest.mark.sixteen_bits
@pytest.mark.feature("Training", "LossScaleOptimizer")
def test_scaled_losses_that_overflow():
    """Steps whose gradients are not finite are left out, and the scale is lowered: the same ones, to the same."""
    scaled = lambda: optimizers.LossScaleOptimizer(adam(), initial_scale=2.0**26)  # noqa: E731
    case = case_of(optimizer=scaled, policy="mixed_float16")
    plain, compiled = pair(case)
    assert train(compiled, case, STEPS) == train(plain, case, STEPS)
    assert_same_state(plain, compiled)
    assert float(compiled.optimizer.dynamic_scale) < 2.0**26


class Batches(keras.utils.PyDataset):
    def __init__(self) -> None:
        super().__init__(workers=2, use_multiprocessing=False)
        self.x, self.y = tokens(24)(2 * BATCH + 5)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, k: int) -> Any:
        return self.x[k * BATCH : (k + 1) * BATCH], self.y[k * BATCH : (k + 1) * BATCH]


def endless(model: keras.Model) -> Any:
    data = tf.data.Dataset.from_tensor_slices(tokens(24)(3 * BATCH)).batch(BATCH).repeat().prefetch(2)
    return model.fit(data, steps_per_epoch=2, epochs=3, initial_epoch=1, verbose=0).history


def callbacks(model: keras.Model, folder: Any) -> Any:
    """All that write files, stop early, or set the learning rate."""
    x, y = tokens(24)(4 * BATCH)
    calls = [
        keras.callbacks.ModelCheckpoint(folder / "{epoch}-{batch}.weights.h5", save_weights_only=True, save_freq=2),
        keras.callbacks.EarlyStopping("loss", min_delta=1e9, patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=1e9, patience=0, factor=0.5),
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
    ]
    history = model.fit(x, y, batch_size=BATCH, epochs=5, shuffle=False, callbacks=calls, verbose=0).history
    files = sorted(path.name for path in folder.iterdir())
    assert "1-2.weights.h5" in files and len(history["loss"]) == 2
    return history, files, (folder / "log.csv").read_text(), float(model.optimizer.learning_rate)


def tensorboard(model: keras.Model, folder: Any) -> Any:
    pytest.importorskip("tensorboard")
    x, y = tokens(24)(2 * BATCH)
    call = keras.callbacks.TensorBoard(folder, histogram_freq=1, write_images=True, update_freq="batch")
    history = model.fit(x, y, batch_size=BATCH, epochs=2, shuffle=False, callbacks=[call], verbose=0).history
    found = []
    for path in sorted(folder.rglob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                tag = re.sub(r"_\d+", "", value.tag)  # layers are numbered on from model to model
                found.append((event.step, tag, b"" if tag == "keras" else value.tensor.SerializeToString()))
    assert {"batch_loss", "epoch_loss", "keras", "table/embeddings/histogram"} <= {tag for _, tag, _ in found}
    return history, found


def frozen_before_fit(model: keras.Model) -> Any:
    """Keras freezes what is frozen when the step is traced; a plan for more is not used."""
    model.optimizer.build(model.trainable_variables)  # as the compiled model's is
    model.get_layer("table").trainable = False
    return train(model, SENTENCES, 2)


def frozen_after_fit(model: keras.Model) -> Any:
    """Keras goes on with the step that it has, until the model is compiled again."""
    train(model, SENTENCES, 2)
    model.get_layer("table").trainable = False
    first = train(model, SENTENCES, 2)
    model.compile("sgd", CROSSENTROPY)
    return first, train(model, SENTENCES, 2)


def by_batches(model: keras.Model) -> Any:
    x, y = tokens(24)(BATCH)
    weights = np.linspace(0.1, 2.0, BATCH).astype("float32")
    seen = [model.train_on_batch(x[:n], y[:n], return_dict=True) for n in (BATCH, 1, BATCH)]
    seen.append(model.train_on_batch(x, y, sample_weight=weights))
    return seen, model.test_on_batch(x, y), model.predict_on_batch(x).tobytes()


def with_metrics(model: keras.Model) -> Any:
    metrics = [
        "accuracy",
        keras.metrics.SparseTopKCategoricalAccuracy(2),
        keras.metrics.SparseCategoricalCrossentropy(),
        keras.metrics.MeanMetricWrapper(lambda y, p: keras.ops.max(p, axis=-1), name="sure"),
    ]
    model.compile("sgd", CROSSENTROPY, metrics=metrics, weighted_metrics=["accuracy"])
    x, y = tokens(24)(2 * BATCH)
    weights = np.linspace(0.1, 2.0, len(x)).astype("float32")
    return model.fit(x, y, batch_size=BATCH, sample_weight=weights, shuffle=False, verbose=0).history


def metrics_by_threshold(model: keras.Model) -> Any:
    """Metrics of confusion, for one-hot targets: tables of counts, assigned in the step."""
    metrics = [
        keras.metrics.AUC(num_thresholds=7, name="auc"),
        keras.metrics.F1Score(name="f1"),
        keras.metrics.OneHotMeanIoU(4, name="iou"),
    ]
    model.compile("sgd", keras.losses.CategoricalCrossentropy(label_smoothing=0.1), metrics=metrics)
    x, y = tokens(24)(2 * BATCH)
    history = model.fit(x, np.eye(4)[y], batch_size=BATCH, shuffle=False, verbose=0).history
    return {name: np.array(values).tobytes() for name, values in history.items()}


def pickled(model: keras.Model) -> Any:
    """A copy is a plain model; it can be compiled for a budget of its own."""
    train(model, SENTENCES, 1)
    keras.utils.set_random_seed(3)  # dropout takes a new seed
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 - our own
    assert not hasattr(copy, "checkmate")
    clone = keras.models.clone_model(model)
    assert not hasattr(clone, "checkmate")
    return train(copy, SENTENCES, 1)


SENTENCES = case_of()
FITS: dict[str, Callable[[keras.Model], Any]] = {
    "batches_from_workers": lambda model: model.fit(Batches(), epochs=2, shuffle=False, verbose=0).history,
    "endless": endless,
    "frozen_before_fit": frozen_before_fit,
    "frozen_after_fit": frozen_after_fit,
    "by_batches": by_batches,
    "with_metrics": with_metrics,
    "metrics_by_threshold": metrics_by_threshold,
    "pickled": pickled,
}


@pytest.mark.long
@pytest.mark.feature(
    "Training",
    "PyDataset, repeated tf.data, metrics of all kinds, pickle",
    name=["batches_from_workers", "endless", "with_metrics", "metrics_by_threshold", "pickled"],
)
@pytest.mark.feature(
    "Models", "trainable switched after compile", note="plans again", name=["frozen_before_fit", "frozen_after_fit"]
)
@pytest.mark.feature("Training", "train_on_batch, test_on_batch, predict_on_batch", name="by_batches")
@pytest.mark.parametrize("name", FITS)
def test_fits(name):
    plain, compiled = pair(SENTENCES)
    assert repr(FITS[name](compiled)) == repr(FITS[name](plain))
    assert_same_state(plain, compiled)


@pytest.mark.long(but=("callbacks",))
@pytest.mark.feature("Training", "checkpoints, early stopping, CSV log, TensorBoard")
@pytest.mark.parametrize("action", [callbacks, tensorboard])
def test_callbacks_that_write(action, tmp_path):
    found = []
    plain, compiled = pair(SENTENCES)
    for name, model in {"plain": plain, "compiled": compiled}.items():
        (tmp_path / name).mkdir()
        found.append(action(model, tmp_path / name))
    assert found[0] == found[1]
    assert_same_state(plain, compiled)


@pytest.mark.long
@pytest.mark.feature("Training", "gradient accumulation and EMA of weights")
def test_averages_take_the_place_of_weights():
    """SwapEMAWeights puts the averages in before each evaluation, and takes them out after it."""
    case = case_of(optimizer=lambda: adam(use_ema=True))
    plain, compiled = pair(case)
    x, y = tokens(24)(BATCH)
    swap = {"validation_data": (x, y), "epochs": 2}
    for model in (plain, compiled):
        model.found = train(model, case, 2, callbacks=[keras.callbacks.SwapEMAWeights()], **swap)
    assert plain.found == compiled.found
    assert_same_state(plain, compiled)


class Interrupted(Exception):
    pass


class Interruption(keras.callbacks.Callback):
    """Stops a training in the middle of its third epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1 and self.epoch == 2:
            raise Interrupted

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch


@pytest.mark.long
@pytest.mark.feature("Training", "BackupAndRestore")
def test_resuming_after_an_interruption(tmp_path):
    """BackupAndRestore: the interrupted and resumed training ends where the plain, uninterrupted one does.

    Without dropout, whose seeds Keras does not save.
    """
    case = case_of(optimizer=adam, dropout=0.0)
    options = {"epochs": 4, "steps": 3}
    plain = make(case)
    train(plain, case, **options)
    with pytest.raises(Interrupted):
        calls = [keras.callbacks.BackupAndRestore(tmp_path / "backup"), Interruption()]
        train(compile_quickly(make(case), case, time_limit=60), case, callbacks=calls, **options)
    resumed = compile_quickly(make(case, seed=8), case, time_limit=60)
    history = train(resumed, case, callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")], **options)
    assert len(history["loss"]) == 2
    for mine, theirs in zip(resumed.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)
    for mine, theirs in zip(resumed.optimizer.variables, plain.optimizer.variables, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)
