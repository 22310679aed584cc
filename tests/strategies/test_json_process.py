"""The process of a solver ends with the process that started it, however that ends, and its folder goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import ends

PARENT = """
import time
from graphs import transformer
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies.programs.bound_process import BoundProcess

graph = transformer(12)
with BoundProcess(graph, int(0.6 * keep_all(graph).peak_bytes), 60.0) as process:
    print(process.pid, process.folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.long(only=("SIGTERM",))
@pytest.mark.feature("Faults", "parent of a solver killed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_solver_ends_with_its_parent(number):
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, str(Path(tests).parent)])}
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        until = time.monotonic() + 30
        while not Path(f"/proc/{pid}/task").exists() or len(os.listdir(f"/proc/{pid}/task")) < 2:  # noqa: PTH208
            assert time.monotonic() < until  # it begins to watch once it runs
            time.sleep(0.05)
        parent.send_signal(number)
    assert ends(int(pid), until)
    assert not Path(folder).exists()
