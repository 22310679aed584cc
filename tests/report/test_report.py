"""The report says what was asked, predicted, proven and measured; as text, as a dict and as JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
from graphs import chain
from reports import report

from checkmate_tf.report import Attempt, Peak
from checkmate_tf.schedule import Schedule


def _recomputing():
    graph = chain(4)
    return replace(Schedule(graph, [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]), lower_bound=graph.base_cost + 0.5)


def test_text():
    text = str(report())
    assert "chain, batch 32, on CPU:0" in text
    assert "6.00 MB (asked: 60% of the plain peak)" in text
    assert "10.0 MB predicted, of it 1.00 MB variables and 500 kB inputs" in text
    assert "5.80 MB, within the budget" in text
    assert "trace 1.2 s, solve 0.5 s" in text
    assert "plans tried" not in text
    assert len({line.index("  ") for line in text.splitlines() if "  " in line}) >= 1


def test_what_steps_are_expected_to_take():
    # As far above the most as that is above the median.
    assert Peak.of([100, 140, 110, 100], [3, 1, 2, 9]) == Peak(140, 175, 1)
    assert Peak.of([100, 100], [1, 1]) == Peak(100, 100, 1)
    text = str(report(sure_bytes=5_900_000, expected_bytes=(6_200_000,), exceeded_bytes=(6_300_000,)))
    assert "5.80 MB, within the budget, at most 5.90 MB expected" in text
    assert "6.20 MB" in text and "6.30 MB while training, over the budget" in text


def test_over_the_budget_is_said_aloud():
    assert "6.10 MB, OVER the budget" in str(report(measured_peak_bytes=6_100_000))


def test_why_it_was_not_measured():
    text = str(report(measured_peak_bytes=None, not_measured="no statistics", attempts=()))
    assert "not measured: no statistics" in text


def test_other_tenants():
    assert "(2.00 MB of it other tenants of the device)" in str(report(foreign_bytes=2_000_000))


def test_plans_tried():
    attempts = (
        Attempt(6_000_000, 5_900_000, Peak(6_400_000, 6_400_000, 0.1), 0.1),
        Attempt(5_500_000, 5_450_000, None, 0.2),
        Attempt(5_000_000, 4_900_000, Peak(5_800_000, 5_800_000, 0.1), 0.3),
    )
    text = str(report(attempts=attempts))
    assert "5.90 MB predicted, 6.40 MB measured; 5.45 MB predicted, out of memory; 4.90 MB predicted" in text


def test_recomputation_and_proof():
    schedule = _recomputing()
    found = report(schedule)
    base = schedule.graph.base_cost
    assert found.recomputations == 1
    assert found.overhead == pytest.approx(1 / base)
    assert found.proven_overhead == pytest.approx(0.5 / base)
    assert f"1 of {len(schedule.graph)} nodes again, {1 / base:.2%}" in str(found)
    assert f"costs less than {0.5 / base:.2%} more" in str(found)


def test_nothing_recomputed():
    found = report()
    assert found.recomputations == 0 and found.overhead == 0.0 and found.proven_overhead == 0.0


def test_json_is_complete_and_plain():
    found = report(_recomputing())
    values = json.loads(found.to_json())
    assert values == found.to_dict() | {"attempts": values["attempts"]}
    assert values["attempts"][0]["measured_bytes"] == 5_800_000
    assert values["recomputations"] == 1 and values["nodes"] == 9
    assert {"budget_bytes", "overhead", "proven_overhead", "gap", "strategy", "status", "seconds"} <= values.keys()
    assert "schedule" not in values


def test_a_report_is_a_value():
    with pytest.raises(FrozenInstanceError):
        report().budget_bytes = 1
