"""The machine: the memory and the processors that this process may use, and what its children find the package by.

A container is a control group of Linux. A process that fills its group's memory is ended by the system, without an
error in Python. One that takes more time of processors than its group may is made to wait. Groups lie in each other,
and the least limit of all counts. Version 2 has one tree of groups. Version 1 has one for each resource. Inside of a
container the group's own path may not be there. Its limit lies at the top then.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["child_environment", "cores", "host_bytes", "processors"]

_ROOT = Path("/")
_GROUPS, _TREES = "proc/self/cgroup", "sys/fs/cgroup"


def host_bytes(root: Path = _ROOT) -> int:
    """Bytes of memory that this process may fill.

    Parameters
    ----------
    root : Path
        Where the system's files about groups lie.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_memory_limits(root)])


def cores(root: Path = _ROOT) -> int:
    """Processors that this process may keep busy, at least one. A part of one counts as a whole one.

    Parameters
    ----------
    root : Path
        Where the system's files about groups lie.
    """
    return max(1, min([processors(), *(math.ceil(share) for share in _shares(root))]))


def processors() -> int:
    """Processors that this process may run on. A group may have less time on them: see `cores`."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def child_environment(**more: str) -> dict[str, str]:
    """This process's environment and more, for a Python that finds this package wherever this process has it from.

    The folder that holds the package (often site-packages) is the last of its path, so that it shadows nothing.
    """
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), root]))
    return {**os.environ, "PYTHONPATH": path, **more}


@functools.cache  # a device is asked for its limit in each step of a training
def _memory_limits(root: Path) -> tuple[int, ...]:
    """The limits in bytes of all groups that the process is in, as far as they tell any, when first asked."""
    told = [
        _read(folder / ("memory.limit_in_bytes" if first else "memory.max"))
        for folder, first in _groups(root, "memory")
    ]
    return tuple(int(said) for said in told if said.isdigit())  # else "max", or nothing


def _shares(root: Path) -> Iterator[float]:
    """Processors that each group may keep busy, as far as they tell any: time, in a period."""
    for folder, first in _groups(root, "cpu"):
        if first:
            told = [_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")]
        else:
            told = _read(folder / "cpu.max").split()
        if len(told) == 2 and told[0].isdigit() and told[1].isdigit():  # else "max", -1, or nothing
            yield int(told[0]) / int(told[1])


def _groups(root: Path, resource: str) -> Iterator[tuple[Path, bool]]:
    """The folders of all groups that may limit a resource of this process, and whether they are of version 1."""
    for line in _read(root / _GROUPS).splitlines():
        _, resources, path = line.split(":", 2)
        first = resource in resources.split(",")
        if first or resources == "":
            tree = root / _TREES / (resource if first else "")
            group = PurePosixPath(path.lstrip("/"))
            for one in (group, *group.parents):
                yield tree / one, first


def _read(path: Path) -> str:
    """What a file of the system says; nothing where it is not seen from here, or the system has none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
