"""The report says what was asked, predicted, proven and measured; as text, as a dict and as JSON."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, replace

import pytest
from graphs import chain
from memories import memory_of
from reports import report

from checkmate_tf.draw.report_plot import peaks
from checkmate_tf.report import Attempt, Peak
from checkmate_tf.report.page import report_section
from checkmate_tf.report.placing import memory_use
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.units import format_bytes


def _recomputing():
    graph = chain(4)
    return replace(Schedule(graph, [0, 1, 2, 3, 4, 5, 2, 6, 7, 8]), lower_bound=graph.base_cost + 0.5)


def test_text():
    text = report().table()
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
    text = report(sure_bytes=5_900_000, expected_bytes=(6_200_000,), exceeded_bytes=(6_300_000,)).table()
    assert "5.80 MB, within the budget, at most 5.90 MB expected" in text
    assert "6.20 MB" in text and "6.30 MB while training, over the budget" in text


def test_over_the_budget_is_said_aloud():
    assert "6.10 MB, OVER the budget" in report(measured_peak_bytes=6_100_000).table()


def test_why_it_was_not_measured():
    text = report(measured_peak_bytes=None, not_measured="no statistics", attempts=()).table()
    assert "not measured: no statistics" in text


def test_other_tenants():
    assert "(2.00 MB of it other tenants of the device)" in report(foreign_bytes=2_000_000).table()


def test_plans_tried():
    attempts = (
        Attempt(6_000_000, 5_900_000, Peak(6_400_000, 6_400_000, 0.1), 0.1),
        Attempt(5_500_000, 5_450_000, None, 0.2),
        Attempt(5_000_000, 4_900_000, Peak(5_800_000, 5_800_000, 0.1), 0.3),
    )
    text = report(attempts=attempts).table()
    assert "5.90 MB predicted, 6.40 MB measured; 5.45 MB predicted, out of memory; 4.90 MB predicted" in text


def test_recomputation_and_proof():
    schedule = _recomputing()
    found = report(schedule)
    base = schedule.graph.base_cost
    assert found.recomputations == 1
    assert found.overhead == pytest.approx(1 / base)
    assert found.proven_overhead == pytest.approx(0.5 / base)
    assert f"1 of {len(schedule.graph)} nodes again, {1 / base:.2%}" in found.table()
    assert f"costs less than {0.5 / base:.2%} more" in found.table()


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


# -- with a model of the allocator ------------------------------------------------------------------------------------


def _labels(found):
    return [line.split("  ")[0] for line in found.table().splitlines()]


def test_predicted_packed_placed_and_measured_stand_one_below_the_other():
    found = report(packed_peak_bytes=5_600_000, placed_peak_bytes=5_700_000)
    at = _labels(found).index("predicted peak")
    assert _labels(found)[at : at + 4] == ["predicted peak", "best packing", "placed peak", "measured peak"]
    assert "5.60 MB, if each value had the best address" in found.table()
    assert "5.70 MB, as the allocator places values" in found.table()
    assert [size for _, size in peaks(found)] == [10_000_000, 5_500_000, 5_600_000, 5_700_000, 5_800_000]


def test_without_a_model_nothing_is_said_of_it():
    text = report().table()
    assert "placed" not in text and "packing" not in text
    assert len(peaks(report())) == 3


def test_how_far_the_allocator_reaches():
    graph = chain(4)
    use = memory_use(memory_of(graph), keep_all(graph))
    found = report(placed_peak_bytes=use.placed_bytes, memory_map=use)
    assert f"with the holes between them it reaches {format_bytes(use.range_bytes)}" in found.table()
    assert "OUT OF MEMORY" not in found.table()
    assert (
        "OUT OF MEMORY: a request finds no room" in replace(found, memory_map=replace(use, out_of_memory=True)).table()
    )


def test_values_have_the_peaks_but_not_the_map():
    graph = chain(4)
    use = memory_use(memory_of(graph), keep_all(graph))
    values = report(packed_peak_bytes=1, placed_peak_bytes=2, memory_map=use).to_dict()
    assert (values["packed_peak_bytes"], values["placed_peak_bytes"]) == (1, 2)
    assert "memory_map" not in values and "MemoryUse" not in json.dumps(values)


def test_plans_tried_say_where_they_were_placed():
    attempt = Attempt(6_000_000, 5_900_000, Peak(6_400_000, 6_400_000, 0.1), 0.1, placed_bytes=6_100_000)
    found = report(attempts=(attempt, attempt))
    assert "5.90 MB predicted, 6.10 MB placed, 6.40 MB measured" in found.table()
    assert found.to_dict()["attempts"][0]["placed_bytes"] == 6_100_000


def test_the_page_has_a_column_and_a_map():
    graph = chain(4)
    use = memory_use(memory_of(graph), keep_all(graph))
    placed = Attempt(6_000_000, 5_500_000, None, 0.1, placed_bytes=5_700_000)
    plain, known = report(), report(attempts=(placed, replace(placed, placed_bytes=None)), memory_map=use)
    before, after = report_section(plain), report_section(known)
    assert "placed peak" not in before.tables[1].head and "placed peak" in after.tables[1].head
    assert [row[3] for row in after.tables[1].rows] == ["5.70 MB", "not known"]
    assert {len(row) for row in after.tables[1].rows} == {len(after.tables[1].head)}
    assert len(after.pictures) == len(before.pictures) + 1


def test_ten_lines_tell_what_matters_most():
    lines = str(report()).splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        "model", "budget", "plain step", "peak", "recomputation", "proven", "solved by", "time",
    ]  # fmt: skip
    assert lines[3].endswith("5.50 MB predicted, 5.80 MB measured, within the budget") and lines[-1].endswith("1.8 s")
    told = str(report(measured_peak_bytes=None, not_measured="no statistics", placed_peak_bytes=5_600_000))
    assert "5.50 MB predicted, 5.60 MB placed, not measured: no statistics" in told


def test_there_are_never_more_than_ten():
    attempt = report().attempts[0]
    full = report(
        strict=True,
        encodings={"sign": 3},
        attempts=(attempt, attempt),
        training_peak_bytes=6_100_000,
        exceeded_bytes=(6_100_000,),
        expected_bytes=(6_200_000,),
        seconds={"trace": 1.0, "solve": 0.5, "solved before": 100.0},
    )
    lines = str(full).splitlines()
    assert len(lines) == 10 and lines[-1].endswith("1.5 s")
    assert "besides         strict order, 3 gradients read codes, 2 plans tried, planned again 2 times" in str(full)
    assert "6.10 MB, OVER the budget" in lines[4]
