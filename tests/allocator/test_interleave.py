"""Orders in which operations may come side by side: what each must respect, and brute force on tiny graphs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import all_interleavings, chain, kernels, kernels_and_sequences, may_begin, plain_events, plain_runs

from checkmate_tf.allocator.interleave import interleaving
from checkmate_tf.allocator.sequence import linked
from checkmate_tf.errors import PlanError


def drawn_order(given, sequence, waits, *, threads=2, seed=0, seconds=None):
    runs = linked(given, np.array(sequence, np.int64))
    seconds = np.ones(len(given.operations) - 1) if seconds is None else seconds
    return interleaving(given, runs, waits, seconds, threads=threads, seed=seed).tolist()


@st.composite
def steps(draw, **sizes):
    """Kernels, a sequence, and waits: none, all, or any."""
    given, sequence = draw(kernels_and_sequences(**sizes))
    waits = [draw(st.integers(0, position)) for position in range(len(sequence))]
    return given, sequence, waits


@given(kernels_and_sequences(most_operations=1), st.integers(1, 3), st.integers(0, 5))
def test_where_each_waits_for_all_before_it_the_order_is_strict(drawn, threads, seed):
    given, sequence = drawn
    order = drawn_order(given, sequence, range(len(sequence)), threads=threads, seed=seed)
    assert order == [m for run in range(len(order) // 2) for m in (run, ~run)]


@given(steps(), st.integers(1, 3), st.integers(0, 5))
def test_each_run_begins_after_what_it_reads_and_waits_for(drawn, threads, seed):
    given, sequence, waits = drawn
    order = drawn_order(given, sequence, waits, threads=threads, seed=seed)
    runs, running, ended = plain_runs(given, sequence), set(), set()
    for moment in order:
        if moment >= 0:
            assert may_begin(runs, moment, ended, waits)
            running.add(moment)
        else:
            running.remove(~moment)
            ended.add(~moment)
        assert len(running) <= threads
    assert ended == set(range(len(runs)))


@given(steps(), st.integers(0, 5))
def test_one_thread_runs_one_after_the_other(drawn, seed):
    order = drawn_order(*drawn, threads=1, seed=seed)
    assert [~m for m in order[1::2]] == order[::2]


@given(steps(most_nodes=3, most_computations=3, most_operations=1))
def test_no_order_is_beyond_brute_force(drawn):
    given, sequence, waits = drawn
    possible = [tuple(order) for order in all_interleavings(given, sequence, waits)]
    peaks = [most_asked(given, sequence, order) for order in possible]
    for seed in range(4):
        order = tuple(drawn_order(given, sequence, waits, seed=seed))
        assert order in possible
        assert min(peaks) <= most_asked(given, sequence, order) <= max(peaks)


def most_asked(given, sequence, order):
    live, most, there = 0, 0, {}
    for name, size in zip(*plain_events(given, sequence, order), strict=True):
        live += size if size >= 0 else -there[name]
        there[name] = size
        most = max(most, live)
    return most


# By hand.


def alone(count):
    """Nodes that read nothing."""
    return chain([100] * count)._replace(reads=np.zeros(count + 1, np.int64), read=np.zeros(0, np.int64))


def test_equal_seeds_give_equal_orders_and_others_other_ones():
    given, sequence, waits = alone(8), list(range(8)), [0] * 8
    orders = [drawn_order(given, sequence, waits, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert orders[0] == orders[1] and any(order != orders[0] for order in orders)


def test_what_is_ready_at_first_starts_in_any_order():
    found = {drawn_order(alone(3), [0, 1, 2], [0] * 3, threads=1, seed=seed)[0] for seed in range(20)}
    assert found == {0, 1, 2}


def test_a_short_operation_ends_before_a_long_one_that_began_with_it():
    assert drawn_order(alone(2), [0, 1], [0, 0], seconds=[1.0, 0.1]).index(~1) == 2
    assert drawn_order(alone(2), [0, 1], [0, 0], seconds=[0.1, 1.0]).index(~0) == 2


def test_a_thread_goes_on_with_the_last_reader_and_another_takes_the_rest():
    """Node 0 is read by 1, 2 and 3: its thread runs 3, and the other one the oldest."""
    reads, read = [0, 0, 1, 2, 3], [0, 0, 0]
    tree = kernels(range(5), range(5), reads, read, [100] * 4)
    order = drawn_order(tree, range(4), [0] * 4, seconds=[1.0, 1.0, 1.0, 5.0])
    assert order[:2] == [0, ~0] and set(order[2:4]) == {1, 3} and order[4:6] == [~1, 2]


def test_a_computation_without_operations_is_no_obstacle():
    assert drawn_order(chain([10]), [7, 0], [0, 1]) == [0, ~0]
    assert drawn_order(chain([10]), [7], [0]) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"waits": [0, 2, 0]}, "computation 1 waits for the first 2"),
        ({"waits": [0, 0]}, "2 waits"),
        ({"seconds": [1.0, -1.0, 0.0]}, "none of them negative"),
        ({"seconds": [1.0]}, "1 numbers of seconds"),
        ({"threads": 0}, "0 threads"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    asked = {"waits": [0, 0, 0], "seconds": [1.0] * 3} | changes
    with pytest.raises(PlanError, match=message):
        drawn_order(chain([10, 10, 10]), [0, 1, 2], **asked)
