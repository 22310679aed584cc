"""What a plan is expected to take beside what lies on the device by now."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from checkmate_tf.allocator.memory import Placed
from checkmate_tf.fit import pipeline


def report_of(strict):
    return SimpleNamespace(
        strict=strict, sure_bytes=105, measured_peak_bytes=97, placed_peak_bytes=100, budget_bytes=200
    )


THEN = Placed(100, 100, out_of_memory=False, held_up_bytes=20)


@pytest.mark.parametrize(
    ("strict", "now", "expected"),
    [
        (True, Placed(110, 110, out_of_memory=False), 115),
        (False, Placed(110, 110, out_of_memory=False, held_up_bytes=50), 115),  # within the budget, held up or not
        (False, Placed(110, 110, out_of_memory=False, held_up_bytes=98), 205),
        (False, Placed(110, 110, out_of_memory=False, given_whole_bytes=98), 205),
        (True, None, None),  # the allocator has no model
    ],
)
def test_it_is_what_was_measured_and_how_much_more_the_model_says_by_now(monkeypatch, strict, now, expected):
    monkeypatch.setattr(pipeline, "with_memory", lambda job: job)
    monkeypatch.setattr(pipeline, "Job", lambda *_: None)
    monkeypatch.setattr(pipeline, "placed_as", lambda *_: now)
    report = report_of(strict)
    planned = SimpleNamespace(report=report, placed=THEN, subject=None, schedule=None, order=None)
    assert pipeline.placed_bytes(planned, None) == expected


@pytest.mark.parametrize(("strict", "expected"), [(True, 115), (False, None)])
def test_a_plan_that_was_found_without_a_model_was_placed_in_strict_order_alone(monkeypatch, strict, expected):
    monkeypatch.setattr(pipeline, "with_memory", lambda job: job)
    monkeypatch.setattr(pipeline, "Job", lambda *_: None)
    monkeypatch.setattr(pipeline, "placed_as", lambda *_: Placed(110, 110, out_of_memory=False))
    report = report_of(strict)
    planned = SimpleNamespace(report=report, placed=None, subject=None, schedule=None, order=None)
    assert pipeline.placed_bytes(planned, None) == expected
