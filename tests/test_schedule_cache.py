"""Schedules in files and in the cache: what is read is checked, never believed, and never the reason for a failure."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from cases import DENSE, assert_same_state, compile_quickly, make, train
from graphs import chain, random_graphs
from hypothesis import given
from hypothesis import strategies as st

import checkmate_tf
from checkmate_tf import schedule_cache
from checkmate_tf.errors import CheckmateError, InfeasibleBudgetError, OutputError, PlanError
from checkmate_tf.execute import fit, planner
from checkmate_tf.graph import Graph
from checkmate_tf.interchange import infeasible_result, result_to_dict
from checkmate_tf.jsonfile import to_json
from checkmate_tf.plan import DEALLOCATE, Plan, evaluate
from checkmate_tf.report.result_file import answer_from_dict
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.schedule_cache import cache_key, lookup, store
from checkmate_tf.schedule_file import schedule_from_dict, schedule_to_dict
from checkmate_tf.strategies import SolveOptions
from checkmate_tf.units import parse_budget

OPTIONS = SolveOptions(time_limit=10.0, gap=0.01)
BUDGET = 100


def recomputing(graph: Graph | None = None, **fields) -> Schedule:
    """A chain of four layers, node 2 computed twice: a gap of 1/13, since nothing beyond the base cost is proved."""
    given = {"strategy": "by hand", "solver": "pencil", "budget_bytes": BUDGET, "seconds": 2.5}
    return Schedule(graph or chain(4), [0, 1, 2, 3, 4, 5, 2, 6, 7, 8], **given | fields)


def document(schedule: Schedule | None = None, **fields) -> dict:
    return json.loads(json.dumps(schedule_to_dict(schedule or recomputing()))) | fields


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Schedules that last", "save and load")
@given(random_graphs(8), st.data())
def test_what_is_saved_is_loaded(graph, data):
    order = []
    for t in range(len(graph)):
        again = [i for i in range(t) if graph.recompute_until[i] > t]
        order += sorted(data.draw(st.sets(st.sampled_from(again)))) if again else []
        order.append(t)
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
}


@pytest.mark.feature("Schedules that last", "a schedule of another model", refused="the error names what differs")
@pytest.mark.parametrize("reason", OTHER_GRAPHS)
def test_another_graphs_schedule_is_refused(reason, tmp_path):
    recomputing().save(tmp_path / "schedule.json")
    other = OTHER_GRAPHS[reason](chain(4))
    for load in (Schedule.load, Plan.load):
        with pytest.raises(PlanError, match=f"schedule.json is not for graph.*{reason}.*save one for this graph"):
            load(tmp_path / "schedule.json", other)


def test_names_may_differ():
    graph = replace(chain(4), name="other", names=[f"dense_{i}" for i in range(9)])
    assert schedule_from_dict(document(), graph).graph is graph


def test_under_other_costs_nothing_is_proved():
    schedule = recomputing(lower_bound=13.0, status="optimal")
    assert schedule_from_dict(document(schedule), chain(4)).status == "optimal"
    other = chain(4).with_costs(chain(4).costs * 3, "ns")
    loaded = schedule_from_dict(document(schedule), other)
    assert (loaded.status, loaded.lower_bound, loaded.cost) == ("feasible", 0.0, 39.0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"peak_bytes": 1}, "peak_bytes is claimed"),
        ({"cost": 12.0}, "cost is claimed"),
        ({"budget_bytes": 3}, "above its budget"),
        ({"lower_bound": 13.5}, "lower_bound is above its cost"),
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


CONTENTS = [
    *(b"", b"{", b"\xff\xfe", b"null", b"[]", b"3", b'"text"', b"{}", b"[" * 100_000, b'{"a": ' * 100_000),
    *(b"NaN", b"1e999", b"9" * 5000, b'{"format": "checkmate-result/1"}', b'{"format": 1, "format": 2}', b"\x00" * 64),
    *(b'{"format": "checkmate-result/1", "graph": {"nodes": 1e999}}', b"import os", b"\x80\x04K\x01."),
]


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
    monkeypatch.setattr("checkmate_tf.schedule_file.MAX_FILE_BYTES", 10)
    recomputing().save(tmp_path / "large.json")
    with pytest.raises(PlanError, match="more than 10 bytes"):
        Schedule.load(tmp_path / "large.json", chain(4))


ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.integers(), st.sampled_from([10**400, -(10**30), 2**63, 1e300]),
    st.floats(allow_nan=False), st.text(max_size=5), st.sampled_from(["compute", "deallocate", "\ud800"]),
    st.lists(st.integers(-1, 10), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)  # fmt: skip


@st.composite
def damaged(draw, whole):
    """The document with up to three places replaced, removed or repeated."""
    data = copy.deepcopy(whole)
    for _ in range(draw(st.integers(1, 3))):
        place = data
        while True:
            keys = sorted(place) if isinstance(place, dict) else range(len(place))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(place[key], (dict, list)) and place[key] and draw(st.integers(0, 3)):
                place = place[key]
                continue
            action = draw(st.sampled_from(["replace", "remove", "repeat"]))
            if action == "replace" or (action == "repeat" and isinstance(place, dict)):
                place[key] = draw(ODD)
            elif action == "remove":
                del place[key]
            else:
                place.insert(key, copy.deepcopy(place[key]))
            break
    return data


def check_loads_or_refuses(load):
    """Whatever is loaded is a schedule of the graph."""
    try:
        schedule = load()
    except CheckmateError as error:
        assert str(error)
    else:
        found = evaluate(chain(4), schedule.plan)
        assert found.peak_bytes == schedule.peak_bytes <= (schedule.budget_bytes or BUDGET)
        assert 0 <= schedule.gap <= 1 and schedule.lower_bound <= schedule.cost and schedule.seconds >= 0


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


# -- the cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder():
    """That of the test's schedules: `conftest` gives each test one."""
    return schedule_cache.schedule_folder()


