"""A report of a small step, for the tests of its text, its page and its picture."""

from __future__ import annotations

from typing import Any

from graphs import chain

from checkmate_tf.report import Attempt, Peak, Report
from checkmate_tf.schedule import Schedule, keep_all


def report(schedule: Schedule | None = None, **fields: Any) -> Report:
    """Of a chain of four layers; nothing is computed twice, unless a schedule is given."""
    values: dict[str, Any] = {
        "model": "chain",
        "device": "CPU:0",
        "batch_size": 32,
        "asked": "60% of the plain peak",
        "budget_bytes": 6_000_000,
        "plain_peak_bytes": 10_000_000,
        "predicted_peak_bytes": 5_500_000,
        "measured_peak_bytes": 5_800_000,
        "not_measured": "",
        "foreign_bytes": 0,
        "variable_bytes": 1_000_000,
        "input_bytes": 500_000,
        "costs": "flops",
        "attempts": (Attempt(6_000_000, 5_500_000, Peak(5_800_000, 5_800_000, 0.1), 0.1),),
        "seconds": {"trace": 1.25, "solve": 0.5},
        "schedule": schedule or keep_all(chain(4)),
    }
    return Report(**values | fields)
