"""The model against the allocator itself: random allocations and frees, event by event, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

WALK = """
import json, os, random, resource, sys, tempfile
from pathlib import Path
import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.bfc_memory_map_pb2 import MemoryDump
from checkmate_tf.allocator.bfc import FREE, Bfc, Events, empty_state, place
from checkmate_tf.device.measure import find_device
from checkmate_tf.device.layout.region import reserve

MIB = 2**20
asked = json.loads(sys.argv[1])
rng, device = random.Random(asked["seed"]), find_device()
allocator = Bfc(device.limit_bytes)
state, wrong, failures, real = empty_state(allocator), [], 0, {}
counts = {"allocations": 0, "whole": 0, "regions": 0}


def address(tensor):
    return np.asarray(memoryview(tensor)).__array_interface__["data"][0]


def follow(owner, size, at):
    # The model does what the allocator did: at which address, or -1 where that failed.
    global state
    where = np.array([at]) if size >= 0 and at >= 0 else None
    placed = place(allocator, Events(np.array([owner]), np.array([size])), state, where)
    state = placed.state
    in_use = tf.config.experimental.get_memory_info("CPU:0")["current"]
    if (placed.address[0], placed.bytes_in_use[0]) != (at, in_use):
        wrong.append((owner, size, at, int(placed.address[0]), in_use, int(placed.bytes_in_use[0])))
    counts["allocations"] += size >= 0
    counts["whole"] += bool(size >= 0 and placed.chunk_bytes[0] > max(256, size + 255))
    counts["regions"] = len(state.region_address)
    return placed


def fits(size):
    return not len(place(allocator, Events(np.array([10**6]), np.array([size])), state).failed)


def same_map(folder):
    # All chunks, the free ones as well, and the statistics, as the allocator wrote them when it ran out of memory.
    found = MemoryDump()
    found.ParseFromString(sorted(Path(folder).glob("map*"))[-1].read_bytes())
    theirs = sorted((c.address, c.size, c.in_use) for c in found.chunk)
    ours = sorted(zip(state.address.tolist(), state.size.tolist(), (state.owner != FREE).tolist()))
    statistics = found.stats.bytes_in_use, found.stats.peak_bytes_in_use, found.stats.largest_alloc_size
    if theirs != ours or statistics != (state.bytes_in_use, peak, largest):
        wrong.append((len(theirs), len(ours), statistics, (state.bytes_in_use, peak, largest)))


sizes = [max(1, int(2 ** rng.uniform(0, np.log2(asked["most"])))) for _ in range(60)]
sizes += [256, 512, 1024, 1025, MIB, 2 * MIB, *asked.get("only", [])]
shapes = {}
for k, size in enumerate(dict.fromkeys(sizes)):  # made beforehand: an operation allocates nothing but its output
    shapes[size] = tf.constant([size])
    follow(k, 4, address(shapes[size]))
if asked.get("reserve"):
    shape = tf.constant([asked["reserve"] // MIB, MIB // 8])
    follow(900, 8, address(shape))
    tensor = tf.raw_ops.Empty(shape=shape, dtype=tf.float64)
    follow(901, asked["reserve"], address(tensor))
    del tensor
    follow(901, FREE, state.address[state.owner == 901][0])
if asked.get("system"):
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + asked["system"],) * 2)
    allocator = Bfc(device.limit_bytes, system_bytes=int(state.region_bytes.sum()) + asked["system"])
tf.config.experimental.reset_memory_stats("CPU:0")
peak, largest = state.bytes_in_use, 0
for k in range(1000, 1000 + asked["events"]):
    size = rng.choice(asked.get("only") or list(shapes))
    full = not fits(size)
    if real and (full or rng.random() < asked["freeing"]):
        if full and failures < asked.get("failures", 0):
            failures += 1
            with tempfile.TemporaryDirectory() as folder:
                os.environ["TF_BFC_MEMORY_DUMP"] = folder + "/map"
                try:
                    tf.raw_ops.Empty(shape=shapes[size], dtype=tf.uint8)
                    wrong.append((k, size, "did not fail"))
                except tf.errors.ResourceExhaustedError:
                    follow(k, size, -1)
                same_map(folder)
        owner = rng.choice(list(real))
        at = address(real[owner])
        del real[owner]
        follow(owner, FREE, at)
    elif not full:
        real[k] = tf.raw_ops.Empty(shape=shapes[size], dtype=tf.uint8)
        placed = follow(k, size, address(real[k]))
        peak, largest = max(peak, placed.peak_bytes), max(largest, placed.largest_chunk_bytes)
measured = tf.config.experimental.get_memory_info("CPU:0")["peak"]
regions = state.region_bytes.tolist()
found = {"wrong": wrong[:5], "failures": failures, "peaks": [int(peak), measured], "sizes": regions}
print(json.dumps(found | counts | {"in_use": state.bytes_in_use}))
"""

MIB = 2**20


def walked(limit_mib=None, **asked):
    """What a walk in a process of its own found."""
    variables = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "true", "MALLOC_ARENA_MAX": "1"}
    if limit_mib:
        variables["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mib)
    command = [sys.executable, "-c", WALK, json.dumps(asked)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["wrong"] == []
    assert found["peaks"][0] == found["peaks"][1]
    return found


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_an_allocator_that_grows(seed):
    found = walked(seed=seed, events=800, freeing=0.4, most=24 * MIB)
    assert found["allocations"] > 300 and found["regions"] > 5 and found["whole"] > 30


def test_one_region():
    found = walked(seed=2, events=800, freeing=0.45, most=8 * MIB, reserve=2**30)
    assert found["allocations"] > 300 and found["regions"] == 2 and found["whole"] > 30


@pytest.mark.long
def test_a_hard_limit():
    """It is full most of the time. What the model says does not fit fails (twice: each takes ten seconds).

    Then its own map and statistics are those of the model.
    """
    found = walked(limit_mib=33, seed=3, events=1500, freeing=0.3, most=6 * MIB, failures=2)
    assert found["failures"] == 2 and sum(found["sizes"]) == 33 * MIB


@pytest.mark.long
def test_a_system_that_has_less_than_the_next_region():
    """65 MiB are wanted, so 128 are asked for, then 0.9 of that, and again, to the byte."""
    found = walked(seed=4, events=1, freeing=0.0, most=MIB, only=[65 * MIB], system=100 * MIB)
    assert found["sizes"] == [2 * MIB, 97844992]
