"""What a process in a container may use: files as the system has them. What its children find the package by."""

import os
from pathlib import Path

import pytest

from checkmate_tf.machine import child_environment, cores, host_bytes

MACHINE, NONE = 64 * 2**30, 9223372036854771712  # what version 1 says where there is no limit


@pytest.fixture(autouse=True)
def _a_large_machine(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": MACHINE // 4096}.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "1000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "6400000 100000"}, 8),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "300000 100000",
                "sys/fs/cgroup/a/cpu.max": "100000 50000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/0f\n5:cpuset:/b",
                "sys/fs/cgroup/cpu/docker/0f/cpu.cfs_quota_us": 400000,
                "sys/fs/cgroup/cpu/docker/0f/cpu.cfs_period_us": 100000,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": -1,
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": 100000,
            },
            4,
        ),
    ],
)
def test_a_container_leaves_so_many_cores(tmp_path, files, expected):
    assert cores(written(tmp_path, files)) == expected


def test_a_process_may_be_bound_to_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert cores() == 1


def test_children_find_the_package_after_all_else(monkeypatch):
    root = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", "one")
    assert child_environment(MORE="1")["PYTHONPATH"] == os.pathsep.join(["one", root])
    assert child_environment(MORE="1")["MORE"] == "1" and "MORE" not in os.environ
    monkeypatch.delenv("PYTHONPATH")
    assert child_environment()["PYTHONPATH"] == root
