"""Turns at a device that several processes check at the same time: what is timed has it alone.

A process has it alone, or beside others, or leaves it: `Turns.take`. Locks on two files of a folder decide. Whoever
waits to have the device alone keeps the gate, so that nobody comes in before. A process that ends gives all back.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

__all__ = ["ALONE", "AWAY", "BESIDE", "STAGES", "Turns"]

ALONE, BESIDE, AWAY = "alone", "beside", "away"

STAGES = {"costs": ALONE, "kernels": BESIDE, "learn": BESIDE, "measure": BESIDE}
"""The turn that each stage of `compile` needs. In the others the device is not used."""

_LOCKS = {ALONE: fcntl.LOCK_EX, BESIDE: fcntl.LOCK_SH}


class Turns:
    """This process's turn at a device.

    Parameters
    ----------
    folder : str or None
        What all processes that share the device were given. None: nobody shares it, and nothing is waited for.
    """

    def __init__(self, folder: str | None):
        self._state, self._files = AWAY, list[int]()
        if folder is not None:
            self._files = [os.open(Path(folder) / name, os.O_RDWR | os.O_CREAT) for name in ("gate", "device")]

    def take(self, state: str) -> None:
        """Wait until the device can be had `ALONE`, or `BESIDE` others; or give it back (`AWAY`)."""
        if state == self._state:
            return
        self._state = state
        if not self._files:
            return
        gate, device = self._files
        fcntl.flock(device, fcntl.LOCK_UN)
        if state != AWAY:
            fcntl.flock(gate, _LOCKS[state])
            fcntl.flock(device, _LOCKS[state])
            fcntl.flock(gate, fcntl.LOCK_UN)

    def hear(self, stage: str, done: float, total: float, text: str) -> None:
        """Progress of `compile`: take the turn that its stage needs."""
        self.take(STAGES.get(stage, AWAY))

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            os.close(file)
        self._state, self._files = AWAY, []
