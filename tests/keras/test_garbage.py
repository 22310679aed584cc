"""While a plan is made, the garbage collector looks at new objects alone.

Each test is a process of its own: here the collector would have all to look at that other tests have left.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import pytest

from checkmate_tf.keras.garbage import old_left_alone


class Cycle:
    def __init__(self):
        self.me = self


def what_was_there_is_left_alone_and_what_is_new_is_freed():
    old = weakref.ref(Cycle())
    with old_left_alone():
        assert old() is None  # what lies in cycles already is freed first: it may hold memory
        assert gc.get_freeze_count() > 0
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None
    assert gc.get_freeze_count() == 0


def it_ends_with_an_error():
    with pytest.raises(ValueError, match="no plan"), old_left_alone():
        raise ValueError("no plan")
    assert gc.get_freeze_count() == 0


def a_user_who_froze_objects_keeps_them_frozen():
    gc.freeze()
    with old_left_alone():
        pass
    assert gc.get_freeze_count() > 0


CASES = {
    case.__name__: case
    for case in (
        what_was_there_is_left_alone_and_what_is_new_is_freed,
        it_ends_with_an_error,
        a_user_who_froze_objects_keeps_them_frozen,
    )
}


@pytest.mark.parametrize("name", CASES)
def test_garbage(name):
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    CASES[sys.argv[1]]()
