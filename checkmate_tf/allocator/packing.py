"""The best packing: how little memory would do if all lifetimes were known, and nothing had to be decided as it comes.

Blocks have sizes and lifetimes. Each gets an address, so that blocks that are in memory at a time do not overlap. The
highest end of a block should be as low as can be. This is *dynamic storage allocation*, which is NP-hard [1]_. The most
bytes in memory at a time are a lower bound.

Blocks are put down one after the other, each into the lowest gap that it fits in, or into the tightest. That is done in
several orders: by size, by size times lifetime, by lifetime, in order of time. Then the order is improved: the block
that ends highest is put down earlier, and all is packed anew. It ends when the bound is reached, or after some rounds.

**What this does badly.** Above the bound nothing is proved. Blocks that lay there before are left out, so a packing
says what the blocks of a step need beside them, in one piece. Of more than 10,000 blocks only one order is tried.

References
----------
.. [1] M. R. Garey and D. S. Johnson, *Computers and Intractability*, problem SR2, 1979.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..numba_jit import numba_jit
from .bfc import Events
from .kernel import GRAIN

__all__ = ["Blocks", "Packing", "best_packing", "blocks_of", "check_packing", "most_alive"]

Integers = NDArray[np.int64]

_ROUNDS = 400  # times that an order is improved at most
_PAIRS = 500_000_000  # of blocks compared at most, which takes about a second


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of memory with their lifetimes.

    Attributes
    ----------
    begin, end : (n,) int64
        A block is in memory from event `begin` on, and no longer at event `end`. One that stays ends after all events.
    size : (n,) int64
        Bytes, rounded up to the allocator's grain.
    """

    begin: Integers
    end: Integers
    size: Integers


