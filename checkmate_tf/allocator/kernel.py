"""Best fit with coalescing, compiled: the part of `bfc` that runs once for each event.

Chunks are rows of one table. Those of a region form a list in the order of their addresses. The free ones are also
kept in one array, by size and then by address. TensorFlow keeps its free chunks in 21 bins, by powers of two. Bins are
in order of size, and each is in order of size and address. So the first chunk that fits is the same one.

An event takes O(log n) comparisons, and moves up to n integers in the array of n free chunks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..numba_jit import numba_jit

__all__ = ["ALIVE_TWICE", "FITS", "GRAIN", "NOT_ALIVE", "columns", "in_order", "most_with_one_whole", "replay"]

Table = NDArray[np.int64]

GRAIN = 256  # bytes: the least chunk, of which all are multiples
NOBODY = -1  # owns a free chunk; also: no chunk, no region, no address
_ABSENT, _EMPTY = -1, -2  # an owner without a chunk: not in memory; or allocated, but of 0 bytes or refused

_ADDRESS, _SIZE, _OWNER, _REGION, _BEFORE, _AFTER = range(6)  # columns of chunks
_BEGINS, _BYTES, _FIRST, _LAST, _HIGH = range(5)  # columns of regions: _BYTES is 0 once it was given back
_NEXT, _TAKEN, _FREE, _CHUNKS, _SPARE, _REGIONS = range(6)  # of the pool: see `columns`
_LIMIT, _SYSTEM, _PADDING, _MERGE, _COLLECT = range(5)  # of the settings
_IN_USE, _PEAK, _LARGEST, _PEAK_TAKEN = range(4)  # of the statistics

FITS, ALIVE_TWICE, NOT_ALIVE = range(3)  # how a replay ends: well, or at an event that cannot be


@numba_jit
def _rounded(size: Any) -> Any:
    return (size + GRAIN - 1) // GRAIN * GRAIN


@numba_jit
def _place(free: NDArray[np.int64], chunks: Table, pool: NDArray[np.int64], size: int, address: int) -> int:
    """How many free chunks come before a size and an address."""
    low, high = 0, pool[_FREE]
    while low < high:
        middle = (low + high) // 2
        k = free[middle]
        if chunks[k, _SIZE] < size or (chunks[k, _SIZE] == size and chunks[k, _ADDRESS] < address):
            low = middle + 1
        else:
            high = middle
    return low


@numba_jit
def _put_among_free(free: NDArray[np.int64], chunks: Table, pool: NDArray[np.int64], k: int) -> None:
    at = _place(free, chunks, pool, chunks[k, _SIZE], chunks[k, _ADDRESS])
    for j in range(pool[_FREE], at, -1):
        free[j] = free[j - 1]
    free[at] = k
    pool[_FREE] += 1
    chunks[k, _OWNER] = NOBODY


@numba_jit
def _take_from_free(free: NDArray[np.int64], pool: NDArray[np.int64], at: int) -> int:
    k = free[at]
    pool[_FREE] -= 1
    for j in range(at, pool[_FREE]):
        free[j] = free[j + 1]
    return k


@numba_jit
def _new_chunk(chunks: Table, pool: NDArray[np.int64]) -> Any:
    """A row that is not in use."""
    k = pool[_SPARE]
    if k != NOBODY:
        pool[_SPARE] = chunks[k, _AFTER]
        return k
    pool[_CHUNKS] += 1
    return pool[_CHUNKS] - 1


@numba_jit
def _merge(chunks: Table, regions: Table, pool: NDArray[np.int64], k: int, gone: int) -> None:
    """Make a chunk and the one right after it one chunk."""
    chunks[k, _SIZE] += chunks[gone, _SIZE]
    after = chunks[gone, _AFTER]
    chunks[k, _AFTER] = after
    if after == NOBODY:
        regions[chunks[k, _REGION], _LAST] = k
    else:
        chunks[after, _BEFORE] = k
    chunks[gone, _AFTER] = pool[_SPARE]
    pool[_SPARE] = gone


@numba_jit
def _coalesce(free: NDArray[np.int64], chunks: Table, regions: Table, pool: NDArray[np.int64], k: int) -> None:
    """Put a chunk among the free ones, as one with its free neighbours."""
    after = chunks[k, _AFTER]
    if after != NOBODY and chunks[after, _OWNER] == NOBODY:
        _take_from_free(free, pool, _place(free, chunks, pool, chunks[after, _SIZE], chunks[after, _ADDRESS]))
        _merge(chunks, regions, pool, k, after)
    before = chunks[k, _BEFORE]
    if before != NOBODY and chunks[before, _OWNER] == NOBODY:
        _take_from_free(free, pool, _place(free, chunks, pool, chunks[before, _SIZE], chunks[before, _ADDRESS]))
        _merge(chunks, regions, pool, before, k)
        k = before
    _put_among_free(free, chunks, pool, k)


@numba_jit
def _split(free: NDArray[np.int64], chunks: Table, regions: Table, pool: NDArray[np.int64], k: int, size: int) -> None:
    """Leave a chunk only its first bytes; the others are a free chunk."""
    rest = _new_chunk(chunks, pool)
    chunks[rest, _ADDRESS] = chunks[k, _ADDRESS] + size
    chunks[rest, _SIZE] = chunks[k, _SIZE] - size
    chunks[rest, _REGION] = chunks[k, _REGION]
    chunks[rest, _BEFORE] = k
    after = chunks[k, _AFTER]
    chunks[rest, _AFTER] = after
    if after == NOBODY:
        regions[chunks[k, _REGION], _LAST] = rest
    else:
        chunks[after, _BEFORE] = rest
    chunks[k, _AFTER] = rest
    chunks[k, _SIZE] = size
    _put_among_free(free, chunks, pool, rest)


@numba_jit
def _default_address(regions: Table, pool: NDArray[np.int64], settings: NDArray[np.int64], size: int) -> Any:
    """Right above the newest region where regions may merge; else below all, with a gap."""
    count = pool[_REGIONS]
    if settings[_MERGE]:
        for r in range(count - 1, -1, -1):
            if regions[r, _BYTES]:
                return regions[r, _BEGINS] + regions[r, _BYTES]
    lowest = np.int64(1 << 46)  # for the first one: any place will do that leaves room below it
    for r in range(count):
        lowest = min(lowest, regions[r, _BEGINS])
    return lowest - size - GRAIN


@numba_jit
def _grow(
    free: NDArray[np.int64],
    chunks: Table,
    regions: Table,
    pool: NDArray[np.int64],
    settings: NDArray[np.int64],
    size: int,
    address: int,
) -> bool:
    """Take memory from the system, at an address if one is given: whether there was enough for a chunk of a size."""
    available = (settings[_LIMIT] - pool[_TAKEN]) // GRAIN * GRAIN
    if size > available:
        return False
    larger = False
    while size > pool[_NEXT]:
        pool[_NEXT] *= 2
        larger = True
    given = min(pool[_NEXT], available)
    while given > settings[_SYSTEM] - pool[_TAKEN]:
        less = _rounded(np.int64(np.float32(given) * np.float32(0.9)))  # in 32 bits, as TensorFlow has it
        if less < size or less == given:  # nine grains or less stay what they are, rounded up
            return False
        given = less
    if not larger:
        pool[_NEXT] *= 2
    pool[_TAKEN] += given
    if address == NOBODY:
        address = _default_address(regions, pool, settings, given)
    k = _new_chunk(chunks, pool)
    chunks[k, _ADDRESS] = address
    chunks[k, _SIZE] = given
    chunks[k, _OWNER] = NOBODY
    chunks[k, _BEFORE] = chunks[k, _AFTER] = NOBODY
    if settings[_MERGE]:
        for r in range(pool[_REGIONS]):
            if regions[r, _BYTES] and regions[r, _BEGINS] + regions[r, _BYTES] == address:
                last = regions[r, _LAST]
                regions[r, _BYTES] += given
                regions[r, _LAST] = k
                chunks[last, _AFTER] = k
                chunks[k, _BEFORE] = last
                chunks[k, _REGION] = r
                _coalesce(free, chunks, regions, pool, k)
                return True
    r = pool[_REGIONS]
    pool[_REGIONS] += 1
    chunks[k, _REGION] = r
    regions[r, _BEGINS] = address
    regions[r, _BYTES] = given
    regions[r, _FIRST] = regions[r, _LAST] = k
    regions[r, _HIGH] = 0
    _put_among_free(free, chunks, pool, k)
    return True


@numba_jit
def _collect(
    free: NDArray[np.int64],
    chunks: Table,
    regions: Table,
    pool: NDArray[np.int64],
    settings: NDArray[np.int64],
    size: int,
) -> bool:
    """Give regions in which nothing is in use back to the system, if that may help: whether it was done."""
    total = 0
    for r in range(pool[_REGIONS]):
        k = regions[r, _FIRST]
        if regions[r, _BYTES] and chunks[k, _OWNER] == NOBODY and chunks[k, _AFTER] == NOBODY:
            total += regions[r, _BYTES]
    if total == 0 or size > settings[_LIMIT] - pool[_TAKEN] + total:
        return False
    for r in range(pool[_REGIONS]):
        k = regions[r, _FIRST]
        if regions[r, _BYTES] and chunks[k, _OWNER] == NOBODY and chunks[k, _AFTER] == NOBODY:
            _take_from_free(free, pool, _place(free, chunks, pool, chunks[k, _SIZE], chunks[k, _ADDRESS]))
            chunks[k, _AFTER] = pool[_SPARE]
            pool[_SPARE] = k
            pool[_TAKEN] -= regions[r, _BYTES]
            regions[r, _BYTES] = 0
    return True


@numba_jit
def _find(
    free: NDArray[np.int64],
    chunks: Table,
    regions: Table,
    pool: NDArray[np.int64],
    settings: NDArray[np.int64],
    size: int,
    address: int,
) -> int:
    """The smallest free chunk of at least a size, taken from among the free ones; NOBODY if there is none."""
    at = _place(free, chunks, pool, size, NOBODY)
    if at == pool[_FREE] and _grow(free, chunks, regions, pool, settings, size, address):
        at = _place(free, chunks, pool, size, NOBODY)
    if at == pool[_FREE] and settings[_COLLECT] and _collect(free, chunks, regions, pool, settings, size):
        _grow(free, chunks, regions, pool, settings, size, address)
        at = _place(free, chunks, pool, size, NOBODY)  # there are fewer free chunks, also if it did not grow
    return NOBODY if at == pool[_FREE] else _take_from_free(free, pool, at)


@numba_jit
def columns(
    address: NDArray[np.int64],
    size: NDArray[np.int64],
    owner: NDArray[np.int64],
    region: NDArray[np.int64],
    begins: NDArray[np.int64],
    taken: NDArray[np.int64],
    next_bytes: int,
    events: int,
) -> Any:
    """The tables of a state, with room for what so many events may add.

    Returns
    -------
    chunks : (., 6) int64
        A row each: address, bytes, owner (-1 if free), region, the rows before and after it in its region.
    regions : (., 5) int64
        Address, bytes, first and last chunk, bytes up to the end of the highest chunk that was in use.
    pool : (6,) int64
        Bytes of the next region, bytes of all regions, free chunks, rows of chunks so far, the first spare row, and
        regions so far.
    free : (.,) int64
        The free chunks by size and address.
    """
    count = len(address)
    chunks = np.empty((count + 2 * events + 1, 6), np.int64)
    regions = np.empty((len(begins) + events + 1, 5), np.int64)
    pool = np.array([next_bytes, np.sum(taken), 0, count, NOBODY, len(begins)])
    free = np.empty(len(chunks), np.int64)
    for r in range(len(begins)):
        regions[r, _BEGINS], regions[r, _BYTES], regions[r, _HIGH] = begins[r], taken[r], 0
    for k in range(count):
        r = region[k]
        chunks[k, _ADDRESS], chunks[k, _SIZE], chunks[k, _OWNER], chunks[k, _REGION] = address[k], size[k], owner[k], r
        chunks[k, _BEFORE] = k - 1 if k and region[k - 1] == r else NOBODY
        chunks[k, _AFTER] = k + 1 if k + 1 < count and region[k + 1] == r else NOBODY
        if chunks[k, _BEFORE] == NOBODY:
            regions[r, _FIRST] = k
        regions[r, _LAST] = k
        if owner[k] == NOBODY:
            _put_among_free(free, chunks, pool, k)
        else:
            regions[r, _HIGH] = address[k] + size[k] - begins[r]
    return chunks, regions, pool, free


@numba_jit
def replay(
    ids: NDArray[np.int64],
    sizes: NDArray[np.int64],
    where: NDArray[np.int64],
    owners: int,
    chunks: Table,
    regions: Table,
    pool: NDArray[np.int64],
    free: NDArray[np.int64],
    settings: NDArray[np.int64],
) -> Any:
    """Carry out events, in the tables that are given.

    Parameters
    ----------
    ids : (n,) int64
        Whose chunk each event allocates or frees, from 0 to `owners` - 1.
    sizes : (n,) int64
        Bytes to allocate; -1 to free.
    where : (n,) or (0,) int64
        The address of a region that is taken from the system at an event; -1, or no array, for the default.
    settings : (5,) int64
        Limit, bytes that the system gives, most padding, whether regions merge, whether free ones are given back.

    Returns
    -------
    (end, event, placed, statistics)
        How it ended and at which event; (n, 4) address, region, chunk bytes and bytes in use after each event;
        bytes in use, their peak, the largest chunk, and the most bytes of regions.
    """
    placed = np.full((len(ids), 4), NOBODY, np.int64)
    statistics = np.zeros(4, np.int64)
    held = np.full(owners, _ABSENT, np.int64)
    for k in range(pool[_CHUNKS]):
        if chunks[k, _OWNER] != NOBODY:
            held[chunks[k, _OWNER]] = k
            statistics[_IN_USE] += chunks[k, _SIZE]
    statistics[_PEAK], statistics[_PEAK_TAKEN] = statistics[_IN_USE], pool[_TAKEN]
    for event in range(len(ids)):
        owner, size = ids[event], sizes[event]
        k = held[owner]
        if size < 0:
            if k == _ABSENT:
                return NOT_ALIVE, event, placed, statistics
            held[owner] = _ABSENT
            if k >= 0:
                placed[event, 0], placed[event, 1] = chunks[k, _ADDRESS], chunks[k, _REGION]
                placed[event, 2] = chunks[k, _SIZE]
                statistics[_IN_USE] -= chunks[k, _SIZE]
                chunks[k, _OWNER] = NOBODY
                _coalesce(free, chunks, regions, pool, k)
        else:
            if k != _ABSENT:
                return ALIVE_TWICE, event, placed, statistics
            held[owner] = _EMPTY
            size = _rounded(size)
            address = where[event] if len(where) else NOBODY
            k = _find(free, chunks, regions, pool, settings, size, address) if size else NOBODY
            if k != NOBODY:
                whole, r = chunks[k, _SIZE], chunks[k, _REGION]
                chunks[k, _OWNER] = owner
                if whole >= 2 * size or whole - size >= settings[_PADDING]:
                    _split(free, chunks, regions, pool, k, size)
                    whole = size
                held[owner] = k
                placed[event, 0], placed[event, 1], placed[event, 2] = chunks[k, _ADDRESS], r, whole
                regions[r, _HIGH] = max(regions[r, _HIGH], chunks[k, _ADDRESS] + whole - regions[r, _BEGINS])
                statistics[_IN_USE] += whole
                statistics[_PEAK] = max(statistics[_PEAK], statistics[_IN_USE])
                statistics[_LARGEST] = max(statistics[_LARGEST], whole)
                statistics[_PEAK_TAKEN] = max(statistics[_PEAK_TAKEN], pool[_TAKEN])
        placed[event, 3] = statistics[_IN_USE]
    return FITS, len(ids), placed, statistics


@numba_jit
def most_with_one_whole(
    ids: NDArray[np.int64], sizes: NDArray[np.int64], placed: NDArray[np.int64], padding: int
) -> int:
    """The most bytes in use if any one of the requests had been given the largest chunk that is not cut.

    Parameters
    ----------
    ids, sizes : (n,) int64
        As for `replay`; each id is allocated once.
    placed : (n, 4) int64
        What `replay` says of these events.
    padding : int
        What is larger than a request by so many bytes is cut, even if it is not twice as large.

    Returns
    -------
    int
        Bytes; those in use before the events are part of what `replay` says.
    """
    count = len(ids)
    until = np.full(ids.max() + 1 if count else 0, count, np.int64)  # the event at which each id is freed
    more = np.zeros(count, np.int64)
    for event in range(count):
        size = _rounded(sizes[event]) if sizes[event] > 0 else 0
        if size and placed[event, 0] != NOBODY:
            spare = min(size - GRAIN, (padding - 1) // GRAIN * GRAIN)
            more[event] = max(0, size + spare - placed[event, 2])
        elif sizes[event] < 0:
            until[ids[event]] = event
    following = np.arange(count + 1)  # the next moment, at or after each event, that is not looked at yet
    most = 0
    for event in np.argsort(-more):
        k = _last(following, event)
        while k < until[ids[event]]:
            most = max(most, placed[k, 3] + more[event])
            following[k] = k + 1
            k = _last(following, k)
    return most


@numba_jit
def _last(following: NDArray[np.int64], k: int) -> int:
    """The end of a chain, which is made shorter."""
    while following[k] != k:
        following[k] = following[following[k]]
        k = following[k]
    return k


@numba_jit
def in_order(chunks: Table, regions: Table, pool: NDArray[np.int64]) -> Any:
    """(n, 4) address, bytes, owner and region of each chunk, in order of regions and addresses."""
    count = 0
    for r in range(pool[_REGIONS]):
        k = regions[r, _FIRST] if regions[r, _BYTES] else NOBODY
        while k != NOBODY:
            count += 1
            k = chunks[k, _AFTER]
    found = np.empty((count, 4), np.int64)
    row, left = 0, 0
    for r in range(pool[_REGIONS]):
        if regions[r, _BYTES]:
            k = regions[r, _FIRST]
            while k != NOBODY:
                found[row, 0], found[row, 1], found[row, 2] = chunks[k, _ADDRESS], chunks[k, _SIZE], chunks[k, _OWNER]
                found[row, 3] = left
                row += 1
                k = chunks[k, _AFTER]
            left += 1
    return found
