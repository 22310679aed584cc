"""Devices by name: in whatever way they are called, each with its own times, and none for one that is not there."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
tf = pytest.importorskip("tensorflow")

from checkmate_tf.costs.roofline import measure_rates  # noqa: E402
from checkmate_tf.costs.setting import device_name, setting  # noqa: E402
from checkmate_tf.costs.timed import time_ops  # noqa: E402
from checkmate_tf.costs.workspace import op_workspaces  # noqa: E402
from checkmate_tf.errors import CostError  # noqa: E402


@pytest.fixture
def cards(monkeypatch):
    """Three cards of which two are seen; the first of them is split in two."""
    logical = [SimpleNamespace(name=f"/device:{name}") for name in ("CPU:0", "GPU:0", "GPU:1", "GPU:2")]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: logical)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["hidden", "split", "whole"])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["split", "whole"])
    parts = {"split": ["half", "half"], "whole": None}
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: parts[device])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: {"device_name": device})


def test_a_gpu_is_the_card_that_its_number_says_of_those_that_are_seen(cards):
    assert [setting(f"/GPU:{k}").split()[0] for k in range(3)] == ["split", "split", "whole"]


@pytest.mark.parametrize("name", ["GPU:2", "gpu:2", "/gpu:2", "/device:GPU:2", "/job:localhost/task:0/device:GPU:2"])
def test_a_device_may_be_called_in_all_ways_that_tensorflow_reads(cards, name):
    assert device_name(name) == "GPU:2"
    assert "tf32" in setting(name)


def test_the_first_gpu_comes_before_the_cpu(cards, monkeypatch):
    assert device_name() == "GPU:0" == device_name("GPU")
    monkeypatch.undo()
    if not tf.config.list_logical_devices("GPU"):
        assert device_name() == "CPU:0"


@pytest.mark.parametrize("name", ["GPU:3", "banana", "GPU:x", "/device:banana:0", "CPU:1"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(cards, name):
    with pytest.raises(CostError, match=f"no device '{name}'; there are CPU:0, GPU:0, GPU:1, GPU:2"):
        device_name(name)


@pytest.mark.parametrize(("device", "shown"), [(1, "1"), (0, "0"), (False, "False"), (["GPU:1"], "a list of 1")])
def test_a_device_is_called_by_a_text(cards, device, shown):
    with pytest.raises(CostError, match=f"device={shown} is not a device's name: give a text, one of CPU:0, GPU:0"):
        device_name(device)


@pytest.mark.parametrize("ask", [time_ops, op_workspaces, lambda ops, device: measure_rates(device)])
def test_nothing_is_measured_on_another_device(ask):
    with pytest.raises(CostError, match="no device 'GPU:99'"):
        ask([], device="GPU:99")
