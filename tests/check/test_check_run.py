"""Which processes a check starts, and what it says of those that it does not."""

import threading
import time
from pathlib import Path

import pytest

from checkmate_tf.check import run as module
from checkmate_tf.check.line import FAILED, NOT_RUN, PASSED
from checkmate_tf.check.run import Asked, check
from checkmate_tf.device.process import Outcome, run_child
from checkmate_tf.errors import CheckmateError

MACHINE = {"cores": 2, "devices": [{"name": "CPU:0", "kind": "CPU"}, {"name": "GPU:1", "kind": "GPU"}]}
DEVICE = {
    "measurable": True, "asked_bytes": 1, "taken_bytes": 256, "peak_bytes": 256, "left_bytes": 0,
    "allocator": "Bfc", "chunks": 1, "bandwidth": {"on_device": 1e10},
}  # fmt: skip
CELL = {
    "share": 0.4, "budget_bytes": 100, "peak_bytes": 90, "predicted_peak_bytes": 80, "placed_peak_bytes": None,
    "step_ratio": 1.0, "predicted_ratio": 1.0, "plain_step_ms": 1.0,
}  # fmt: skip
TRAINED = {"batch_size": 8, "plain_peak_bytes": 10**9, "constant_bytes": 10**8, "cells": [CELL]}
RAN = {"losses": [1.0], "digest": "ab", "steps": 3, "peak_bytes": 90, "budget_bytes": 100}


class Children:
    """Stands in for `run_child`: answers at once, and remembers what it was asked."""

    def __init__(self):
        self.asked, self.running, self.most, self.folders = [], 0, 0, set()
        self.training, self.most_trained = 0, 0
        self.lock = threading.Lock()

    @staticmethod
    def most_samples(request):
        """Under a limit. Eight fill the memory plainly."""
        return 13 if "budget_bytes" in request else 5

    def __call__(self, name, request, limit_mib, tell, log=None, *, gpu=False, timeout=None, environment=None):
        with self.lock:
            self.asked.append((request, limit_mib, gpu))
            self.running += 1
            self.folders.add((environment or {}).get("CHECKMATE_TF_CACHE"))
            self.most = max(self.most, self.running)
            self.training += request["run"] == "train"
            self.most_trained = max(self.most_trained, self.training)
        if request["run"] in ("steps", "train"):
            time.sleep(0.02)
        with self.lock:
            self.running -= 1
            self.training -= request["run"] == "train"
        limit = request.get("limit_bytes") or (limit_mib or 0) * 2**20
        if request["run"] == "steps" and 0 < limit < 10**9 and request["batch_size"] > self.most_samples(request):
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
    assert kinds.count("steps") == 2 * 4 + 2 * 2 + 3 + 4  # with and without a limit; two precisions; batches
    (largest,) = [line for line in lines if line.device == "GPU:1" and "largest" in line.what]
    assert (largest.figures["plain_batch"], largest.figures["our_batch"]) == (5, 12)
    assert sum(request["run"] == "train" for request, _, gpu in children.asked if gpu is False) == 2 + 1


def test_a_gpu_is_limited_by_its_child_and_a_cpu_by_its_environment(children):
    checked(networks=("unet",))
    for request, limit_mib, gpu in children.asked[1:]:
        if gpu is False:
            assert "limit_bytes" not in request
        else:
            assert limit_mib is None and request["gpu"] and request["limit_bytes"]
    ours = [r for r, _, gpu in children.asked if gpu == 1 and r["run"] == "steps" and "budget_bytes" in r]
    limited, unlimited = sorted(ours, key=lambda request: request["limit_bytes"])
    assert unlimited["limit_bytes"] == module.ROOM * module.GPU_MEMORY + module.BESIDE
    assert limited["budget_bytes"] == 10**8 + int(0.6 * 9 * 10**8)
    assert limited["budget_bytes"] < limited["limit_bytes"] <= 1.1 * limited["budget_bytes"]


def test_the_limit_is_for_the_budget_that_a_refusal_named(children, monkeypatch):
    named = {**CELL, "share": 0.6, "refused_bytes": 64 * 10**7, "budget_bytes": 8 * 10**8, "peak_bytes": 7 * 10**8}
    monkeypatch.setitem(TRAINED, "cells", [CELL, named])
    checked(networks=("unet",), devices=("GPU:1",))
    ours = [r for r, _, _ in children.asked if r["run"] == "steps" and "budget_bytes" in r]
    assert {r["budget_bytes"] for r in ours} == {8 * 10**8}
    assert 8 * 10**8 < min(r["limit_bytes"] for r in ours) <= 1.1 * 8 * 10**8


def test_what_has_no_time_is_not_run(children):
    lines = checked(devices=("CPU:0",), networks=("unet",), seconds=1.0)
    assert {line.state for line in lines} == {NOT_RUN} and "no time" in lines[-1].text
    assert [request["run"] for request, *_ in children.asked] == ["devices"]


