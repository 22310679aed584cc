"""Cells in child processes: what an earlier run left is used again only where it answers the same, or more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from processes import ends

from benchmarks.lib.cells import FAILED, ChildError, in_child, kept, run_cells
from benchmarks.lib.paths import ROOT

CHILD = """
import json, os, sys
request = json.loads(sys.argv[sys.argv.index("--child") + 1])
if "signal" in request:
    os.kill(os.getpid(), request["signal"])
print("RESULT " + json.dumps({"pid": os.getpid()}))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(CHILD, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("given", "again"), [
    ({"time_limit": 10.0}, False), ({"time_limit": 5.0}, False), ({"time_limit": 60.0}, True), ({"limit": 1}, False),
    ({"time_limit": 10.0, "rounds": 11}, True), ({"time_limit": 10.0, "rounds": 3}, False),
])  # fmt: skip
def test_an_answer_serves_where_no_more_is_asked_for(script, tmp_path, given, again):
    def run(**options):
        return run_cells(script, tmp_path, [{"cell": "cell-a", **options}], lambda _: 60.0)[0]["pid"]

    first = run(time_limit=10.0, rounds=5)
    assert (run(**given) != first) == again


def test_what_failed_is_no_answer(tmp_path):
    path = tmp_path / "cell.json"
    assert kept(path, {}) is None
    for cell, serves in (({"outcome": FAILED}, False), ({"failed": "crash"}, False), ({"outcome": "refused"}, True)):
        path.write_text(json.dumps(cell), encoding="utf-8")
        assert (kept(path, {}) == cell) == serves


@pytest.mark.parametrize(("number", "crashed"), [
    (signal.SIGSEGV, True), (signal.SIGABRT, True), (signal.SIGKILL, False), (signal.SIGTERM, False),
])  # fmt: skip
def test_who_is_ended_has_not_crashed(script, number, crashed):
    with pytest.raises(ChildError) as raised:
        in_child(script, {"signal": int(number)}, 60)
    assert raised.value.crashed == crashed


@pytest.mark.parametrize(
    "call", ["in_child({0!r}, {{}}, None)", "run_cells({0!r}, Path(), [{{'cell': 'a'}}], lambda _: 60.0, jobs=2)"]
)
def test_a_script_that_is_ended_ends_its_child(tmp_path, call):
    child = tmp_path / "child.py"
    child.write_text("import os, time\nprint(os.getpid(), file=open('pid', 'w'), flush=True)\ntime.sleep(60)\n")
    parent = "from pathlib import Path\nfrom benchmarks.lib.cells import in_child, run_cells\n" + call.format(
        str(child)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen([sys.executable, "-c", parent], cwd=tmp_path, env=environment)
    until = time.monotonic() + 30
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < until and running.poll() is None
        time.sleep(0.02)
    running.terminate()
    assert running.wait(30) == 128 + signal.SIGTERM
    assert ends(int((tmp_path / "pid").read_text()), until)
