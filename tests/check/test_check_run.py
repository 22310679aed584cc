"""Which processes a check starts, and what it says of those that it does not."""

import threading
import time

import pytest

from checkmate_tf.check import run as module
from checkmate_tf.check.line import FAILED, NOT_RUN, PASSED
from checkmate_tf.check.run import Asked, check
from checkmate_tf.device.process import Outcome, run_child

MACHINE = {"devices": [{"name": "CPU:0", "kind": "CPU"}, {"name": "GPU:1", "kind": "GPU"}]}
DEVICE = {
    "measurable": True, "asked_bytes": 1, "taken_bytes": 256, "peak_bytes": 256, "left_bytes": 0,
    "allocator": "Bfc", "chunks": 1, "bandwidth": {},
}  # fmt: skip
CELL = {
    "share": 0.6, "budget_bytes": 100, "peak_bytes": 90, "predicted_peak_bytes": 80, "placed_peak_bytes": None,
    "step_ratio": 1.0, "predicted_ratio": 1.0, "plain_step_ms": 1.0,
}  # fmt: skip
TRAINED = {"batch_size": 8, "plain_peak_bytes": 10**9, "constant_bytes": 10**8, "cells": [CELL]}
RAN = {"losses": [1.0], "digest": "ab", "steps": 3, "peak_bytes": 10**8}


class Children:
    """Stands in for `run_child`: answers at once, and remembers what it was asked."""

    def __init__(self):
        self.asked, self.running, self.most = [], 0, 0
        self.lock = threading.Lock()

    def __call__(self, name, request, limit_mib, tell, log=None, *, gpu=False, timeout=None):
        with self.lock:
            self.asked.append((request, limit_mib, gpu))
            self.running += 1
            self.most = max(self.most, self.running)
        if request["run"] == "steps":
            time.sleep(0.02)
        with self.lock:
            self.running -= 1
        limit = request.get("limit_bytes") or (limit_mib or 0) * 2**20
        if request["run"] == "steps" and "budget_bytes" not in request and 0 < limit < 10**9:
            return Outcome(limit, 4, None, "out of memory: OOM", True)
        found = {
            "devices": MACHINE,
            "device": DEVICE,
            "limit": {"held_bytes": 260 * 10**6, "limit_bytes": 2**28, "refused": True, "allocator": ""},
            "train": TRAINED,
            "steps": RAN,
            "peer": {"plain_peak_bytes": 2, "peer_peak_bytes": 1},
        }
        return Outcome(None, 0, found[request["run"]], "", False)


@pytest.fixture
def children(monkeypatch):
    stand_in = Children()
    monkeypatch.setattr(module, "run_child", stand_in)
    return stand_in


def checked(**asked):
    heard = []
    found = check(Asked(**asked), lambda *told: None, heard.append)
    assert heard == found.lines
    return found.lines


def test_every_device_is_checked(children):
    lines = checked(networks=("transformer", "unet"))
    assert {line.device for line in lines} == {"CPU:0", "GPU:1"}
    assert {line.state for line in lines} == {PASSED}
    kinds = [request["run"] for request, _, gpu in children.asked if gpu == 1]
    assert kinds.count("train") == 2 + 3  # three of them under XLA
    assert kinds.count("steps") == 2 * 4 + 2 * 2  # with and without a limit; two precisions
    assert sum(request["run"] == "train" for request, _, gpu in children.asked if gpu is False) == 2 + 1


def test_a_gpu_is_limited_by_its_child_and_a_cpu_by_its_environment(children):
    checked(networks=("unet",))
    for request, limit_mib, gpu in children.asked[1:]:
        if gpu is False:
            assert "limit_bytes" not in request
        else:
            assert limit_mib is None and request["gpu"] and request["run"] in ("device",) or request["limit_bytes"]
    ours = [r for r, _, gpu in children.asked if gpu == 1 and r["run"] == "steps" and "budget_bytes" in r]
    limited, unlimited = sorted(ours, key=lambda request: request["limit_bytes"])
    assert unlimited["limit_bytes"] == module.ROOM * module.GPU_MEMORY
    assert limited["budget_bytes"] == 10**8 + int(0.6 * 9 * 10**8)
    assert limited["budget_bytes"] < limited["limit_bytes"] <= 1.1 * limited["budget_bytes"]


def test_what_has_no_time_is_not_run(children):
    lines = checked(devices=("CPU:0",), networks=("unet",), seconds=1.0)
    assert {line.state for line in lines} == {NOT_RUN} and "no time" in lines[-1].text
    assert [request["run"] for request, *_ in children.asked] == ["devices"]


def test_a_device_that_is_not_there(children):
    (line,) = checked(devices=("GPU:7",))
    assert line.state == FAILED and "CPU:0, GPU:1" in line.text


@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_than_so_many_run_at_a_time(children, jobs):
    checked(devices=("CPU:0",), networks=("unet", "transformer", "lstm"), jobs=jobs)
    assert children.most == jobs


def test_a_child_that_fails_is_a_line(children, monkeypatch):
    def fails(name, request, *given, **more):
        if request["run"] == "train":
            return Outcome(None, -11, None, "crashed (signal SIGSEGV)", False)
        return children(name, request, *given, **more)

    monkeypatch.setattr(module, "run_child", fails)
    lines = checked(devices=("CPU:0",), networks=("unet",))
    assert [line.text for line in lines if line.state == FAILED] == ["crashed (signal SIGSEGV)"] * 2


def test_tensorflow_that_does_not_start(monkeypatch):
    monkeypatch.setattr(module, "run_child", lambda *given, **more: Outcome(None, 1, None, "crashed: no TF", False))
    with pytest.raises(RuntimeError, match="no TF"):
        check(Asked(), lambda *told: None, lambda line: None)


def test_real_children_on_the_cpu():
    """A limit holds, and a network trains within its budget as the plain one does."""
    silent = lambda *told: None  # noqa: E731
    limited = run_child(module._CHILD, {"run": "limit", "asked_bytes": 2**26}, 64, silent)
    assert limited.result["limit_bytes"] == 2**26 and limited.result["refused"]
    assert 0.8 * 2**26 <= limited.result["held_bytes"] <= 2**26
    request = {"run": "train", "network": "small", "memory_bytes": 4 * 10**7, "shares": [0.7], "time_limit": 2.0}
    trained = run_child(module._CHILD, request, None, silent)
    assert trained.result is not None, trained.failure
    (cell,) = trained.result["cells"]
    assert 0.7 * 4e7 < trained.result["plain_peak_bytes"] < 1.5 * 4e7
    assert cell["peak_bytes"] <= cell["budget_bytes"] < trained.result["plain_peak_bytes"]
    assert cell["apart"] == {"loss": 0.0, "gradients": 0.0}