def ask(graph=None, budget=BUDGET, strategy="checkmate", options=OPTIONS):
    return lookup(graph or chain(4), budget, strategy, options)


def keep(schedule=None, budget=BUDGET, strategy="checkmate", options=OPTIONS):
    assert store(schedule or recomputing(), budget, strategy, options)
    return schedule_cache.schedule_folder() / f"{cache_key(chain(4), budget, strategy, options)}.json"


def test_a_stored_schedule_comes_back(folder, caplog):
    assert ask() is None
    path = keep()
    found = ask()
    assert found.sequence.tolist() == recomputing().sequence.tolist()
    assert (found.origin, found.strategy, found.solver, found.seconds) == ("the cache", "by hand", "pencil", 2.5)
    assert os.listdir(folder) == [path.name] and not caplog.records
    text = path.read_text()
    assert '["compute", 8]' in text and '"time_limit": 10.0' in text and len(text.splitlines()) > 20


@pytest.mark.feature("Schedules that last", "solved once: the cache")
def test_every_part_of_the_question_counts(monkeypatch):
    keep()
    assert ask() is not None
    graph = chain(4)
    assert ask(replace(graph, sizes=graph.sizes * 2)) is None
    assert ask(graph.with_costs(graph.costs * 2, "us")) is None
    assert ask(budget=BUDGET - 1) is None
    assert ask(strategy="milp") is None
    for field, value in {"seed": 1, "solver": "highs", "memory_limit": 10**9, "settle": True}.items():
        assert ask(options=replace(OPTIONS, **{field: value})) is None, field
    monkeypatch.setattr(checkmate_tf, "__version__", "0.0.1")
    assert ask() is None


@pytest.mark.parametrize(
    ("gap", "time_limit", "used"),
    [
        (0.01, 10.0, True),  # as it was asked
        (0.01, 5.0, True),  # less time
        (0.01, 20.0, False),  # more time, and the gap was not reached
        (0.1, 20.0, True),  # the gap that was reached, 1/13, is enough
        (0.001, 10.0, True),  # a smaller gap, but it was not reached either in all that time
        (0.001, 10.05, True),  # all that time, but for what the cache takes
        (0.001, 10.2, False),
        (0.05, float("inf"), False),
    ],
)
def test_when_a_schedule_is_used_again(gap, time_limit, used):
    keep()
    assert (ask(options=SolveOptions(time_limit=time_limit, gap=gap)) is not None) == used


