"""The memory of a process in a container: files as the system has them."""

import os

import pytest

from checkmate_tf.device.host import host_bytes

MACHINE, NONE = 64 * 2**30, 9223372036854771712  # what version 1 says where there is no limit


@pytest.fixture(autouse=True)
def _a_large_machine(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": MACHINE // 4096}.__getitem__)


def written(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, MACHINE),
        ({"proc/self/cgroup": "0::/"}, MACHINE),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": "max"}, MACHINE),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 2**30}, 2**30),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/memory.max": 2 * MACHINE}, MACHINE),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/memory.max": 2**31}, 2**31),
        (  # a group in a smaller one
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/memory.max": 2**31,
                "sys/fs/cgroup/a/memory.max": 2**30,
            },
            2**30,
        ),
        ({"proc/self/cgroup": "0::/../../far", "sys/fs/cgroup/memory.max": 2**30}, 2**30),
        (
            {
                "proc/self/cgroup": "5:devices:/\n4:cpu,memory:/docker/0f\n0::/",
                "sys/fs/cgroup/memory/docker/0f/memory.limit_in_bytes": 2**32,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": NONE,
            },
            2**32,
        ),
        (  # inside of the container, where its own path is not seen
            {"proc/self/cgroup": "4:memory:/docker/0f", "sys/fs/cgroup/memory/memory.limit_in_bytes": 2**29},
            2**29,
        ),
        ({"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": NONE}, MACHINE),
        ({"proc/self/cgroup": "3:cpuset:/a", "sys/fs/cgroup/a/memory.max": 2**30}, MACHINE),
    ],
)
def test_the_least_limit_counts(tmp_path, files, expected):
    assert host_bytes(written(tmp_path, files)) == expected


def test_this_machine_says_something():
    assert 2**20 < host_bytes() <= MACHINE
