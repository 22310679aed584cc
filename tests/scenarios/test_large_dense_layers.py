"""Models whose dense layers are large: updated late, trained equally, and planned as traced where that needs less."""

from __future__ import annotations

import pytest
from cases import LARGE_DENSE, assert_same_state, compile_quickly, make, program_of, train

import checkmate_tf
from checkmate_tf.emit.ordering import Strict
from checkmate_tf.fit.policy import Limits
from checkmate_tf.fit.subjects import fitted
from checkmate_tf.schedule import keep_all

pytestmark = pytest.mark.usefixtures("fresh_keras")


def _late(schedule):
    """Whether the weights of the larger dense layer have their gradient after a filter's activation has its."""
    names = list(schedule.graph.names)
    dense = next(k for k, name in enumerate(names) if "wide_1024" in name and name.endswith("MatMul_1"))
    return dense > next(k for k, name in enumerate(names) if "filter_2" in name and "BackpropInput" in name)


def _trained_beside_plain(**options):
    plain, compiled = make(LARGE_DENSE), make(LARGE_DENSE)
    history = train(plain, LARGE_DENSE)
    compile_quickly(compiled, LARGE_DENSE, **options)
    assert train(compiled, LARGE_DENSE) == history
    assert_same_state(plain, compiled)
    return compiled.checkmate


@pytest.mark.long(but=("0.75-loose",))
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
@pytest.mark.parametrize("budget", [1.0, 0.75])
def test_training_is_equal(monkeypatch, no_grappler, strict, budget):
    if strict:
        monkeypatch.setattr(Limits, "order", lambda *_: Strict())
    report = _trained_beside_plain(budget=budget)
    assert _late(report.schedule) and (report.recomputations > 0) == (budget < 1)
    traced = keep_all(program_of(make(LARGE_DENSE), LARGE_DENSE).graph).peak_bytes
    assert report.plain_peak_bytes == traced > 1.08 * keep_all(report.schedule.graph).peak_bytes


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True], ids=["loose", "strict"])
def test_training_is_equal_with_grappler(monkeypatch, strict):
    if strict:
        monkeypatch.setattr(Limits, "order", lambda *_: Strict())
    assert _late(_trained_beside_plain(budget=0.75).schedule)


def _refuse_late(monkeypatch, *least):
    """Let nothing fit where updates come late; with a second number of bytes to name, nor where they come early."""
    real, named = fitted.fit, list(least)

    def fit(job, *arguments):
        late = _late(keep_all(job.subject.graph))
        if late or len(named) > 1:
            raise checkmate_tf.InfeasibleBudgetError("none", job.budget_bytes, named[0 if late else 1], proven=False)
        return real(job, *arguments)

    monkeypatch.setattr(fitted, "fit", fit)


@pytest.mark.long
def test_where_none_fits_updates_come_as_traced(monkeypatch, no_grappler):
    _refuse_late(monkeypatch, 10**9)
    assert not _late(_trained_beside_plain(budget=0.75).schedule)


@pytest.mark.long(but=("2000000000-1000000000",))
@pytest.mark.parametrize(("late", "early"), [(10**9, 2 * 10**9), (2 * 10**9, 10**9)])
def test_a_refusal_names_the_least_of_both_orders(monkeypatch, late, early):
    _refuse_late(monkeypatch, late, early)
    with pytest.raises(checkmate_tf.InfeasibleBudgetError) as refused:
        compile_quickly(make(LARGE_DENSE), LARGE_DENSE)
    assert refused.value.minimum_bytes == 10**9


@pytest.mark.long(only=("True",))
@pytest.mark.parametrize("late", [True, False])
def test_a_saved_schedule_is_used_in_its_own_order(monkeypatch, tmp_path, late):
    with monkeypatch.context() as changed:
        if not late:
            _refuse_late(changed, 10**9)
        report = compile_quickly(make(LARGE_DENSE), LARGE_DENSE).checkmate
    assert _late(report.schedule) == late
    report.schedule.save(tmp_path / "plan.json")
    again = compile_quickly(make(LARGE_DENSE), LARGE_DENSE, schedule=tmp_path / "plan.json").checkmate
    assert again.schedule.sequence.tolist() == report.schedule.sequence.tolist() and _late(again.schedule) == late


def test_other_strategies_have_the_order_traced():
    report = compile_quickly(make(LARGE_DENSE), LARGE_DENSE, strategy="checkpoint-all", budget=1.0).checkmate
    assert not _late(report.schedule)
