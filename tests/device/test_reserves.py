"""Batch reserves in the CPU's allocator."""

import ast
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import tensorflow as tf

from checkmate_tf.device.layout import reserves
from checkmate_tf.device.layout.chunks import address
from checkmate_tf.device.layout.reserves import keep_batch_reserves
from checkmate_tf.device.measure import find_device

X, Y = 1_000_000, 300_000  # bytes


@pytest.fixture(autouse=True)
def none_kept(monkeypatch):
    """Whatever other tests of this process keep, and without a trace for them."""
    monkeypatch.setattr(reserves, "_walls", [])
    monkeypatch.setattr(reserves, "_kept", Counter())
    monkeypatch.setattr(reserves, "_places", [])


def kept():
    return sum(count for (_, size), count in reserves._kept.items() if size >= Y)


def taken(nbytes):
    return tf.raw_ops.Empty(shape=[nbytes], dtype=tf.uint8)


def side_by_side(nbytes):
    """Tensors of which the last three lie one behind the other: no free chunk of just this size is left elsewhere."""
    tensors = [taken(nbytes) for _ in range(3)]
    size = -(-nbytes // 256) * 256
    while {address(b) - address(a) for a, b in pairwise(tensors[-3:])} != {size}:
        tensors.append(taken(nbytes))
    return tensors


def in_reserve(tensor):
    """Whether it begins where a wall ends."""
    return address(tensor) - 256 in {address(wall) for wall in reserves._walls}


def test_batches_lie_in_reserves_and_nothing_else_is_cut_for_them():
    """A hole between two tensors stays whole for what comes back to it."""
    device = find_device()
    keep_batch_reserves(device, [X, Y, 8], 3, 10**8)
    between = side_by_side(3 * X)
    hole = address(between.pop(-2))
    batches = [(taken(X), taken(Y)) for _ in range(3)]
    assert all(in_reserve(x) and in_reserve(y) for x, y in batches)
    again = taken(3 * X)
    assert address(again) == hole
    assert kept() == 2 * len(batches)  # all are full
    del between


def test_reserves_are_found_in_whatever_state_memory_is():
    rng, device, live = random.Random(0), find_device(), []
    for _ in range(25):
        for _ in range(60):
            if live and rng.random() < 0.5:
                live.pop(rng.randrange(len(live)))
            else:
                live.append(taken(int(2 ** rng.uniform(6, 23))))
        batch = [rng.randrange(Y, 4 * X) for _ in range(2)]
        reserves._kept.clear()
        reserves._walls.clear()
        keep_batch_reserves(device, batch, 3, 10**8)
        assert kept() == 6
        inside = [taken(size) for size in batch * 3]
        assert all(in_reserve(t) for t in inside)
        del inside


def test_reserves_cost_no_more_than_their_walls():
    device = find_device()
    before = device.current_bytes()
    keep_batch_reserves(device, [X, Y], 4, 10**8)
    assert kept() == 8
    assert 0 < device.current_bytes() - before <= 256 * (len(reserves._walls) + 8)


def test_reserves_are_made_once_and_more_when_more_are_asked_for():
    device = find_device()
    keep_batch_reserves(device, [X], 2, 10**8)
    keep_batch_reserves(device, [X], 2, 10**8)
    assert kept() == 2
    keep_batch_reserves(device, [X, X], 2, 10**8)
    assert kept() == 4
    batches = [taken(X) for _ in range(4)]
    assert all(in_reserve(x) for x in batches)


def test_there_are_no_more_than_there_is_room_for():
    keep_batch_reserves(find_device(), [X], 8, 4 * X)
    assert kept() == 2
    keep_batch_reserves(find_device(), [4 * X], 8, 3 * X)
    assert kept() == 2


@pytest.mark.parametrize("changes", [{"name": "GPU:0"}, {"measurable": False}])
def test_there_are_none_where_they_do_not_help(changes):
    keep_batch_reserves(replace(find_device(), **changes), [X], 2, 10**8)
    assert not reserves._kept and not reserves._walls


def test_where_others_allocate_meanwhile_there_are_none(monkeypatch):
    """Pieces that lie elsewhere than expected are given back."""
    device, others = find_device(), []

    def take(size):
        others.append(taken(256))
        return taken(size)

    monkeypatch.setattr(reserves, "take", take)
    before = device.current_bytes()
    keep_batch_reserves(device, [X], 2, 10**8)
    assert not reserves._kept and not reserves._walls
    others.clear()
    assert device.current_bytes() == before


def test_where_there_is_no_memory_there_are_none(monkeypatch):
    asked = []

    def full(size):
        asked.append(size)
        raise tf.errors.ResourceExhaustedError(None, None, "full")

    monkeypatch.setattr(reserves, "take", full)
    keep_batch_reserves(find_device(), [X], 2, 10**8)
    assert len(asked) == 1 and not reserves._kept


TRAINED = """
import keras, checkmate_tf
from checkmate_tf.device.layout import reserves
keras.utils.set_random_seed(0)
layers = [keras.layers.Conv2D(16, 3, padding="same", activation="relu") for _ in range(6)]
model = keras.Sequential([keras.Input((32, 32, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])
model.compile("adam", "mse")
options = {"batch_size": 64, "costs": "flops", "time_limit": 5, "progress": False}
plain = checkmate_tf.compile(model, "10GB", prefetch=0, **options).checkmate.measured_peak_bytes
budget, found = plain + 8 * 64 * 32 * 32 * 3 * 4, []
for prefetch in (0, None, 6):  # None: arrays, which make none ahead
    checkmate_tf.compile(model, budget, prefetch=prefetch, **options)
    found.append({size: n for (_, size), n in reserves._kept.items() if size > 2**16})
    assert model.checkmate.measured_peak_bytes <= budget
print(found)
"""


@pytest.mark.long
def test_compile_keeps_reserves_for_the_batches_of_a_model():
    """As many as are ready at a time: a pipeline makes as many as it says. Targets are too small to matter."""
    child = subprocess.run([sys.executable, "-c", TRAINED], capture_output=True, text=True, check=True)
    batch = 64 * 32 * 32 * 3 * 4
    assert ast.literal_eval(child.stdout.strip().splitlines()[-1]) == [{}, {}, {batch: 8}]
