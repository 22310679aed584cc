"""The best packing: against brute force where that can be done, and on instances whose answer is known."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkmate_tf.allocator.bfc import FREE, Events
from checkmate_tf.allocator.packing import Blocks, Packing, best_packing, blocks_of, check_packing, most_alive
from checkmate_tf.errors import PlanError

GRAIN = 256


def events(*pairs):
    """(id, units of 256 bytes), or an id alone that is freed."""
    pairs = [(p, FREE) if isinstance(p, int) else (p[0], GRAIN * p[1]) for p in pairs]
    return Events(np.array([p[0] for p in pairs], int), np.array([p[1] for p in pairs], int))


def of_lives(lives):
    """Events of blocks (begin, length, units), a free before an allocation of the same time."""
    turns = [(b, 1, k, size) for k, (b, _, size) in enumerate(lives)]
    turns += [(b + length, 0, k, None) for k, (b, length, _) in enumerate(lives)]
    return events(*[(k, size) if alloc else k for _, alloc, k, size in sorted(turns, key=lambda t: t[:3])])


def least(blocks):
    """The least of all packings. Blocks put down in order of their best addresses, each as low as can be, give it."""
    best = None
    for order in permutations(range(len(blocks.size))):
        address = {}
        for k in order:
            near = [i for i in address if blocks.begin[i] < blocks.end[k] and blocks.begin[k] < blocks.end[i]]
            at = 0
            for i in sorted(near, key=address.get):
                if address[i] - at >= blocks.size[k]:
                    break
                at = max(at, address[i] + blocks.size[i])
            address[k] = at
        top = max(address[k] + blocks.size[k] for k in order)
        best = top if best is None else min(best, top)
    return best


lives = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=5)


@settings(max_examples=150, deadline=None)
@given(lives)
def test_tiny_cases_are_packed_as_well_as_brute_force_does(given_lives):
    found = best_packing(of_lives(given_lives))
    assert found.packed_bytes == least(blocks_of(of_lives(given_lives)))
    assert found.bound_bytes <= found.packed_bytes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 50)), max_size=40))
def test_no_two_blocks_overlap(given_lives):
    given_events = of_lives(given_lives)
    found, blocks = best_packing(given_events), blocks_of(given_events)
    for i in range(len(blocks.size)):  # by definition; `check_packing` sweeps
        for j in range(i):
            together = blocks.begin[i] < blocks.end[j] and blocks.begin[j] < blocks.end[i]
            low, high = sorted((i, j), key=lambda k: found.address[k])
            assert not together or found.address[low] + blocks.size[low] <= found.address[high]
    assert found.packed_bytes == (found.address + blocks.size).max(initial=0)
    assert most_alive(blocks) == found.bound_bytes <= found.packed_bytes <= blocks.size.sum()


def test_nested_lives_need_no_more_than_is_alive():
    """As in a step without recomputation: what comes first dies last."""
    found = best_packing(events(*[(k, k + 1) for k in range(6)], *range(5, -1, -1)))
    assert found.optimal and found.packed_bytes == 21 * GRAIN


def test_a_staircase_that_first_fit_in_order_of_time_gets_wrong():
    """Each block is larger than the hole that the last one left: in order of time, none is used."""
    stairs = []
    for k in range(8):
        stairs += [(k, k + 1), *([k - 2] if k > 1 else [])]
    found = best_packing(events(*stairs))
    assert found.bound_bytes == (8 + 7 + 6) * GRAIN
    assert found.optimal


def test_what_is_above_the_bound_is_not_called_optimal():
    assert Packing(256, 256, np.zeros(1, int)).optimal
    assert not Packing(256, 512, np.zeros(1, int)).optimal


def test_what_takes_no_memory_and_what_was_there_before_are_left_out():
    found = best_packing(events((0, 0), (1, 2), 9, 0, (0, 3), 1))
    assert found.packed_bytes == found.bound_bytes == 5 * GRAIN
    assert best_packing(Events(np.array([], int), np.array([], int))).packed_bytes == 0


def test_sizes_are_rounded_up_and_what_is_never_freed_stays():
    found = best_packing(Events(np.array([0, 1]), np.array([1, 257])))
    assert found.packed_bytes == 3 * GRAIN


@pytest.mark.parametrize("address", [[0, 255], [-256, 256], [0, 0]])
def test_the_checker_sees_overlaps(address):
    blocks = Blocks(np.array([0, 1]), np.array([3, 2]), np.array([GRAIN, GRAIN]))
    with pytest.raises(PlanError, match="overlaps"):
        check_packing(blocks, np.array(address))
    check_packing(blocks, np.array([256, 0]))
    with pytest.raises(PlanError, match="give one for each"):
        check_packing(blocks, np.array([0]))


def test_an_id_has_one_block_at_a_time():
    with pytest.raises(PlanError, match="free it first"):
        blocks_of(events((0, 1), (0, 1)))
