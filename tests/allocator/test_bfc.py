"""TensorFlow's allocator as a model: by hand, and against another one that is slow and plain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.allocator.bfc import FREE, Bfc, Events, State, empty_state, place, state_of_chunks
from checkmate_tf.errors import BudgetError, PlanError

MIB = 2**20
ONE = Bfc(64 * MIB, growth=False)  # one region


def events(*pairs):
    """(id, bytes), or an id alone that is freed."""
    pairs = [(p, FREE) if isinstance(p, int) else p for p in pairs]
    return Events(np.array([p[0] for p in pairs], int), np.array([p[1] for p in pairs], int))


def offsets(allocator, *pairs):
    return place(allocator, events(*pairs)).offset.tolist()


# By hand.


def test_requests_are_rounded_up_to_256_bytes():
    placed = place(ONE, events((0, 1), (1, 256), (2, 257), (3, 4)))
    assert placed.offset.tolist() == [0, 256, 512, 1024]
    assert placed.chunk_bytes.tolist() == [256, 256, 512, 256]
    assert placed.bytes_in_use.tolist() == [256, 512, 1024, 1280]


def test_nothing_is_taken_for_0_bytes():
    placed = place(ONE, events((0, 0), (1, 10), 0, 1))
    assert placed.address[0] == placed.address[2] == -1 and placed.offset[1] == 0
    assert not len(placed.failed) and placed.peak_bytes == 256


def test_the_smallest_chunk_that_fits_is_taken():
    """Holes of 4,096 and 1,024 bytes, kept apart: 1,000 bytes go into the second."""
    walls = [(0, 4096), (1, 256), (2, 1024), (3, 256), 0, 2]
    assert offsets(ONE, *walls, (4, 1000))[-1] == 4096 + 256


def test_of_chunks_as_small_the_lowest_is_taken():
    walls = [(0, 1024), (1, 256), (2, 1024), (3, 256), 2, 0]
    assert offsets(ONE, *walls, (4, 1024), (5, 1024))[-2:] == [0, 1280]


@pytest.mark.parametrize(("hole", "asked", "got"), [(1024, 512, 512), (1024, 768, 1024), (2048, 1024, 1024)])
def test_a_chunk_is_cut_if_it_is_twice_what_is_asked_for(hole, asked, got):
    placed = place(ONE, events((0, hole), (1, 256), 0, (2, asked)))
    assert placed.chunk_bytes[-1] == got


def test_a_chunk_is_cut_if_more_than_the_padding_would_be_lost():
    """128 MiB by default, or a share of the limit."""
    mib = [(0, 300 * MIB), (1, 256), 0, (2, 180 * MIB)]
    assert place(Bfc(2**30, growth=False), events(*mib)).chunk_bytes[-1] == 300 * MIB
    assert place(Bfc(2**30, growth=False), events(*mib[:-1], (2, 172 * MIB))).chunk_bytes[-1] == 172 * MIB
    assert place(Bfc(2**30, growth=False, fragmentation_fraction=0.05), events(*mib)).chunk_bytes[-1] == 180 * MIB


def test_what_a_chunk_has_too_much_counts_as_in_use():
    placed = place(ONE, events((0, 1024), (1, 256), 0, (2, 768)))
    assert placed.peak_bytes == placed.bytes_in_use[-1] == 1280
    assert placed.largest_chunk_bytes == 1024


def test_neighbours_that_are_free_become_one():
    """Before, after, and between two: the hole of three takes what is larger than each."""
    three = [(0, 1024), (1, 1024), (2, 1024), (3, 256)]
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        placed = place(ONE, events(*three, *order, (4, 3072)))
        assert placed.offset[-1] == 0 and placed.chunk_bytes[-1] == 3072


def test_all_that_is_given_back_is_one_chunk_again():
    placed = place(ONE, events((0, 1000), (1, 5000), (2, 100), 1, 0, 2))
    assert placed.state.size.tolist() == [64 * MIB] and placed.state.bytes_in_use == 0


def test_regions_double_from_2_mib():
    placed = place(Bfc(2**30), events((0, 2 * MIB), (1, 256), (2, 4 * MIB), (3, 8 * MIB)))
    assert placed.state.region_bytes.tolist() == [2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB]
    assert placed.region.tolist() == [0, 1, 2, 3]  # 4 MiB do not fit beside 256 bytes
    assert placed.region_bytes == 30 * MIB and placed.state.next_region_bytes == 32 * MIB


def test_a_large_request_doubles_the_next_region_until_it_fits_and_not_once_more():
    """Then 71 MB take 134, since the region is less than twice as large and the padding is allowed."""
    placed = place(Bfc(2**30), events((0, 71_000_000), (1, 256)))
    assert placed.chunk_bytes.tolist() == [128 * MIB, 256]
    assert placed.state.region_bytes.tolist() == [128 * MIB, 128 * MIB]
    assert placed.state.next_region_bytes == 256 * MIB


def test_the_last_region_is_what_the_limit_leaves():
    placed = place(Bfc(7 * MIB + 100), events((0, 2 * MIB), (1, 4 * MIB), (2, MIB), (3, 256)))
    assert placed.state.region_bytes.tolist() == [2 * MIB, 4 * MIB, MIB]
    assert placed.failed.tolist() == [3]
    assert placed.address[3] == placed.region[3] == placed.chunk_bytes[3] == -1


def test_what_failed_need_not_be_freed_but_may_be():
    placed = place(Bfc(MIB), events((0, 2 * MIB), 0, (0, MIB), (1, 256), (2, 256)))
    assert placed.failed.tolist() == [0, 3, 4] and placed.peak_bytes == MIB


def test_the_first_region_is_all_without_growth():
    placed = place(Bfc(5 * MIB, growth=False), events((0, 256), (1, 5 * MIB)))
    assert placed.state.region_bytes.tolist() == [5 * MIB] and placed.failed.tolist() == [1]


def test_less_is_asked_for_where_the_system_has_less():
    """0.9 of it again and again, rounded up; 16 MiB become 0.9 of 0.9 of 0.9 of it."""
    placed = place(Bfc(2**30, system_bytes=12 * MIB + 2 * MIB), events((0, 2 * MIB), (1, 9 * MIB)))
    tried = 16 * MIB
    for _ in range(3):
        tried = -(-int(np.float32(tried) * np.float32(0.9)) // 256) * 256
    assert placed.state.region_bytes.tolist() == [2 * MIB, tried]
    assert place(Bfc(2**30, system_bytes=12 * MIB), events((0, 12 * MIB))).failed.tolist() == [0]


@pytest.mark.parametrize("size", [1, 9 * 256, 10 * 256])
def test_a_system_that_is_used_up_refuses_small_requests_too(size):
    """0.9 of nine grains is nine grains, rounded up."""
    assert place(Bfc(64 * MIB, system_bytes=2 * MIB), events((0, 2 * MIB), (1, size))).failed.tolist() == [1]


def test_free_regions_are_given_back_where_that_is_on():
    """4 MiB do not fit in 2 beside 4, until the 2 are the system's again."""
    pairs = [(0, 2 * MIB), 0, (1, 4 * MIB), 1, (2, 5 * MIB)]
    assert place(Bfc(6 * MIB), events(*pairs)).failed.tolist() == [4]
    placed = place(Bfc(6 * MIB, collecting=True), events(*pairs))
    assert not len(placed.failed)
    assert placed.region.tolist() == [0, 0, 1, 1, 2] and placed.state.region_bytes.tolist() == [6 * MIB]
    assert placed.region_bytes == 6 * MIB


