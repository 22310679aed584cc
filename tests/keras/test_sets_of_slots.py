"""What Keras builds at the first batch is taken back, and told from what others build meanwhile."""

from __future__ import annotations

from types import SimpleNamespace

from checkmate_tf.keras.built.unbuilt import _State


class Named:
    """Two of one hash lie in a set in the order in which they came."""

    def __init__(self, value):
        self.value = value

    def __hash__(self):
        return self.value


def with_set(*members):
    return SimpleNamespace(members=set(members))


def test_a_set_that_is_filled_again_in_another_order_lasts():
    """A loaded model's optimizer keeps such a set of its slots. Its plan was made twice."""
    first, second, third = Named(0), Named(8), Named(16)
    holder = with_set(third, second, first)
    before, state = list(holder.members), _State([holder])
    holder.members.clear()
    holder.members.update([first, second, third])
    assert list(holder.members) != before and state.lasts()
    state.put()
    assert holder.members == {first, second, third} and state.lasts()


def test_other_members_of_a_set_are_a_change_that_is_taken_back():
    first, second = Named(0), Named(8)
    holder = with_set(first)
    state = _State([holder])
    holder.members.add(second)
    assert not state.lasts()
    state.put()
    assert state.lasts() and holder.members == {first}
    holder.members.clear()
    holder.members.add(Named(0))  # another object
    assert not state.lasts()
