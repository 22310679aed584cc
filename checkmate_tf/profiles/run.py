"""Profile a model over batch sizes into a file, and go on where an earlier run was stopped.

The file (`file.py`) is written after each batch size, so it can be used from the first one on. Measurements of the
batch size in work are kept in a journal beside it (`journal.py`), which the next run reads. Batch sizes that the file
has already are not run again; others are added to it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..costs.setting import device_name, setting
from ..errors import BatchSizeError, CostError, OutputError
from .file import file_name, read_profile, write_profile
from .journal import Journal
from .layers import Column, time_layers
from .steps import time_operations
from .table import LEVELS, ProfileTable, merged

__all__ = ["Facts", "differs_from", "facts_of", "profile_model"]

_PACKAGES = ("checkmate-tf", "tensorflow", "keras", "numpy")
#: (stage, done, total, text)
Tell = Callable[[str, float, float, str], None]


@dataclass(frozen=True)
class Facts:
    """What tells a model from its variants: shapes of its inputs, number of weights, precision."""

    inputs: tuple[tuple[int | None, ...], ...]
    parameters: int
    precision: str


def facts_of(model: Any) -> Facts:
    """Of a model that is built. The precision is the Keras dtype policy of its layers; several are joined by commas."""
    layers = getattr(model, "_flatten_layers", lambda **_: [model])(include_self=False, recursive=True)
    weighty = [layer for layer in layers if getattr(layer, "weights", ())] or list(layers)
    policies = sorted({str(layer.dtype_policy.name) for layer in weighty if hasattr(layer, "dtype_policy")})
    inputs = tuple(tuple(t.shape) for t in getattr(model, "inputs", None) or ())
    parameters = sum(math.prod(w.shape) for w in {id(w): w for w in model.weights}.values())
    return Facts(inputs or ((None,),), parameters, ",".join(policies) or "float32")


def differs_from(model: Any) -> Callable[[ProfileTable], str]:
    """Why a profile is not of this model, in words; empty if it may be. Names of models count for nothing."""
    facts = facts_of(model)

    def differs(table: ProfileTable) -> str:
        if table.inputs != facts.inputs:
            return f"its model ({table.model}) reads {_shapes(table.inputs)}, this one {_shapes(facts.inputs)}"
        if table.parameters != facts.parameters:
            return f"its model ({table.model}) has {table.parameters:,} parameters, this one {facts.parameters:,}"
        if table.precision != facts.precision:
            return f"it is in {table.precision}, this model in {facts.precision}"
        return ""

    return differs


def _shapes(shapes: tuple[tuple[int | None, ...], ...]) -> str:
    return " and ".join("x".join("n" if d is None else str(d) for d in shape) for shape in shapes)


def profile_model(
    model: Any,
    batch_sizes: Sequence[int],
    folder: Path | None = None,
    *,
    level: str = "layer",
    repetitions: int | None = None,
    device: str | None = None,
    data: Any = None,
    tell: Tell | None = None,
) -> tuple[ProfileTable, Path | None]:
    """Measure what a model's nodes take at each of several batch sizes.

    Parameters
    ----------
    model : keras.Model
        At level "op" compiled; at level "layer" functional.
    batch_sizes : sequence of int
    folder : Path, optional
        Where the file is kept; made if it is not there. None: nothing is written.
    level : {"layer", "op"}
    repetitions : int, optional
        Timed runs of a layer, at least (default 5); passes over a step's operations (default 3).
    device : str, optional
        E.g. `"GPU:0"`. Default: the first GPU, else the CPU.
    data : optional
        A batch of data, at level "op", for models that do not declare their inputs.
    tell : callable(stage, done, total, text), optional
        Hears of progress; a stage is a batch size.

    Returns
    -------
    (ProfileTable, Path or None)
        What the file holds, and the file. It may hold batch sizes of earlier runs, too.

    Raises
    ------
    BatchSizeError
        If a batch size is not a positive whole number, or the model fixes another.
    CostError
        If a node cannot be timed; or the file in the folder is of another device, version or model.
    OutputError
        If the folder cannot be made or written.
    """
    wanted = _batches(batch_sizes)
    if level not in LEVELS:
        raise CostError(f"level {level!r} is unknown: choose one of {', '.join(LEVELS)}")
    facts = facts_of(model)
    empty = _Setting(model.name, facts, setting(device_name(device)), _versions(), level)
    path = None if folder is None else _folder(folder) / file_name(model.name, facts.inputs, level, facts.precision)
    table = read_profile(path) if path is not None and path.exists() else None
    if table is not None:
        _check_setting(table, empty, path)
    journal = Journal(None if path is None else path.with_name(f"{path.name}.part"), repr(empty))
    for batch in wanted:
        if table is not None and batch in table.batch_sizes:
            continue
        stage = f"batch {batch}"
        progress = None if tell is None else (lambda d, n, text, stage=stage: tell(stage, d, n, text))
        if level == "layer":
            column = time_layers(
                model, batch, repetitions=repetitions or 5, device=device, journal=journal, progress=progress
            )
        else:
            column = time_operations(
                model, batch, repetitions=repetitions or 3, device=device, data=data, journal=journal, progress=progress
            )
        table = merged(table, empty.table(batch, column))
        if path is not None:
            write_profile(table, path)
    journal.remove()
    assert table is not None
    return table, path


@dataclass(frozen=True)
class _Setting:
    """All that a table says besides its times."""

    model: str
    facts: Facts
    device: str
    versions: tuple[tuple[str, str], ...]
    level: str

    def table(self, batch: int, column: Column) -> ProfileTable:
        rows = np.array([sample.numbers for sample in column.samples])
        return ProfileTable(
            model=self.model,
            inputs=self.facts.inputs,
            parameters=self.facts.parameters,
            device=self.device,
            versions=dict(self.versions),
            precision=self.facts.precision,
            level=self.level,
            batch_sizes=(batch,),
            names=column.names,
            kinds=column.kinds,
            median_us=rows[:, :1],
            spread_us=rows[:, 1:2],
            repetitions=rows[:, 2:],
        )


def _check_setting(table: ProfileTable, wanted: _Setting, path: Path | None) -> None:
    facts = Facts(table.inputs, table.parameters, table.precision)
    found = _Setting(table.model, facts, table.device, tuple(sorted(table.versions.items())), table.level)
    if found != wanted:
        changed = [
            f.name for f in found.__dataclass_fields__.values() if getattr(found, f.name) != getattr(wanted, f.name)
        ]
        key = changed[0]
        raise CostError(
            f"{path} is of another setting ({key} {getattr(found, key)}, here {getattr(wanted, key)}): give another "
            "folder, or delete the file"
        )


def _batches(batch_sizes: Sequence[int]) -> list[int]:
    sizes = list(batch_sizes)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise BatchSizeError(f"batch size {size!r} is not a batch: give whole numbers of samples above 0")
    if not sizes:
        raise BatchSizeError("no batch sizes are given: give at least one")
    return sorted({int(size) for size in sizes})


def _folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {str(folder)!r} cannot be made: {error.strerror or error}") from None
    return folder


def _versions() -> tuple[tuple[str, str], ...]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return tuple(sorted(found.items()))
