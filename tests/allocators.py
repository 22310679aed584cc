"""Devices that measure what a test says: peaks of plans, and of steps in training."""

from __future__ import annotations

from checkmate_tf.execute import fit, planner
from checkmate_tf.execute.measure import Device
from checkmate_tf.plan import evaluate
from checkmate_tf.report import Peak


def steady(peak_bytes):
    """The peak of steps that do not differ."""
    return Peak(peak_bytes, peak_bytes, 1.0)


def measures(monkeypatch, *extra):
    """Let the device measure what is predicted and so many bytes more (None: out of memory); the last goes on."""
    calls = []

    def measure(job, plan, limit_bytes, most_bytes):
        more = extra[min(len(calls), len(extra) - 1)]
        calls.append(limit_bytes)
        return None if more is None else steady(evaluate(job.graph, plan).peak_bytes + more)

    monkeypatch.setattr(fit, "_measure", measure)
    return calls


class Crowded(Device):
    """A device that others share: its peaks while training are as given, then none."""

    def peak_bytes(self):
        return PEAKS.pop(0) if PEAKS else 0

    def forget_peak(self, above_bytes):
        """Those given are of steps, so none comes before."""


PEAKS: list[int] = []


def crowd(monkeypatch, peaks):
    monkeypatch.setattr("checkmate_tf.execute.controller.find_device", lambda: Crowded("CPU:0", 10**9, measurable=True))
    monkeypatch.setattr(planner, "_foreign_bytes", lambda program, device: 0)
    PEAKS[:] = peaks
