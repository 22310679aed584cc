"""Processes that share a device: what is timed has it alone, and nobody waits for ever."""

import threading
import time

import pytest

from checkmate_tf.check.turns import ALONE, AWAY, BESIDE, Turns

WAIT = 0.1  # seconds in which who can have the device has it


@pytest.fixture
def turns(tmp_path):
    """Makes turns of different holders, as of different processes."""
    made = []

    def make():
        made.append(Turns(str(tmp_path)))
        return made[-1]

    yield make
    for one in made:
        one.__exit__(None, None, None)


def asking(one, state):
    """A thread that takes a turn, and an event that is set when it has it."""
    had = threading.Event()

    def ask():
        one.take(state)
        had.set()

    threading.Thread(target=ask, daemon=True).start()
    return had


@pytest.mark.parametrize(
    ("held", "asked", "waits"),
    [(BESIDE, BESIDE, False), (BESIDE, ALONE, True), (ALONE, BESIDE, True), (ALONE, ALONE, True)],
)
def test_who_waits_for_whom(turns, held, asked, waits):
    one, other = turns(), turns()
    one.take(held)
    had = asking(other, asked)
    assert had.wait(WAIT) is not waits
    one.take(AWAY)
    assert had.wait(5.0)


def test_nobody_comes_in_before_who_waits_to_be_alone(turns):
    one, timed, late = turns(), turns(), turns()
    one.take(BESIDE)
    alone = asking(timed, ALONE)
    time.sleep(WAIT)
    beside = asking(late, BESIDE)
    assert not beside.wait(WAIT) and not alone.is_set()
    one.take(AWAY)
    assert alone.wait(5.0) and not beside.wait(WAIT)
    timed.take(BESIDE)
    assert beside.wait(5.0)


def test_stages_of_compile(turns):
    one, other = turns(), turns()
    one.hear("costs", 0, 1, "Conv2D")
    had = asking(other, BESIDE)
    assert not had.wait(WAIT)
    one.hear("solve", 0, 1, "")
    assert had.wait(5.0)


def test_who_ends_gives_its_turn_back(turns):
    with turns() as one:
        one.take(ALONE)
        had = asking(turns(), ALONE)
        assert not had.wait(WAIT)
    assert had.wait(5.0)


def test_without_a_folder_nobody_shares():
    with Turns(None) as one, Turns(None) as other:
        one.take(ALONE)
        other.take(ALONE)
