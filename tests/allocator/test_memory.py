"""What a step takes of a device's memory: the pieces put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from operations import chain, kernels, kernels_and_sequences, plain_events

from checkmate_tf.allocator import memory as memories
from checkmate_tf.allocator.bfc import FREE, Bfc, Events, empty_state, place
from checkmate_tf.allocator.interleave import interleaving
from checkmate_tf.allocator.kernel import most_with_one_whole
from checkmate_tf.allocator.memory import Memory, with_more
from checkmate_tf.allocator.sequence import events_of
from checkmate_tf.errors import PlanError

ALLOCATOR = Bfc(2**22)
BEFORE = place(ALLOCATOR, Events(np.array([7, 8, 7]), np.array([5000, 300, FREE]))).state  # a hole, and 512 bytes


@given(kernels_and_sequences())
def test_as_the_allocator_places_the_events(drawn):
    kernels, sequence = drawn
    placed = Memory(ALLOCATOR, BEFORE, kernels).placed(sequence)
    expected = place(ALLOCATOR, events_of(kernels, sequence, first_id=100), BEFORE)
    assert placed.peak_bytes == expected.peak_bytes and not placed.out_of_memory


@given(kernels_and_sequences())
def test_asked_bytes_are_values_rounded_up(drawn):
    kernels, sequence = drawn
    placed = Memory(ALLOCATOR, BEFORE, kernels).placed(sequence)
    there, most = {}, 0
    for owner, size in zip(*plain_events(kernels, sequence), strict=True):
        if size < 0:
            del there[owner]
        else:
            there[owner] = size
        most = max(most, sum(-(-s // 256) * 256 for s in there.values()))
    assert placed.asked_bytes == 512 + most
    assert placed.asked_bytes <= placed.peak_bytes


@given(kernels_and_sequences())
def test_a_placement_says_whose_each_event_is(drawn):
    kernels, sequence = drawn
    memory = Memory(ALLOCATOR, BEFORE, kernels)
    events, placement, operations = memory.placement(sequence)
    assert placement.peak_bytes == memory.placed(sequence).peak_bytes
    assert len(events.ids) == len(operations) == len(placement.address)
    assert not set(events.ids.tolist()) & {8}


def test_a_value_beyond_the_limit_finds_no_room():
    steps = chain([2**20, 2**20, 2**20], kept=[True, True, True])
    small, large = Bfc(2**21, growth=False), Bfc(2**22, growth=False)
    assert Memory(small, empty_state(small), steps).placed([0, 1, 2]).out_of_memory
    assert not Memory(large, empty_state(large), steps).placed([0, 1, 2]).out_of_memory
    assert not Memory(small, empty_state(small), steps).placed([0, 1]).out_of_memory


def test_what_finds_no_room_takes_more_than_there_is():
    """The more it asks for, the more; and what finds room takes its peak."""
    allocator = Bfc(2**21, growth=False)
    memory = Memory(allocator, empty_state(allocator), chain([2**20, 2**20, 2**18, 2**20], kept=[True] * 4))
    fits, short, shorter = (memory.placed(sequence) for sequence in ([0, 1], [0, 1, 2], [0, 1, 2, 3]))
    assert fits.taken_bytes == fits.peak_bytes <= 2**21 < short.taken_bytes < shorter.taken_bytes
    assert short.peak_bytes <= 2**21


def test_pieces_that_are_too_small_are_no_room():
    """Two holes of 1 MiB for a value of 2."""
    allocator = Bfc(3 * 2**20, growth=False)
    mib = np.array([2**20, 2**20 - 256, 256, 2**20, FREE, FREE])
    state = place(allocator, Events(np.array([0, 1, 2, 3, 1, 3]), mib)).state
    found = Memory(allocator, state, chain([2**20 + 256])).placed([0])
    assert found.out_of_memory and found.asked_bytes < allocator.limit_bytes


def test_what_comes_before_a_step_takes_room():
    more = with_more(ALLOCATOR, BEFORE, [1000, 70_000])
    assert more.bytes_in_use == BEFORE.bytes_in_use + 1024 + 70_144
    assert with_more(ALLOCATOR, BEFORE, []).bytes_in_use == BEFORE.bytes_in_use
    assert len(set(more.owner[more.owner != FREE])) == 3
    steps = chain([4000, 4000])
    plain, beside = (Memory(ALLOCATOR, s, steps).placed([0, 1]).peak_bytes for s in (BEFORE, more))
    assert beside >= plain + 70_000


# In loose order.


@given(kernels_and_sequences(most_operations=1))
def test_loose_with_all_waits_is_strict(drawn):
    kernels, sequence = drawn
    memory = Memory(ALLOCATOR, BEFORE, kernels)
    seconds = np.ones(len(kernels.operations) - 1)
    loose = memory.placed_loose(sequence, np.arange(len(sequence)), seconds, samples=2)
    assert loose == memory.placed(sequence)


def without_reads(kernels):
    return kernels._replace(reads=np.zeros_like(kernels.reads), read=np.zeros(0, np.int64))


def test_two_branches_at_once_take_more_than_one_after_the_other():
    """Two nodes that nobody reads, each with a workspace."""
    two = without_reads(chain([1000, 1000], after=[50_000, 50_000]))
    memory = Memory(ALLOCATOR, BEFORE, two)
    strict = memory.placed([0, 1])
    loose = memory.placed_loose([0, 1], [0, 0], [1.0, 1.0])
    assert loose.asked_bytes >= strict.asked_bytes + 50_000
    assert memory.placed_loose([0, 1], [0, 0], [1.0, 1.0], threads=1).asked_bytes == strict.asked_bytes


def test_equal_seeds_give_equal_results_and_more_samples_no_less():
    drawn = without_reads(chain([3000, 100, 9000, 5000, 700], after=[0, 9000, 100, 40_000, 30_000]))
    memory = Memory(ALLOCATOR, BEFORE, drawn)
    given = ([0, 1, 2, 3, 4], [0] * 5, [1.0, 2.0, 1.5, 1.0, 0.5])
    assert memory.placed_loose(*given, seed=3) == memory.placed_loose(*given, seed=3)
    assert memory.placed_loose(*given, samples=8).peak_bytes >= memory.placed_loose(*given, samples=1).peak_bytes


def test_what_samples_differ_by_is_part_of_what_none_is_expected_to_exceed():
    drawn = without_reads(chain([3000, 100, 9000, 5000, 700], after=[0, 9000, 100, 40_000, 30_000]))
    memory = Memory(ALLOCATOR, BEFORE, drawn)
    strict, loose = memory.placed([0, 1, 2, 3, 4]), memory.placed_loose([0, 1, 2, 3, 4], [0] * 5, [1.0] * 5)
    assert strict.sure_bytes == strict.peak_bytes
    peaks = [memory.placed_loose([0, 1, 2, 3, 4], [0] * 5, [1.0] * 5, samples=k).peak_bytes for k in (1, 16)]
    assert loose.apart_bytes > 0 and loose.peak_bytes == peaks[1]
    assert loose.sure_bytes == loose.peak_bytes + loose.apart_bytes


def test_what_steps_take_whose_threads_are_held_up_is_part_of_the_most():
    """Node 0 makes 300 kB for node 1, and node 3 for node 4, long after that: but node 1 may be held up until then."""
    reads, read = [0, 0, 1, 1, 2, 3, 5], [0, 2, 3, 1, 4]
    drawn = kernels(range(7), range(7), reads, read, [300_000, 10, 10, 300_000, 10, 10])
    memory, seconds = Memory(ALLOCATOR, BEFORE, drawn), [0.01, 1.0, 20.0, 0.01, 1.0, 300.0]
    placed = memory.placed_loose(range(6), [0] * 6, seconds)
    assert placed.sure_bytes < placed.peak_bytes + 290_000 <= placed.most_bytes
    assert placed.most_bytes == placed.peak_bytes + placed.held_up_bytes


@given(kernels_and_sequences())
def test_the_most_with_one_chunk_given_whole_is_looked_for_at_every_moment(drawn):
    kernels, sequence = drawn
    events = events_of(kernels, sequence, first_id=100)
    placement, most, there = place(ALLOCATOR, events, BEFORE), 0, {}
    for owner, size, chunk, in_use in zip(
        events.ids, events.sizes, placement.chunk_bytes, placement.bytes_in_use, strict=True
    ):
        if size < 0:
            there.pop(owner)
        else:
            rounded = -(-size // 256) * 256
            there[owner] = 2 * rounded - 256 - chunk if rounded else 0
        most = max(most, in_use + max([0, *there.values()])) if there else most
    ids = events.ids - 100
    placed = np.stack([placement.address, placement.region, placement.chunk_bytes, placement.bytes_in_use], axis=1)
    assert most_with_one_whole(ids, events.sizes, placed, 2**27) == most


def test_a_chunk_may_be_larger_than_its_request_by_the_padding_at_most():
    ids, sizes = np.array([0, 1]), np.array([1024, 512])
    placed = np.array([[0, 0, 1024, 1024], [1024, 0, 512, 1536]])
    assert most_with_one_whole(ids, sizes, placed, 2**27) == 1536 + 1024 - 256
    assert most_with_one_whole(ids, sizes, placed, 512) == 1536 + 512 - 256


def test_what_one_chunk_given_whole_takes_is_part_of_the_most_where_orders_differ():
    drawn = without_reads(chain([300_000, 200_000, 100_000]))
    memory = Memory(ALLOCATOR, BEFORE, drawn)
    loose, strict = (memory.placed_loose([0, 1, 2], waits, [1.0] * 3) for waits in ([0, 0, 0], [0, 1, 2]))
    assert 90_000 < loose.given_whole_bytes < 300_000 + 256 and strict.given_whole_bytes == 0
    assert loose.most_bytes > loose.sure_bytes
    assert memory.placed([0, 1, 2]).given_whole_bytes == 0


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_steps_are_drawn_with_threads_held_up_and_with_one_more(monkeypatch, threads):
    asked = []

    def drawn(*given, threads, seed, held_up):
        asked.append((threads, held_up))
        return interleaving(*given, threads=threads, seed=seed, held_up=held_up)

    monkeypatch.setattr(memories, "interleaving", drawn)
    memory = Memory(ALLOCATOR, BEFORE, chain([1000, 1000]), threads=threads)
    memory.placed_loose([0, 1], [0, 0], [1.0, 1.0], samples=3)
    more = [(threads, True), (threads + 1, False)] * 3 if threads > 1 else []  # one thread: there is one order
    assert asked == [(threads, False)] * 3 + more


def test_any_sample_out_of_memory_counts():
    two = without_reads(chain([2**19, 2**19], after=[2**20, 2**20]))
    tight = replace(ALLOCATOR, limit_bytes=2**21, growth=False)
    memory = Memory(tight, empty_state(tight), two)
    assert not memory.placed([0, 1]).out_of_memory
    assert memory.placed_loose([0, 1], [0, 0], [1.0, 1.0]).out_of_memory


def test_no_samples_are_refused():
    with pytest.raises(PlanError, match="0 samples"):
        Memory(ALLOCATOR, BEFORE, chain([10])).placed_loose([0], [0], [1.0], samples=0)


def test_the_batch_comes_first_and_is_freed_in_the_step():
    """Node 2 is the batch, which node 0 reads; node 1 then has its room."""
    given = kernels(range(4), range(4), [0, 1, 2, 2], [2, 0], [1024, 4096, 4096])
    memory = Memory(ALLOCATOR, empty_state(ALLOCATOR), given, first=2)
    without = Memory(ALLOCATOR, empty_state(ALLOCATOR), given)
    assert memory.placed([0, 1]) == without.placed([2, 0, 1])
    assert memory.placed([0, 1]).peak_bytes == 4096 + 1024
    assert memory.placement([0, 1])[0].ids.tolist() == without.placement([2, 0, 1])[0].ids.tolist()
    loose = memory.placed_loose([0, 1], [0, 0], [1.0, 1.0])
    assert loose == without.placed_loose([2, 0, 1], [0, 1, 1], [1.0, 1.0, 0.0])


@pytest.mark.parametrize("sizes", [(4096, 1024), (1024, 4096)])
def test_the_tensors_of_a_batch_come_in_any_order(sizes):
    """The larger one takes all of the hole if it comes first, and both have room there if it comes second."""
    given = kernels(range(3), [0, 1, 3], [0, 2, 2], [1, 2], [256, *sizes])
    memory = Memory(ALLOCATOR, BEFORE, given, first=1)
    orders = [Memory(ALLOCATOR, BEFORE, kernels(range(3), [0, 1, 3], [0, 2, 2], [1, 2], [256, *way])) for way in
              (sizes, sizes[::-1])]  # fmt: skip
    peaks = sorted(one.placed([1, 0]).peak_bytes for one in orders)
    assert peaks == [512 + 5120 + 256, 512 + 5120 + 1024 + 256]
    assert memory.placed([0]).peak_bytes == peaks[1] and memory.placed([0]).apart_bytes == 0
    events, placement, _ = memory.placement([0])
    assert placement.peak_bytes == peaks[1] and events.sizes[0] == 4096
    loose = [memory.placed_loose([0], [0], [1.0], samples=samples) for samples in (1, 2, 4)]
    forward = orders[0].placed([1, 0]).peak_bytes
    assert [one.peak_bytes for one in loose] == [forward, peaks[1], peaks[1]], "a single one is forward"
    assert loose[2].apart_bytes == 0 < loose[1].apart_bytes, "two of each order have a median of their own"
