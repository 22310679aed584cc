"""Devices that measure what a test says: peaks of plans, and of steps in training.

Their kernels take nothing for themselves, so what is predicted is the same on every machine. Their allocators have no
model: a target is the bytes of a schedule.
"""

from __future__ import annotations

import numpy as np

from checkmate_tf.device.measure import Device
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.fit import run
from checkmate_tf.fit.subjects import tracing
from checkmate_tf.plan import evaluate
from checkmate_tf.report import Peak


def steady(peak_bytes):
    """The peak of steps that do not differ."""
    return Peak(peak_bytes, peak_bytes, 1.0)


def says(monkeypatch, measure):
    """Let `measure(job, predicted_bytes, strict)` say what the device measures.

    Returns the list of what `fit` asked for: the order, and the most that will do.
    """
    calls = []

    def told(job, plan, order, most_bytes):
        calls.append((order, most_bytes))
        return measure(job, evaluate(job.subject.graph, plan).peak_bytes, order == Strict())

    monkeypatch.setattr(tracing, "op_workspaces", lambda ops, **_: np.zeros(len(ops), np.int64))
    monkeypatch.setattr(run, "measure", told)
    monkeypatch.setattr(run, "memory_before", lambda *_: None)
    return calls


def measures(monkeypatch, *extra):
    """Let the device measure what is predicted and so many bytes more (None: out of memory); the last goes on.

    Returns the list of the orders that plans were measured in.
    """
    orders = []

    def measure(job, predicted, strict):
        more = extra[min(len(calls), len(extra)) - 1]
        orders.append(calls[-1][0])
        return None if more is None else steady(predicted + more)

    calls = says(monkeypatch, measure)
    return orders


class Crowded(Device):
    """A device that others share: its peaks while training are as given, then none."""

    def peak_bytes(self):
        return PEAKS.pop(0) if PEAKS else 0

    def forget_peak(self, above_bytes):
        """Those given are of steps, so none comes before."""

    def forget_since(self, known_bytes):
        """Nor between them."""
        return 0


PEAKS: list[int] = []


def crowd(monkeypatch, peaks):
    monkeypatch.setattr(
        "checkmate_tf.keras.training.plans.find_device", lambda: Crowded("CPU:0", 10**9, measurable=True)
    )
    monkeypatch.setattr(Device, "foreign_bytes", lambda device, variable_bytes: 0)
    PEAKS[:] = peaks
