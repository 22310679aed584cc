"""What a planned step does to a device's memory, as a plain value: four numbers, and a map of what lies where when."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError

__all__ = ["AGAIN", "BACKWARD", "BEFORE", "FORWARD", "MemoryUse"]

BEFORE, FORWARD, AGAIN, BACKWARD = range(4)  # kinds of chunks

_COLUMNS = {"address": np.int64, "size": np.int64, "asked": np.int64, "kind": np.int64, "node": np.int64}
_TIMES = ("begin", "end")
_DIGITS = 3  # of a time


@dataclass(frozen=True, eq=False)
class MemoryUse:
    """What a step takes of a device's memory, by the model of its allocator, and where every chunk lies.

    All of it is the device's: what was there before is counted. Times are computations: at 3.5, the plan is halfway
    through what its fourth computation allocates and frees.

    Attributes
    ----------
    asked_bytes : int
        The most bytes that are asked for at a time, each request rounded up. No allocator needs less.
    packed_bytes : int or None
        What would do if each value had the best address that was found with all lifetimes known; None if not tried.
    placed_bytes : int
        The most bytes of chunks in use: the peak that the allocator itself would report.
    range_bytes : int
        As far as the allocator reaches in its regions, holes included: less memory than that and the step places
        values otherwise, or fails.
    out_of_memory : bool
        Whether a request finds no room.
    computations : int
    peak_at : float
        When the most bytes are in use.
    address, size, asked : (n,) int64
        Of each chunk: where it begins (0 is the lowest of all), its bytes, and what of them was asked for. What was
        there before side by side is one chunk.
    begin, end : (n,) float
        Of each chunk: from when to when it is in use.
    kind : (n,) int64
        Of each chunk: `BEFORE` (weights, inputs and all else that was there), `FORWARD`, `AGAIN` or `BACKWARD`.
    node : (n,) int64
        Of each chunk: the node that it was allocated for; -1 if it was there before.
    chunks : int
        How many there were. Those with the least bytes times time are left out of many.

    Raises
    ------
    PlanError
        If arrays of chunks differ in length, or a chunk ends before it begins.
    """

    asked_bytes: int
    packed_bytes: int | None
    placed_bytes: int
    range_bytes: int
    out_of_memory: bool
    computations: int
    peak_at: float
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    asked: NDArray[np.int64]
    begin: NDArray[np.float64]
    end: NDArray[np.float64]
    kind: NDArray[np.int64]
    node: NDArray[np.int64]
    chunks: int

    def __post_init__(self) -> None:
        for name, dtype in {**_COLUMNS, **dict.fromkeys(_TIMES, np.float64)}.items():
            array = np.array(getattr(self, name), dtype)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
            if array.shape != self.address.shape or array.ndim != 1:
                raise PlanError(
                    f"{name} has shape {array.shape}: give one entry for each of {len(self.address)} chunks"
                )
        if (self.end < self.begin).any() or (self.asked > self.size).any():
            raise PlanError("a chunk ends before it begins, or has less than was asked for: give times and sizes anew")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        columns = {name: values[name].tolist() for name in _COLUMNS}
        times = {name: values[name].round(_DIGITS).tolist() for name in _TIMES}
        return {**values, **columns, **times}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MemoryUse:
        """What `to_dict` gave."""
        return cls(**values)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), separators=(",", ":"))
