"""Schedules in files: what is read is checked, never believed."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from graphs import chain, orders, random_graphs
from hypothesis import given
from hypothesis import strategies as st
from schedules import (
    CONTENTS,
    check_loads_or_refuses,
    damaged,
    document,
    recomputing,
)

from checkmate_tf.errors import InfeasibleBudgetError, OutputError, PlanError
from checkmate_tf.files.answers import answer_from_dict
from checkmate_tf.files.jsonfile import to_json
from checkmate_tf.files.results import infeasible_result, result_to_dict
from checkmate_tf.plan import DEALLOCATE, Plan, evaluate
from checkmate_tf.schedule import Schedule, keep_all, schedule_from_dict


@pytest.mark.feature("Schedules that last", "save and load")
@given(random_graphs(8), st.data())
def test_what_is_saved_is_loaded(graph, data):
    order = data.draw(orders(graph))
    schedule = Schedule(graph, order, strategy="test", solver="none", budget_bytes=10**6, seconds=1.5)
    saved = document(schedule)
    loaded = schedule_from_dict(saved, graph, "here")
    assert loaded.plan == schedule.plan
    assert (loaded.cost, loaded.peak_bytes, loaded.gap) == (schedule.cost, schedule.peak_bytes, schedule.gap)
    told = loaded.strategy, loaded.solver, loaded.status, loaded.budget_bytes, loaded.seconds, loaded.origin
    assert told == ("test", "none", "feasible", 10**6, 1.5, "here")
    assert not answer_from_dict(saved, graph).disagreements  # an answer as any other


def test_a_file_of_a_schedule_and_of_its_plan(tmp_path):
    schedule = recomputing(lower_bound=12.5)
    schedule.save(tmp_path / "schedule.json")
    loaded = Schedule.load(tmp_path / "schedule.json", chain(4))
    assert loaded.sequence.tolist() == schedule.sequence.tolist()
    assert (loaded.lower_bound, loaded.gap) == (12.5, schedule.gap)
    assert Plan.load(tmp_path / "schedule.json", chain(4)) == schedule.plan
    schedule.plan.save(tmp_path / "plan.json", chain(4))
    assert Plan.load(tmp_path / "plan.json", chain(4)) == schedule.plan
    assert keep_all(chain(4)).status == "optimal"
    keep_all(chain(4)).save(tmp_path / "plain.json")
    assert Schedule.load(tmp_path / "plain.json", chain(4)).status == "optimal"
    assert sorted(os.listdir(tmp_path)) == ["plain.json", "plan.json", "schedule.json"]


def test_a_plan_that_frees_late_is_loaded_with_early_frees(tmp_path):
    plan = recomputing().plan
    late = sorted(plan.statements, key=lambda s: s.op == DEALLOCATE and s.node == 0)
    late = Plan(tuple(late), plan.registers)
    late.save(tmp_path / "plan.json", chain(4))
    assert Plan.load(tmp_path / "plan.json", chain(4)) == plan
    assert evaluate(chain(4), plan).peak_bytes <= evaluate(chain(4), late).peak_bytes


def test_what_is_no_plan_of_the_graph_is_not_saved(tmp_path):
    plan = recomputing().plan
    with pytest.raises(PlanError, match="never computed|not in memory"):
        Plan(plan.statements[2:], plan.registers).save(tmp_path / "plan.json", chain(4))
    with pytest.raises(OutputError, match="no folder"):
        recomputing().save(tmp_path / "missing" / "schedule.json")
    assert not os.listdir(tmp_path)


OTHER_GRAPHS = {
    "nodes is 9, not 11": lambda g: chain(5),
    "structure differs": lambda g: replace(g, inputs=[*g.inputs[:-1], [0, 7]][:8] + [[1, 7]]),
    "edges is": lambda g: replace(g, inputs=[*g.inputs[:-1], [7]]),
    "kinds differs": lambda g: replace(g, kinds=1 - g.kinds % 2),
    "sizes differs .another batch size": lambda g: replace(g, sizes=g.sizes * 2),
    "constant_bytes is 0, not 7": lambda g: replace(g, constant_bytes=7),
    "workspace differs .another device": lambda g: replace(g, workspace=g.workspace + 1),
    "held differs": lambda g: replace(g, held=g.held + 1),
    "recompute_until differs": lambda g: replace(g, recompute_until=np.zeros(len(g))),
    "waits is missing .nodes wait": lambda g: replace(g, waits=[[0] if i == 8 else [] for i in range(9)]),
}


@pytest.mark.feature("Schedules that last", "a schedule of another model", refused="the error names what differs")
@pytest.mark.parametrize("reason", OTHER_GRAPHS)
def test_another_graphs_schedule_is_refused(reason, tmp_path):
    recomputing().save(tmp_path / "schedule.json")
    other = OTHER_GRAPHS[reason](chain(4))
    for load in (Schedule.load, Plan.load):
        with pytest.raises(PlanError, match=f"schedule.json is not for graph.*{reason}.*save one for this graph"):
            load(tmp_path / "schedule.json", other)


def test_what_was_proved_under_waits_is_not_believed_without_them():
    plain = chain(4)
    waiting, longer = (replace(plain, waits=[list(range(k)) if i == 8 else [] for i in range(9)]) for k in (1, 2))
    saved = document(recomputing(waiting))
    assert schedule_from_dict(saved, waiting).cost == 13.0
    for other in (plain, longer):
        with pytest.raises(PlanError, match="waits differs"):
            schedule_from_dict(saved, other)
    assert "waits" not in document()["graph"]  # so older files are those of graphs without waits


def test_names_may_differ():
    graph = replace(chain(4), name="other", names=[f"dense_{i}" for i in range(9)])
    assert schedule_from_dict(document(), graph).graph is graph


def test_under_other_costs_nothing_is_proved():
    schedule = recomputing(lower_bound=13.0, status="optimal")
    assert schedule_from_dict(document(schedule), chain(4)).status == "optimal"
    other = chain(4).with_costs(chain(4).costs * 3, "ns")
    loaded = schedule_from_dict(document(schedule), other)
    assert (loaded.status, loaded.lower_bound, loaded.cost) == ("feasible", 0.0, 39.0)


def test_it_is_kept_which_order_the_bound_is_about():
    for order in ("fixed", "stages", "free"):
        assert schedule_from_dict(document(recomputing(bound_order=order)), chain(4)).bound_order == order
    older = {key: value for key, value in document().items() if key != "bound_order"}
    assert schedule_from_dict(older, chain(4)).bound_order == "fixed"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"peak_bytes": 1}, "peak_bytes is claimed"),
        ({"cost": 12.0}, "cost is claimed"),
        ({"budget_bytes": 3}, "above its budget"),
        ({"lower_bound": 13.5}, "no plan is claimed to cost less than 13.5"),
        ({"plan": None, "status": "infeasible"}, "has no plan"),
        ({"plan": [["compute", 0]]}, "never computed"),
        ({"plan": [["compute", 8]]}, "is not in memory"),
        ({"plan": [["compute", 10**50]]}, "with a node i from 0 to 8"),
        ({"plan": {"compute": 0}}, "plan is an object of 1"),
        ({"graph": None}, "does not say which graph"),
        ({"graph": {}}, "nodes is missing"),
        ({"graph": [1]}, "does not say which graph"),
        ({"seconds": "long"}, "seconds is 'long'"),
        ({"lower_bound": 10**400}, "lower_bound is a number of more than 60 digits"),
        ({"strategy": 3}, "strategy is 3"),
        ({"bound_order": "any"}, 'bound_order is \'any\'; give "fixed" or "stages" or "free"'),
        ({"format": "checkmate-result/2"}, "format is 'checkmate-result/2'"),
    ],
)
def test_claims_are_not_believed(fields, reason):
    with pytest.raises(PlanError, match=reason):
        schedule_from_dict(document(**fields), chain(4), "bad.json")


def test_answers_to_no_graph_in_particular_are_refused():
    none = infeasible_result(chain(4), InfeasibleBudgetError("no", 3, 5, proven=True), strategy="by hand")
    for data in (result_to_dict(recomputing()), none):
        with pytest.raises(PlanError, match="does not say which graph it is for"):
            schedule_from_dict(data, chain(4))


@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_files_that_are_no_schedules(content, tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"bad\.json"):
        Schedule.load(path, chain(4))


def test_files_that_cannot_be_read(tmp_path, monkeypatch):
    for path in (tmp_path, tmp_path / "missing.json", "a\0b"):
        with pytest.raises(PlanError, match="cannot be read"):
            Schedule.load(path, chain(4))
    monkeypatch.setattr("checkmate_tf.files.schedules.MAX_FILE_BYTES", 10)
    recomputing().save(tmp_path / "large.json")
    with pytest.raises(PlanError, match="more than 10 bytes"):
        Schedule.load(tmp_path / "large.json", chain(4))


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@given(damaged(document()))
def test_damaged_documents_are_refused_with_a_typed_error(data):
    check_loads_or_refuses(lambda: schedule_from_dict(data, chain(4)))


TEXT = to_json(document()).encode()


@pytest.mark.feature("Faults", "fuzzed files of graphs, schedules and profiles")
@given(st.integers(0, len(TEXT)), st.integers(0, len(TEXT)), st.binary(max_size=4))
def test_damaged_files_are_refused_with_a_typed_error(tmp_path_factory, start, stop, bytes_between):
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(TEXT[:start] + bytes_between + TEXT[stop:])
    check_loads_or_refuses(lambda: Schedule.load(path, chain(4)))
