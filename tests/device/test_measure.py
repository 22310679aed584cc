"""Measuring a plan feeds it as `fit` does and leaves no trace: every variable is as it was, and where it was."""

import gc
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, compile_quickly, make, program_of_case

import checkmate_tf
from checkmate_tf.device import before
from checkmate_tf.device.measure import (
    captured_variables,
    find_device,
    measure_peak,
    unchanged,
)
from checkmate_tf.fit import run
from checkmate_tf.fit.policy import POLICY
from checkmate_tf.trace.sizes.folded import OPEN, Folded

pytestmark = [
    pytest.mark.usefixtures("fresh_keras"),
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed"),
]


def _address(variable):
    """Where a variable's value is; a read that copies it would be elsewhere each time."""
    reads = [variable.read_value() for _ in range(2)]
    found = {np.asarray(memoryview(read)).ctypes.data for read in reads}
    assert len(found) == 1
    return found.pop()


def test_all_variables_are_put_back_however_often_ctrl_c_is_pressed(monkeypatch):
    """Also where memory ended, and what was running is collected."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    put_back, pressed = [], lambda: signal.raise_signal(signal.SIGINT)

    def assign(value):
        pressed()
        put_back.append(value)
        if len(put_back) == 1:
            raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    variables = [SimpleNamespace(numpy=lambda k=k: k, assign=assign) for k in range(3)]
    try:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt), unchanged(variables):
            patched.setattr(gc, "collect", pressed)
            pressed()
        assert put_back == [0, 0, 1, 2] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16, tf.int64, tf.uint32, tf.bool])
@pytest.mark.parametrize("shape", [(3, 2**18), (5,), ()])
def test_measuring_leaves_variables_where_they_are(dtype, shape):
    """Elsewhere they would take larger pieces of the allocator, beside which no step was measured."""
    variable = tf.Variable(tf.cast(tf.ones(shape), dtype))
    other = tf.Variable(-tf.zeros(shape))  # the number -0.0 may become a 0.0 that TensorFlow has cached

    @tf.function
    def step():
        variable.assign(tf.zeros_like(variable))
        other.assign_add(tf.ones(shape))

    captures = step.get_concrete_function().graph.captures
    step()
    variable.assign(tf.cast(tf.ones(shape), dtype))
    other.assign(-tf.zeros(shape))
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


def test_slow_steps_are_judged_after_half_of_the_seconds(monkeypatch):
    """Three steps of a second each are enough if all are far below what is allowed."""
    now = iter(range(1000))
    monkeypatch.setattr("checkmate_tf.device.measure.time", SimpleNamespace(perf_counter=lambda: next(now)))
    ran = []
    device = SimpleNamespace(name="CPU:0", peak_bytes=lambda: 100_000 + 1000 * len(ran))
    measure_peak(device, lambda: ran.append(True), [], 10**9)
    assert len(ran) == 4  # the first one warms up


@pytest.mark.parametrize(
    ("more", "most_bytes", "needless", "steps"),
    [
        (1000, None, False, 17), (1000, None, True, 17), (1000, 5000, True, 3), (1000, 5000, False, 9),
        (0, None, False, 5), (0, 10**9, True, 5), (0, 5000, True, 3), (15, None, False, 5),
        (1000, 123_000, False, 9), (1000, 123_000, True, 9), (1000, 122_999, False, 17), (0, 123_000, False, 5),
    ],
)  # fmt: skip
def test_no_more_steps_once_it_is_clear_what_they_take(more, most_bytes, needless, steps):
    """Each step takes so many bytes more than the one before."""
    variable = tf.Variable(tf.ones([1000]))
    ran = []

    def step():
        ran.append(True)
        variable.assign(2 * variable)

    captures = tf.function(lambda: variable.assign(variable)).get_concrete_function().graph.captures
    device = SimpleNamespace(name="CPU:0", peak_bytes=lambda: 100_000 + more * len(ran))
    peak, _ = measure_peak(device, step, captured_variables(captures), most_bytes, needless)
    assert len(ran) == steps
    assert peak.bytes == 100_000 + more * steps


def test_measuring_puts_every_variable_back():
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(8, 3), layers.BatchNormalization(), layers.Flatten(), layers.Dense(2)]
    )
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    model.fit(np.ones((4, 8, 8, 3)), np.ones((4, 2)), batch_size=4, verbose=0)
    everything = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    before = [np.array(v) for v in everything]
    checkmate_tf.compile(model, "1GB", batch_size=4, costs="flops", time_limit=2, progress=False)
    assert model.checkmate.measured_peak_bytes  # it did run on the device
    for variable, value in zip(everything, before, strict=True):
        np.testing.assert_array_equal(np.array(variable), value, err_msg=variable.path)


def test_a_measured_peak_sees_the_step():
    v = tf.Variable(tf.zeros(1000))

    @tf.function
    def step():
        v.assign_add(tf.reduce_sum(tf.random.uniform((1 << 20,))) * tf.ones(1000))

    graph = step.get_concrete_function().graph
    peak, reason = measure_peak(find_device(), step, captured_variables(graph.captures))
    assert peak.sure_bytes >= peak.bytes >= 4 << 20 and not reason
    assert not v.numpy().any()


@pytest.mark.parametrize(("limit", "expected"), [("512", 512 * 2**20), ("", None), ("many", None)])
def test_the_limit_of_the_cpu(monkeypatch, limit, expected):
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", limit)
    device = find_device()
    assert device.name == "CPU:0" and device.measurable
    assert device.limit_bytes == expected if expected else device.limit_bytes > 10**8


@pytest.mark.long
@pytest.mark.parametrize(("asked", "found"), [("false", "False"), ("true", "True")])
def test_an_allocator_that_counts_large_pieces_alone_is_not_measured(asked, found):
    """As oneDNN's does, where no other was asked for."""
    code = (
        "import tensorflow as tf\nfrom checkmate_tf.device.measure import find_device\n"
        "print(tf.config.experimental.get_memory_info('CPU:0'), find_device().measurable)"
    )
    environment = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": asked, "TF_ENABLE_ONEDNN_OPTS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    if "stats not available" not in done.stderr:  # else a processor for which oneDNN is off
        assert done.stdout.split()[-1] == found


