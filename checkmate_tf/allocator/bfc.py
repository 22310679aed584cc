"""TensorFlow's allocator as a model: which address every value of a sequence gets, and how much that takes.

TensorFlow's BFC ("best fit with coalescing") takes regions of memory from the system, and cuts them into chunks:

- A request is rounded up to 256 bytes. It gets the smallest free chunk that it fits in, and of these the lowest.
- If the chunk is at least twice as large, or is larger by the allowed padding or more, the rest becomes a chunk of its
  own. Otherwise the request gets the chunk whole.
- A chunk that is given back becomes one with free neighbours of its region.
- If nothing fits, a new region is taken. With growth the first one has 2 MiB, and each new one is twice as large as the
  last. A request that needs more doubles that until it fits. Near the limit a region is as large as what is left. If
  the system does not have so much, 0.9 of it is asked for, and so on. Without growth the first region is all.
- If that fails, regions in which nothing is in use may be given back to the system before a last attempt.

For a given sequence of events all this is exact (the tests compare it with the allocator itself, event by event). What
a sequence does not say is which addresses the system gives to regions, which decide between free chunks of equal size,
and what a thread waits for: TensorFlow's own requests wait up to ten seconds for memory, while here they fail at once.

Bytes in use are those of chunks, as TensorFlow counts them: what a request gets too much counts, what is free does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import BudgetError, PlanError
from .kernel import ALIVE_TWICE, FITS, GRAIN, columns, in_order, replay

__all__ = ["FREE", "Bfc", "Events", "Placement", "State", "empty_state", "place", "state_of_chunks", "tables_of"]

FREE = -1  # instead of bytes: an event that frees; instead of an id: a chunk that nobody owns

_FIRST_REGION = 2 * 2**20  # bytes
_PADDING = 128 * 2**20  # bytes: the most that a chunk may be larger than its request, unless told otherwise
_ENDLESS = 1 << 60  # bytes
_GAP = 1  # byte that lies between two regions at least

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Bfc:
    """How an allocator is set up.

    Attributes
    ----------
    limit_bytes : int
        The most that its regions may take in all.
    growth : bool
        Whether it takes region after region, as TensorFlow's CPU allocator does and a GPU's with memory growth. Or else
        one region of the limit.
    fragmentation_fraction : float
        The padding that a chunk may have beyond its request, as a share of the limit. By default it is 128 MiB.
    merging_regions : bool
        Whether a region that begins where another ends becomes one with it. Allocators of virtual memory do that.
    collecting : bool
        Whether free regions are given back to the system before a request fails. GPUs have that by default, CPUs not.
    system_bytes : int, optional
        The most that the system gives, whatever the limit says.

    Raises
    ------
    BudgetError
        If a number of bytes is too small, or the share is not between 0 and 1.
    """

    limit_bytes: int
    growth: bool = True
    fragmentation_fraction: float = 0.0
    merging_regions: bool = False
    collecting: bool = False
    system_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.limit_bytes < GRAIN:
            raise BudgetError(
                f"an allocator's limit is {self.limit_bytes} bytes: give at least {GRAIN}, its least chunk"
            )
        if self.system_bytes is not None and self.system_bytes < 0:
            raise BudgetError(f"the system cannot have {self.system_bytes} bytes: give 0 or more")
        if not 0.0 <= self.fragmentation_fraction <= 1.0:
            raise BudgetError(f"fragmentation_fraction is {self.fragmentation_fraction}: give a share from 0 to 1")

    @property
    def padding_bytes(self) -> int:
        """What is larger than a request by so much is cut, even if it is not twice as large."""
        return int(self.fragmentation_fraction * self.limit_bytes) if self.fragmentation_fraction else _PADDING

    @property
    def first_region_bytes(self) -> int:
        """What the first region has, if the system gives it."""
        first = min(self.limit_bytes, _FIRST_REGION) if self.growth else self.limit_bytes
        return -(-first // GRAIN) * GRAIN


@dataclass(frozen=True, eq=False)
class State:
    """What lies where: every chunk of every region. The arrays are read only, so a state can be used again and again.

    Attributes
    ----------
    address, size, owner, region : (n,) int64
        Of each chunk, in order of regions and addresses: where it begins, its bytes, the id of what is in it
        (`FREE` if nothing is), and the index of its region.
    region_address, region_bytes : (r,) int64
        Where each region begins, and its bytes, in the order in which they were taken.
    next_region_bytes : int
        What the next region has, if nothing larger is asked for.

    Raises
    ------
    PlanError
        If chunks do not fill their regions without a gap, or an id owns two of them.
    """

    address: Integers
    size: Integers
    owner: Integers
    region: Integers
    region_address: Integers
    region_bytes: Integers
    next_region_bytes: int

    def __post_init__(self) -> None:
        for name in ("address", "size", "owner", "region", "region_address", "region_bytes"):
            array = np.array(getattr(self, name), np.int64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if not len(self.address) == len(self.size) == len(self.owner) == len(self.region):
            raise PlanError("the arrays of a state's chunks differ in length: give one entry of each for every chunk")
        if not np.array_equal(np.unique(self.region), np.arange(len(self.region_address))):
            raise PlanError("chunks of a state name other regions than it has: number them from 0, each with a chunk")
        first = np.searchsorted(self.region, np.arange(len(self.region_address)))
        begins = np.concatenate([[0], np.cumsum(self.size)[:-1]]).astype(np.int64)[: len(self.size)]
        expected = self.region_address[self.region] + begins - begins[first][self.region]
        filled = np.bincount(self.region, self.size, len(self.region_address)).astype(np.int64)
        if not (np.array_equal(self.address, expected) and np.array_equal(filled, self.region_bytes)):
            raise PlanError("chunks of a state leave gaps in a region: list them in order, the free ones as well")
        used = self.owner[self.owner != FREE]
        if len(np.unique(used)) != len(used):
            raise PlanError("an id of a state owns two chunks: give each allocation an id of its own")

    @property
    def bytes_in_use(self) -> int:
        """Bytes of the chunks that somebody owns."""
        return int(self.size[self.owner != FREE].sum())

    @property
    def largest_free_bytes(self) -> int:
        """The most that one request can get without another region."""
        return int(self.size[self.owner == FREE].max(initial=0))


@dataclass(frozen=True, eq=False)
class Events:
    """Allocations and frees, in order.

    Attributes
    ----------
    ids : (n,) int64
        Whose memory it is. An id may be used again once it is freed.
    sizes : (n,) int64
        Bytes to allocate; `FREE` to free. An allocation of 0 bytes takes no memory.

    Raises
    ------
    PlanError
        If the arrays differ in length, an id is negative, or a size is below -1.
    """

    ids: Integers
    sizes: Integers

    def __post_init__(self) -> None:
        for name in ("ids", "sizes"):
            array = np.array(getattr(self, name), np.int64)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if self.ids.shape != self.sizes.shape or self.ids.ndim != 1:
            raise PlanError(f"{self.ids.shape} ids and {self.sizes.shape} sizes: give one of each for every event")
        if len(self.ids) and (self.ids.min() < 0 or self.sizes.min() < FREE):
            raise PlanError("an event has a negative id or size: ids begin at 0, and only -1 bytes stand for a free")


@dataclass(frozen=True, eq=False)
class Placement:
    """What came of a sequence of events.

    Attributes
    ----------
    address, region, chunk_bytes : (n,) int64
        Of each event: where the chunk begins that it takes or gives back, the index of its region, and its bytes. -1
        where it has none: an allocation of 0 bytes or one that failed.
    bytes_in_use : (n,) int64
        Bytes of chunks that are in use after each event.
    region_address : (r,) int64
        Of all regions that there were, those of the state at first, then new ones.
    failed : (f,) int64
        Indices of the allocations for which there was no memory. What follows goes on without them.
    peak_bytes : int
        The most bytes in use, those at first included: TensorFlow's `peak` if its statistics are reset at first.
    largest_chunk_bytes : int
        Of those allocated here: TensorFlow's `largest_alloc_size`.
    range_bytes : int
        From where each region begins to the highest end of a chunk that was in use there, added up over regions.
    region_bytes : int
        The most bytes of regions that were taken from the system: TensorFlow's peak of its pool.
    state : State
        What lies where at the end.
    """

    address: Integers
    region: Integers
    chunk_bytes: Integers
    bytes_in_use: Integers
    region_address: Integers
    failed: Integers
    peak_bytes: int
    largest_chunk_bytes: int
    range_bytes: int
    region_bytes: int
    state: State = field(repr=False)

    @property
    def offset(self) -> Integers:
        """(n,) where each event's chunk begins in its region, bytes; -1 where it has none."""
        found = np.full(len(self.address), -1, np.int64)
        placed = self.region >= 0
        found[placed] = self.address[placed] - self.region_address[self.region[placed]]
        return found


