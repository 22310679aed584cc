"""Runs a solver in a process of its own, which tells what it finds as lines of JSON.

If the process crashes, hangs or runs out of memory, only answers that had not come yet are lost. Data goes as an NPZ
file of plain arrays (no pickle), in a folder that both processes see. The folder is removed at the end.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..machine import child_environment

__all__ = ["JsonProcess", "begin", "limit_memory", "say"]

log = logging.getLogger(__name__)

_FOLDER = "checkmate_tf_"  # names of folders begin
_PARENT = "CHECKMATE_TF_SOLVER_OF"  # in the child's environment: the process that holds the other end of its input


class JsonProcess:
    """`python -m module FILE.npz`, running.

    Parameters
    ----------
    module : str
        Its name; what it prints with `say` becomes messages.
    arrays : mapping of str to array
        Written to the NPZ file.

    Attributes
    ----------
    folder : Path
        The folder of the NPZ file. Larger answers are written there, too.

    Notes
    -----
    Use as a context manager: the process is ended on exit. Nothing is raised if it does not start; there are no
    messages then.
    """

    def __init__(self, module: str, arrays: Mapping[str, Any]) -> None:
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[str] | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        try:
            self._temporary = tempfile.TemporaryDirectory(prefix=_FOLDER)
            self.folder = Path(self._temporary.name)
            path = self.folder / "problem.npz"
            np.savez(path, **arrays)
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(path)],
                stdin=subprocess.PIPE,  # nothing is written: it closes when this process ends
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=child_environment(OMP_NUM_THREADS="1", **{_PARENT: str(os.getpid())}),
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        except OSError as error:  # also: no space for the folder or the file
            log.warning("the solver process did not start (%s)", error)
            return
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # a solver's banner
            if isinstance(message, dict):
                self._messages.put(message)
        self._messages.put(None)

    @property
    def pid(self) -> int | None:
        """Of the process; None if it did not start."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether more messages may come."""
        return self._process is not None and (self._process.poll() is None or self._reader.is_alive())

    @property
    def ending(self) -> str:
        """How the process ended, in words. Empty if it ended as it should, or has not ended yet."""
        if self._process is None:
            return "the solver's process did not start"
        try:
            code = self._process.wait(0.0 if self._reader.is_alive() else 1.0)
        except subprocess.TimeoutExpired:
            return ""
        if not code:
            return ""
        return (
            f"the solver's process was ended by signal {-code}" if code < 0 else f"the solver's process failed ({code})"
        )

    def news(self, wait: float = 0.0) -> list[dict[str, Any]]:
        """Messages since the last call; waits up to `wait` seconds for one if there are none."""
        result: list[dict[str, Any] | None] = []
        if wait > 0 and self.running:
            try:
                result.append(self._messages.get(timeout=wait))
            except queue.Empty:
                return []
        while not self._messages.empty():
            result.append(self._messages.get())
        return [message for message in result if message is not None]

    def __enter__(self) -> JsonProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()
            self._process.wait()
            self._reader.join(1.0)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._temporary is not None:
            self._temporary.cleanup()


def say(**message: Any) -> None:
    """In the child: tell the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def begin(path: str) -> None:
    """In the child, first of all: keep standard output for `say`, and end when the parent does, however that ends.

    Libraries that write to standard output would break lines in two.

    Parameters
    ----------
    path : str
        The NPZ file. If the parent was killed its folder is removed.

    Notes
    -----
    A process that somebody else started goes on, and removes nothing.
    """
    sys.stdout.flush()
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if os.environ.pop(_PARENT, ""):
        threading.Thread(target=_end_with_parent, args=(Path(path).parent,), daemon=True).start()


def _end_with_parent(folder: Path) -> None:
    """Wait for the other end of standard input, which only the parent holds, to be closed."""
    while os.read(0, 1):
        pass
    if folder.name.startswith(_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def limit_memory(most_bytes: int) -> None:
    """In the child: let it have no more address space than this; 0 for no limit."""
    if most_bytes > 0:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