def test_a_proven_optimum_is_always_used():
    keep(recomputing(lower_bound=13.0, status="optimal"))
    assert ask(options=SolveOptions(time_limit=float("inf"), gap=0.0)).status == "optimal"


def forge(path: Path, change) -> None:
    """Change an entry as somebody would who knows the format."""
    data = json.loads(path.read_text())
    del data["sha256"]
    data = change(data) or data
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"sha256": hashlib.sha256(canonical.encode()).hexdigest(), **data}))


@pytest.mark.feature("Schedules that last", "damaged or forged entries are ignored, with a warning")
@pytest.mark.parametrize("content", CONTENTS, ids=range(len(CONTENTS)))
def test_a_corrupt_entry_is_ignored(content, caplog):
    path = keep()
    path.write_bytes(content)
    assert ask() is None
    assert "is not used" in caplog.text
    keep()
    assert ask() is not None


@pytest.mark.feature("Schedules that last", "damaged or forged entries are ignored, with a warning")
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_an_entry_that_was_cut_off_is_ignored(share, caplog):
    path = keep()
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert ask() is None
    assert "is not used" in caplog.text


@pytest.mark.parametrize(("old", "new"), [('"lower_bound": 12.0', '"lower_bound": 12.9'), ("pencil", "pencjl")])
def test_an_entry_that_was_changed_is_ignored(old, new, caplog):
    path = keep()
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    assert ask() is None
    assert "sha256" in caplog.text


@pytest.mark.feature("Schedules that last", "damaged or forged entries are ignored, with a warning")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["request"].update(time_limit="long"), "time_limit is 'long'"),
        (lambda d: d["request"].update(time_limit=10**400), "time_limit is a number of more than"),
        (lambda d: d["request"].update(time_limit=-1), "time_limit is -1"),
        (lambda d: d["request"].update(key="0" * 64), "another question"),
        (lambda d: d.update(request=3), "another question"),
        (lambda d: d.update(plan=d["plan"][:-1] + [["compute", 9]]), "with a node i from 0 to 8"),
        (lambda d: d.update(plan=d["plan"][1:]), "not in memory"),
        (lambda d: d.update(lower_bound=13.5), "above its cost"),
        (lambda d: d["graph"].update(sizes="0" * 32), "sizes differs"),
    ],
)
def test_a_forged_entry_is_ignored(change, reason, caplog):
    forge(keep(), change)
    assert ask() is None
    assert reason in caplog.text


def test_what_is_read_must_fit_the_budget(caplog):
    least = recomputing().peak_bytes
    path = keep(budget=least)
    assert ask(budget=least) is not None
    wider = keep(recomputing(keep_all(chain(4)).graph), budget=least - 1)
    assert path != wider
    assert ask(budget=least - 1) is None
    assert "above the budget" in caplog.text


@given(st.data())
def test_no_entry_makes_looking_up_fail(data):
    path = keep()
    whole = json.loads(path.read_text())
    forge(path, lambda d: data.draw(damaged(whole)))
    found = ask()
    if found is not None:
        check_loads_or_refuses(lambda: found)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_writer import chain
from checkmate_tf import schedule_cache
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions
assert "tensorflow" not in sys.modules
folder = Path(sys.argv[2])
schedule_cache.schedule_folder = lambda: folder
graph = chain(4)
print("ready", flush=True)
for k in range(40):
    assert schedule_cache.store(keep_all(graph), 100, "checkmate", SolveOptions(time_limit=10.0))
    assert schedule_cache.store(keep_all(graph), 200 + k, "checkmate", SolveOptions(time_limit=10.0))
