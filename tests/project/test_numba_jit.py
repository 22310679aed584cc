"""What is compiled is kept on disk for all processes: each finds its own there, whichever compiled what, and when."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from numba_compiled import compile_all

from checkmate_tf.numba_jit import beforehand, is_compiled
from checkmate_tf.numba_jit.beforehand import Calls, compile_once

MODULE = """
import numpy as np
from checkmate_tf.numba_jit import numba_jit

@numba_jit
def in_order(a):
    a.sort()
    return a

@numba_jit
def order(a):
    return np.argsort(a)
"""
CALL = """
import sys
import numpy as np
import functions

for name in sys.argv[1:]:
    print(name, getattr(functions, name)(np.array([3, 1, 2] * 20)).tolist())
"""
NUMBERS = """
from numba.core.bytecode import FunctionIdentity
from checkmate_tf.allocator.interleave import simulated
print(next(FunctionIdentity._unique_ids), simulated._cache._cache_file._data_name(1))
"""


def run(folder, code, *arguments):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root)])}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.long
def test_what_two_processes_compiled_is_right_in_a_third(tmp_path):
    """Numba's own names for the functions within `sort` and `argsort` are the same in the first two."""
    names = ("in_order", "order")
    (tmp_path / "functions.py").write_text(MODULE)
    apart = [run(tmp_path, CALL, name) for name in names]
    together = run(tmp_path, CALL, *names)
    assert together == "".join(apart)
    assert str(sorted([3, 1, 2] * 20)) in together


def test_processes_count_functions_and_name_files_apart(tmp_path):
    one, other = (run(tmp_path, NUMBERS).split() for _ in range(2))
    assert one[0] != other[0] and one[1] != other[1]


def test_without_compilation_functions_are_as_they_were_written(tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    (tmp_path / "functions.py").write_text(MODULE)
    assert str(sorted([3, 1, 2] * 20)) in run(tmp_path, CALL, "in_order")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_counts_from_another_number(tmp_path):
    found = run(tmp_path, NUMBERS.replace("print(", "import os\nos.fork() and os.wait()\nprint(")).split()
    assert len(found) == len(set(found)) == 4


COMPILED = """
import signal, threading
import numpy as np
from functions import in_order

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.2, lambda: signal.raise_signal(signal.SIGINT)).start()
try:
    in_order(np.arange(10))
except KeyboardInterrupt:
    print("interrupted", len(in_order.signatures))
print(in_order(np.array([2, 1])).tolist(), signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""


@pytest.mark.long
def test_compilation_comes_to_its_end(tmp_path):
    (tmp_path / "functions.py").write_text(MODULE)
    assert run(tmp_path, COMPILED).splitlines() == ["interrupted 1", "[1, 2] True"]


ASKED = """
import numpy as np
from checkmate_tf.numba_jit import is_compiled
from functions import in_order

before = is_compiled(in_order)
in_order(np.arange(3))
print(before, is_compiled(in_order))
"""


@pytest.mark.long
def test_what_another_process_compiled_is_compiled_until_the_source_changes(tmp_path):
    (tmp_path / "functions.py").write_text(MODULE)
    assert [run(tmp_path, ASKED).strip() for _ in range(2)] == ["False True", "True True"]
    (tmp_path / "functions.py").write_text(MODULE + "# changed")
    assert run(tmp_path, ASKED).strip() == "False True"


@pytest.mark.long
def test_a_damaged_index_is_written_anew(tmp_path):
    (tmp_path / "functions.py").write_text(MODULE)
    run(tmp_path, ASKED)
    [index] = (tmp_path / "__pycache__").glob("functions.in_order*.nbi")
    for damaged in (b"", index.read_bytes()[:20]):
        index.write_bytes(damaged)
        assert run(tmp_path, ASKED).strip() == "False True"


ALARMS = """
import signal, time
import numpy as np
from functions import in_order

class Alarm(Exception):
    pass

def ring(*_):
    raise Alarm

in_order(np.arange(10))
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins without
signal.signal(signal.SIGALRM, ring)
until, rounds, swallowed = time.monotonic() + 2, 0, 0
while time.monotonic() < until:
    rounds += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5)
        for _ in range(1000):
            in_order(np.arange(10))
    except (Alarm, SystemError):  # the latter where it came while Numba made the result
        pass
    try:
        signal.raise_signal(signal.SIGINT)
        swallowed += 1
    except KeyboardInterrupt:
        pass
