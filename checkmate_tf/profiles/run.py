"""Profile a model over batch sizes into a file, and go on where an earlier run was stopped.

The file (`file.py`) is written after each batch size, so it can be used from the first one on. Measurements of the
batch size in work are kept in a journal beside it (`journal.py`), which the next run reads. Batch sizes that the file
has already are not run again; others are added to it, and to what other processes wrote there meanwhile.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ..costs.cache import locked
from ..costs.setting import device_name, setting
from ..errors import BatchSizeError, CostError, OutputError
from ..units import whole_batch
from .file import file_name, read_profile, write_profile
from .identity import Facts, facts_of, fingerprint_of, unlike
from .journal import Journal
from .layers import Column, time_layers
from .steps import time_operations
from .table import LEVELS, Fingerprint, ProfileTable, merged

__all__ = ["profile_model"]

_PACKAGES = ("checkmate-tf", "tensorflow", "keras", "numpy")
#: (stage, done, total, text)
Tell = Callable[[str, float, float, str], None]


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
    taken = functools.cache(lambda batch: fingerprint_of(model, level, batch, data))
    table = _stored(path, empty, taken)
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
        fingerprint = taken(batch) if table is None else table.fingerprint
        if path is None:
            table = merged(table, empty.table(batch, column, fingerprint))
            continue
        with locked(path.parent):  # another process may have written to the file meanwhile
            table = _stored(path, empty, taken, warned=table is not None) or table
            table = merged(table, empty.table(batch, column, fingerprint if table is None else table.fingerprint))
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

    def table(self, batch: int, column: Column, fingerprint: Fingerprint | None) -> ProfileTable:
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
            fingerprint=fingerprint,
        )


def _stored(
    path: Path | None, wanted: _Setting, taken: Callable[[int], Fingerprint], warned: bool = False
) -> ProfileTable | None:
    """What the file holds now, if there is one. It must be of this setting, and of the model of these fingerprints.

    `warned`: that it has none was said before.
    """
    if path is None or not path.exists():
        return None
    table = read_profile(path)
    facts = Facts(table.inputs, table.parameters, table.precision)
    found = _Setting(table.model, facts, table.device, tuple(sorted(table.versions.items())), table.level)
    changed = [f.name for f in fields(_Setting) if getattr(found, f.name) != getattr(wanted, f.name)]
    if changed:
        key = changed[0]
        raise CostError(
            f"{path} is of another setting ({key} {getattr(found, key)}, here {getattr(wanted, key)}): give another "
            "folder, or delete the file"
        )
    if warned and table.fingerprint is None:
        return table
    if why := unlike(table, taken):
        raise CostError(f"{path} is of another model ({why}): give another folder, or delete the file")
    return table


def _batches(batch_sizes: Sequence[int]) -> list[int]:
    sizes = sorted({whole_batch(size) for size in batch_sizes})
    if not sizes:
        raise BatchSizeError("no batch sizes are given: give at least one")
    return sizes


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