"""


@pytest.mark.feature("Schedules that last", "two processes write at once")
def test_two_processes_write_at_once(folder, caplog, tmp_path, monkeypatch):
    (tmp_path / "test_writer.py").write_text("from graphs import chain\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    command = [sys.executable, "-c", WRITER, str(tmp_path), str(folder)]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    found = 0
    while any(writer.poll() is None for writer in writers):
        found += ask() is not None
    assert [writer.wait() for writer in writers] == [0, 0]
    assert ask() is not None and not caplog.records  # whatever was read, was whole
    assert all(ask(budget=200 + k) is not None for k in range(40))
    assert len(os.listdir(folder)) == 41


@pytest.mark.feature("Schedules that last", "the cache is bounded")
def test_what_was_used_longest_ago_goes_first(folder, monkeypatch):
    monkeypatch.setattr(schedule_cache, "MAX_ENTRIES", 3)
    for k in range(3):
        os.utime(keep(budget=BUDGET + k), (1000 + k, 1000 + k))
    assert ask(budget=BUDGET) is not None  # used now
    keep(budget=BUDGET + 3)
    assert [ask(budget=BUDGET + k) is not None for k in range(4)] == [True, False, True, True]


@pytest.mark.feature("Schedules that last", "the cache is bounded")
def test_the_cache_is_bounded_in_bytes(folder, monkeypatch):
    size = keep().stat().st_size
    (folder / "notes.txt").write_text("mine")
    monkeypatch.setattr(schedule_cache, "MAX_BYTES", int(2.5 * size))
    for k in range(1, 5):
        path = keep(budget=BUDGET + k)
        os.utime(path, (1000 + k, 1000 + k))
    kept = [ask(budget=BUDGET + k) is not None for k in range(5)]
    assert sum(kept) == 2 and kept[0]
    assert (folder / "notes.txt").exists()
    monkeypatch.setattr(schedule_cache, "MAX_ENTRY_BYTES", size // 2)
    assert not store(recomputing(), 300, "checkmate", OPTIONS)


def test_what_killed_processes_left_is_removed(folder):
    folder.mkdir(parents=True)
    old, new = folder / f".{'a' * 50}.123.part", folder / f".{'b' * 50}.456.part"
    for path in (old, new):
        path.write_text("{")
    os.utime(old, (1000, 1000))
    keep()
    assert not old.exists() and new.exists()


def test_a_folder_that_cannot_be_made_is_warned_of_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(schedule_cache, "schedule_folder", lambda: tmp_path / "file" / "schedules")
    for _ in range(2):
        assert not store(recomputing(), BUDGET, "checkmate", OPTIONS)
        assert ask() is None
    assert caplog.text.count("schedules are not kept in") == 1


def fails_with(number):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.feature("Faults", "disk full, cache read-only")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["os.replace", "pathlib.Path.write_text", "pathlib.Path.mkdir"])
def test_a_full_or_read_only_disk_leaves_nothing_behind(folder, monkeypatch, caplog, number, call):
    if "mkdir" not in call:
        folder.mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(call, fails_with(number))
        assert not store(recomputing(), BUDGET, "checkmate", OPTIONS)
        assert not store(recomputing(), BUDGET, "checkmate", OPTIONS)
    assert os.strerror(number) in caplog.text and caplog.text.count("not kept") == 1
    assert not folder.exists() or not os.listdir(folder)


def test_the_folder_is_that_of_measured_times(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("CHECKMATE_TF_CACHE", str(tmp_path))
    assert schedule_cache.schedule_folder() == tmp_path / "schedules"
    monkeypatch.setenv("CHECKMATE_TF_CACHE", "")
    assert schedule_cache.schedule_folder() is None
    assert not store(recomputing(), BUDGET, "checkmate", OPTIONS) and ask() is None


# -- planning ---------------------------------------------------------------------------------------------------------

W = tf.Variable(tf.ones((64, 64)))
SPEC = tf.TensorSpec([None, 64])
QUICK = fit.PlanOptions(parse_budget(0.7), costs="flops", gap=1.0, time_limit=5, verify=False)


def step(x):
    with tf.GradientTape() as tape:
        y = x
        for _ in range(6):
            y = tf.tanh(y @ W)
        loss = tf.reduce_sum(y)
    return loss, tape.gradient(loss, W)


def plan(options=QUICK, batch_size=1024):
    return planner.plan_step(step, SPEC, batch_size, options, "step")


@pytest.fixture
def solves(monkeypatch):
    """The budgets that were solved for."""
    asked, real = [], fit.solve

    def solve(graph, target, *arguments):
        asked.append(target)
        return real(graph, target, *arguments)

    monkeypatch.setattr(fit, "solve", solve)
    return asked


def measured(monkeypatch, *extra):
    """Let the device measure what is predicted and so many bytes more; the last goes on."""
    left = list(extra)

    def measure(job, plan, limit_bytes):
        return evaluate(job.graph, plan).peak_bytes + (left.pop(0) if len(left) > 1 else left[0])

    monkeypatch.setattr(fit, "_measure", measure)


@pytest.mark.feature("Schedules that last", "solved once: the cache")
def test_the_second_plan_is_not_solved_for(solves):
    first, second = plan(), plan()
    assert len(solves) == 1
    assert second.schedule.sequence.tolist() == first.schedule.sequence.tolist()
    assert (first.schedule.origin, second.schedule.origin) == ("", "the cache")
    assert second.report.to_dict()["origin"] == "the cache" and "; from the cache" in str(second.report)
    assert second.report.seconds["solved before"] > 0 and "solved before" not in first.report.seconds
    assert not plan(replace(QUICK, seed=1)).schedule.origin and len(solves) == 2


def test_without_the_cache_nothing_is_read_or_kept(solves, folder):
    for _ in range(2):
        assert not plan(replace(QUICK, cache=False)).schedule.origin
    assert len(solves) == 2 and not folder.exists()


def test_time_from_the_cache_is_part_of_the_time_limit(monkeypatch):
    graph, asked = chain(4), []
    monkeypatch.setattr(fit, "solve", lambda *given: asked.append(given[-1].time_limit) or recomputing())
    times = iter(range(0, 100, 2))  # each look at the clock is 2 s after the last: each solve takes 2 s
    monkeypatch.setattr(fit, "time", SimpleNamespace(perf_counter=lambda: float(next(times))))
    options = fit.PlanOptions(parse_budget(1.0), time_limit=10.0)
    seconds = {}
    fit._solve(graph, 100, options, seconds)
    assert asked == [10.0] and seconds == {}
    fit._solve(graph, 100, options, seconds)
    assert asked == [10.0] and seconds == {"solved before": 2.0}
    fit._solve(graph, 101, options, seconds)
    assert asked == [10.0, 8.0]


@pytest.fixture
def ctrl_c():
    """Python's own handler: a process that was started in the background ignores the signal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.feature("Faults", "Ctrl-C while solving")
