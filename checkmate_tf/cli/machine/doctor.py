"""`checkmate-tf doctor`: what is found here, and what to do about what is missing."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from ...machine import cores
from ...units import format_bytes
from ...version import __version__
from ..console import prepare_tensorflow, print_json, stderr, stdout

__all__ = ["findings", "run_doctor"]

_MEASURE = (
    "set TF_CPU_ALLOCATOR_USE_BFC=true in the environment before TensorFlow is imported, and peaks are measured on the "
    "CPU too"
)


def run_doctor(json: bool) -> None:
    """Look around and print."""
    was_set = os.environ.get("TF_CPU_ALLOCATOR_USE_BFC", "")
    prepare_tensorflow()
    with stderr().status("looking around", spinner="dots") as status:
        found = findings(was_set, status.update)
    if json:
        print_json(found)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(found):
        table.add_row(name, Text(text))
    stdout().print(table)


def findings(allocator_was_set: str, tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Everything, as plain values. Nothing that is missing makes this fail.

    Parameters
    ----------
    allocator_was_set : str
        TF_CPU_ALLOCATOR_USE_BFC as the user's environment has it.
    tell : callable (text)
        Hears what is being looked at.
    """
    tell("TensorFlow")
    found: dict[str, Any] = {
        "checkmate_tf": __version__,
        "python": f"{platform.python_version()} ({sys.executable})",
        "cores": cores(),
        "tensorflow": _attempt(_tensorflow),
        "keras": _version("keras"),
        "devices": _attempt(_devices) or [],
        "allocator_statistics": {
            "in_this_command": _attempt(_statistics) or False,
            "in_your_programs": allocator_was_set.lower() in ("1", "true"),
            "how": _MEASURE,
        },
    }
    tell("solvers")
    from ...solvers.gurobi import licence_details

    found["solvers"] = {
        "ortools": {"version": _version("ortools")},
        "gurobi": {"version": _version("gurobipy"), **licence_details()},
    }
    found["numba"] = _version("numba")
    found["cache"] = _attempt(_cache)
    return found


def _attempt(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception as error:  # noqa: BLE001 - the doctor reports what is broken
        return {"problem": f"{type(error).__name__}: {error}"}


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf

    def one_dnn() -> bool:
        from tensorflow.python.framework import test_util

        return bool(test_util.IsMklEnabled())

    return {"version": tf.__version__, "one_dnn": _attempt(one_dnn), "cuda": bool(tf.test.is_built_with_cuda())}


def _devices() -> list[dict[str, Any]]:
    import tensorflow as tf

    from ...device.measure import find_device

    used = find_device()
    rows = []
    for device in tf.config.list_physical_devices():
        name = device.name.removeprefix("/physical_device:")
        details = tf.config.experimental.get_device_details(device) if device.device_type == "GPU" else {}
        rows.append(
            {
                "name": name,
                "model": details.get("device_name"),
                "used": name == used.name,
                "memory_bytes": used.limit_bytes if name == used.name else None,
            }
        )
    return rows


def _statistics() -> bool:
    from ...device.measure import find_device

    return find_device().measurable


def _cache() -> dict[str, Any]:
    from ...costs.cache import cache_folder

    folder = cache_folder()
    if folder is None:
        return {"folder": None, "writable": False}
    nearest = folder
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    files = [f for f in folder.glob("*.json") if f.is_file()] if folder.is_dir() else []
    return {
        "folder": str(folder),
        "writable": os.access(nearest, os.W_OK) and Path(nearest).is_dir(),
        "files": len(files),
        "bytes": sum(f.stat().st_size for f in files),
    }


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    tf, gurobi = found["tensorflow"], found["solvers"]["gurobi"]
    statistics, cache = found["allocator_statistics"], found["cache"]
    one_dnn = {True: "on", False: "off"}.get(tf.get("one_dnn"), "unknown")
    devices = found["devices"]
    rows = [
        ("checkmate_tf", found["checkmate_tf"]),
        ("Python", f"{found['python']}, {found['cores']} cores"),
        ("TensorFlow", tf.get("problem") or f"{tf['version']}, oneDNN {one_dnn}"),
        ("Keras", found["keras"] or "not installed"),
    ]
    if isinstance(devices, dict):
        rows.append(("devices", devices["problem"]))
    else:
        rows += [("device", _device(device)) for device in devices]
    on_gpu = isinstance(devices, list) and any(d["used"] and d["name"].startswith("GPU") for d in devices)
    if on_gpu or statistics["in_your_programs"]:
        rows.append(("peaks measured", "yes, the allocator keeps statistics"))
    else:
        can = "yes" if statistics["in_this_command"] is True else "no"
        rows.append(("peaks measured", f"in this command: {can}; in your programs: not yet; {statistics['how']}"))
    ortools = found["solvers"]["ortools"]["version"]
    rows += [
        (
            "OR-Tools",
            f"{ortools} (GLOP, PDLP, HiGHS, SCIP, CP-SAT)" if ortools else "not installed: there are no proven bounds",
        ),
        ("Gurobi", f"{gurobi['version'] or 'not installed'}, licence: {gurobi['licence']} ({gurobi['detail']})"),
        ("Numba", found["numba"] or "not installed"),
    ]
    if "problem" in cache:
        rows.append(("profile cache", cache["problem"]))
    elif cache["folder"] is None:
        rows.append(("profile cache", "turned off by CHECKMATE_TF_CACHE"))
    else:
        state = "writable" if cache["writable"] else "NOT writable: set CHECKMATE_TF_CACHE to a folder that is"
        rows.append(
            ("profile cache", f"{cache['folder']}, {state}, {cache['files']} files, {format_bytes(cache['bytes'])}")
        )
    return rows


def _device(device: dict[str, Any]) -> str:
    memory = format_bytes(device["memory_bytes"]) if device["memory_bytes"] else ""
    return ", ".join(
        filter(None, [device["name"], device["model"], memory, "plans are for this one" if device["used"] else ""])
    )
