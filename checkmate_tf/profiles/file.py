"""Profiles in files that people can read and share: the versioned JSON format "checkmate-profile/1".

    {"format": "checkmate-profile/1", "model": "mobilenet_1.00_224", "inputs": [[null, 224, 224, 3]],
     "parameters": 4253864, "device": "...", "versions": {"tensorflow": "2.21.0"}, "precision": "float32",
     "level": "layer", "fingerprint": {"batch_size": 8, "nodes": "1f0c...", "loss": "categorical_crossentropy"},
     "batch_sizes": [8, 16], "unit": "us",
     "nodes": [{"name": "conv1", "kind": "forward", "median": [310.2, 602.9], "spread": [12.0, 20.1],
                "repetitions": [5, 5]}, ...]}

- `nodes` are those of the layer-level graph in its order (layers, loss, gradients), `kind` "forward", "loss" or
  "backward"; at level "op", the operations of the training step, `kind` the type of operation.
- `median`, `spread` (interquartile range) and `repetitions` have one entry for each of `batch_sizes`, which ascend.
  Times are in microseconds, medians above 0. Repetitions are 0 where there was nothing to run.
- `inputs` are the shapes of the model's inputs, the batch null; `parameters` counts its weights.
- `fingerprint` tells models apart that are equal in all of this. `nodes` is a digest of the layers' settings, or of the
  operations, at a batch size; `loss` has the settings of the loss, and is empty at level "op". Files of earlier
  versions have no fingerprint: they are read with a warning where they are taken for a model.

All other fields are required, further ones are ignored. Nothing but values is read: no code is run.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import CostError, show_value
from ..files.jsonfile import FieldCheck, read_json, write_json
from .table import LAYER_KINDS, LEVELS, MOST_US, Fingerprint, ProfileTable

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
MAX_NODES, MAX_BATCHES, MAX_BATCH, MAX_RANK = 500_000, 1_000, 2**31, 100
MAX_TEXT = 10_000  # characters

_FIELDS = (
    *("model", "inputs", "parameters", "device", "versions"),
    *("precision", "level", "batch_sizes", "unit", "nodes"),
)
_MARK_FIELDS = ("batch_size", "nodes", "loss")
_NODE_FIELDS = ("name", "kind", "median", "spread", "repetitions")
_CHECK = FieldCheck(CostError)
_log = logging.getLogger(__name__)


def profile_to_dict(table: ProfileTable) -> dict[str, Any]:
    """A profile as plain values, "checkmate-profile/1"; times to a nanosecond."""
    columns = (table.median_us.tolist(), table.spread_us.tolist(), table.repetitions.tolist())
    nodes = [
        {"name": name, "kind": kind, "median": _rounded(median), "spread": _rounded(spread), "repetitions": runs}
        for name, kind, median, spread, runs in zip(table.names, table.kinds, *columns, strict=True)
    ]
    mark = {} if table.fingerprint is None else {"fingerprint": asdict(table.fingerprint)}
    return {
        "format": PROFILE_FORMAT,
        "model": table.model,
        "inputs": [list(shape) for shape in table.inputs],
        "parameters": table.parameters,
        "device": table.device,
        "versions": dict(table.versions),
        "precision": table.precision,
        "level": table.level,
        **mark,
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
    _CHECK.fields(data, source, _FIELDS)
    texts = {
        key: _CHECK.text(data[key], source, key, MAX_TEXT) for key in ("model", "device", "precision", "level", "unit")
    }
    if texts["unit"] != "us":
        _CHECK.refuse(source, "unit", data["unit"], 'give times in microseconds, "us"')
    if texts["level"] not in LEVELS:
        _CHECK.refuse(source, "level", data["level"], f"give one of {', '.join(LEVELS)}")
    batch_sizes = _CHECK.items(data["batch_sizes"], source, "batch_sizes", 1, MAX_BATCHES)
    sizes = tuple(_CHECK.whole(value, source, "batch_sizes", 1, MAX_BATCH) for value in batch_sizes)
    if list(sizes) != sorted(set(sizes)):
        _CHECK.refuse(source, "batch_sizes", sizes, "give them ascending, each once")
    nodes = [
        _node(node, f"{source}: node {i}", len(sizes), texts["level"])
        for i, node in enumerate(_CHECK.items(data["nodes"], source, "nodes", 1, MAX_NODES))
    ]
    inputs = _CHECK.items(data["inputs"], source, "inputs", 1, MAX_NODES)
    return ProfileTable(
        model=texts["model"],
        inputs=tuple(_shape(shape, source) for shape in inputs),
        parameters=_CHECK.whole(data["parameters"], source, "parameters", 0, 2**62),
        device=texts["device"],
        versions=_versions(data["versions"], source),
        precision=texts["precision"],
        level=texts["level"],
        batch_sizes=sizes,
        names=tuple(node[0] for node in nodes),
        kinds=tuple(node[1] for node in nodes),
        median_us=[node[2] for node in nodes],  # type: ignore[arg-type]
        spread_us=[node[3] for node in nodes],  # type: ignore[arg-type]
        repetitions=[node[4] for node in nodes],  # type: ignore[arg-type]
        fingerprint=_fingerprint(data["fingerprint"], source) if "fingerprint" in data else None,
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
    path : file, or folder with files of this format
        In a folder, other files are passed over. Those that are damaged are told of in the log.
    level : {"layer", "op"}
    differs : callable
        Empty for a profile that serves, else why it does not, in words.

    Raises
    ------
    CostError
        If a given file is no profile; if there is none that serves (says why each one found does not), or several.
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
        try:
            data = _load(file)
            if place.is_dir() and not (isinstance(data, dict) and data.get("format") == PROFILE_FORMAT):
                continue
            table = profile_from_dict(data, str(file))
        except CostError as error:
            if not place.is_dir():
                raise
            _log.warning("passed over: %s", error)
            refused.append(str(error))
            continue
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
    if isinstance(node, dict) and isinstance(node.get("name"), str):
        where = f"{where} ({show_value(node['name'])})"
    _CHECK.fields(node, where, _NODE_FIELDS)
    kind = _CHECK.text(node["kind"], where, "kind", MAX_TEXT)
    if level == "layer" and kind not in LAYER_KINDS.values():
        _CHECK.refuse(where, "kind", kind, f"give one of {', '.join(LAYER_KINDS.values())}")
    columns = {field: _CHECK.items(node[field], where, field) for field in ("median", "spread", "repetitions")}
    for field, column in columns.items():
        if len(column) != batches:
            _CHECK.refuse(where, field, column, f"give one entry for each of the {batches} batch sizes")
    median = [_time(value, where, "median") for value in columns["median"]]
    if not all(median):
        _CHECK.refuse(where, "median", 0, "a cost must be above 0")
    spread = [_time(value, where, "spread") for value in columns["spread"]]
    runs = [_CHECK.whole(value, where, "repetitions", 0, 2**31) for value in columns["repetitions"]]
    return _CHECK.text(node["name"], where, "name", MAX_TEXT), kind, median, spread, runs


def _time(value: Any, where: str, field: str) -> float:
    return _CHECK.number(value, where, field, 0.0, MOST_US, "give microseconds from 0 to an hour")


def _shape(value: Any, source: str) -> tuple[int | None, ...]:
    sizes = _CHECK.items(value, source, "inputs", 1, MAX_RANK)
    return tuple(None if d is None else _CHECK.whole(d, source, "inputs", 0, MAX_BATCH) for d in sizes)


def _fingerprint(value: Any, source: str) -> Fingerprint:
    where = f"{source}: fingerprint"
    _CHECK.fields(value, where, _MARK_FIELDS)
    return Fingerprint(
        batch_size=_CHECK.whole(value["batch_size"], where, "batch_size", 1, MAX_BATCH),
        nodes=_CHECK.text(value["nodes"], where, "nodes", MAX_TEXT),
        loss=_CHECK.text(value["loss"], where, "loss", MAX_TEXT),
    )


def _versions(value: Any, source: str) -> dict[str, str]:
    if not isinstance(value, dict):
        _CHECK.refuse(source, "versions", value, "give an object of texts")
    return {
        _CHECK.text(key, source, "versions", MAX_TEXT): _CHECK.text(text, source, "versions", MAX_TEXT)
        for key, text in value.items()
    }