@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_answer_is_used_and_not_kept(monkeypatch, folder):
    def interrupted(graph, target, *arguments):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return real(graph, target, *arguments)

    before, real = signal.getsignal(signal.SIGINT), fit.solve
    monkeypatch.setattr(fit, "solve", interrupted)
    plan()
    assert not folder.exists() and signal.getsignal(signal.SIGINT) is before


@pytest.mark.feature("Faults", "Ctrl-C while solving")
@pytest.mark.parametrize("error", [KeyboardInterrupt, InfeasibleBudgetError("none", 1, 2, proven=True)])
def test_what_is_not_solved_is_not_kept(monkeypatch, folder, error):
    def fail(*arguments):
        raise error

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(fit, "solve", fail)
    with pytest.raises((KeyboardInterrupt, InfeasibleBudgetError)):
        fit._solve(chain(4), 100, QUICK, {})
    assert not folder.exists() and signal.getsignal(signal.SIGINT) is before


@pytest.mark.feature("Faults", "disk full, cache read-only")
def test_a_disk_that_is_full_is_no_reason_to_fail(monkeypatch, caplog, solves):
    monkeypatch.setattr("os.replace", fails_with(errno.ENOSPC))
    for _ in range(2):
        assert plan().report.recomputations > 0
    assert len(solves) == 2 and caplog.text.count("not kept") == 1


@pytest.fixture
def saved(tmp_path):
    """A schedule of the step in a file, and nothing in the cache."""
    path = tmp_path / "schedule.json"
    plan(replace(QUICK, cache=False)).schedule.save(path)
    return path


