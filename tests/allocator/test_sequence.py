"""What operations allocate and free: by hand, and against a plain model with counts of references."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from operations import Plain, chain, kernels, kernels_and_sequences, plain_events, plain_runs

from checkmate_tf.allocator.sequence import allocated, events_of, expand, linked, small_bytes
from checkmate_tf.allocator.workspace import NOTHING, Workspace


def listed(given, sequence):
    """(id, bytes) of allocations, and ids of frees."""
    events = events_of(given, sequence)
    return [i if s < 0 else (i, s) for i, s in zip(events.ids.tolist(), events.sizes.tolist(), strict=True)]


# By hand.


def test_a_buffer_is_freed_when_its_last_reader_has_run():
    assert listed(chain([10, 20, 30]), [0, 1, 2]) == [(0, 10), (1, 20), 0, (2, 30), 1, 2]


def test_what_the_step_returns_stays():
    assert listed(chain([10, 20], kept=[True, True]), [0, 1]) == [(0, 10), (1, 20)]


def test_only_the_newest_copy_is_returned():
    assert listed(chain([10], kept=[True]), [0, 0]) == [(0, 10), 0, (1, 10)]


def test_a_copy_is_kept_for_its_own_readers_only():
    """Node 0 is computed again for node 2."""
    two = kernels([0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 3], [0, 0, 1], [10, 20, 30])
    assert listed(two, [0, 1, 0, 2]) == [(0, 10), (1, 20), 0, (2, 10), (3, 30), 2, 1, 3]


def test_workspaces_come_after_outputs_and_go_before_inputs():
    assert listed(chain([10, 20], after=[0, 7]), [0, 1]) == [(0, 10), (1, 20), (2, 7), 2, 0, 1]


def test_some_come_before_outputs():
    given = chain([10, 20], own=[NOTHING, Workspace((3, 4), (7,))])
    assert listed(given, [0, 1]) == [(0, 10), (1, 3), (2, 4), (3, 20), (4, 7), 1, 2, 4, 0, 3]


def test_an_output_takes_over_a_dying_input_of_its_size():
    assert listed(chain([10, 10], takes_over=[-1, 0]), [0, 1]) == [(0, 10), 0]
    assert listed(chain([10, 11], takes_over=[-1, 0]), [0, 1]) == [(0, 10), (1, 11), 0, 1]
    assert len(listed(chain([10, 10], takes_over=[-1, 0], kept=[True, False]), [0, 1])) == 3


def test_a_list_lies_in_pieces_and_is_not_taken_over():
    assert listed(chain([30, 30], pieces=[3, 1], takes_over=[-1, 0]), [0, 1]) == [
        *[(0, 10), (1, 10), (2, 10)],
        (3, 30),
        *[0, 1, 2],
        3,
    ]


def test_a_node_without_operations_allocates_nothing():
    assert listed(chain([10]), [0, 5]) == [(0, 10), 0]


def test_small_bytes_are_those_of_small_chunks():
    given = chain([100, 5000, 300], kept=[True, True, True])
    assert small_bytes(given, [0, 1, 2], below=1000, grain=256) == 256 + 512


def test_two_that_run_at_once_take_over_nothing_that_the_other_still_reads():
    """Nodes 1 and 2 read node 0 and would take it over. Only who begins as the last one may."""
    both = kernels([0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 1, 2], [0, 0], [10, 10, 10], takes_over=[-1, 0, 0])
    runs = linked(both, np.arange(3))
    ids, sizes, _ = allocated(both, runs, np.array([0, ~0, 1, 2, ~1, ~2]))
    assert sizes.tolist() == [10, 10, 10, -1, -1, -1] and ids.tolist() == [0, 1, 2, 1, 0, 2]
    ids, sizes, _ = allocated(both, runs, np.array([0, ~0, 2, ~2, 1, ~1]))
    assert sizes.tolist() == [10, 10, -1, -1]


# Against the plain model.


@given(kernels_and_sequences())
def test_in_strict_order_as_the_plain_model(drawn):
    given, sequence = drawn
    ids, sizes, operations = expand(given, np.array(sequence))
    assert (ids.tolist(), sizes.tolist()) == plain_events(given, sequence)
    assert len(operations) == len(ids)


@given(kernels_and_sequences(), st.randoms(use_true_random=False))
def test_in_any_order_as_the_plain_model(drawn, rng):
    given, sequence = drawn
    moments = any_order(given, sequence, rng)
    ids, sizes, _ = allocated(given, linked(given, np.array(sequence)), np.array(moments, np.int64))
    assert (ids.tolist(), sizes.tolist()) == plain_events(given, sequence, moments)


def any_order(given, sequence, rng):
    """Begins and ends at random, each run after what it reads."""
    runs = plain_runs(given, sequence)
    moments, running, ended = [], [], set()
    while len(moments) < 2 * len(runs):
        waiting = [r for r in range(len(runs)) if r not in ended and r not in running]
        begins = [r for r in waiting if all(maker in ended for _, maker in runs[r][2])]
        if begins and (not running or rng.random() < 0.5):
            running.append(rng.choice(begins))
            moments.append(running[-1])
        else:
            moments.append(~running.pop(rng.randrange(len(running))))
            ended.add(~moments[-1])
    return moments


@given(kernels_and_sequences(), st.integers(0, 3))
def test_everything_is_freed_once_but_what_is_kept(drawn, first):
    given, sequence = drawn
    events = events_of(given, sequence, first)
    there = {}
    for owner, size in zip(events.ids.tolist(), events.sizes.tolist(), strict=True):
        if size < 0:
            del there[owner]
        else:
            assert owner not in there and owner >= first
            there[owner] = size
    kept = [b for b, _ in Plain(given, sequence).kept]
    assert sum(there.values()) == sum(given.bytes[b] // given.pieces[b] * given.pieces[b] for b in kept)