def empty_state(allocator: Bfc) -> State:
    """An allocator that has taken nothing yet."""
    none = np.zeros(0, np.int64)
    return State(none, none, none, none, none, none, allocator.first_region_bytes)


def state_of_chunks(allocator: Bfc, address: Integers, size: Integers, in_use: NDArray[np.bool_]) -> State:
    """The state of an allocator with growth of which all chunks are known, as its own memory map lists them.

    Each chunk in use is owned by its index. Free neighbours become one. Regions end where the next chunk lies
    elsewhere. They grow as they are taken, so their sizes tell their order and what the next one has.

    Parameters
    ----------
    address, size : (n,) int64
        Of each chunk, the free ones included, in order of addresses.
    in_use : (n,) bool

    Raises
    ------
    PlanError
        As `State`.
    """
    address, size = np.asarray(address, np.int64), np.asarray(size, np.int64)
    if not len(address):
        return empty_state(allocator)
    owner = np.where(in_use, np.arange(len(address)), FREE)
    begins = np.concatenate([[True], address[1:] != address[:-1] + size[:-1]])
    single = np.flatnonzero(begins | (owner != FREE) | np.concatenate([[True], owner[:-1] != FREE]))
    address, owner, begins = address[single], owner[single], begins[single]
    size = np.add.reduceat(size, single)
    region = np.cumsum(begins) - 1
    taken = np.bincount(region, size).astype(np.int64)
    order = np.argsort(taken, kind="stable")
    rank = np.argsort(order)
    upcoming = allocator.first_region_bytes
    for given in taken[order]:
        larger = False
        while upcoming < given:
            upcoming, larger = 2 * upcoming, True
        upcoming = upcoming if larger else 2 * upcoming
    listed = np.argsort(rank[region], kind="stable")
    lowest = address[begins][order]
    return State(address[listed], size[listed], owner[listed], rank[region][listed], lowest, taken[order], upcoming)


