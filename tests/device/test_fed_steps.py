"""How steps are fed while plans are measured: as by `fit`, or as by a caller that holds each batch."""

import gc
import math
import time

import numpy as np
import pytest
import tensorflow as tf

from checkmate_tf.device.feeding import fed_as_by_fit, fed_by_caller
from checkmate_tf.device.measure import Device, find_device
from checkmate_tf.device.record import record


@pytest.mark.parametrize("device", ["CPU:0", "GPU:0"])
def test_batches_of_several_sizes_take_turns(device):
    batch, other = [np.ones([4], np.float32)], [np.ones([3], np.float32)]
    shapes = [tf.TensorShape([None])]
    run = fed_as_by_fit(tf.reduce_sum, batch, Device(device, 10**9, measurable=False), shapes=shapes, others=[other])
    assert [float(run()) for _ in range(4)] == [4.0, 3.0] * 2 and run.kinds == 2
    if device == "CPU:0":  # two sizes, each in two orders
        pair, others = [*batch, *other], [[*other, *batch]]
        run = fed_as_by_fit(lambda x, y: tf.reduce_sum(x), pair, Device(device, 10**9, measurable=False),
                            shapes=2 * shapes, others=others)  # fmt: skip
        assert [float(run()) for _ in range(8)] == [4.0, 4.0, 3.0, 3.0] * 2 and run.kinds == 4


def test_measurements_are_fed_as_by_fit():
    seen = []
    batch = [np.ones([4, 2], np.float32), np.zeros([4], np.float32)]

    def step(x, y):
        seen.append((x.shape, y.shape))
        return tf.reduce_sum(x) + tf.reduce_sum(y)

    for device in ("CPU:0", "GPU:0"):
        run = fed_as_by_fit(step, batch, Device(device, 10**9, measurable=False))
        assert [float(run()) for _ in range(3)] == [8.0] * 3
    assert seen == [((4, 2), (4,))] * 2
    assert float(fed_as_by_fit(lambda: tf.constant(1.0), [], Device("CPU:0", 10**9, measurable=False))()) == 1.0


