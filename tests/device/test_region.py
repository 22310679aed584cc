"""One region for the CPU's allocator."""

import os
import subprocess
import sys
from ast import literal_eval
from dataclasses import replace

import pytest
import tensorflow as tf

from checkmate_tf.device.layout import region
from checkmate_tf.device.layout.chunks import rounded, take
from checkmate_tf.device.layout.region import in_one_piece, reserve
from checkmate_tf.device.measure import Device, find_device


@pytest.fixture(autouse=True)
def nothing_reserved(monkeypatch):
    """Whatever other tests of this process reserved, and without a trace for them."""
    monkeypatch.setattr(region, "_reserved", {})


TAKEN = """
import tensorflow as tf
from checkmate_tf.device.measure import find_device
from checkmate_tf.device.layout.region import reserve

def taken(nbytes):
    before = device.current_bytes()
    tensor = tf.raw_ops.Empty(shape=[nbytes], dtype=tf.uint8)
    return device.current_bytes() - before

device = find_device()
print(taken(71_000_000))
reserve(device, 10**9)
reserve(device, 10**8)
print(taken(150_000_000))
"""


def test_tensors_take_what_they_need_once_a_budget_is_reserved():
    """Larger than all before it, a tensor gets a piece of a power of two; out of what is reserved its own size."""
    child = subprocess.run([sys.executable, "-c", TAKEN], capture_output=True, text=True, check=True)
    before, after = map(int, child.stdout.split())
    assert before == 2**27 and 150_000_000 <= after < 150_000_000 + 256


def _taken(device, size):
    before = device.current_bytes()
    tensor = take(size)
    found = device.current_bytes() - before
    del tensor
    return found


def test_in_one_piece_tensors_take_what_they_need():
    """Chunks that were free before, and would be given whole, are free again in the end."""
    device, sizes = find_device(), [70_000, 2_300_000, 5_000_000, 9_000_000]
    held = [
        take(size) for size in (2**16 + 2**13, 2**17 - 512, 3 * 2**20, 5 * 2**20 + 2**19, 12 * 2**20) for _ in range(2)
    ]
    del held[::2]
    before = [_taken(device, size) for size in sizes]
    in_use = device.current_bytes()
    with in_one_piece(device, 40 * 2**20) as exact:
        assert exact and [_taken(device, size) for size in sizes] == [rounded(size) for size in sizes]
    assert device.current_bytes() == in_use and device.peak_bytes() < in_use + 2**20
    assert [_taken(device, size) for size in sizes] == before


@pytest.mark.parametrize("changes", [{"name": "GPU:0"}, {"measurable": False}, {"limit_bytes": 2**20}])
def test_no_piece_is_taken_where_it_does_not_help(monkeypatch, changes):
    asked, device = [], replace(find_device(), **changes)
    monkeypatch.setattr(Device, "current_bytes", lambda _: 0)
    monkeypatch.setattr(tf.raw_ops, "Empty", lambda **sizes: asked.append(sizes))
    with in_one_piece(device, 2**20) as exact:
        assert not exact and not asked


@pytest.mark.parametrize("changes", [{"name": "GPU:0"}, {"measurable": False}, {"limit_bytes": 2**20}])
def test_nothing_is_reserved_where_it_does_not_help(monkeypatch, changes):
    asked, device = [], find_device()  # which looks what statistics say of a small tensor, once
    monkeypatch.setattr(tf.raw_ops, "Empty", lambda **sizes: asked.append(sizes))
    reserve(replace(device, **changes), 2**45)
    assert not asked


def test_a_device_that_is_full_goes_on_as_before(monkeypatch):
    asked = []

    def full(**sizes):
        asked.append(sizes)
        raise tf.errors.ResourceExhaustedError(None, None, "full")

    monkeypatch.setattr(tf.raw_ops, "Empty", full)
    for _ in range(2):
        reserve(Device("CPU:0", 2**50, measurable=True), 2**40)
    assert [sizes["shape"][0] for sizes in asked] == [2 * 2**20, 2**20]


OLDER = """
from checkmate_tf.device.layout.chunks import take
from checkmate_tf.device.measure import find_device
from checkmate_tf.device.layout.region import reserve

device = find_device()
held = [take(size) for size in (2**20, 3 * 2**20, 5 * 2**20, 12 * 2**20) for _ in range(2)]
del held[::2]

def taken(nbytes):
    before = device.current_bytes()
    tensor = take(nbytes)
    return device.current_bytes() - before

sizes = [2**20 - 512, 2_300_000, 5_000_000, 9_000_000]
before = [taken(size) for size in sizes]
in_use = device.current_bytes()
reserve(device, 12_000_000)
print(before, [taken(size) for size in sizes], device.current_bytes() - in_use, sep=";")
"""


@pytest.mark.long
def test_large_tensors_find_no_room_in_older_memory():
    """There they got chunks of up to twice their size. What divides it takes next to nothing."""
    child = subprocess.run([sys.executable, "-c", OLDER], capture_output=True, text=True, check=True)
    before, after, walls = map(literal_eval, child.stdout.split(";"))
    sizes = [2**20 - 512, 2_300_000, 5_000_000, 9_000_000]
    assert sum(before) > 1.1 * sum(sizes)
    assert after == [-(-size // 256) * 256 for size in sizes]
    assert 0 < walls <= 256 * 256


NEAR = """
from checkmate_tf.device.layout.chunks import take
from checkmate_tf.device.layout.region import reserve
from checkmate_tf.device.measure import find_device

def plainly():
    return [take(50_000_000) for _ in range(12)]

plainly()
reserve(find_device(), 150_000_000)
plainly()
print("as before")
"""


@pytest.mark.long
def test_older_memory_stays_as_it_is_near_a_hard_limit():
    """Where it is needed once more: what trained plainly still does."""
    environment = {**os.environ, "TF_CPU_BFC_MEM_LIMIT_IN_MB": "1000"}
    child = subprocess.run([sys.executable, "-c", NEAR], capture_output=True, text=True, env=environment)
    assert child.stdout.strip() == "as before", child.stderr[-500:]


RESERVED = """
from checkmate_tf.device.layout.chunks import address, take
from checkmate_tf.device.layout.region import reserve
from checkmate_tf.device.layout.reserves import is_reserved, keep_batch_reserves
from checkmate_tf.device.measure import find_device

device = find_device()
reserve(device, 20 * 2**20)
keep_batch_reserves(device, [1_200_000], 2, 10_000_000)
reserve(device, 30 * 2**20)
batches = [take(1_200_000) for _ in range(3)]
print([is_reserved(address(batch)) for batch in batches])
"""


@pytest.mark.long
def test_reserves_stay_as_they_are():
    child = subprocess.run([sys.executable, "-c", RESERVED], capture_output=True, text=True, check=True)
    assert literal_eval(child.stdout) == [True, True, False]
