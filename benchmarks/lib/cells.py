"""Cells in child processes, which resume.

A cell is a request (a dict of plain values) and its answer; both are one JSON file in the folder of results, so a run
that was ended goes on where it was. A child process answers it: its memory is its own, and it is ended when it takes
too long. What failed is tried again by the next run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lib.provenance import MADE, cores_here, made_here

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["FAILED", "ChildError", "at_once", "in_child", "kept", "progress_bar", "read_cells", "run_cells"]

FAILED = "failed"
_running: set[subprocess.Popen[str]] = set()  # children
_MORE = ("time_limit", "limit", "rounds", "draws")  # of a request: an answer to one with more serves as well
_FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)  # as by want of memory here
_GRACE = 120.0  # seconds to start, read the graph and answer


def run_cells(
    script: str,
    output: Path,
    requests: Sequence[dict],
    seconds: Callable[[dict], float],
    again: bool = False,
    environment: Mapping[str, str] | None = None,
    ended: Callable[[ChildError], dict | None] | None = None,
    jobs: int = 1,
) -> list[dict]:
    """Answer every request that has no answer yet, with a progress bar.

    Parameters
    ----------
    script : str
        Its `--child REQUEST` answers.
    output : Path
        Folder of the cells.
    requests : sequence of dict
        Each with `cell`, the name of its file without `.json`, which also says what it is. The child is told the
        `folder` as well: paths in a request are names in there, so that results can be moved.
    seconds : callable
        After so many, beyond what starting takes, a request's child is ended.
    again : bool
        Run what has an answer, too.
    environment : mapping, optional
        Variables that the children have besides this process's.
    ended : callable, optional
        The answer of a child that ended without one, where its end is an answer; None where it is a failure.
    jobs : int
        How many run at a time: more than one where nothing is timed.

    Returns
    -------
    list of dict
        Request and answer of each; where it failed, `outcome` is "failed" and `reason` says why.
    """
    _end_with_children()
    with progress_bar() as progress, ThreadPoolExecutor(jobs) as pool:
        task = progress.add_task("", total=len(requests))

        def answered(request: dict) -> dict:
            progress.update(task, description=request["cell"])
            cell = _answered(script, output, request, seconds(request), again, environment or {}, ended)
            if cell.get("outcome") == FAILED:
                progress.console.print(f"{request['cell']}: {cell['reason']}", markup=False)
            progress.advance(task)
            return cell

        if jobs == 1:  # in this thread, so that Ctrl-C ends the child
            return [answered(request) for request in requests]
        try:
            return list(pool.map(answered, requests))
        except BaseException:  # Ctrl-C reaches this thread alone, and children have sessions of their own
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(_running):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            raise


def at_once(cores: int) -> int:
    """How many cells may run at a time of which each needs so many cores: at least one."""
    return max(1, cores_here() // cores)


def _answered(
    script: str,
    output: Path,
    request: dict,
    seconds: float,
    again: bool,
    environment: Mapping[str, str],
    ended: Callable[[ChildError], dict | None] | None,
) -> dict:
    path = output / f"{request['cell']}.json"
    cell = None if again else kept(path, request)
    if cell is not None:
        return cell
    begun = time.perf_counter()
    try:
        cell = request | in_child(script, {**request, "folder": str(output)}, seconds + _GRACE, environment)
    except ChildError as error:
        answer = ended(error) if ended else None
        cell = request | (answer or {"outcome": FAILED, "reason": str(error)})
        cell |= {"seconds": time.perf_counter() - begun, MADE: error.made}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(cell, indent=1) + "\n")
    part.replace(path)
    return cell


def kept(path: Path, request: dict) -> dict | None:
    """What an earlier run left that answers a request; None if nothing does.

    It did not fail, and it had at least as much time, and as many rounds and draws.
    """
    if not path.exists():
        return None
    cell: dict = json.loads(path.read_text(encoding="utf-8"))
    failed = cell.get("outcome") == FAILED or "failed" in cell
    less = any(cell.get(name, request[name]) < request[name] for name in _MORE if name in request)
    return None if failed or less else cell


class ChildError(RuntimeError):
    """A child process that ended without an answer; says why.

    Attributes
    ----------
    returncode : int or None
        Its exit status, negative if a signal ended it; None if it took too long and was ended here.
    stderr : str
        What it wrote to its standard error, empty if it was ended here.
    made : dict
        Where it ran: `made_here` of when it began.
    """

    def __init__(self, message: str, returncode: int | None, stderr: str, made: dict) -> None:
        super().__init__(message)
        self.returncode, self.stderr, self.made = returncode, stderr, made

    @property
    def crashed(self) -> bool:
        """Whether it ended by a fault of its own, and not because a person or the system ended it."""
        return self.returncode is not None and self.returncode < 0 and self.returncode not in _FROM_OUTSIDE


def in_child(script: str, request: dict, seconds: float | None, environment: Mapping[str, str] | None = None) -> dict:
    """What `script --child REQUEST` answers, and where that was (`made`).

    It and its own children are ended after so many seconds, if any.

    Raises
    ------
    ChildError
        If it does not answer.
    """
    command = [sys.executable, script, "--child", json.dumps(request)]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", **(environment or {})}
    made = made_here()  # its code is that of now, whatever is committed while it runs
    _end_with_children()
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    _running.add(child)
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise ChildError(f"no answer after {seconds:.0f} s", None, "", made) from None
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    finally:
        _running.discard(child)
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    if not lines:
        reason = f"exit {child.returncode}: {' '.join(err.strip().splitlines()[-2:])}"
        raise ChildError(reason, child.returncode, err, made)
    found: dict = json.loads(lines[-1].removeprefix("RESULT "))
    return found | {MADE: made}


def _end_with_children() -> None:
    """Let a SIGTERM end this process as Ctrl-C does, so that its children end, too: they have sessions of their own."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def progress_bar() -> Progress:
    """On the standard error: what is run, how many of how many, and for how long."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description:44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    return Progress(*columns, console=Console(stderr=True))


def read_cells(output: Path, prefix: str = "cell-") -> list[dict]:
    """All answers in the folder whose files begin so, by name."""
    return [json.loads(path.read_text()) for path in sorted(output.glob(f"{prefix}*.json"))]
