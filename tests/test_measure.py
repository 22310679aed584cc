"""Measuring a plan leaves no trace: every variable of model, optimizer and metrics is as it was."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkmate_tf
from checkmate_tf.execute.measure import Device, captured_variables, find_device, measure_peak


def _address(variable):
    """Where a variable's value is; a read that copies it would be elsewhere each time."""
    reads = [variable.read_value() for _ in range(2)]
    found = {np.asarray(memoryview(read)).ctypes.data for read in reads}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.int64, tf.uint32, tf.bool])
@pytest.mark.parametrize("shape", [(3, 2**18), (5,), ()])
def test_measuring_leaves_variables_where_they_are(dtype, shape):
    """Elsewhere they would take larger pieces of the allocator, beside which no step was measured."""
    variable = tf.Variable(tf.cast(tf.ones(shape), dtype))
    other = tf.Variable(tf.fill(shape, -0.0))

    @tf.function
    def step():
        variable.assign(tf.zeros_like(variable))
        other.assign_add(tf.ones(shape))

    captures = step.get_concrete_function().graph.captures
    step()
    variable.assign(tf.cast(tf.ones(shape), dtype))
    other.assign(tf.fill(shape, -0.0))
    where = _address(other)
    measure_peak(find_device(), step, captured_variables(captures))
    assert _address(other) == where and _address(variable)
    assert np.array(variable).astype(int).all() and np.signbit(np.array(other)).all()


def test_a_variable_that_the_step_gives_another_shape_gets_its_value_back():
    variable = tf.Variable(tf.ones([4, 3]), shape=tf.TensorShape(None))

    @tf.function
    def step():
        variable.assign(tf.zeros([2]))

    captures = step.get_concrete_function().graph.captures
    measure_peak(find_device(), step, captured_variables(captures))
    np.testing.assert_array_equal(variable.numpy(), np.ones([4, 3]))


@pytest.mark.parametrize("error", [tf.errors.ResourceExhaustedError, tf.errors.NotFoundError])
def test_a_value_that_cannot_be_written_in_place_is_put_back(monkeypatch, error):
    """Without memory for a second copy, or a kernel, the variable gets a new buffer once it has given its own back."""
    variable = tf.Variable(tf.ones([4, 3]))

    @tf.function
    def step():
        variable.assign(tf.zeros([4, 3]))

    def fail(**_):
        failed.append(True)
        raise error(None, None, "not in place")

    failed = []
    captures = step.get_concrete_function().graph.captures
    monkeypatch.setattr(tf.raw_ops, "ResourceStridedSliceAssign", fail)
    measure_peak(find_device(), step, captured_variables(captures))
    assert failed
    np.testing.assert_array_equal(variable.numpy(), np.ones([4, 3]))


@pytest.mark.parametrize(("most_bytes", "steps"), [(None, 17), (10**9, 17), (1000, 3)])
def test_no_more_steps_once_some_took_more_than_will_do(most_bytes, steps):
    variable = tf.Variable(tf.ones([1000]))
    ran = []

    def step():
        ran.append(True)
        variable.assign(2 * variable)

    captures = tf.function(lambda: variable.assign(variable)).get_concrete_function().graph.captures
    peak, _ = measure_peak(find_device(), step, captured_variables(captures), most_bytes)
    assert len(ran) == steps
    assert peak.bytes > 4000


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
