"""Children under a hard limit of the device's allocator: they are started, listened to and ended here.

`in_child` has what the child itself needs. The demo's runs and the trials of batches are such children.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..machine import child_environment
from .in_child import OUT_OF_MEMORY

__all__ = ["MARGIN", "Outcome", "Tell", "end_children", "run_child"]

MARGIN = 0.10
"""A hard limit is this far above the budget of what trains under it: an allocator cannot use its last bytes, since free
memory lies in pieces between tensors."""

Tell = Callable[[str, float, float, str], None]
"""Hears what a child is doing: (stage, done, total, text)."""

_running: set[subprocess.Popen[str]] = set()

_SIGNS_OF_OOM = ("OOM when allocating", "ran out of memory", "out of memory", "bad_alloc", "ResourceExhausted")


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes
    ----------
    limit_bytes : int or None
        The allocator's.
    status : int
        The child's exit status; negative for a signal.
    result : dict or None
        What it measured, if it finished.
    failure : str
        Why it did not, in words; empty if it did.
    out_of_memory : bool
    planned : dict
        What `compile` reported, if the run got that far; empty for a plain run.
    failed : dict
        The child's own last words, if it had any: "failed", the error's class, its "text", and its figures.
    late : bool
        Whether it was ended because its time was up.
    """

    limit_bytes: int | None
    status: int
    result: dict[str, Any] | None
    failure: str
    out_of_memory: bool
    planned: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, Any] = field(default_factory=dict)
    late: bool = False

    @property
    def trained(self) -> bool:
        return self.result is not None


def run_child(
    module: str,
    argument: Mapping[str, Any],
    limit_mib: int | None,
    tell: Tell,
    log: Path | None = None,
    *,
    gpu: bool | int = False,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Run `python -m module argument` to its end.

    Parameters
    ----------
    module : str
        One that ends in `in_child.serve`.
    argument : dict
        What it is given, as JSON.
    limit_mib : int or None
        The hard limit of the CPU's allocator in MiB (TF_CPU_BFC_MEM_LIMIT_IN_MB).
    tell : callable (stage, done, total, text)
        Hears what the child is doing.
    log : Path, optional
        Where to keep the child's standard error.
    gpu : bool or int
        Let the child see the GPUs, or only the one of that number. `limit_mib` should be None then: the child limits
        its GPU itself.
    timeout : float, optional
        Seconds after which the child is ended; that is a failure.
    environment : mapping, optional
        Variables that the child has besides this process's.

    Raises
    ------
    KeyboardInterrupt
        After the child was ended.
    """
    variables = child_environment(**{**(environment or {}), "TF_CPU_ALLOCATOR_USE_BFC": "true"})
    if gpu is not True:
        variables["CUDA_VISIBLE_DEVICES"] = "-1" if gpu is False else _visible(gpu)
    variables["TF_CPP_MIN_LOG_LEVEL"] = "0"  # the allocator's last words tell why a run crashed; they are not shown
    variables.pop("TF_CPU_BFC_MEM_LIMIT_IN_MB", None)
    if limit_mib is not None:
        variables["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(limit_mib)
    result: dict[str, Any] | None = None
    failed: dict[str, Any] = {}
    planned: dict[str, Any] = {}
    late = threading.Event()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(dict(argument))],
            stdin=subprocess.PIPE,  # closes when this process ends, however it ends; then the child ends too
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=variables,
            start_new_session=True,  # Ctrl-C comes here alone
        )
        clock = threading.Timer(timeout or 0.0, _expire, (process, late))
        _running.add(process)
        try:
            if timeout is not None:
                clock.start()
            assert process.stdout is not None
            for line in process.stdout:
                message = _message(line)
                if "stage" in message:
                    tell(message["stage"], message["done"], message["total"], message["text"])
                planned = message.get("planned", planned)
                result = message.get("result", result)
                failed = message if "failed" in message else failed
            status = process.wait()
        finally:
            clock.cancel()
            _end(process)
            _running.discard(process)
        errors.seek(0)
        complaint = errors.read()
    limit = None if limit_mib is None else limit_mib * 2**20
    if log is not None:
        log.write_text(complaint, encoding="utf-8")
    if status == 0 and result is not None:
        return Outcome(limit, status, result, "", False, planned)
    failure, out_of_memory = _explain(status, failed, complaint)
    if late.is_set():
        failure, out_of_memory = f"not done after {timeout:.0f} s", False
    return Outcome(limit, status, None, failure, out_of_memory, planned, failed, late.is_set())


def end_children() -> None:
    """End all children that other threads of this process have started, and wait for."""
    for process in list(_running):
        process.kill()


def _visible(number: int) -> str:
    """The name of a GPU to CUDA: its number, or what the user calls the one of that number (a MIG slice, maybe)."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return names.split(",")[number] if names else str(number)


def _expire(process: subprocess.Popen[str], late: threading.Event) -> None:
    """Time is up: the pipe closes, and whoever reads it goes on."""
    late.set()
    process.kill()


def _message(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:
        return {}  # a library's own output
    return message if isinstance(message, dict) else {}


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupt (so that the child ends its own solver), then terminate, then kill."""
    for number, patience in ((signal.SIGINT, 5.0), (signal.SIGTERM, 3.0), (signal.SIGKILL, None)):
        if process.poll() is not None:
            break
        process.send_signal(number)
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _explain(status: int, failed: dict[str, Any], complaint: str) -> tuple[str, bool]:
    """Why a child failed, from its last message, exit status and standard error."""
    if status == OUT_OF_MEMORY:
        return f"out of memory: {failed.get('failed')}: {failed.get('text')}", True
    if failed:
        return f"{failed['failed']}: {failed['text']}", False
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    signs = [line for line in lines if any(sign in line for sign in _SIGNS_OF_OOM)]
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
    if signs:
        last = signs[-1]
        at = min(last.find(sign) for sign in _SIGNS_OF_OOM if sign in last)
        return f"out of memory: crashed ({how}) after: {last[at : at + 200]}", True
    return f"crashed ({how}): {lines[-1][-300:] if lines else 'no message'}", False