def test_regions_in_which_something_lies_are_not_given_back():
    placed = place(Bfc(6 * MIB, collecting=True), events((0, 2 * MIB), (1, 256), (2, 5 * MIB)))
    assert placed.failed.tolist() == [2]


def test_what_was_given_back_is_not_taken_where_the_system_has_too_little():
    """3 MiB do not give 3.2, given back or not; afterwards they give 1 again."""
    allocator = Bfc(64 * MIB, collecting=True, system_bytes=3 * MIB)
    placed = place(allocator, events((0, MIB), 0, (1, int(3.2 * MIB)), (2, MIB)))
    assert placed.failed.tolist() == [2] and placed.offset[-1] == 0
    assert not len(place(allocator, events((0, MIB), 0, (1, int(3.2 * MIB)))).state.region_bytes)


def test_regions_that_touch_become_one_where_that_is_on():
    pairs = [(0, MIB), (1, MIB), 1, (2, 5 * MIB)]
    apart = place(Bfc(2**30), events(*pairs))
    assert apart.region[-1] == 1
    merged = place(Bfc(2**30, merging_regions=True), events(*pairs))
    assert merged.offset.tolist() == [0, MIB, MIB, MIB] and merged.region.tolist() == [0, 0, 0, 0]
    assert merged.state.region_bytes.tolist() == [10 * MIB]