@pytest.mark.parametrize(("machine", "limit"), [(24 * 2**30, 24 * 2**30), (256 * 2**30, 64 * 2**30)])
def test_the_limit_of_the_cpu_where_none_is_set(monkeypatch, machine, limit):
    monkeypatch.delenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": machine // 4096}.__getitem__)
    assert find_device().limit_bytes == limit


@pytest.mark.parametrize(("peaks", "kinds", "steps", "sure"), [
    ([100, 110] * 8, 2, 6, 110), ([100, 110] * 8, 1, 16, 115), ([100, 100, 110, 110] * 4, 2, 16, 115),
    ([100] * 16, 2, 4, 100),
])  # fmt: skip
def test_kinds_of_steps_that_take_turns_are_measured_apart(peaks, kinds, steps, sure):
    left = iter(peaks)
    device = SimpleNamespace(name="CPU:0", peak_bytes=lambda: next(left))
    assert measure_peak(device, lambda: None, [], kinds=kinds)[0].sure_bytes == sure
    assert len(peaks) - len(list(left)) == steps


@pytest.mark.parametrize(("most_bytes", "steps", "sure"), [(10**9, 3, 180), (140, 4, 140)])
def test_slow_steps_have_one_median_where_there_are_not_two_of_each_kind(most_bytes, steps, sure, monkeypatch):
    now, peaks = iter(range(1000)), iter([100, 140] * 8)
    monkeypatch.setattr("checkmate_tf.device.measure.time", SimpleNamespace(perf_counter=lambda: next(now)))
    device = SimpleNamespace(name="CPU:0", peak_bytes=lambda: next(peaks))
    assert measure_peak(device, lambda: None, [], most_bytes, kinds=2)[0].sure_bytes == sure
    assert 16 - len(list(peaks)) == steps


