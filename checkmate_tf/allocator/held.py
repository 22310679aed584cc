"""What each operation holds only while it runs, from the events of an allocator.

A kernel allocates its outputs and memory of its own, and gives that back before the next operation begins. One thread
runs one kernel at a time. So the events of a kernel follow each other in its thread, and the first event of another
operation there comes after it. What an operation leaves behind lives on until others have read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["held_while_running"]

_OWN = "temp"  # the role of what a kernel takes for itself


@dataclass
class _Run:
    """One run of an operation, as far as its events are known."""

    operation: str
    held: int = 0
    most: int = 0
    outputs: int = 0  # bytes allocated as outputs
    own: bool = False  # whether it took memory for itself

    @property
    def over(self) -> bool:
        """Whether the next allocation is one of the next run: it has made outputs, and they are gone."""
        return self.outputs > 0 and self.held == 0

    def allocates(self, size: int, role: str) -> None:
        self.held += size
        self.most = max(self.most, self.held)
        if role == _OWN:
            self.own = True
        else:
            self.outputs += size

    @property
    def bytes(self) -> int:
        """The most beyond what is left: at least its outputs, whatever they lie in and whoever has freed them."""
        return max(0, self.most - max(self.held, self.outputs)) if self.own else 0


def held_while_running(
    allocates: NDArray[np.bool_],
    size: NDArray[np.int64],
    address: NDArray[np.int64],
    thread: NDArray[np.int64],
    operation: Sequence[str],
    role: Sequence[str],
) -> dict[str, int]:
    """Bytes that each operation held only while it ran, beyond what it left behind.

    Parameters
    ----------
    allocates : (n,) bool
        Whether each event is an allocation; the others are frees.
    size, address : (n,) int
        Bytes of each event's memory, and where it lies.
    thread : (n,) int
        Where each event took place.
    operation : sequence of n str
        The name of the operation that asked for the memory, also at its free. Empty if that is not known.
    role : sequence of n str
        "temp": the kernel took it for itself. Anything else counts as an output.

    Returns
    -------
    dict from name to bytes
        The most of all runs, for each operation that allocated anything; 0 if it took nothing for itself.

    Notes
    -----
    A kernel may make its result in memory of its own, and give the output back that it allocated before. A reader that
    allocates nothing may free that result next, in the same thread. So may the executor free outputs that nobody reads.
    These are no frees of the kernel's. So as many bytes as were allocated as outputs count as left.

    O(n).
    """
    runs: list[_Run] = []
    current: dict[int, _Run] = {}  # of each thread
    owners: dict[int, _Run] = {}  # of what lies at an address
    columns = (allocates.tolist(), size.tolist(), address.tolist(), thread.tolist(), operation, role)
    for allocation, many, where, place, name, purpose in zip(*columns, strict=True):
        here = current.get(place)
        if allocation:
            if here is None or here.operation != name or here.over:
                here = current[place] = _Run(name)
                runs.append(here)
            here.allocates(many, purpose)
            owners[where] = here
        else:
            owner = owners.pop(where, None)
            if owner is not None and owner is here:
                here.held -= many
            else:
                current.pop(place, None)
    found: dict[str, int] = {}
    for run in runs:
        if run.operation:
            found[run.operation] = max(found.get(run.operation, 0), run.bytes)
    return found
