"""Measured times and workspaces on disk: a readable JSON file for each setting (see `setting.py`).

The folder is the user's cache (`platformdirs`), or what `CHECKMATE_TF_CACHE` names. An empty string there turns the
cache off. What is read is never trusted: entries that are not finite and of a plausible size are dropped. A cache that
cannot be read or written is a warning, not an error. Processes write by turns: each locks the folder meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..files.jsonfile import write_text

try:
    import fcntl
except ImportError:  # there are no such locks
    fcntl = None  # type: ignore[assignment]

__all__ = ["LEAST_US", "cache_folder", "cache_path", "load", "locked", "save"]

MAX_FILE_BYTES = 32 << 20
MAX_ENTRIES = 50_000
MAX_KEY = 4_000
#: A nanosecond: less than anything takes that is measured, and so much that a rate stays finite.
LEAST_US = 1e-3
_BOUNDS = {"us": (LEAST_US, 3.6e9), "bytes": (0, 2.0**45)}  # up to an hour, and to 32 TiB
_FORMAT = 3  # and of what is measured: of loops, 2 had the call from Python in it; 1 had signatures without constants
_LOCKED_OUT = 5.0  # seconds: nobody has the lock for longer but who was stopped
_log = logging.getLogger(__name__)


def cache_folder() -> Path | None:
    """Folder of the cache files; None if the cache is turned off."""
    override = os.environ.get("CHECKMATE_TF_CACHE")
    if override is not None:
        return Path(override) if override else None
    import platformdirs

    return Path(platformdirs.user_cache_dir("checkmate-tf"))


def cache_path(setting: str) -> Path | None:
    """File for a setting, e.g. device, versions and threads in words. Versions of other formats have other files."""
    folder, name = cache_folder(), re.sub(r"[^A-Za-z0-9.]+", "-", setting).strip("-")[:150]
    return None if folder is None else folder / f"{name}.v{_FORMAT}.json"


def load(path: Path | None, unit: str = "us") -> dict[str, float]:
    """Microseconds (or `"bytes"`) by signature; empty if there is no such file or it cannot be used."""
    if path is None:
        return {}
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != _FORMAT or not isinstance(content.get(unit), dict):
            raise ValueError("not a profile of this version")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _log.warning("the profile cache %s is not used: %s", path, error)
        return {}
    entries = {key: value for key, value in content[unit].items() if _plausible(key, value, unit)}
    if len(entries) < len(content[unit]):
        _log.warning("the profile cache %s holds %d bad entries", path, len(content[unit]) - len(entries))
    return dict(list(entries.items())[-MAX_ENTRIES:])


def save(path: Path | None, measured: Mapping[str, float], unit: str = "us") -> bool:
    """Add entries to a file, all or none; entries that another process wrote meanwhile stay.

    Returns
    -------
    bool
        False if the file could not be written (a warning says why).
    """
    fresh = {key: float(value) for key, value in measured.items() if _plausible(key, value, unit)}
    if path is None or not fresh:
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent):
            merged = load(path, unit)
            for key in fresh:
                merged.pop(key, None)  # rewritten entries move to the end, so that the oldest go first
            merged |= fresh
            content = {"format": _FORMAT, "unit": unit, unit: dict(list(merged.items())[-MAX_ENTRIES:])}
            write_text(json.dumps(content, indent=0), path)
    except OSError as error:  # OutputError is one
        _log.warning("the profile could not be cached in %s: %s", path, error)
        return False
    return True


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process or thread at a time in a folder.

    All that come go on where there are no locks, and after some seconds in any case: who has the lock may be stopped.
    """
    place, until = None, time.monotonic() + _LOCKED_OUT
    with suppress(OSError):
        place = os.open(folder, os.O_RDONLY)
    while place is not None and fcntl is not None:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                break
            time.sleep(0.01)
        except OSError:
            break
    try:
        yield
    finally:
        if place is not None:
            if fcntl is not None:
                with suppress(OSError):
                    fcntl.flock(place, fcntl.LOCK_UN)  # a process that was forked meanwhile may have it open
            os.close(place)


def _plausible(key: object, value: object, unit: str) -> bool:
    least, most = _BOUNDS[unit]
    return (
        isinstance(key, str)
        and len(key) <= MAX_KEY
        and isinstance(value, (int, float))
        and not isinstance(value, bool)
        and least <= value <= most
    )
