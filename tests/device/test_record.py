"""The allocator's record and map, and the model's replay of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.allocator.bfc import Bfc
from checkmate_tf.device.measure import captured_variables, find_device
from checkmate_tf.device.memory_map import memory_map
from checkmate_tf.device.record import NotRecorded, Recorded, record, record_step
from checkmate_tf.device.replay import allocator_of, replayed
from checkmate_tf.errors import PlanError
from checkmate_tf.fit.subjects.tracing import TAKEN_FIRST

SHAPE = tf.constant([3000])


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def test_allocations_and_frees_are_recorded_in_order():
    device, seen = find_device(), []

    def run():
        for _ in range(3):
            tensor = tf.raw_ops.Empty(shape=SHAPE, dtype=tf.uint8)
            seen.append(address(tensor))
            del tensor

    before = device.current_bytes()
    recorded = record(device, run)
    mine = [k for k, operation in enumerate(recorded.operation) if operation == "Empty"]
    assert recorded.allocates[mine].tolist() == [True, False] * 3
    assert recorded.address[mine].tolist() == [a for a in seen for _ in range(2)]
    assert set(recorded.requested_bytes[mine]) == {3000} and recorded.chunk_bytes[mine].min() >= 3072
    assert recorded.role[mine[0]] == "output"
    assert recorded.complete and recorded.bytes_before == before
    assert (np.diff(recorded.time_ns) >= 0).all()


def test_the_operations_of_a_step_are_named_with_their_types():
    @tf.function(autograph=False)
    def step(x):
        return tf.reduce_sum(tf.matmul(x, x, name="product"))

    x = tf.random.normal((64, 64))
    step(x)
    recorded = record(find_device(), lambda: step(x))
    kinds = dict(zip(recorded.operation, recorded.kind, strict=True))
    assert "MatMul" in kinds["product"]  # or oneDNN's own
    assert recorded.peak_bytes == recorded.bytes_in_use.max()


@pytest.mark.parametrize("kind", sorted(TAKEN_FIRST))
def test_some_kernels_take_their_own_memory_first(kind):
    """As those types are said to do: here the first allocation is the kernel's own, and the outputs follow."""
    features, classes = tf.random.normal((512, 8)), tf.zeros([512], tf.int64)
    labels = classes if kind.startswith("Sparse") else tf.one_hot(classes, 8)
    run = tf.function(lambda x, y: getattr(tf.raw_ops, kind)(features=x, labels=y), autograph=False)
    run(features, labels)
    recorded = record(find_device(), lambda: run(features, labels))
    mine = [k for k, of in enumerate(recorded.kind) if of == kind and recorded.allocates[k]]
    assert [recorded.role[k] for k in mine][:2] == ["temp", "output"]
    assert recorded.requested_bytes[mine[0]] == 2048


def test_what_runs_on_several_threads_is_in_order_as_well():
    @tf.function(autograph=False)
    def step(x):
        return tf.add_n([tf.reduce_sum(tf.matmul(x + k, x)) for k in range(64)])

    x = tf.random.normal((128, 128))
    step(x)
    recorded = record(find_device(), lambda: [step(x) for _ in range(10)])
    assert len(recorded) > 1000 and recorded.complete


def test_nothing_is_recorded_where_that_is_not_possible(tmp_path):
    device = find_device()
    for ask in (lambda d: record(d, lambda: None), memory_map):
        with pytest.raises(NotRecorded, match="keeps no record|writes no map"):
            ask(replace(device, measurable=False))
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with pytest.raises(NotRecorded, match="runs already"):
            record(device, lambda: None)
    finally:
        tf.profiler.experimental.stop(save=False)