def tables_of(allocator: Bfc, state: State, owner: Integers, events: int) -> Any:
    """What the compiled model takes: chunks, regions, pool, free chunks and settings; see `kernel.replay`.

    Parameters
    ----------
    owner : (n,) int64
        Of each chunk of the state, an id from 0 on; `FREE` if nobody owns it.
    events : int
        How many events there may be.
    """
    settings = np.array(
        [
            allocator.limit_bytes,
            _ENDLESS if allocator.system_bytes is None else allocator.system_bytes,
            allocator.padding_bytes,
            allocator.merging_regions,
            allocator.collecting,
        ],
        np.int64,
    )
    tables = columns(
        state.address, state.size, owner, state.region, state.region_address, state.region_bytes,
        state.next_region_bytes, events,
    )  # fmt: skip
    return (*tables, settings)


def place(allocator: Bfc, events: Events, state: State | None = None, regions_at: Integers | None = None) -> Placement:
    """Where each of a sequence of allocations lies.

    Parameters
    ----------
    allocator : Bfc
    events : Events
    state : State, optional
        What lies there before. It is not changed. Its ids may be freed by events. By default there is nothing.
    regions_at : (n,) int64, optional
        For each event, the address of the region that would be taken from the system then; -1 for the default. A new
        region begins with what it was taken for, so recorded addresses of allocations will do. By default a region
        lies below all before it, as Linux does it, or right above the newest where regions merge.

    Returns
    -------
    Placement

    Raises
    ------
    PlanError
        If an event allocates for an id that is in memory, or frees one that is not.

    Notes
    -----
    O(n log c) comparisons for n events and c free chunks. 10,000 allocations take a few milliseconds.
    """
    state = empty_state(allocator) if state is None else state
    used = state.owner != FREE
    known, dense = np.unique(np.concatenate([state.owner[used], events.ids]), return_inverse=True)
    owner = np.full(len(state.owner), FREE, np.int64)
    owner[used] = dense[: used.sum()]
    ids = dense[used.sum() :].astype(np.int64)
    where = np.zeros(0, np.int64) if regions_at is None else np.asarray(regions_at, np.int64)
    if len(where) not in (0, len(ids)):
        raise PlanError(f"{len(where)} addresses of regions for {len(ids)} events: give one for each")
    chunks, regions, pool, free, settings = tables_of(allocator, state, owner, len(ids))
    sizes = np.array(events.sizes)
    end, at, placed, statistics = replay(ids, sizes, where, len(known), chunks, regions, pool, free, settings)
    if end != FITS:
        what = "allocates memory for" if end == ALIVE_TWICE else "frees"
        why = "is in memory already" if end == ALIVE_TWICE else "is not in memory"
        raise PlanError(f"event {at} {what} id {events.ids[at]}, which {why}: give allocations and frees in turn")
    left = in_order(chunks, regions, pool)
    left[:, 2] = np.append(known, FREE)[left[:, 2]]
    rows = regions[: pool[5]]
    alive = rows[:, 1] > 0
    after = State(left[:, 0], left[:, 1], left[:, 2], left[:, 3], rows[alive, 0], rows[alive, 1], int(pool[0]))
    address, region, chunk_bytes, bytes_in_use = (column.copy() for column in placed.T)
    return Placement(
        address,
        region,
        chunk_bytes,
        bytes_in_use,
        rows[:, 0].copy(),
        np.flatnonzero((events.sizes > 0) & (address < 0)),
        int(statistics[1]),
        int(statistics[2]),
        int(rows[:, 4].sum()),
        int(statistics[3]),
        after,
    )