print(swallowed / rounds)
"""


@pytest.mark.long
def test_whatever_other_signals_raise_ctrl_c_goes_on(tmp_path):
    (tmp_path / "functions.py").write_text(MODULE)
    after_an_alarm = float(run(tmp_path, ALARMS))  # of interrupts that come right after one between two statements
    assert after_an_alarm < 0.1


def test_all_that_is_compiled_is_compiled_beforehand():
    compile_all()
    modules = [
        m for name, m in sys.modules.items() if name.startswith(("checkmate_tf.strategies", "checkmate_tf.allocator"))
    ]
    functions = {f for m in modules for f in vars(m).values() if hasattr(f, "signatures")}
    assert len(functions) > 20
    assert {f.py_func.__name__ for f in functions if not is_compiled(f)} <= {"span"}  # compiled within its callers


PARTS = """
import os
from checkmate_tf.numba_jit import numba_jit

@numba_jit
def one(a):
    return a + 1

@numba_jit
def other(a):
    return a - 1

def _called(function):
    function(1)
    with open(os.environ["CALLED"], "a") as file:
        file.write(f"{os.getpid()}\\n")

def call_one():
    _called(one)

def call_other():
    _called(other)
"""


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A module with two functions and parts that call them, and a list of the processes that did."""
    (tmp_path / "functions_in_parts.py").write_text(PARTS)
    called = tmp_path / "called"
    called.touch()
    monkeypatch.setenv("CALLED", str(called))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(beforehand, "cores", lambda: 2)
    module = importlib.import_module("functions_in_parts")
    yield (
        Calls("sums", (module.one, module.other), (module.call_one, module.call_other)),
        lambda: [int(line) for line in called.read_text().split()],
    )
    del sys.modules["functions_in_parts"]


def test_what_is_not_compiled_yet_is_called_once_and_said(caplog, parts):
    calls, called = parts
    for _ in range(2):
        compile_once(calls)
    assert caplog.text.count("Numba compiles sums") == 1
    assert len({*called(), os.getpid()}) == 3 and len(called()) == 2  # each in a process of its own


@pytest.mark.parametrize("why", ["one core", "no process", "no Python", "an application", "no time", "no folder"])
def test_what_no_other_process_compiles_is_compiled_in_this_one(monkeypatch, parts, why):
    calls, called = parts
    if why == "one core":
        monkeypatch.setattr(beforehand, "cores", lambda: 1)
    elif why == "no process":
        monkeypatch.setattr(sys, "executable", "no such program")
    elif why == "no Python":
        monkeypatch.setattr(sys, "executable", None)
    elif why == "an application":
        monkeypatch.setattr(sys, "frozen", True, raising=False)
    elif why == "no time":
        monkeypatch.setattr(beforehand, "_MOST", 0.0)
    else:
        monkeypatch.setattr(beforehand, "is_kept", lambda _: False)
    compile_once(calls)
    assert called() == [os.getpid()] * 2


def test_a_part_that_fails_in_its_process_is_called_in_this_one(monkeypatch, parts):
    calls, called = parts
    monkeypatch.setattr(calls.parts[1], "__name__", "no_such_part")
    compile_once(calls)
    assert called()[-2:] == [os.getpid()] * 2 and len(called()) == 3


def test_ctrl_c_ends_the_processes(monkeypatch, parts):
    begin, begun = beforehand._begin, []

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(beforehand, "_begin", lambda part: begun.append(begin(part)) or begun[-1])
    monkeypatch.setattr(time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        compile_once(parts[0])
    assert [process.returncode for process in begun] == [-signal.SIGKILL] * 2
