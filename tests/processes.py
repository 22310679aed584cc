"""Processes that tests wait for."""

from __future__ import annotations

import time
from pathlib import Path


def ends(pid: int, until: float) -> bool:
    """Whether a process has ended by a time of `time.monotonic`. One that nobody has asked how it ended has, too."""
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False
