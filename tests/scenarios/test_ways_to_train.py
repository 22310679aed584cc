"""`compile(model, budget)` and nothing else, in the ways in which people train: the numbers stay plain ones."""

from __future__ import annotations

import gc
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np
import pytest
from cases import CROSSENTROPY, Case, assert_same_after, assert_same_state, compile_quickly, make, train
from keras import layers, ops

import checkmate_tf
from benchmarks.lib.kinds import random_arrays
from checkmate_tf.device.measure import find_device

pytestmark = [pytest.mark.usefixtures("fresh_keras", "no_grappler")]

BATCH = 16
VECTORS = random_arrays((32, 16))


def _dense(width: int = 48) -> keras.Model:
    inputs = x = keras.Input((32, 16))
    for _ in range(4):
        x = layers.Dense(width, activation="gelu")(x)
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(ops.mean(x, axis=1)))
    model.compile("adam", CROSSENTROPY)
    return model


DENSE, WIDE = Case(_dense, VECTORS), Case(lambda: _dense(64), VECTORS)


def _lora(model: keras.Model) -> Any:
    """Low-rank adapters (Hu et al., 2022), switched on when the model is compiled for a budget already."""
    before = train(model, DENSE, 1)
    for layer in model.layers:
        if isinstance(layer, layers.Dense) and layer.units == 48:
            layer.enable_lora(4)
    model.compile("adam", CROSSENTROPY)
    return before, train(model, DENSE, 2)


def _swapped_averages(model: keras.Model) -> Any:
    x, y = VECTORS(3 * BATCH)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    model.compile(keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5), CROSSENTROPY)
    return model.fit(x, y, epochs=3, batch_size=BATCH, verbose=0, callbacks=[swap]).history


def _falling_rate(model: keras.Model) -> Any:
    x, y = VECTORS(3 * BATCH)
    model.compile(keras.optimizers.SGD(0.5), CROSSENTROPY)
    calls = [
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=1.0),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.TerminateOnNaN(),
    ]
    history = model.fit(x, y, epochs=5, batch_size=BATCH, verbose=0, callbacks=calls).history
    return {key: history[key] for key in ("loss", "learning_rate")}


def _stopped_early(model: keras.Model) -> Any:
    x, y = VECTORS(3 * BATCH)
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=10.0, restore_best_weights=True)
    return model.fit(x, y, epochs=6, batch_size=BATCH, verbose=0, callbacks=[stop]).history


def _weighted_classes(model: keras.Model) -> Any:
    x, y = VECTORS(3 * BATCH)
    return model.fit(x, y, batch_size=BATCH, verbose=0, class_weight={0: 1.0, 1: 2.0, 2: 0.5, 3: 1.0}).history


def _batches() -> Any:
    x, y = VECTORS(3 * BATCH)
    for k in range(3):
        yield x[k * BATCH : (k + 1) * BATCH], y[k * BATCH : (k + 1) * BATCH]


def _generator(model: keras.Model) -> Any:
    return model.fit(_batches(), verbose=0, steps_per_epoch=3).history


def _in_a_thread(model: keras.Model) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(train, model, DENSE, 2).result()


def _frozen_between(model: keras.Model) -> Any:
    first = train(model, DENSE, 1)
    model.layers[1].trainable = False
    model.compile("adam", CROSSENTROPY)
    return first, train(model, DENSE, 2)


def _nothing_is_a_number(model: keras.Model) -> Any:
    """Infinity, and what is no number, go through as in plain training."""
    x, y = VECTORS(2 * BATCH)
    x[BATCH] = np.inf
    return np.isnan([model.train_on_batch(x[k : k + BATCH], y[k : k + BATCH]) for k in (0, BATCH)]).tolist()


WAYS = {
    "LoRA": _lora,
    "averages": _swapped_averages,
    "rates": _falling_rate,
    "stopped": _stopped_early,
    "classes": _weighted_classes,
    "generator": _generator,
    "thread": _in_a_thread,
    "frozen": _frozen_between,
}