def test_a_profile_ends_when_what_runs_fails():
    with pytest.raises(ZeroDivisionError):
        record(find_device(), lambda: 1 // 0)
    assert record(find_device(), lambda: None).complete


def test_a_step_is_recorded_when_its_kernels_are_chosen_and_leaves_nothing_behind():
    variable, runs = tf.Variable(tf.ones([64, 64])), []

    @tf.function(autograph=False)
    def step(logits):
        labels = tf.fill([logits.shape[0]], 1)
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="loss")
        variable.assign_add(tf.linalg.matmul(variable, variable, name="product"))
        return tf.reduce_sum(loss)

    logits = tf.random.normal((10_000, 8))
    captures = step.get_concrete_function(logits).graph.captures
    found = record_step(find_device(), lambda: runs.append(step(logits)), captured_variables(captures))
    assert len(runs) == 3 and (variable.numpy() == 1).all()
    (name,) = (name for name in found.workspaces if name.startswith("loss/"))
    assert found.workspaces[name].bytes == 4 * 10_000, "the kernel's own memory: a float for each row"
    assert found.workspaces["product"].bytes == 0


def test_a_record_that_misses_events_is_none(monkeypatch):
    monkeypatch.setattr(Recorded, "complete", False)
    with pytest.raises(NotRecorded, match="not complete"):
        record_step(find_device(), lambda: None, [])


def test_a_map_of_another_time_is_noticed():
    device = find_device()
    tensors = [tf.raw_ops.Empty(shape=SHAPE, dtype=tf.uint8)]
    recorded = record(device, tensors.clear)
    with pytest.raises(PlanError, match="frees"):
        replayed(recorded, Bfc(device.limit_bytes), None)


def test_a_map_comes_whatever_the_machine_has():
    """The allocator of a CPU takes 64 GiB at most, and the system may grant what is asked for below that."""
    device = find_device()
    assert len(memory_map(replace(device, limit_bytes=2**30)).address) > 0


def test_the_model_of_a_device_is_looked_up(monkeypatch):
    device = find_device()
    assert allocator_of(device) == Bfc(device.limit_bytes, growth=True, collecting=False)
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")
    with pytest.raises(NotRecorded, match="cuda_malloc_async"):
        allocator_of(replace(device, name="GPU:0"))


# A training step, in a process of its own.

TRAINED = """
import json, time
import keras, numpy as np, tensorflow as tf
from checkmate_tf.device.measure import find_device
from checkmate_tf.device.memory_map import memory_map
from checkmate_tf.device.record import record
from checkmate_tf.device.layout.region import reserve
from checkmate_tf.device.replay import allocator_of, replayed
from checkmate_tf.emit.emit import emit
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.fit.options import PlanOptions
from checkmate_tf.keras.training.controller import Controller
from checkmate_tf.keras.batches.spec import data_spec
from checkmate_tf.units import parse_budget

keras.utils.set_random_seed(0)
layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(4)]
model = keras.Sequential([keras.Input((32, 32, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("adam", "mse")
model.optimizer.build(model.trainable_variables)
rng = np.random.default_rng(0)
data = rng.random((16, 32, 32, 3), "float32"), rng.random((16, 10), "float32")
spec, batch = data_spec(model, None, None, data)
options = PlanOptions(budget=parse_budget(0.7), costs="flops", verify=False, cache=False, time_limit=5.0)
planned = Controller(model, options, batch, model.train_step).plan(spec)
step = tf.function(lambda *given: emit(planned.program, planned.schedule.plan, Strict(), given), autograph=False)
given, device, found = [tf.constant(a) for a in data], find_device(), []
for reserved in (False, True):
    if reserved:
        reserve(device, 2**28)
    step(*given)
    lies = memory_map(device)
    time.sleep(11)  # until the thread that asked for the map has given back what it asked with
    tf.config.experimental.reset_memory_stats("CPU:0")
    recorded = record(device, lambda: step(*given))
    measured = device.peak_bytes()
    placed = replayed(recorded, allocator_of(device), lies)
    pairs = ((placed.address, recorded.address), (placed.bytes_in_use, recorded.bytes_in_use))
    found.append([measured, placed.peak_bytes, recorded.complete, *(bool(np.array_equal(*p)) for p in pairs)])
print(json.dumps([planned.schedule.overhead, *found]))
"""


@pytest.mark.long
def test_a_training_step_is_replayed_exactly():
    """From the allocator's map, with its regions as they grew, and with one large one: each address, and the peak."""
    variables = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true"}
    command = [sys.executable, "-c", TRAINED]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    overhead, *found = json.loads(done.stdout.strip().splitlines()[-1])
    assert overhead > 0  # something is computed again
    for measured, peak, *equal in found:
        assert peak == measured and all(equal)
