"""The memory of a device before a step, and what a step in a given order would take of it.

This joins the pieces: how the allocator works (`bfc`), what lies in it, and what the operations of a step allocate and
free (`sequence`). So it gives the peak that the allocator itself would report: *placed* bytes, beside the *bytes* of
values that a plan counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .bfc import FREE, Bfc, Events, Placement, State, place, tables_of
from .interleave import interleaving
from .kernel import GRAIN, most_with_one_whole, replay
from .sequence import Kernels, allocated, expand, linked
from .steps import expected_most

__all__ = ["Memory", "Placed", "with_more"]

Integers = NDArray[np.int64]

_LOST = 1.05  # times what is asked for: what a step takes that finds no room
_SHORT = 0.01  # of what is asked for: what it takes at least beyond the limit


@dataclass(frozen=True)
class Placed:
    """What a step takes.

    Attributes
    ----------
    peak_bytes : int
        The most bytes of chunks in use, all that was there before included: TensorFlow's own peak.
    asked_bytes : int
        The most bytes that are asked for at a time, each request rounded up to the allocator's grain; what was there
        before included. What `peak_bytes` has beyond them is lost.
    out_of_memory : bool
        Whether a request finds no room: in pieces that are too small, or at the limit.
    apart_bytes : int
        How much later steps may take beyond `peak_bytes`, if there are several and they differ; see `expected_most`.
    limit_bytes : int
        Of the allocator.
    held_up_bytes : int
        How much more than `peak_bytes` steps out of order may take where operations meet that seldom do: while other
        processes hold up threads, say.
    given_whole_bytes : int
        How much more than `peak_bytes` they may take if another request gets a free chunk that is not cut. What lies
        beside what differs from step to step, so no draw shows all such chunks. Less than the largest request.
    """

    peak_bytes: int
    asked_bytes: int
    out_of_memory: bool
    apart_bytes: int = 0
    limit_bytes: int = 0
    held_up_bytes: int = 0
    given_whole_bytes: int = 0

    @property
    def taken_bytes(self) -> int:
        """What a step takes: where it runs out of memory, more than there is, and more the more it asks for."""
        if not self.out_of_memory:
            return self.peak_bytes
        return int(max(self.peak_bytes, _LOST * self.asked_bytes, self.limit_bytes + _SHORT * self.asked_bytes))

    @property
    def sure_bytes(self) -> int:
        """What no step is expected to exceed, counted as for steps that are measured."""
        return self.peak_bytes + self.apart_bytes

    @property
    def most_bytes(self) -> int:
        """The same for steps in which operations meet that seldom do, or a request gets a chunk that it seldom does."""
        return max(self.sure_bytes, self.peak_bytes + max(self.held_up_bytes, self.given_whole_bytes))


@dataclass(frozen=True, eq=False)
class Memory:
    """A device's memory before a step.

    Attributes
    ----------
    allocator : Bfc
    state : State
        What lies where, what comes before the step or while it runs included; see `with_more`.
    kernels : Kernels
        What the step's operations allocate.
    first : int, optional
        A node that comes before all of a sequence: the batch that is made for the step, and freed in it. A pipeline
        makes its tensors side by side, in any order: what a step takes is the most for forward and backward.
    threads : int
        How many operations may run at once.
    """

    allocator: Bfc
    state: State
    kernels: Kernels
    first: int | None = None
    threads: int = 2

    def placed(self, sequence: Sequence[int] | Integers) -> Placed:
        """What a step takes whose nodes are computed in a given order, one after the other.

        Notes
        -----
        Some milliseconds for 10,000 allocations.
        """
        ids, sizes, _ = expand(self.kernels, self.whole(sequence))
        return _most_of([self._placed(*way) for way in self._ways(ids, sizes)], self.allocator.limit_bytes)

    def placed_loose(
        self,
        sequence: Sequence[int] | Integers,
        waits: Sequence[int] | Integers,
        seconds: Sequence[float] | NDArray[np.float64],
        *,
        threads: int | None = None,
        samples: int = 16,
        seed: int = 0,
    ) -> Placed:
        """The most that a step takes of several whose computations come in any order that `waits` allows.

        Each has an order of its own, drawn by `interleaving`. What no sample shows may still come: see
        `Placed.sure_bytes`.

        All begin with the same state. So do real steps, but for small variables: TensorFlow gives one that is assigned
        while something still reads it a new buffer elsewhere. The tensors of a batch are made forward and backward by
        turns.

        Parameters
        ----------
        sequence : (length,) int
            Nodes in order of the plan.
        waits : (length,) int
            For each computation, how many of the first must have finished before it starts.
        seconds : (n,) float
            What each node takes.
        threads : int, optional
            Others than the memory's.
        samples : int
            How many steps. For `Placed.held_up_bytes`, as many more whose threads are held up, and as many with another
            thread: there operations meet that seldom do. (Two that read one value: neither takes over its memory.)
        seed : int
            Equal ones give equal results.

        Raises
        ------
        PlanError
            As `interleaving`, or if there is no sample.
        """
        if samples < 1:
            raise PlanError(f"{samples} samples: give at least one")
        runs = linked(self.kernels, self.whole(sequence))
        if self.first is not None:
            waits = np.insert(np.asarray(waits, np.int64) + 1, 0, 0)
            seconds = np.append(seconds, np.zeros(len(self.kernels.operations) - 1 - len(seconds)))
        found: list[Placed] = []
        drawn: list[Integers] = []
        threads = self.threads if threads is None else threads
        kinds = [(threads, False)] * samples + [(threads, True), (threads + 1, False)] * (samples if threads > 1 else 0)
        seeds = np.random.SeedSequence(seed).generate_state(len(kinds))
        for turn, ((many, held_up), own) in enumerate(zip(kinds, seeds, strict=True)):
            moments = interleaving(self.kernels, runs, waits, seconds, threads=many, seed=int(own), held_up=held_up)
            drawn.append(moments)
            ways = self._ways(*allocated(self.kernels, runs, moments)[:2])
            way = turn if turn < samples else turn // 2  # of both kinds that follow, too
            found.append(self._placed(*ways[way % len(ways)], loose=turn < samples))
        placed = _most_of(found[:samples], self.allocator.limit_bytes)
        sure = expected_most([one.peak_bytes for one in found[:samples]], self._orders)
        more = max([placed.peak_bytes, *(one.taken_bytes for one in found[samples:])]) - placed.peak_bytes
        whole = 0  # where all come in one order
        if any(not np.array_equal(drawn[0], other) for other in drawn[1:]):
            whole = max(one.peak_bytes + one.given_whole_bytes for one in found[:samples]) - placed.peak_bytes
        return replace(placed, apart_bytes=sure - placed.peak_bytes, held_up_bytes=more, given_whole_bytes=whole)

    def whole(self, sequence: Sequence[int] | Integers) -> Integers:
        """A sequence of nodes with the one that comes before it."""
        return np.array(sequence if self.first is None else [self.first, *sequence], np.int64)

    @cached_property
    def _batch(self) -> int:
        """Of how many pieces the batch is that comes first."""
        if self.first is None:
            return 0
        begin, end = self.kernels.outputs[self.kernels.operations[[self.first, self.first + 1]]]
        return int(self.kernels.pieces[begin:end][self.kernels.bytes[begin:end] > 0].sum())

    @property
    def _orders(self) -> int:
        return 2 if self._batch > 1 else 1

    def _ways(self, ids: Integers, sizes: Integers) -> list[tuple[Integers, Integers]]:
        """The events of a step, for each order in which its batch may be made."""
        found = [(ids, sizes)]
        if self._orders > 1:
            turned = np.r_[np.arange(self._batch)[::-1], np.arange(self._batch, len(ids))]
            found.append((ids[turned], sizes[turned]))
        return found

    def _placed(self, ids: Integers, sizes: Integers, loose: bool = False) -> Placed:
        owners = int(ids.max(initial=-1)) + 1
        used = self.state.owner != FREE
        owner = np.where(used, owners + np.cumsum(used) - 1, FREE)
        tables = tables_of(self.allocator, self.state, owner, len(ids))
        _, _, placed, statistics = replay(ids, sizes, _NOWHERE, owners + int(used.sum()), *tables)
        failed = bool(((sizes > 0) & (placed[:, 0] < 0)).any())
        asked = self.state.bytes_in_use + _most_asked(ids, sizes, owners)
        peak, limit = int(statistics[1]), self.allocator.limit_bytes
        whole = most_with_one_whole(ids, sizes, placed, self.allocator.padding_bytes) - peak if loose else 0
        return Placed(peak, asked, failed, limit_bytes=limit, given_whole_bytes=max(0, int(whole)))

    def placement(self, sequence: Sequence[int] | Integers) -> tuple[Events, Placement, Integers]:
        """Where everything lies: events, their places, and the operation (an index of `kernels`) of each event."""
        ids, sizes, operations = expand(self.kernels, self.whole(sequence))
        first = int(self.state.owner.max(initial=-1)) + 1
        ways = [Events(own + first, asked) for own, asked in self._ways(ids, sizes)]
        places = [place(self.allocator, events, self.state) for events in ways]
        worst = max(range(len(ways)), key=lambda k: (len(places[k].failed) > 0, places[k].peak_bytes))
        return ways[worst], places[worst], operations  # these are the same: one operation makes the batch


def with_more(allocator: Bfc, state: State, sizes: Sequence[int]) -> State:
    """What lies where once tensors have come that live longer than a step: batches of the input pipeline, constants."""
    first = int(state.owner.max(initial=-1)) + 1
    ids = np.arange(first, first + len(sizes))
    return place(allocator, Events(ids, np.array(sizes, np.int64)), state).state


def _most_of(found: Sequence[Placed], limit_bytes: int) -> Placed:
    """What none of several steps exceeds."""
    return Placed(
        max(one.peak_bytes for one in found),
        max(one.asked_bytes for one in found),
        any(one.out_of_memory for one in found),
        limit_bytes=limit_bytes,
    )


_NOWHERE = np.zeros(0, np.int64)


def _most_asked(ids: Integers, sizes: Integers, owners: int) -> int:
    """The most bytes of requests at a time, each rounded up."""
    rounded = -(-sizes // GRAIN) * GRAIN
    held = np.zeros(owners, np.int64)
    made = sizes >= 0
    held[ids[made]] = rounded[made]
    changes: Any = np.where(made, rounded, -held[ids])
    return int(np.cumsum(changes).max(initial=0))