@pytest.mark.long(but=("stopped",))
@pytest.mark.feature("Training", "LoRA switched on after compile", name="LoRA", note="plans again")
@pytest.mark.feature(
    "Training", "SwapEMAWeights, ReduceLROnPlateau, EarlyStopping", name=["averages", "rates", "stopped"]
)
@pytest.mark.feature("Training", "class and sample weights", name="classes", note="plans again")
@pytest.mark.feature("Training", "generators", name="generator")
@pytest.mark.feature("Training", "fit in a thread", name="thread")
@pytest.mark.parametrize("name", WAYS)
def test_ways_to_train(name):
    plain, model = make(DENSE), make(DENSE)
    compile_quickly(model, DENSE, batch_size=None)
    assert_same_after(WAYS[name], model, plain)
    assert model.checkmate.recomputations > 0


def test_infinity_goes_through():
    plain, model = make(DENSE), make(DENSE)
    compile_quickly(model, DENSE, batch_size=None)
    assert _nothing_is_a_number(model) == _nothing_is_a_number(plain) == [False, True]
    for a, b in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_array_equal(a, b)  # one that is no number equals another


@pytest.mark.long
@pytest.mark.feature("Training", "save, load, compile again")
def test_training_goes_on_from_a_file(tmp_path):
    plain, model = make(DENSE), make(DENSE)
    compile_quickly(model, DENSE, batch_size=None)
    went_on = []
    for name, each in (("plain", plain), ("ours", model)):
        train(each, DENSE, 2)
        each.save(tmp_path / f"{name}.keras")
        loaded = keras.models.load_model(tmp_path / f"{name}.keras")
        if name == "ours":
            compile_quickly(loaded, DENSE, batch_size=None)
        train(loaded, DENSE, 2)
        went_on.append(loaded)
    assert went_on[1].checkmate.recomputations > 0
    assert_same_state(*went_on)


@pytest.mark.long
@pytest.mark.feature("Training", "two compiled models in one process")
def test_two_models_take_turns():
    plain, model = [make(DENSE), make(WIDE)], [make(DENSE), make(WIDE)]
    for each, case in zip(model, (DENSE, WIDE), strict=True):
        compile_quickly(each, case, batch_size=None)
    lost: list[list[Any]] = [[], []]
    for k, pair in enumerate((plain, model)):
        for _ in range(3):
            for each, case in zip(pair, (DENSE, WIDE), strict=True):
                lost[k].append(each.train_on_batch(*case.data(BATCH)))
    assert lost[0] == lost[1]
    for a, b in zip(plain, model, strict=True):
        assert_same_state(a, b)


@pytest.mark.long
def test_compiled_and_restored_thirty_times_nothing_is_left():
    """TensorFlow keeps a little of each function, of plain ones too. No variables or batches must be among it."""
    device, model = find_device(), make(DENSE)
    model.optimizer.build(model.trainable_variables)
    known = []
    for _ in range(30):
        compile_quickly(model, DENSE, batch_size=None)
        model.train_on_batch(*VECTORS(BATCH))
        checkmate_tf.restore(model)
        model.make_train_function(force=True)
        gc.collect()
        known.append(device.current_bytes())
    batch = VECTORS(BATCH)[0].nbytes
    assert known[-1] - known[4] < 25 * min(batch, sum(4 * math.prod(v.shape) for v in model.variables)) * 0.6


@pytest.mark.long
def test_the_peak_does_not_drift_in_three_hundred_steps():
    device, model = find_device(), make(DENSE)
    compile_quickly(model, DENSE, batch_size=None)
    x, y = VECTORS(BATCH)
    for _ in range(20):
        model.train_on_batch(x, y)
    peaks = []
    for _ in range(6):
        device.forget_peak(0)
        for _ in range(50):
            model.train_on_batch(x, y)
        peaks.append(device.peak_bytes())
    assert max(peaks[3:]) <= 1.02 * max(peaks[:3])  # single steps differ