def test_a_saved_schedule_is_used_as_it_is(saved, solves):
    found = plan(replace(QUICK, schedule=saved))
    assert not solves
    assert found.schedule.origin == str(saved) and found.report.recomputations > 0
    assert f"; from {saved}" in str(found.report) and found.report.to_dict()["origin"] == str(saved)


def test_a_saved_schedule_is_of_the_first_structure_of_data(saved, solves):
    first = plan(replace(QUICK, schedule=saved))
    options = replace(QUICK, schedule=saved, budget=parse_budget(0.8))
    later = planner.plan_step(step, SPEC, 512, options, "step", [first])
    assert len(solves) == 1 and not later.schedule.origin


@pytest.mark.feature("Schedules that last", "a schedule of another model", refused="the error names what differs")
def test_a_saved_schedule_that_does_not_match_is_refused(saved, tmp_path):
    with pytest.raises(PlanError, match="sizes differs"):
        plan(replace(QUICK, schedule=saved), batch_size=512)
    with pytest.raises(PlanError, match="over the budget of.*raise the budget"):
        plan(replace(QUICK, schedule=saved, budget=parse_budget(0.3)))
    with pytest.raises(PlanError, match="cannot be read"):
        plan(replace(QUICK, schedule=tmp_path / "missing.json"))


def test_a_saved_schedule_is_measured(saved, monkeypatch, solves):
    options = replace(QUICK, schedule=saved, verify=True, budget=parse_budget(0.9))
    measured(monkeypatch, 0)
    found = plan(options)
    assert [a.strict for a in found.report.attempts] == [False]
    assert found.report.measured_peak_bytes == found.schedule.peak_bytes
    measured(monkeypatch, 10**9, 0)  # too much, but for the strict order
    found = plan(options)
    assert [a.strict for a in found.report.attempts] == [False, True] and found.limit_bytes == 0
    assert not solves


def test_a_saved_schedule_over_the_budget_is_planned_anew(tmp_path, monkeypatch, solves, caplog):
    path, options = tmp_path / "schedule.json", replace(QUICK, budget=parse_budget(0.9), time_limit=2)
    plan(options).schedule.save(path)
    asked = len(solves)
    measured(monkeypatch, 10**9, 10**9, 0)
    found = plan(replace(options, schedule=path, verify=True))
    assert len(solves) > asked and "planning anew" in caplog.text
    assert len(found.report.attempts) > 2 and found.schedule.origin != str(path)
    assert found.report.measured_peak_bytes <= found.report.budget_bytes


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.feature("Schedules that last", "save and load")
@pytest.mark.usefixtures("fresh_keras")
def test_models_train_alike_with_cached_and_loaded_schedules(no_grappler, tmp_path, solves):
    plain, cached, loaded = (make(DENSE) for _ in range(3))
    solved = compile_quickly(make(DENSE), DENSE).checkmate
    assert solves and solved.recomputations > 0
    solved.schedule.save(tmp_path / "dense.json")
    solves.clear()
    assert compile_quickly(cached, DENSE).checkmate.schedule.origin == "the cache"
    compile_quickly(loaded, DENSE, cache=False, schedule=tmp_path / "dense.json")
    assert loaded.checkmate.schedule.origin == str(tmp_path / "dense.json") and not solves
    history = train(plain, DENSE)
    for model in (cached, loaded):
        assert train(model, DENSE) == history
        assert_same_state(plain, model)


@pytest.mark.usefixtures("fresh_keras")
def test_a_refused_schedule_leaves_the_model_as_it_was(tmp_path):
    recomputing().save(tmp_path / "chain.json")
    model = make(DENSE)
    with pytest.raises(PlanError, match="chain.json is not for graph 'dense': nodes is 9, not"):
        compile_quickly(model, DENSE, schedule=tmp_path / "chain.json")
    loss = "sparse_categorical_crossentropy"
    with pytest.raises(PlanError, match="chain.json is not for graph 'dense'"):
        checkmate_tf.gradient_function(
            model, loss, 0.8, batch_size=4, costs="flops", progress=False, schedule=tmp_path / "chain.json"
        )
    assert not hasattr(model, "checkmate") and "train_step" not in vars(model)
