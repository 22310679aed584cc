"""What a long profiling run has measured so far, on disk, so that the next run goes on from there.

A readable JSON file beside the profile:

    {"format": "checkmate-measurements/1", "setting": ..., "measured": [{"key": ..., "values": [...]}, ...]}

What is read is never trusted: a file of another setting (device, versions, model), or one that is damaged, is left out
and overwritten. Several processes may share a file: each adds its entries, and takes only its own away.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..costs.cache import locked
from ..errors import CostError, OutputError
from ..files.jsonfile import read_json, write_json
from .table import MOST_US

__all__ = ["Journal"]

_FORMAT = "checkmate-measurements/1"
_MAX_FILE_BYTES = 64 << 20
_SAVE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class Journal:
    """Lists of numbers by key, saved now and then, and when it is closed.

    Parameters
    ----------
    path : Path or None
        None: nothing is kept.
    setting : str
        What all measurements depend on, in words. Those of another setting are not read.

    Attributes
    ----------
    found : int
        Entries that an earlier run left.
    """

    def __init__(self, path: Path | None, setting: str) -> None:
        self._path, self._setting = path, setting
        self._known = self._read()
        self._saved = time.monotonic()
        self._dirty = False
        self.found = len(self._known)

    def get(self, key: str, length: int) -> list[float] | None:
        """The numbers of a key, if there are so many."""
        values = self._known.get(key)
        return values if values is not None and len(values) == length else None

    def put(self, key: str, values: list[float]) -> None:
        """Keep numbers, finite and not negative."""
        self._known[key] = values
        self._dirty = True
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write what is new, beside what others wrote. If that fails, there is a warning: the measurements go on."""
        if self._path is None or not self._dirty:
            return
        with locked(self._path.parent):
            self._write(self._path, self._read() | self._known)
        self._dirty, self._saved = False, time.monotonic()

    def remove(self) -> None:
        """Take the entries away, as all of them are in the profile; and the file, if there are no others in it."""
        self._dirty = False
        if self._path is None:
            return
        with locked(self._path.parent):
            others = {key: values for key, values in self._read().items() if key not in self._known}
            if others:
                self._write(self._path, others)
                return
            with suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _write(self, path: Path, entries: dict[str, list[float]]) -> None:
        rows = [{"key": key, "values": values} for key, values in entries.items()]
        try:
            write_json({"format": _FORMAT, "setting": self._setting, "unit": "us", "measured": rows}, path)
        except OutputError as error:
            _log.warning("what was measured so far is not kept: %s", error)

    def _read(self) -> dict[str, list[float]]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            data = read_json(self._path, "measurements", CostError, _MAX_FILE_BYTES)
        except CostError as error:
            _log.warning("an earlier run's measurements are not used: %s", error)
            return {}
        if not isinstance(data, dict) or data.get("format") != _FORMAT or data.get("setting") != self._setting:
            _log.warning("%s is of another setting or format, and is not used", self._path)
            return {}
        rows = data.get("measured")
        return {row["key"]: row["values"] for row in (rows if isinstance(rows, list) else []) if _sound(row)}


def _sound(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("key"), str)
        and isinstance(row.get("values"), list)
        and all(isinstance(v, (int, float)) and not isinstance(v, bool) and 0 <= v <= MOST_US for v in row["values"])
    )
