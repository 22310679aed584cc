"""The memory that this process may fill: what the machine has, or what a container leaves of it.

A container is a control group of Linux. One that fills its limit is ended by the system, without an error in Python.
Groups lie in each other, and the least limit of all counts. Version 2 has one tree of groups. Version 1 has one for
each resource. Inside of a container the group's own path may not be there. Its limit lies at the top then.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path, PurePosixPath

__all__ = ["host_bytes"]

_GROUPS, _TREES = "proc/self/cgroup", "sys/fs/cgroup"


def host_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory that this process may fill.

    Parameters
    ----------
    root : Path
        Where the system's files about groups lie.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(root)])


@functools.cache  # a device is asked for its limit in each step of a training
def _limits(root: Path) -> tuple[int, ...]:
    """The limits in bytes of all groups that the process is in, as far as they tell any, when first asked."""
    try:
        lines = (root / _GROUPS).read_text().splitlines()
    except OSError:  # a system that has no such groups
        return ()
    found = list[int]()
    for line in lines:
        _, resources, path = line.split(":", 2)
        if resources == "":
            tree, name = root / _TREES, "memory.max"
        elif "memory" in resources.split(","):
            tree, name = root / _TREES / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for one in (group, *group.parents):
            try:
                said = (tree / one / name).read_text().strip()
            except OSError:  # not seen from here, or the top, which has no limit
                continue
            if said.isdigit():  # else "max"
                found.append(int(said))
    return tuple(found)
