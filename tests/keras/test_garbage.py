"""While a plan is made, the garbage collector looks at new objects alone."""

from __future__ import annotations

import gc
import weakref

import pytest

from checkmate_tf.keras.garbage import old_left_alone


@pytest.fixture(autouse=True)
def _nothing_frozen():
    gc.unfreeze()  # the suite freezes what tests leave


class Cycle:
    def __init__(self):
        self.me = self


def test_what_was_there_is_left_alone_and_what_is_new_is_freed():
    old = weakref.ref(Cycle())
    with old_left_alone():
        assert old() is None  # what lies in cycles already is freed first: it may hold memory
        assert gc.get_freeze_count() > 0
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None
    assert gc.get_freeze_count() == 0


def test_it_ends_with_an_error():
    with pytest.raises(ValueError, match="no plan"), old_left_alone():
        raise ValueError("no plan")
    assert gc.get_freeze_count() == 0


def test_a_user_who_froze_objects_keeps_them_frozen():
    gc.freeze()
    try:
        with old_left_alone():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
