"""What a GPU needs and a CPU does not. There is none here: its answers are stand-ins, as an H200 gave them."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.allocator.bfc import Bfc
from checkmate_tf.costs import timed, workspace
from checkmate_tf.device import measure, process
from checkmate_tf.device.in_child import limit_gpu
from checkmate_tf.device.measure import Device, find_device, measure_peak, ran_out
from checkmate_tf.device.record import NotRecorded
from checkmate_tf.device.replay import allocator_of

GPU = Device("GPU:0", 2**30, True)
MIB = 2**20
NO_KERNEL = (
    "Profiling failure on CUDNN engine eng1{}: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 232.01MiB. "
    "[tf-allocator-allocation-error='']"
)


def error(text):
    return tf.errors.NotFoundError(None, None, text)


@pytest.fixture
def gpu(monkeypatch):
    """TensorFlow's settings, as if there were one."""
    settings = {"growth": None, "limit": None}
    physical = SimpleNamespace(name="/physical_device:GPU:0", device_type="GPU")
    logical = SimpleNamespace(name="/device:GPU:0")
    given = lambda device: settings["limit"] and [tf.config.LogicalDeviceConfiguration(settings["limit"])]  # noqa: E731
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [physical])
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [logical])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: [physical])
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", given)
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda device: settings["growth"])
    monkeypatch.delenv("TF_GPU_ALLOCATOR", raising=False)
    monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)
    measure._limit_of_gpu.cache_clear()
    yield settings
    measure._limit_of_gpu.cache_clear()


def test_the_limit_is_that_of_the_logical_device(gpu, monkeypatch):
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda name: {"current": 0, "peak": 0})
    gpu["limit"] = 512
    assert find_device() == Device("GPU:0", 512 * MIB, True)


def test_without_one_it_is_what_tensorflow_took(gpu, monkeypatch):
    from tensorflow.python.client import device_lib

    taken = [
        SimpleNamespace(name="/device:CPU:0", memory_limit=2**28),
        SimpleNamespace(name="/device:GPU:0", memory_limit=2**37),
    ]
    monkeypatch.setattr(device_lib, "list_local_devices", lambda: taken)
    assert find_device("GPU:0").limit_bytes == 2**37


@pytest.mark.parametrize(("said", "growth", "expected"), [
    ("", None, False), ("", True, True), ("true", None, True), ("false", True, False), ("True", False, True),
])  # fmt: skip
def test_whether_memory_grows_is_said_by_the_environment_first(gpu, monkeypatch, said, growth, expected):
    gpu["growth"] = growth
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", said)
    assert allocator_of(GPU) == Bfc(GPU.limit_bytes, growth=expected, collecting=True)


def test_an_allocator_that_has_no_model(gpu, monkeypatch):
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")
    with pytest.raises(NotRecorded, match="cuda_malloc_async"):
        allocator_of(GPU)


def test_a_child_limits_its_gpu(gpu, monkeypatch):
    done = []
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda devices, kind: done.append(len(devices)))
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda d, c: done.append(c[0].memory_limit))
    limit_gpu(300 * MIB)
    assert done == [1, 300]


