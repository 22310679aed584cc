"""Schedules that were solved before, in the user's cache folder: solving takes seconds to minutes, reading does not.

Each is a readable JSON file in `schedules`, in the folder that measured times are kept in (`costs.cache`;
`CHECKMATE_TF_CACHE` moves it, or turns both off). It is named after the SHA-256 of all that the answer depends on: the
graph and its costs, the budget, the strategy, the seed and other options, and this package's version. Two options are
not part of the name, since a better answer serves as well: the gap and the time limit. A schedule is used again if its
proven gap is small enough. One with a larger gap is, too, if as much time as is given now brought no better one:
solving did not end because the gap that was asked for then was reached.

The file is a schedule's (`files/schedules.py`) with two more fields. "request" is what was asked. "sha256" is the hash
of the rest of the document in canonical form: it shows that a file was cut off or changed. Nothing read is trusted: the
one evaluator replays the plan, which must fit the budget. A file that cannot be used gives a warning, and the schedule
is solved for as if there were no file. A folder that cannot be written gives a warning, too.

At most 64 MiB are kept, and 500 schedules; those that were used longest ago go first. Files are replaced whole, so that
processes may read and write at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import version
from ..costs.cache import cache_folder
from ..errors import CheckmateError, PlanError, show_value
from ..evaluator import CLOSED_GAP
from ..files.jsonfile import read_json, to_json, write_text
from ..files.schedules import fingerprint, schedule_to_dict
from ..graph import Graph
from ..schedule import Schedule, schedule_from_dict
from ..strategies.options import SolveOptions

__all__ = ["cache_key", "lookup", "schedule_folder", "store"]

MAX_BYTES, MAX_ENTRIES = 64 << 20, 500
MAX_ENTRY_BYTES = 16 << 20

_ORIGIN = "the cache"
_NAME = re.compile(r"[0-9a-f]{64}\.json")
_PART = re.compile(r"\.[0-9a-f]{50}\.[0-9]+\.part")  # of `write_text`, if the process was killed in it
_STALE = 3600.0  # seconds after which nobody is writing such a file any more
_AS_LONG = 0.99  # share of the time given now that counts as all of it: reading and writing here takes a little, too
_MOST_SECONDS = 1e9

_log = logging.getLogger(__name__)
_warned: set[str] = set()  # folders that cannot be used: said once


def schedule_folder() -> Path | None:
    """Folder of the schedules; None if the cache is turned off."""
    folder = cache_folder()
    return None if folder is None else folder / "schedules"


def cache_key(graph: Graph, budget_bytes: int, strategy: str, options: SolveOptions) -> str:
    """SHA-256, in hexadecimal, of what a schedule depends on."""
    return _sha256({
        "version": version.__version__,
        "graph": fingerprint(graph),
        "budget_bytes": int(budget_bytes),
        "strategy": strategy,
        "seed": options.seed,
        "solver": options.solver,
        "memory_limit": options.memory_limit,
        "settle": options.settle,
        "order": options.order,
    })  # fmt: skip


def lookup(graph: Graph, budget_bytes: int, strategy: str, options: SolveOptions) -> Schedule | None:
    """The schedule that was stored for the same question, if it answers this one as well as solving would.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    strategy : str
    options : SolveOptions

    Returns
    -------
    Schedule or None
        Within the budget, by the evaluator; `origin` says that it is from the cache. None if there is none, it cannot
        be used (a warning says why), or it has a larger gap than asked and was found in less time, or for a larger gap.
    """
    folder = schedule_folder()
    if folder is None:
        return None
    key = cache_key(graph, budget_bytes, strategy, options)
    path = folder / f"{key}.json"
    try:
        if not path.exists():
            return None
        schedule, limit, gap = _read(path, key, graph)
        if schedule.peak_bytes > budget_bytes:
            raise PlanError(f"it needs {schedule.peak_bytes} bytes, above the budget of {budget_bytes}")
    except (CheckmateError, RecursionError) as error:
        _log.warning("the cached schedule %s is not used: %s", path, error)
        return None
    except OSError as error:
        _warn_once(folder, error)
        return None
    as_long = limit >= _AS_LONG * min(options.time_limit, _MOST_SECONDS)
    if schedule.gap > max(options.gap, CLOSED_GAP) and (not as_long or schedule.gap <= gap):
        text = "the cached schedule has a gap of %.2g, and was found in %.3g s for one of %.2g: solving anew"
        _log.info(text, schedule.gap, limit, gap)
        return None
    with suppress(OSError):
        os.utime(path)  # used now
    return schedule


def store(schedule: Schedule, budget_bytes: int, strategy: str, options: SolveOptions) -> bool:
    """Keep a schedule, and make room for it.

    Parameters
    ----------
    schedule : Schedule
        As the strategy made it.
    budget_bytes, strategy, options
        What was asked.

    Returns
    -------
    bool
        False if it could not be kept. For a folder that cannot be written there is one warning.
    """
    folder = schedule_folder()
    if folder is None:
        return False
    key = cache_key(schedule.graph, budget_bytes, strategy, options)
    limit, gap = min(float(options.time_limit), _MOST_SECONDS), min(float(options.gap), 1.0)
    request = {"key": key, "budget_bytes": int(budget_bytes), "gap": gap, "time_limit": limit}
    try:
        document = schedule_to_dict(schedule)
        plan = document.pop("plan")
        document = {**document, "request": request, "plan": plan}
        text = to_json({"sha256": _sha256(document), **document})
    except (CheckmateError, ValueError) as error:  # ValueError: a number that is not finite
        _log.debug("not cached: %s", error)
        return False
    if len(text) > MAX_ENTRY_BYTES:
        _log.debug("not cached: %d bytes are above the most of %d", len(text), MAX_ENTRY_BYTES)
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(text, folder / f"{key}.json")
        _make_room(folder)
    except OSError as error:  # OutputError is one
        _warn_once(folder, error)
        return False
    return True


def _warn_once(folder: Path, error: OSError) -> None:
    if str(folder) not in _warned:
        _warned.add(str(folder))
        _log.warning("schedules are not kept in %s: %s", folder, error)


def _read(path: Path, key: str, graph: Graph) -> tuple[Schedule, float, float]:
    """The schedule in a file, the seconds that were given to find it, and the gap at which solving was to end."""
    data = read_json(path, "a cached schedule", PlanError, MAX_ENTRY_BYTES)
    if not isinstance(data, dict):
        raise PlanError(f"it is {show_value(data)}, not an object")
    claimed = data.pop("sha256", None)
    if claimed != _sha256(data):
        raise PlanError("it is damaged: its sha256 is not that of its content")
    request = data.get("request")
    if not isinstance(request, dict) or request.get("key") != key:
        raise PlanError("it answers another question than its name says")
    for asked, most in (("time_limit", _MOST_SECONDS), ("gap", 1.0)):
        given = request.get(asked)
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= most:
            raise PlanError(f"its {asked} is {show_value(given)}")
    schedule = schedule_from_dict(data, graph, "it")
    return replace(schedule, origin=_ORIGIN), float(request["time_limit"]), float(request["gap"])


def _sha256(document: Mapping[str, Any]) -> str:
    """Of the canonical form: fields sorted, no spaces."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _make_room(folder: Path) -> None:
    """Remove what was used longest ago until the rest is within bounds. Other files in the folder are left alone."""
    used: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # another process makes room, too
                found = entry.stat(follow_symlinks=False)
                if _NAME.fullmatch(entry.name):
                    used.append((found.st_mtime, found.st_size, entry.path))
                elif _PART.fullmatch(entry.name) and found.st_mtime < time.time() - _STALE:
                    os.unlink(entry.path)
    total = 0
    for rank, (_, size, path) in enumerate(sorted(used, reverse=True)):
        total += size
        if rank >= MAX_ENTRIES or total > MAX_BYTES:
            with suppress(FileNotFoundError):
                os.unlink(path)
