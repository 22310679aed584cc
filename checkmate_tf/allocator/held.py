"""What each operation holds only while it runs, from the events of an allocator.

A kernel allocates its outputs and memory of its own, and gives that back before the next operation begins. One thread
runs one kernel at a time. So the events of a kernel follow each other in its thread, and the first event of another
operation there comes after it. What an operation leaves behind lives on until others have read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .workspace import NOTHING, Workspace

__all__ = ["held_while_running"]

_OWN = "temp"  # the role of what a kernel takes for itself


@dataclass
class _Chunk:
    """One allocation of a run."""

    bytes: int
    own: bool  # whether the kernel took it for itself
    freed: int = -1  # the how many-th free of the run that was; -1 if it lives on


@dataclass
class _Run:
    """One run of an operation, as far as its events are known."""

    operation: str
    chunks: list[_Chunk] = field(default_factory=list)
    held: int = 0
    most: int = 0
    at_most: list[_Chunk] = field(default_factory=list)  # what it held then
    outputs: int = 0  # bytes allocated as outputs
    frees: int = 0

    @property
    def over(self) -> bool:
        """Whether the next allocation is one of the next run: it has made outputs, and they are gone."""
        return self.outputs > 0 and self.held == 0

    def allocates(self, size: int, own: bool) -> _Chunk:
        self.chunks.append(_Chunk(size, own))
        self.held += size
        self.outputs += 0 if own else size
        if self.held > self.most:
            self.most, self.at_most = self.held, [chunk for chunk in self.chunks if chunk.freed < 0]
        return self.chunks[-1]

    def frees_one(self, chunk: _Chunk) -> None:
        chunk.freed = self.frees
        self.frees += 1
        self.held -= chunk.bytes

    def _left(self) -> list[_Chunk]:
        """What it left behind: at least as many bytes as its outputs have, whatever they lie in and whoever freed them.

        The kernel gives back what is its own before others free what it made.
        """
        left = [chunk for chunk in self.chunks if chunk.freed < 0]
        room = self.outputs - sum(chunk.bytes for chunk in left)
        for chunk in sorted(self.chunks, key=lambda chunk: -chunk.freed):
            if chunk.freed >= 0 and chunk.bytes <= room:
                left.append(chunk)
                room -= chunk.bytes
        return left

    @property
    def workspace(self) -> Workspace:
        """What it held when it held most, beyond what it left."""
        most = self.most - max(self.held, self.outputs)
        if most <= 0 or not any(chunk.own for chunk in self.chunks):
            return NOTHING
        left = {id(chunk) for chunk in self._left()}
        first = next((k for k, chunk in enumerate(self.chunks) if id(chunk) in left), len(self.chunks))
        early = {id(chunk) for chunk in self.chunks[:first]}
        sizes = {id(chunk): chunk.bytes for chunk in self.at_most if id(chunk) not in left}
        for one in sorted(sizes, key=lambda one: -sizes[one]):  # where it made its result after that moment
            sizes[one] -= min(sizes[one], max(0, sum(sizes.values()) - most))
        before = tuple(size for one, size in sizes.items() if one in early and size)
        return Workspace(before, tuple(size for one, size in sizes.items() if one not in early and size))


def held_while_running(
    allocates: NDArray[np.bool_],
    size: NDArray[np.int64],
    address: NDArray[np.int64],
    thread: NDArray[np.int64],
    operation: Sequence[str],
    role: Sequence[str],
) -> dict[str, Workspace]:
    """What each operation held only while it ran, beyond what it left behind.

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
    dict from name to Workspace
        That of the run that held most, for each operation that allocated anything; nothing if it took nothing for
        itself.

    Notes
    -----
    A kernel may make its result in memory of its own, and give the output back that it allocated before. A reader that
    allocates nothing may free that result next, in the same thread. So may the executor free outputs that nobody reads.
    These are no frees of the kernel's. So as many bytes as were allocated as outputs count as left.

    O(n).
    """
    runs: list[_Run] = []
    current: dict[int, _Run] = {}  # of each thread
    owners: dict[int, tuple[_Run, _Chunk]] = {}  # of what lies at an address
    columns = (allocates.tolist(), size.tolist(), address.tolist(), thread.tolist(), operation, role)
    for allocation, many, where, place, name, purpose in zip(*columns, strict=True):
        here = current.get(place)
        if allocation:
            if here is None or here.operation != name or here.over:
                here = current[place] = _Run(name)
                runs.append(here)
            owners[where] = here, here.allocates(many, purpose == _OWN)
        else:
            owner, chunk = owners.pop(where, (None, None))
            if chunk is not None and here is not None and owner is here:
                here.frees_one(chunk)
            else:
                current.pop(place, None)
    found: dict[str, Workspace] = {}
    for run in runs:
        if run.operation:
            own = run.workspace
            found[run.operation] = max(found.get(run.operation, own), own, key=lambda one: one.bytes)
    return found
