"""Where results come from: commit and machine, in each result; and what a table says of its results."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.lib.paths import RESULTS, ROOT

__all__ = ["MADE", "UNSAID", "commit", "commits_of", "cores_here", "made_here", "origins", "processor", "time_limits"]

_OF_GRAPHS = ("graph-", "made-", "range-")  # files of a graph, of its making, and of its budgets
MADE = "made"  # key of a result: where it was made
UNSAID = "not said"  # the commit of results that were made before they said it


def made_here() -> dict[str, Any]:
    """Commit, processor and cores, as results say them."""
    return {"commit": commit(), "processor": processor(), "cores": cores_here()}


def cores_here() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def commit() -> str:
    """Of this checkout, with a plus where files differ from it, but for results and texts; or "unknown"."""

    def git(*asked: str) -> str:
        with contextlib.suppress(OSError):  # there is no git
            return subprocess.run(["git", *asked], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
        return ""

    counted = (".", f":!{RESULTS.relative_to(ROOT)}", ":!*.md")
    return (git("rev-parse", "--short=7", "HEAD") or "unknown") + "+" * bool(git("status", "--short", *counted))


def processor() -> str:
    """Its name, and which of the instructions that kernels are written for it has."""
    names = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile")
    with contextlib.suppress(OSError):
        told = dict(
            line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if line.count(":") == 1
        )
        told = {key.strip(): value.strip() for key, value in told.items()}
        flags = set(told.get("flags", "").split())
        return f"{told.get('model name', platform.machine())} ({', '.join(n for n in names if n in flags)})"
    return platform.processor() or platform.machine()


def origins(folder: Path) -> str:
    """A sentence on where the results of a folder were made; if there are several places, it says so.

    A folder without results is taken to have what was made here and now.
    """
    found = Counter(_origin(made) for made in _made(folder)) or Counter([_origin(made_here())])
    if len(found) > 1:
        parts = "; ".join(f"{count} {origin}" for origin, count in found.most_common())
        return f"**Results of several commits or machines**: {parts}."
    return f"Results: {next(iter(found))}."


def time_limits(folder: Path) -> str:
    """A sentence on how many results of a folder had which time limit; empty if all had the same."""
    given = [result.get("time_limit", result.get("limit")) for result in _results(folder)]
    found = Counter(seconds for seconds in given if isinstance(seconds, (int, float)))
    if len(found) < 2:
        return ""
    parts = (f"{count} of {seconds:g} s" for seconds, count in sorted(found.items()))
    return f"**Results of several time limits**: {', '.join(parts)}."


def commits_of(folder: Path) -> list[str]:
    """Of which commits the results of a folder are; `UNSAID` stands for those that do not say it."""
    return sorted({made["commit"] if made else UNSAID for made in _made(folder)} or {UNSAID})


def _made(folder: Path) -> list[Mapping[str, Any] | None]:
    """What each result of a folder says of where it was made, None where it says nothing.

    Some have parts, made apart, that say it each.
    """
    found: list[Mapping[str, Any] | None] = []
    for result in _results(folder):
        parts = [
            part for part in result.values() if isinstance(part, Mapping) and {"commit", "processor"} <= part.keys()
        ]
        found += [result[MADE]] if MADE in result else parts or [None]
    return found


def _results(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The results of a folder. Graphs, and what is known of them, are none."""
    for path in sorted(folder.glob("*.json")):
        if not path.name.startswith(_OF_GRAPHS):
            result = json.loads(path.read_text(encoding="utf-8"))
            yield result if isinstance(result, Mapping) else {}


def _origin(made: Mapping[str, Any] | None) -> str:
    if made is None:
        return "of a commit that they do not say (made before results did)"
    cores = made["cores"]
    return f"of commit {made['commit']}, on {cores} core{'s' * (cores != 1)} of {made['processor']}"
