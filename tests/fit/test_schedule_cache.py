"""Schedules in the cache: what is read is checked, and never the reason for a failure."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import chain
from hypothesis import given
from hypothesis import strategies as st
from schedules import (
    BUDGET,
    CONTENTS,
    OPTIONS,
    check_loads_or_refuses,
    damaged,
    fails_with,
    recomputing,
)

from checkmate_tf import version
from checkmate_tf.fit import cache
from checkmate_tf.fit.cache import cache_key, lookup, store
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import SolveOptions


def ask(graph=None, budget=BUDGET, strategy="checkmate", options=OPTIONS):
    return lookup(graph or chain(4), budget, strategy, options)


def keep(schedule=None, budget=BUDGET, strategy="checkmate", options=OPTIONS):
    assert store(schedule or recomputing(), budget, strategy, options)
    return cache.schedule_folder() / f"{cache_key(chain(4), budget, strategy, options)}.json"


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
    monkeypatch.setattr(version, "__version__", "0.0.1")
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


def test_a_seed_may_be_a_number_of_numpy():
    keep(options=replace(OPTIONS, seed=np.int64(3)))
    assert ask(options=replace(OPTIONS, seed=3)) is not None


def test_a_schedule_for_a_larger_gap_is_not_the_best_of_its_time():
    """Solving ended as soon as that gap was reached."""
    keep(options=replace(OPTIONS, gap=0.1))
    assert ask(options=replace(OPTIONS, gap=0.08)) is not None
    assert ask(options=replace(OPTIONS, gap=0.05, time_limit=1.0)) is None


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
        (lambda d: d["request"].update(gap=None), "gap is null"),
        (lambda d: d["request"].update(key="0" * 64), "another question"),
        (lambda d: d.update(request=3), "another question"),
        (lambda d: d.update(plan=d["plan"][:-1] + [["compute", 9]]), "with a node i from 0 to 8"),
        (lambda d: d.update(plan=d["plan"][1:]), "not in memory"),
        (lambda d: d.update(lower_bound=13.5), "claimed to cost less"),
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
from checkmate_tf.fit import cache
from checkmate_tf.schedule import Schedule, keep_all
from checkmate_tf.strategies import SolveOptions
assert "tensorflow" not in sys.modules
folder = Path(sys.argv[2])
cache.schedule_folder = lambda: folder
graph = chain(4)
print("ready", flush=True)
for k in range(40):
    assert cache.store(keep_all(graph), 100, "checkmate", SolveOptions(time_limit=10.0))
    assert cache.store(keep_all(graph), 200 + k, "checkmate", SolveOptions(time_limit=10.0))
"""


@pytest.mark.feature("Schedules that last", "two processes write at once")
def test_two_processes_write_at_once(folder, caplog, tmp_path, monkeypatch):
    (tmp_path / "test_writer.py").write_text("from graphs import chain\n")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
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
    monkeypatch.setattr(cache, "MAX_ENTRIES", 3)
    for k in range(3):
        os.utime(keep(budget=BUDGET + k), (1000 + k, 1000 + k))
    assert ask(budget=BUDGET) is not None  # used now
    keep(budget=BUDGET + 3)
    assert [ask(budget=BUDGET + k) is not None for k in range(4)] == [True, False, True, True]


@pytest.mark.feature("Schedules that last", "the cache is bounded")
def test_the_cache_is_bounded_in_bytes(folder, monkeypatch):
    size = keep().stat().st_size
    (folder / "notes.txt").write_text("mine")
    monkeypatch.setattr(cache, "MAX_BYTES", int(2.5 * size))
    for k in range(1, 5):
        path = keep(budget=BUDGET + k)
        os.utime(path, (1000 + k, 1000 + k))
    kept = [ask(budget=BUDGET + k) is not None for k in range(5)]
    assert sum(kept) == 2 and kept[0]
    assert (folder / "notes.txt").exists()
    monkeypatch.setattr(cache, "MAX_ENTRY_BYTES", size // 2)
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
    monkeypatch.setattr(cache, "schedule_folder", lambda: tmp_path / "file" / "schedules")
    for _ in range(2):
        assert not store(recomputing(), BUDGET, "checkmate", OPTIONS)
        assert ask() is None
    assert caplog.text.count("schedules are not kept in") == 1


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
    assert cache.schedule_folder() == tmp_path / "schedules"
    monkeypatch.setenv("CHECKMATE_TF_CACHE", "")
    assert cache.schedule_folder() is None
    assert not store(recomputing(), BUDGET, "checkmate", OPTIONS) and ask() is None