@dataclass(frozen=True, eq=False)
class Packing:
    """Where blocks lie that leave as little free between them as was found.

    Attributes
    ----------
    bound_bytes : int
        The most bytes in memory at a time, each block rounded up to the allocator's grain: no packing needs less.
    packed_bytes : int
        The highest end of a block.
    address : (n,) int64
        Of each block of `blocks_of(events)`.
    """

    bound_bytes: int
    packed_bytes: int
    address: Integers

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no packing needs less. Others may be as good, too."""
        return self.packed_bytes == self.bound_bytes


def best_packing(events: Events) -> Packing:
    """The best packing known of a sequence of events.

    Frees of what was not allocated here are of blocks that were there before. They are left out, and so are those
    blocks: they lie elsewhere.

    Notes
    -----
    O(n^2) comparisons for n blocks and each packing. As many packings are made as take about a second at most.
    """
    blocks = blocks_of(events)
    bound = most_alive(blocks)
    best = _packed(blocks, _orders(blocks)[0], False)
    used = int((best + blocks.size).max(initial=0))
    ways = [(order, tight) for order in _orders(blocks) for tight in (False, True)]
    affordable = _PAIRS // max(1, len(blocks.size) ** 2 // 2 * len(ways))
    for rounds in (1, min(_ROUNDS, affordable)):  # all ways once, before one is improved
        for order, tight in ways if affordable else ():
            if used > bound:
                address, lower = _improved(blocks, order, tight, bound, rounds)
                best, used = (address, lower) if lower < used else (best, used)
    check_packing(blocks, best)
    return Packing(bound, used, best)


def blocks_of(events: Events) -> Blocks:
    """What events allocate, in order; without what takes no memory.

    Raises
    ------
    PlanError
        If an event allocates for an id that is in memory.
    """
    owned: dict[int, int] = {}
    begin: list[int] = []
    end: list[int] = []
    size: list[int] = []
    for at, (key, asked) in enumerate(zip(events.ids.tolist(), events.sizes.tolist(), strict=True)):
        if asked < 0:
            block = owned.pop(key, None)
            if block is not None and block >= 0:
                end[block] = at
        elif key in owned:
            raise PlanError(f"event {at} allocates for id {key}, which is in memory: free it first")
        elif asked == 0:
            owned[key] = -1
        else:
            owned[key] = len(begin)
            begin.append(at)
            end.append(len(events.ids))
            size.append(-(-asked // GRAIN) * GRAIN)
    return Blocks(np.array(begin, np.int64), np.array(end, np.int64), np.array(size, np.int64))


def most_alive(blocks: Blocks) -> int:
    """The most bytes in memory at a time."""
    if not len(blocks.begin):
        return 0
    change = np.zeros(int(blocks.end.max()) + 1, np.int64)
    np.add.at(change, blocks.begin, blocks.size)
    np.add.at(change, blocks.end, -blocks.size)
    return int(np.cumsum(change).max(initial=0))


def check_packing(blocks: Blocks, address: Integers) -> None:
    """Look at every event whether a block overlaps one that is in memory.

    Raises
    ------
    PlanError
        If two blocks overlap, or one begins below 0 or has no address.
    """
    if len(address) != len(blocks.begin):
        raise PlanError(f"{len(address)} addresses for {len(blocks.begin)} blocks: give one for each")
    begins = np.asarray(address, np.int64).tolist()
    sizes = blocks.size.tolist()
    count = len(begins)
    starts = [(at, True, k) for k, at in enumerate(blocks.begin.tolist())]
    ends = [(at, False, k) for k, at in enumerate(blocks.end.tolist())]
    live: list[tuple[int, int]] = []  # addresses of blocks in memory, in order, with the blocks
    for _, starting, k in sorted(starts + ends):
        at = bisect_left(live, (begins[k], k))
        if not starting:
            del live[at]
            continue
        below = live[at - 1][1] if at else None
        above = live[at][1] if at < len(live) else None
        low = begins[below] + sizes[below] if below is not None else 0
        if begins[k] < low or (above is not None and begins[k] + sizes[k] > begins[above]):
            raise PlanError(f"block {k} of {count} overlaps another one at address {begins[k]}: pack them apart")
        live.insert(at, (begins[k], k))


def _orders(blocks: Blocks) -> list[Integers]:
    """In which blocks are put down: what is hard to place comes first."""
    life = blocks.end - blocks.begin
    time = np.arange(len(life))
    return [
        np.lexsort((time, -life, -blocks.size)),
        np.lexsort((time, -(blocks.size.astype(float) * life))),
        np.lexsort((-blocks.size, -life)),
        np.lexsort((-blocks.size, blocks.begin)),
    ]


def _improved(blocks: Blocks, order: Integers, tight: bool, bound: int, rounds: int) -> tuple[Integers, int]:
    """The best of several packings. After each, the blocks that end highest go before those that pushed them up."""
    order = order.copy()
    best, used = np.zeros(len(order), np.int64), np.iinfo(np.int64).max
    for _ in range(rounds):
        address = _packed(blocks, order, tight)
        ends = address + blocks.size
        top = int(ends.max(initial=0))
        if top < used:
            best, used = address, top
        if used == bound:
            break
        highest = ends[order] == top
        to = np.arange(len(order), dtype=float)
        to[highest] = to[highest] / 2 - 0.5
        order = order[np.argsort(to, kind="stable")]
    return best, int(used)


def _packed(blocks: Blocks, order: Integers, tight: bool) -> Integers:
    address: Integers = _put_down(blocks.begin, blocks.end, blocks.size, order.astype(np.int64), tight)
    return address


@numba_jit
def _put_down(begin: Integers, end: Integers, size: Integers, order: Integers, tight: bool) -> Any:
    """Addresses of blocks, each put into the lowest gap that it fits in, or the tightest, in the given order."""
    count = len(order)
    address = np.zeros(count, np.int64)
    down = np.empty(count, np.int64)  # blocks that have an address, by address
    for n in range(count):
        k = order[n]
        low = 0  # where the gap begins that is looked at
        found, least = -1, np.int64(1) << 62
        for i in range(n):
            other = down[i]
            if begin[other] < end[k] and begin[k] < end[other]:
                gap = address[other] - low
                if gap >= size[k] and gap < least:
                    found, least = low, gap
                    if not tight:
                        break
                low = max(low, address[other] + size[other])
        if found < 0:
            found = low
        address[k] = found
        at = n
        while at > 0 and address[down[at - 1]] > found:
            down[at] = down[at - 1]
            at -= 1
        down[at] = k
    return address