def test_regions_begin_where_they_are_told_to():
    """The lowest of chunks as small: which region is lower decides."""
    pairs = [(0, 2 * MIB), (1, 4 * MIB), (2, 256), 0, 1, (3, MIB)]
    for lower in (0, 1):
        begins = [100 * MIB, (50, 200)[lower] * MIB, 300 * MIB, -1, -1, -1]
        placed = place(Bfc(2**30), events(*pairs), regions_at=np.array(begins))
        assert placed.region_address.tolist() == begins[:3]
        assert placed.region[-1] == 0  # 2 MiB are smaller than 4
    equal = [(0, 71_000_000), (1, 71_000_000), 0, 1, (2, 100_000_000)]
    for begins, region in (([300 * MIB, 100 * MIB], 1), ([100 * MIB, 300 * MIB], 0)):
        placed = place(Bfc(2**30), events(*equal), regions_at=np.array([*begins, -1, -1, -1]))
        assert placed.region[-1] == region


def test_the_range_is_up_to_the_highest_end_in_each_region():
    placed = place(Bfc(2**30), events((0, 1024), (1, MIB // 2), 0, (2, 256), (3, 3 * MIB)))
    assert placed.range_bytes == 1024 + MIB // 2 + 4 * MIB
    assert placed.peak_bytes == 256 + MIB // 2 + 4 * MIB


def test_a_state_can_be_used_again_and_is_not_changed():
    before = place(ONE, events((0, 1000), (1, 2000), (2, 300), 1)).state
    size = before.size.copy()
    first, again = (place(ONE, events((7, 1500), 0), before) for _ in range(2))
    assert first.offset.tolist() == again.offset.tolist() == [1024, 0]
    assert np.array_equal(before.size, size)
    assert (
        first.bytes_in_use[0] == before.bytes_in_use + first.chunk_bytes[0]
        and first.peak_bytes == first.bytes_in_use[0]
    )
    with pytest.raises(ValueError, match="read-only"):
        before.size[0] = 1


def test_the_chunks_of_a_map_are_a_state():
    """Two regions, the larger one lower; the free neighbours of the smaller one are one chunk."""
    begins = 10 * MIB, 50 * MIB
    address = np.array([begins[0], begins[0] + MIB, begins[1], begins[1] + 256, begins[1] + 512])
    size = np.array([MIB, 3 * MIB, 256, 256, 2 * MIB - 512])
    state = state_of_chunks(Bfc(2**30), address, size, np.array([True, False, True, False, False]))
    assert state.region_address.tolist() == [begins[1], begins[0]]
    assert state.size.tolist() == [256, 2 * MIB - 256, MIB, 3 * MIB]
    assert state.owner.tolist() == [2, FREE, 0, FREE]
    assert state.next_region_bytes == 8 * MIB
    none = np.zeros(0, int)
    assert len(state_of_chunks(Bfc(2**30), none, none, none.astype(bool)).address) == 0


# What cannot be.


@pytest.mark.parametrize(
    ("pairs", "says"), [([(3, 1), (3, 1)], "event 1 allocates"), ([(3, 1), 3, 3], "event 2 frees")]
)
def test_events_that_cannot_be_are_named(pairs, says):
    with pytest.raises(PlanError, match=says):
        place(ONE, events(*pairs))


@pytest.mark.parametrize(("ids", "sizes"), [([0], [1, 2]), ([-1], [1]), ([0], [-2])])
def test_events_are_looked_over(ids, sizes):
    with pytest.raises(PlanError):
        Events(np.array(ids), np.array(sizes))


@pytest.mark.parametrize(
    "setup",
    [
        {"limit_bytes": 255},
        {"limit_bytes": MIB, "fragmentation_fraction": 2.0},
        {"limit_bytes": MIB, "system_bytes": -1},
    ],
)
def test_setups_are_looked_over(setup):
    with pytest.raises(BudgetError):
        Bfc(**setup)


@pytest.mark.parametrize(
    "changes",
    [
        {"size": [256, 512]},
        {"address": [0, 512]},
        {"owner": [4, 4]},
        {"region": [0, 1]},
        {"owner": [0]},
        {"region_bytes": [1024]},
    ],
)
def test_states_are_looked_over(changes):
    good = {
        "address": [0, 256], "size": [256, 256], "owner": [4, 5], "region": [0, 0],
        "region_address": [0], "region_bytes": [512], "next_region_bytes": 512,
    }  # fmt: skip
    State(**good)
    with pytest.raises(PlanError):
        State(**good | changes)


def test_addresses_of_regions_are_one_for_each_event():
    with pytest.raises(PlanError, match="2 addresses"):
        place(ONE, events((0, 1)), regions_at=np.zeros(2, int))


# Against a plain model: lists that are searched from end to end.


class Plain:
    """Chunks as [address, size, owner] in a list for each region."""

    def __init__(self, allocator):
        self.allocator, self.regions, self.next, self.lowest = allocator, {}, allocator.first_region_bytes, 1 << 46

    def allocate(self, owner, size):
        size = -(-size // 256) * 256
        for attempt in (self.nothing, self.grow, self.collect):
            if not attempt(size):
                continue
            fits = [(c[1], c[0], r, c) for r, cs in self.regions.items() for c in cs if c[2] is None and c[1] >= size]
            if fits:
                whole, begins, region, chunk = min(fits, key=lambda f: f[:2])
                if whole >= 2 * size or whole - size >= self.allocator.padding_bytes:
                    chunks = self.regions[region]
                    chunks.insert(chunks.index(chunk) + 1, [begins + size, whole - size, None])
                    chunk[1] = size
                chunk[2] = owner
                return begins, chunk[1]
        return -1, -1

    def nothing(self, size):
        return True

    def grow(self, size):
        left = (self.allocator.limit_bytes - sum(c[1] for cs in self.regions.values() for c in cs)) // 256 * 256
        if size > left:
            return False
        doubled = self.next
        while doubled < size:
            doubled *= 2
        given = min(doubled, left)
        self.next = doubled if doubled > self.next else 2 * doubled
        self.lowest -= given + 256
        self.regions[self.lowest] = [[self.lowest, given, None]]
        return True

    def collect(self, size):
        free = [r for r, cs in self.regions.items() if all(c[2] is None for c in cs)]
        kept = sum(c[1] for r, cs in self.regions.items() if r not in free for c in cs)
        if not self.allocator.collecting or not free or size > self.allocator.limit_bytes - kept:
            return False
        for r in free:
            del self.regions[r]
        return self.grow(size)

    def free(self, owner):
        for region, chunks in self.regions.items():
            for chunk in chunks:
                if chunk[2] == owner:
                    found = chunk[0], chunk[1]
                    chunk[2] = None
                    joined = []
                    for c in chunks:
                        if joined and joined[-1][2] is None and c[2] is None:
                            joined[-1][1] += c[1]
                        else:
                            joined.append(c)
                    self.regions[region] = joined
                    return found
        return -1, -1


def walks(sizes):
    """Whether to free, of whom, and else how many bytes."""
    return st.lists(st.tuples(st.booleans(), st.integers(0, 10**6), sizes), max_size=120)


def made(walk):
    live, ids, sizes = [], [], []
    for k, (free, which, size) in enumerate(walk):
        if free and live:
            ids.append(live.pop(which % len(live)))
            sizes.append(FREE)
        else:
            live.append(k)
            ids.append(k)
            sizes.append(size)
    return Events(np.array(ids, int), np.array(sizes, int))


SIZES = st.one_of(st.integers(1, 2048), st.integers(1, 3 * MIB), st.sampled_from([256, 512, 1024, 4096, MIB]))


@given(walks(SIZES), st.integers(256, 24 * MIB), st.booleans(), st.booleans(), st.sampled_from([0.0, 0.001, 0.1]))
def test_the_model_is_the_plain_one(walk, limit, growth, collecting, fraction):
    """Near its limit, too."""
    allocator = Bfc(limit, growth=growth, collecting=collecting, fragmentation_fraction=fraction)
    given_events, plain = made(walk), Plain(allocator)
    placed = place(allocator, given_events)
    expected = [
        plain.free(i) if s == FREE else plain.allocate(i, s)
        for i, s in zip(given_events.ids.tolist(), given_events.sizes.tolist(), strict=True)
    ]
    assert list(zip(placed.address.tolist(), placed.chunk_bytes.tolist(), strict=True)) == expected
    listed = [c for cs in plain.regions.values() for c in cs]
    assert placed.state.address.tolist() == [c[0] for c in listed]
    assert placed.state.size.tolist() == [c[1] for c in listed]
    assert placed.state.next_region_bytes == plain.next


@given(walks(SIZES), st.integers(0, 120))
def test_two_parts_of_a_sequence_are_the_whole(walk, at):
    allocator, whole = Bfc(24 * MIB), made(walk)
    placed = place(allocator, whole)
    first = place(allocator, Events(whole.ids[:at], whole.sizes[:at]))
    second = place(allocator, Events(whole.ids[at:], whole.sizes[at:]), first.state)
    if len(first.failed):  # what failed is not in the state, and is freed in the second part
        return
    assert np.array_equal(np.concatenate([first.address, second.address]), placed.address)
    assert max(first.peak_bytes, second.peak_bytes) == placed.peak_bytes
    assert np.array_equal(second.state.size, placed.state.size)


@given(walks(SIZES))
def test_a_map_tells_what_the_next_region_has(walk):
    state = place(Bfc(2**40), made(walk)).state
    order = np.argsort(state.address)
    again = state_of_chunks(Bfc(2**40), state.address[order], state.size[order], state.owner[order] != FREE)
    assert again.next_region_bytes == state.next_region_bytes
    assert sorted(again.address.tolist()) == sorted(state.address.tolist())
    assert sorted(again.region_bytes.tolist()) == sorted(state.region_bytes.tolist())


@given(walks(SIZES))
def test_what_lies_in_memory_does_not_overlap(walk):
    allocator = Bfc(2**30, merging_regions=True)
    state = place(allocator, made(walk)).state
    assert len(state.region_address) <= 1
    assert (state.address[1:] == state.address[:-1] + state.size[:-1]).all()
    neighbours = (state.owner[1:] == FREE) & (state.owner[:-1] == FREE)
    assert not neighbours.any()
    assert state.bytes_in_use + state.size[state.owner == FREE].sum() == state.region_bytes.sum()


def test_an_empty_state_has_nothing():
    state = empty_state(Bfc(MIB))
    assert state.bytes_in_use == state.largest_free_bytes == 0 and state.next_region_bytes == MIB