def test_a_device_that_is_not_there(children):
    (line,) = checked(devices=("GPU:7",))
    assert line.state == FAILED and "CPU:0, GPU:1" in line.text


def test_a_cpu_has_fewer_networks_unless_they_are_named(children):
    checked()
    trained = {
        gpu: [r["network"] for r, _, g in children.asked if g is gpu and r["run"] == "train"] for gpu in (False, 1)
    }
    assert trained[False] == [*module.CPU_NETWORKS, "small"] and set(trained[1][:6]) == set(module.NETWORKS)


@pytest.mark.parametrize("jobs", [1, 3])
def test_no_more_than_so_many_run_at_a_time(children, jobs):
    checked(devices=("CPU:0",), networks=("unet", "transformer", "lstm"), jobs=jobs)
    assert children.most == jobs


def test_what_is_timed_runs_by_itself_on_a_cpu_and_takes_turns_on_a_gpu(children):
    names = ("unet", "transformer", "lstm")
    for device, jobs in (("CPU:0", 1), ("GPU:1", 3)):
        children.asked.clear()
        children.most_trained = 0
        check(Asked(devices=(device,), networks=names, jobs=3), lambda *told: None, lambda line: None)
        trained = [request for request, *_ in children.asked if request["run"] == "train"]
        assert all(("turns" in request) == (jobs > 1) for request in trained)
        assert children.most_trained == jobs


def test_a_child_that_fails_is_a_line(children, monkeypatch):
    def fails(name, request, *given, **more):
        if request["run"] == "train":
            return Outcome(None, -11, None, "crashed (signal SIGSEGV)", False)
        return children(name, request, *given, **more)

    monkeypatch.setattr(module, "run_child", fails)
    lines = checked(devices=("CPU:0",), networks=("unet",))
    assert [line.text for line in lines if line.state == FAILED] == ["crashed (signal SIGSEGV)"] * 2


def test_a_child_whose_time_is_up_did_not_fail_and_what_it_had_found_counts(children, monkeypatch):
    def slow(name, request, *given, **more):
        if request["run"] in ("train", "steps"):
            planned = TRAINED if request["run"] == "train" else {}
            return Outcome(None, -9, None, "not done after 9 s", False, planned, {}, late=True)
        return children(name, request, *given, **more)

    monkeypatch.setattr(module, "run_child", slow)
    lines = checked(devices=("CPU:0",), networks=("unet",))
    assert {line.state for line in lines} == {PASSED, NOT_RUN}
    assert [line.what for line in lines if line.state == NOT_RUN] == ["unet", "small under XLA"]
    assert "unet at 40%" in [line.what for line in lines]


@pytest.mark.parametrize(("size", "memory", "room", "most"), [
    (80 * 10**9, None, 10 * 10**9, 6), (80 * 10**9, 8 * 10**9, 34 * 10**9, 1), (8 * 10**9, None, 6_400_000_000, 1),
])  # fmt: skip
def test_children_share_a_card(children, monkeypatch, size, memory, room, most):
    monkeypatch.setitem(MACHINE["devices"][1], "memory_bytes", size)
    checked(devices=("GPU:1",), networks=("unet", "transformer", "lstm"), jobs=16, memory_bytes=memory)
    limits = [request["limit_bytes"] for request, *_ in children.asked[1:] if request["run"] == "train"]
    assert set(limits) == {room} and children.most <= most


def test_an_interrupt_ends_all_children_and_starts_no_more(children, monkeypatch):
    ended = []
    monkeypatch.setattr(module, "end_children", lambda: ended.append(len(children.asked)))

    def told(line):
        if "equal bits" in line.what:
            raise KeyboardInterrupt

    names = ("unet", "transformer", "lstm")
    with pytest.raises(KeyboardInterrupt):
        check(Asked(devices=("CPU:0",), networks=names), lambda *said: None, told)
    assert len(ended) == 1
    assert len(children.asked) <= ended[0] + 1  # one may be on its way


def test_costs_are_kept_for_the_check_alone(children):
    checked(devices=("CPU:0",), networks=("unet",))
    (folder,) = children.folders - {None}
    assert not Path(folder).exists()


def test_tensorflow_that_does_not_start(monkeypatch):
    monkeypatch.setattr(module, "run_child", lambda *given, **more: Outcome(None, 1, None, "crashed: no TF", False))
    with pytest.raises(CheckmateError, match="no TF"):
        check(Asked(), lambda *told: None, lambda line: None)


@pytest.mark.long
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
    beside = 4e7 + 1.4e6  # and its variables
    assert 0.7 * beside < trained.result["plain_peak_bytes"] < 1.5 * beside
    assert cell["peak_bytes"] <= cell["budget_bytes"] < trained.result["plain_peak_bytes"]
    assert max(cell["apart"].values()) < 1e-6  # Grappler is on: last bits may differ
