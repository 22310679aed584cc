"""In which order the steps of a saved schedule are run: out of order where that leaves room for what seldom comes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from checkmate_tf.allocator.memory import Placed
from checkmate_tf.fit import run
from checkmate_tf.fit.policy import Limits
from checkmate_tf.report import Peak

BUDGET = 1000


def given(monkeypatch, loose, strict, measured):
    """What comes of a schedule that is placed so, and measured so, in each order; and the orders that were measured."""
    tried, placed = [], {False: loose, True: strict}

    def attempt(job, ledger, action, number):
        tried.append(action.strict)
        return SimpleNamespace(peak=measured[action.strict])

    schedule = SimpleNamespace(peak_bytes=800, budget_bytes=800, origin="a file")
    monkeypatch.setattr(run, "_given", lambda saved, job: schedule)
    monkeypatch.setattr(run, "placed_as", lambda job, schedule, order: placed[not hasattr(order, "bytes")])
    monkeypatch.setattr(run, "_attempt", attempt)
    limits = Limits(BUDGET, 0, 10**9, on_cpu=True, measured=True, modelled=True)
    return run.fit_given(SimpleNamespace(measure=True, limits=limits), None, {}), tried


def placed(peak, whole=0):
    return Placed(peak, peak, out_of_memory=False, given_whole_bytes=whole)


def peak(size):
    return Peak(size, size, 1.0)


@pytest.mark.parametrize(
    ("whole", "strict"),
    [(0, False), (100, False), (101, True), (None, False)],
    ids=["none", "fits", "over", "no model"],
)
def test_out_of_order_there_is_room_for_what_seldom_comes(whole, strict, monkeypatch):
    loose = None if whole is None else placed(900, whole)
    found, tried = given(monkeypatch, loose, placed(880), {False: peak(900), True: peak(880)})
    assert found.strict is strict and tried == [strict]


def test_what_was_measured_counts_where_it_is_more(monkeypatch):
    found, tried = given(monkeypatch, placed(900, 90), placed(880), {False: peak(920), True: peak(880)})
    assert found.strict and tried == [False, True]


def test_what_only_just_keeps_the_budget_is_taken_with_that_room(monkeypatch):
    found, tried = given(monkeypatch, placed(900, 90), placed(880), {False: peak(990), True: peak(995)})
    assert found.strict and tried == [False, True]
    found, _ = given(monkeypatch, placed(900, 5), placed(880), {False: peak(990), True: None})
    assert not found.strict
    assert given(monkeypatch, placed(900, 90), placed(880), {False: peak(990), True: None})[0] is None


def test_where_both_take_more_than_the_budget_there_is_none(monkeypatch):
    assert given(monkeypatch, placed(900, 90), placed(880), {False: peak(1001), True: None})[0] is None