def test_the_tensors_of_a_batch_are_made_in_either_order_by_turns():
    device, (many, few) = find_device(), (2**20, 2**18)
    batch = [np.zeros([many // 4], np.float32), np.ones([few // 4], np.float32)]
    run = fed_as_by_fit(lambda x, y: tf.reduce_sum(x) + tf.reduce_sum(y), batch, device, 0)
    assert run.kinds == 2 and run() == few // 4
    orders = []
    for _ in range(4):
        recorded = record(device, run)
        made = zip(recorded.requested_bytes.tolist(), recorded.allocates, strict=True)
        orders.append([size for size, allocates in made if allocates and size in (many, few)])
    assert orders == [orders[0], orders[0][::-1]] * 2 and set(orders[0]) == {many, few}


@pytest.mark.parametrize("shape", [(), (0, 3), (1000, 3)])
def test_an_array_comes_without_a_copy_that_would_leave_a_hole(shape):
    """TensorFlow reads arrays that begin where tensors do. Of others it makes a copy in the allocator."""
    begins = np.empty(4 * math.prod(shape) + 8, np.uint8)[4:]
    array = begins[: 4 * math.prod(shape)].view(np.float32).reshape(shape)
    array[...] = np.arange(math.prod(shape)).reshape(shape)
    device, batch = find_device(), [array, np.array([b"words"], object)]
    run = fed_as_by_fit(lambda x, words: (x, words), batch, device, 0)
    run()
    recorded = record(device, run)
    assert [size for size, made in zip(recorded.requested_bytes, recorded.allocates, strict=True) if made].count(
        array.nbytes
    ) == (array.nbytes > 0)
    x, words = run()
    assert np.array_equal(x, array) and words.numpy().tolist() == [b"words"]


@pytest.mark.parametrize("device", ["CPU:0", "GPU:0"])
def test_the_batch_dimension_is_open_as_in_fit(device):
    seen = []
    shapes = [tf.TensorShape([None, 2]), tf.TensorShape([])]
    batch = [np.ones([4, 2], np.float32), np.float32(3)]
    step = lambda x, y: seen.append((x.shape, y.shape)) or y * tf.reduce_sum(x)  # noqa: E731
    run = fed_as_by_fit(step, batch, Device(device, 10**9, measurable=False), shapes=shapes)
    assert float(run()) == 24.0
    assert [[shape.as_list() for shape in pair] for pair in seen] == [[[None, 2], []]]


def test_nothing_that_depends_on_the_batch_size_is_computed_beforehand():
    """TensorFlow would keep it between steps, in measurements alone."""
    device, batch = find_device(), [np.zeros([8, 1], np.float32)]
    row = np.arange(2**18, dtype=np.float32)[None]
    step = lambda x: tf.reduce_sum(tf.sin(x + tf.tile(row, [tf.shape(x)[0], 1])))  # noqa: E731
    kept = []
    for shapes in ([tf.TensorShape([None, 1])], []):
        gc.collect()
        before = device.current_bytes()
        run = fed_as_by_fit(step, batch, device, 0, shapes=shapes)
        run()
        kept.append(device.current_bytes() - before)
        del run
    assert kept[0] < 2**22 and kept[1] >= 2**23


@pytest.mark.parametrize("ready", [0, 1, 3])
def test_as_many_batches_are_ready_as_are_asked_for(ready):
    """A batch of 16 MiB may get a piece of up to twice its size."""
    device, batch = find_device(), [np.zeros([4, 2**20], np.float32)]
    gc.collect()  # what other tests left would be given back in between
    before = device.current_bytes()
    run = fed_as_by_fit(tf.reduce_sum, batch, device, ready)
    assert float(run()) == 0
    there, until = -1, time.monotonic() + 10
    while there < ready * 2**24 and time.monotonic() < until:
        time.sleep(0.05)
        there = device.current_bytes() - before
    assert ready * 2**24 <= there <= ready * 2**25 + 2**20
    del run


MANY, FEW = 2**20, 2**18  # bytes
BATCH = [np.full([MANY // 4], 2, np.float32), np.ones([FEW // 4], np.float32)]


def _events(run):
    """(allocated or freed, bytes) of the tensors of a batch, and of the value that the step makes last."""
    recorded = record(find_device(), run)
    made = zip(recorded.allocates.tolist(), recorded.requested_bytes.tolist(), strict=True)
    return [(allocates, size) for allocates, size in made if size in (MANY, FEW, FEW // 2)]


def _step(x, y):
    total = tf.reduce_sum(x) + tf.reduce_sum(y)
    return total, tf.reduce_sum(tf.sin(total + tf.zeros([FEW // 8])))


def test_a_batch_is_freed_in_its_step_or_held_by_the_caller(monkeypatch):
    run = fed_as_by_fit(_step, BATCH, find_device())
    run()
    events = _events(run)
    assert events.index((False, MANY)) < _last(events)
    run, constant = fed_by_caller(_step, [BATCH]), tf.constant
    assert float(run()[0]) == 2 * MANY // 4 + FEW // 4 and run.kinds == 1
    # TensorFlow makes such tensors in the allocator or elsewhere, as chance has it: here always in the allocator
    monkeypatch.setattr(tf, "constant", lambda array: tf.raw_ops.DeepCopy(x=constant(array)))
    events = _events(run)
    freed = [event for event in events[_last(events) + 1 :] if not event[0]]
    assert {(False, MANY), (False, FEW)} <= set(freed)


def _last(events):
    """The last event of the value that the step makes last."""
    return max(k for k, event in enumerate(events) if event[1] == FEW // 2)


def test_tensors_of_a_caller_are_not_made_again():
    run = fed_by_caller(_step, [BATCH], are_there=True)
    assert float(run()[0]) == 2 * MANY // 4 + FEW // 4
    assert {size for _, size in _events(run)} == {FEW // 2}


@pytest.mark.parametrize("are_there", [False, True])
def test_batches_of_a_caller_take_turns(are_there):
    batches, seen = [[np.ones([4, 2], np.float32)], [np.ones([3, 2], np.float32)]], []
    step = lambda x: seen.append(x.shape.as_list()) or tf.reduce_sum(x)  # noqa: E731
    run = fed_by_caller(step, batches, [tf.TensorShape([None, 2])], are_there=are_there)
    assert [float(run()) for _ in range(4)] == [8.0, 6.0, 8.0, 6.0] and run.kinds == 2
    assert seen == [[None, 2]]
    words = fed_by_caller(tf.identity, [[np.array([b"one", b"two"], object)]], are_there=are_there)
    assert words().numpy().tolist() == [b"one", b"two"]