@pytest.mark.parametrize(("named", "expected"), [("", "1"), ("3,5", "5"), ("MIG-a,MIG-b", "MIG-b")])
def test_a_child_sees_one_gpu_of_those_that_the_user_named(monkeypatch, named, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert process._visible(1) == expected


def test_memory_that_ends_while_cudnn_tries_kernels():
    assert ran_out(error(NO_KERNEL)) and ran_out(tf.errors.ResourceExhaustedError(None, None, "OOM"))
    assert not ran_out(error("No algorithm worked!"))


@pytest.mark.parametrize("text", [
    "CUDNN failed to allocate the scratch space for the runner or to find a working no-scratch runner.",
    "Failed to call DoRnnForward with model config: [rnn_mode, rnn_input_mode, rnn_direction_mode]: 2, 0, 0",
])  # fmt: skip
def test_memory_that_ends_in_a_workspace(text):
    """As an H200 said it."""
    assert ran_out(tf.errors.UnknownError(None, None, text)) and ran_out(tf.errors.InternalError(None, None, text))


def test_such_a_plan_is_one_that_does_not_fit():
    def step():
        raise error(NO_KERNEL)

    peak, reason = measure_peak(find_device("CPU:0"), step, [])
    assert peak is None and "Out of memory" in reason


def test_another_error_is_not_taken_for_that():
    def step():
        raise error("No algorithm worked!")

    with pytest.raises(tf.errors.NotFoundError):
        measure_peak(find_device("CPU:0"), step, [])


@pytest.mark.parametrize(("queues", "measured", "expected"), [
    (False, 50.0, 41.0), (False, 5.0, 1.0), (True, 50.0, 50.0), (True, 11.0, 1.0),
])  # fmt: skip
def test_calls_are_hidden_behind_what_a_gpu_computes(monkeypatch, queues, measured, expected):
    timer = object.__new__(timed._OpTimer)
    timer.queues, timer.call_us, timer.op_us = queues, 10.0, 1.0
    monkeypatch.setattr(timer, "_microseconds", lambda *given: measured)
    monkeypatch.setattr(timed, "pooling_of", lambda op: None)
    op = SimpleNamespace(type="AddV2", op_def=None)
    monkeypatch.setattr(timed, "runner", lambda op, inputs: None)
    assert timer._time(op, [], 1.0) == expected


def test_a_pooling_is_taken_off_its_gradient_but_on_a_gpu(monkeypatch):
    timer = object.__new__(timed._OpTimer)
    timer.call_us, timer.op_us = 10.0, 1.0
    monkeypatch.setattr(timer, "_microseconds", lambda run, left: run())
    monkeypatch.setattr(timer, "_beyond", lambda run, less, left: run() - less() + timer.op_us)
    monkeypatch.setattr(timed, "pooling_of", lambda op: "pooling")
    monkeypatch.setattr(
        timed, "as_function", lambda op, inputs, pooling=None: lambda *inputs: 50.0 if pooling else 20.0
    )
    monkeypatch.setattr(timed, "runner", lambda op, inputs: lambda: 70.0)
    for timer.queues, expected in ((False, 31.0), (True, 70.0)):
        assert timer._time(SimpleNamespace(type="MaxPoolGrad"), [1], 1.0) == expected


def test_a_gpu_gets_several_runs_at_a_time(monkeypatch):
    """As many as a later run suggests: the first one tries kernels."""
    timer = object.__new__(timed._OpTimer)
    timer.queues, timer.repetitions, calls = True, 3, []

    def run():
        if not calls:
            time.sleep(0.01)
        calls.append("run")

    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: calls.append("wait"))
    timer._microseconds(run, 1e-3)
    assert calls[:4] == ["run", "wait"] * 2
    assert calls.index("wait", 4) - 4 == timed._MAX_BURST


def test_workspaces_are_measured_in_each_process(monkeypatch):
    """cuDNN chooses kernels by their times: another process may have chosen others."""
    asked = []
    monkeypatch.setattr(workspace.disk, "cache_path", lambda name: asked.append(name))
    monkeypatch.setattr(workspace.disk, "load", lambda path, key: {})
    monkeypatch.setattr(workspace.disk, "save", lambda path, found, key: None)
    monkeypatch.setattr(workspace, "setting", lambda where: "a card")
    monkeypatch.setattr(workspace, "_check_statistics", lambda where: None)
    for where in ("/GPU:0", "/CPU:0"):
        monkeypatch.setattr(workspace, "device_name", lambda device: device.strip("/"))
        monkeypatch.setattr(workspace.tf, "device", lambda name: tf.init_scope())
        assert np.array_equal(workspace.op_workspaces([], device=where), [])
    assert asked == ["workspaces in one piece a card"]


@pytest.mark.parametrize(("queues", "expected"), [(True, 8e3), (False, 9.5e3)])
def test_the_least_of_several_times_counts_on_a_gpu(monkeypatch, queues, expected):
    """It serves processes by turns. On a CPU it is the lower quartile."""
    timer = object.__new__(timed._OpTimer)
    timer.queues, timer.repetitions = queues, 4
    clock = [0.0]
    takes = iter([0.01] * (1 + queues) + [0.01, 0.03, 0.008, 0.05])

    def run():
        clock[0] += next(takes)

    monkeypatch.setattr(tf.test.experimental, "sync_devices", lambda: None)
    monkeypatch.setattr(timed, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert timer._microseconds(run, 1.0) == pytest.approx(expected)
