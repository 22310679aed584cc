"""Profiles in files that people can read and share: the versioned JSON format "checkmate-profile/1".

    {"format": "checkmate-profile/1", "model": "mobilenet_1.00_224", "inputs": [[null, 224, 224, 3]],
     "parameters": 4253864, "device": "...", "versions": {"tensorflow": "2.21.0"}, "precision": "float32",
     "level": "layer", "batch_sizes": [8, 16], "unit": "us",
     "nodes": [{"name": "conv1", "kind": "forward", "median": [310.2, 602.9], "spread": [12.0, 20.1],
                "repetitions": [5, 5]}, ...]}

- `nodes` are those of the layer-level graph in its order (layers, loss, gradients), `kind` "forward", "loss" or
  "backward"; at level "op", the operations of the training step, `kind` the type of operation.
- `median`, `spread` (interquartile range) and `repetitions` have one entry for each of `batch_sizes`, which ascend.
  Times are in microseconds, medians above 0. Repetitions are 0 where there was nothing to run.
- `inputs` are the shapes of the model's inputs, the batch null; `parameters` counts its weights.

All fields are required, others are ignored. Nothing but values is read: no code is run.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ..errors import CostError
from ..jsonfile import read_json, show_value, write_json
from .profile_table import LAYER_KINDS, LEVELS, ProfileTable

__all__ = [
    "PROFILE_FORMAT",
    "file_name",
    "find_profile",
    "profile_from_dict",
    "profile_to_dict",
    "read_profile",
    "write_profile",
]

PROFILE_FORMAT = "checkmate-profile/1"
MAX_FILE_BYTES = 64 << 20
MAX_FILES = 1_000  # of a folder
MAX_NODES, MAX_BATCHES, MAX_BATCH = 500_000, 1_000, 2**31
MOST_US = 3.6e9  # an hour

_FIELDS = (
    "model",
    "inputs",
    "parameters",
    "device",
    "versions",
    "precision",
    "level",
    "batch_sizes",
    "unit",
    "nodes",
)


def profile_to_dict(table: ProfileTable) -> dict[str, Any]:
    """A profile as plain values, "checkmate-profile/1"; times to a nanosecond."""
    columns = (table.median_us.tolist(), table.spread_us.tolist(), table.repetitions.tolist())
    nodes = [
        {"name": name, "kind": kind, "median": _rounded(median), "spread": _rounded(spread), "repetitions": runs}
        for name, kind, median, spread, runs in zip(table.names, table.kinds, *columns, strict=True)
    ]
    return {
        "format": PROFILE_FORMAT,
        "model": table.model,
        "inputs": [list(shape) for shape in table.inputs],
        "parameters": table.parameters,
        "device": table.device,
        "versions": dict(table.versions),
        "precision": table.precision,
        "level": table.level,
        "batch_sizes": list(table.batch_sizes),
        "unit": "us",
        "nodes": nodes,
    }


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 3) or value for value in values]


def profile_from_dict(data: Any, source: str = "profile") -> ProfileTable:
    """The profile that "checkmate-profile/1" describes.

    Parameters
    ----------
    data : dict
        As `json.load` gives it.
    source : str
        Where it is from, for messages.

    Raises
    ------
    CostError
        Names the source, the node and the field, and says what to do.
    """
    if not isinstance(data, dict) or data.get("format") != PROFILE_FORMAT:
        raise CostError(
            f'{source} is not a profile in the format "{PROFILE_FORMAT}": write one with checkmate-tf profile'
        )
    missing = [field for field in _FIELDS if field not in data]
    if missing:
        raise CostError(f"{source} has no field {missing[0]!r}; all of {', '.join(_FIELDS)} are required")
    texts = {key: _text(data[key], source, key) for key in ("model", "device", "precision", "level", "unit")}
    if texts["unit"] != "us":
        _refuse(source, "unit", data["unit"], 'give times in microseconds, "us"')
    if texts["level"] not in LEVELS:
        _refuse(source, "level", data["level"], f"give one of {', '.join(LEVELS)}")
    batch_sizes = _list(data["batch_sizes"], source, "batch_sizes", MAX_BATCHES)
    sizes = tuple(_whole(value, source, "batch_sizes", MAX_BATCH, least=1) for value in batch_sizes)
    if list(sizes) != sorted(set(sizes)):
        _refuse(source, "batch_sizes", sizes, "give them ascending, each once")
    versions = data["versions"]
    if not isinstance(versions, dict) or not all(isinstance(v, str) for v in versions.values()):
        _refuse(source, "versions", versions, "give an object of texts")
    nodes = [
        _node(node, f"{source}: node {i}", len(sizes), texts["level"])
        for i, node in enumerate(_list(data["nodes"], source, "nodes", MAX_NODES))
    ]
    return ProfileTable(
        model=texts["model"],
        inputs=tuple(_shape(shape, source) for shape in _list(data["inputs"], source, "inputs", MAX_NODES)),
        parameters=_whole(data["parameters"], source, "parameters", 2**62),
        device=texts["device"],
        versions=versions,
        precision=texts["precision"],
        level=texts["level"],
        batch_sizes=sizes,
        names=tuple(node[0] for node in nodes),
        kinds=tuple(node[1] for node in nodes),
        median_us=[node[2] for node in nodes],  # type: ignore[arg-type]
        spread_us=[node[3] for node in nodes],  # type: ignore[arg-type]
        repetitions=[node[4] for node in nodes],  # type: ignore[arg-type]
    )


def read_profile(path: str | os.PathLike[str]) -> ProfileTable:
    """Read a profile from a JSON file of at most 64 MiB.

    Raises
    ------
    CostError
        If the file cannot be read, is too large, is not JSON, or is not a profile.
    """
    return profile_from_dict(_load(path), str(path))


def write_profile(table: ProfileTable, path: str | os.PathLike[str]) -> None:
    """Write a profile to a JSON file, all of it or nothing.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written.
    """
    write_json(profile_to_dict(table), path)


def find_profile(
    path: str | os.PathLike[str], level: str, differs: Callable[[ProfileTable], str]
) -> tuple[Path, ProfileTable]:
    """The profile in a file, or the one in a folder that serves.

    Parameters
    ----------
    path : file, or folder with files of this format (and others, which are passed over)
    level : {"layer", "op"}
    differs : callable
        Empty for a profile that serves, else why it does not, in words.

    Raises
    ------
    CostError
        If there is no such profile (says why each one found does not serve), or there are several.
    """
    place = Path(path)
    try:
        files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    except (OSError, ValueError) as error:
        raise CostError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(files) > MAX_FILES:
        raise CostError(f"{str(path)!r} holds {len(files)} files: give the one that is the profile")
    found, refused = [], []
    for file in files:
        data = _load(file)
        if place.is_dir() and not (isinstance(data, dict) and data.get("format") == PROFILE_FORMAT):
            continue
        table = profile_from_dict(data, str(file))
        why = f"it is at {table.level} level" if table.level != level else differs(table)
        if why:
            refused.append(f"{file}: {why}")
        else:
            found.append((file, table))
    if not found:
        reasons = "; ".join(refused[:5]) or "it holds no profiles"
        raise CostError(f"no profile of this model in {str(path)!r} ({reasons}): make one with checkmate-tf profile")
    if len(found) > 1:
        raise CostError(f"{str(path)!r} holds several profiles of this model: give one of {_names(found)}")
    return found[0]


def _names(found: list[tuple[Path, ProfileTable]]) -> str:
    return ", ".join(str(file) for file, _ in found[:5])


def file_name(model: str, inputs: tuple[tuple[int | None, ...], ...], level: str, precision: str) -> str:
    """E.g. `mobilenet_1.00_96-96x96x3-layer-float32.json`."""
    shapes = "+".join("x".join("n" if d is None else str(d) for d in shape[1:]) or "scalar" for shape in inputs)
    safe = re.sub(r"[^A-Za-z0-9._+-]+", "_", f"{model[:80]}-{shapes[:60]}-{level}-{precision[:40]}")
    return safe.lstrip(".") + ".json"


def _load(path: str | os.PathLike[str]) -> Any:
    return read_json(path, f'a profile in the format "{PROFILE_FORMAT}"', CostError, MAX_FILE_BYTES)


# ---------------------------------------------------------------------------------------------------- validation


def _node(node: Any, where: str, batches: int, level: str) -> tuple[str, str, list[float], list[float], list[int]]:
    if not isinstance(node, dict):
        raise CostError(
            f"{where} is {show_value(node)}; give an object with name, kind, median, spread and repetitions"
        )
    if isinstance(node.get("name"), str):
        where = f"{where} ({show_value(node['name'])})"
    missing = [field for field in ("name", "kind", "median", "spread", "repetitions") if field not in node]
    if missing:
        raise CostError(f"{where} has no field {missing[0]!r}")
    kind = _text(node["kind"], where, "kind")
    if level == "layer" and kind not in LAYER_KINDS.values():
        _refuse(where, "kind", kind, f"give one of {', '.join(LAYER_KINDS.values())}")
    for field in ("median", "spread", "repetitions"):
        if len(_list(node[field], where, field, MAX_BATCHES)) != batches:
            _refuse(where, field, node[field], f"give one entry for each of the {batches} batch sizes")
    median = [_time(value, where, "median") for value in node["median"]]
    if not all(median):
        _refuse(where, "median", 0, "a cost must be above 0")
    spread = [_time(value, where, "spread") for value in node["spread"]]
    runs = [_whole(value, where, "repetitions", 2**31) for value in node["repetitions"]]
    return _text(node["name"], where, "name"), kind, median, spread, runs


def _shape(value: Any, source: str) -> tuple[int | None, ...]:
    return tuple(
        None if d is None else _whole(d, source, "inputs", MAX_BATCH) for d in _list(value, source, "inputs", 100)
    )


def _time(value: Any, where: str, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        _refuse(where, field, value, "give microseconds, a number")
    if not 0 <= value <= MOST_US or not math.isfinite(value):
        _refuse(where, field, value, "give microseconds from 0 to an hour")
    return float(value)


def _whole(value: Any, where: str, field: str, most: int, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        _refuse(where, field, value, f"give a whole number from {least} to {most}")
    return value


def _list(value: Any, where: str, field: str, most: int) -> list[Any]:
    if not isinstance(value, list) or not value:
        _refuse(where, field, value, "give a list that is not empty")
    if len(value) > most:
        _refuse(where, field, value, f"it has {len(value)} entries, more than {most}")
    return value


def _text(value: Any, where: str, field: str) -> str:
    if not isinstance(value, str) or len(value) > 10_000:
        _refuse(where, field, value, "give text of at most 10,000 characters")
    return value


def _refuse(where: str, field: str, value: Any, advice: str) -> NoReturn:
    raise CostError(f"{where}: {field} is {show_value(value)}; {advice}")
