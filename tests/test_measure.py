"""Measuring a plan leaves no trace: every variable of model, optimizer and metrics is as it was."""

import keras
import numpy as np
import tensorflow as tf

import checkmate_tf
from checkmate_tf.execute.measure import Device


def test_measuring_puts_every_variable_back(monkeypatch):
    # The allocator of the test process may keep no statistics: pretend, the step itself is what matters here.
    monkeypatch.setattr(
        "checkmate_tf.execute.planner.find_device", lambda: Device(name="CPU:0", limit_bytes=10**10, measurable=True)
    )
    monkeypatch.setattr(Device, "current_bytes", lambda self: 0)
    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", lambda name: None)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: {"peak": 0, "current": 0})
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(8, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)]
    )
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    everything = [*model.variables, *model.optimizer.variables]
    before = [np.array(v) for v in everything]
    checkmate_tf.compile(model, 1.0, batch_size=4, costs="flops", time_limit=2, progress=False)
    assert model.checkmate.attempts  # it did run on the device
    everything += model.metrics_variables
    before += [np.zeros(v.shape, v.dtype) for v in model.metrics_variables]
    for variable, value in zip(everything, before, strict=True):
        np.testing.assert_array_equal(np.array(variable), value, err_msg=variable.path)
