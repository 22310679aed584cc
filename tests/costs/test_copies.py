"""How fast copies are: measured once, kept, and never below nothing."""

from __future__ import annotations

import pytest
import tensorflow as tf

from checkmate_tf.costs import copies
from checkmate_tf.costs.copies import CopyRates, copied_seconds, copy_rates, median_seconds

HERE = "/device:CPU:0"


@pytest.fixture
def kept(monkeypatch, tmp_path):
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path))
    return tmp_path


def _takes(monkeypatch, call, small, large):
    """Let calls take so many seconds: of nothing, and of small and large copies each way."""
    monkeypatch.setattr(copies, "median_seconds", lambda run: call)
    monkeypatch.setattr(copies, "copied_seconds", lambda *given: large if given[2] > 2**20 else small)


def test_rates_are_of_large_copies_and_latency_of_small_ones(monkeypatch, kept):
    _takes(monkeypatch, call=1e-4, small=(1.2e-4, 1.4e-4), large=(1.2e-4 + 1e-3, 1.4e-4 + 2e-3))
    found = copy_rates(HERE, "/device:CPU:1")
    assert found.to_host == pytest.approx(2**26 / 1e3) and found.from_host == pytest.approx(2**26 / 2e3)
    assert found.latency_us == pytest.approx(30)


def test_what_was_measured_is_kept(monkeypatch, kept):
    _takes(monkeypatch, 1e-4, (2e-4, 2e-4), (1e-3, 1e-3))
    found = copy_rates(HERE, "/device:CPU:1")
    monkeypatch.setattr(copies, "copied_seconds", None)
    assert copy_rates(HERE, "/device:CPU:1") == found
    with pytest.raises(TypeError):
        copy_rates(HERE, "/device:CPU:1", cache=False)


def test_noise_gives_no_negative_times(monkeypatch, kept):
    _takes(monkeypatch, 3e-4, (2e-4, 2e-4), (1e-4, 1e-4))
    found = copy_rates(HERE, "/device:CPU:1")
    assert min(found.to_host, found.from_host, found.latency_us) > 0


def test_without_memory_there_are_no_rates(monkeypatch, kept):
    def raises(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "no memory")

    monkeypatch.setattr(copies, "copied_seconds", raises)
    assert copy_rates(HERE, "/device:CPU:1") is None


def test_functions_are_traced_though_they_should_run_eagerly():
    calls = []
    tf.config.run_functions_eagerly(True)
    try:
        median_seconds(lambda: calls.append(1) or tf.zeros([]))
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(calls) == 1


def test_copies_are_timed():
    assert median_seconds(lambda: tf.zeros([])) > 0
    assert min(copied_seconds(HERE, HERE, 4096)) > 0
    assert isinstance(copy_rates(HERE, HERE, cache=False), CopyRates)