def test_plans_are_measured_with_the_kinds_of_their_batches(monkeypatch):
    kinds, real = [], run.measure_peak
    monkeypatch.setattr(run, "measure_peak", lambda *given: kinds.append(given[5]) or real(*given))
    compile_quickly(make(DENSE), DENSE, verify=True, budget="1GB")
    assert set(kinds) == {2}


@pytest.mark.parametrize(("folded", "known"), [((10**6,), True), ((), False)])
def test_where_there_are_constants_to_keep_the_batch_size_is_known(monkeypatch, folded, known):
    """TensorFlow may keep them in `fit`, too."""
    fed, real = [], run.fed_as_by_fit
    monkeypatch.setattr(run, "fed_as_by_fit", lambda *given: fed.append(given[5]) or real(*given))
    monkeypatch.setattr(run, "folded_of", lambda program: Folded(frozenset(), folded))
    compile_quickly(make(DENSE), DENSE, verify=True, budget="1GB")
    assert fed and all((shapes == []) is known for shapes in fed)


@pytest.mark.long(only=("recurrent-1000000000-False",))
@pytest.mark.parametrize(
    ("case", "budget", "known"), [("dense", 10**9, True), ("recurrent", 10**9, False), ("recurrent", 10**7, True)]
)
def test_with_loops_only_large_constants_make_it_known(monkeypatch, case, budget, known):
    folded = Folded(frozenset(), (10**6,))
    monkeypatch.setattr(run, "folded_of", lambda program: folded)
    assert run.folded_constants(program_of_case(case), budget) == (folded if known else OPEN)


@pytest.mark.parametrize(("budget", "known"), [(10**9, False), (10**7, True)])
def test_where_batches_differ_only_large_constants_make_it_known(monkeypatch, budget, known):
    """With a known size, only batches of that size could be measured."""
    folded = Folded(frozenset(), (10**6,))
    monkeypatch.setattr(run, "folded_of", lambda program: folded)
    assert run.folded_constants(program_of_case("dense"), budget, differ=True) == (folded if known else OPEN)


@pytest.mark.parametrize("prefetch", [-1, 1.5, True, "2"])
def test_a_pipeline_keeps_a_whole_number_of_batches(prefetch):
    model = make(DENSE)
    with pytest.raises(checkmate_tf.BatchSizeError, match="prefetch=.* is not a whole number of batches"):
        compile_quickly(model, DENSE, prefetch=prefetch)
    with pytest.raises(checkmate_tf.BatchSizeError, match="prefetch="):
        checkmate_tf.gradient_function(model, "mse", batch_size=4, prefetch=prefetch)
    assert not hasattr(model, "checkmate")


@pytest.mark.long
def test_plans_are_measured_with_the_batches_that_the_pipeline_keeps(monkeypatch):
    fed, real = [], run.fed_as_by_fit
    monkeypatch.setattr(run, "fed_as_by_fit", lambda *given: fed.append(given[3]) or real(*given))
    pipeline = tf.data.Dataset.from_tensors(DENSE.data(DENSE.batch))
    for options, ready in (({"prefetch": 3}, 2), ({}, 0), ({"data": pipeline}, 5)):
        fed.clear()
        compile_quickly(make(DENSE), DENSE, verify=True, budget="10GB", **options)
        assert set(fed) == {ready}
    assert [POLICY.ready_batches(k) for k in (0, 1, 2, 3, None)] == [0, 1, 1, 2, 5]


@pytest.mark.parametrize(("asked", "threads"), [(0, 7), (1, 1), (3, 3), (64, 16)])
def test_as_many_threads_are_expected_as_tensorflow_has(monkeypatch, asked, threads):
    monkeypatch.setattr(tf.config.threading, "get_inter_op_parallelism_threads", lambda: asked)
    monkeypatch.setattr(before, "processors", lambda: 7)
    assert before._threads() == threads
