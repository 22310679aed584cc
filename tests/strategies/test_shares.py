"""Shares of moves are chosen by what they gained in their time."""

from __future__ import annotations

from collections import Counter

import numpy as np

from checkmate_tf.strategies.search.sequences.shares import Shares


def chosen(shares, count=3000):
    return Counter(shares.choose() for _ in range(count))


def test_all_are_tried_alike_at_first():
    found = chosen(Shares((0.0, 0.1, 0.5), np.random.default_rng(0)))
    assert len(found) == 3 and min(found.values()) > 900


def test_what_gains_more_in_its_time_is_tried_more_often_and_none_is_left_out():
    shares = Shares((0.0, 0.1, 0.5), np.random.default_rng(0))
    shares.learn(0.0, 1.0, 1.0)
    shares.learn(0.1, 1.0, 10.0)
    shares.learn(0.5, 0.0, 1.0)
    found = chosen(shares)
    assert found[0.0] > 3 * found[0.1] and found[0.1] > found[0.5] > 200


def test_what_gained_long_ago_is_forgotten():
    shares = Shares((0.0, 0.5), np.random.default_rng(0))
    shares.learn(0.0, 1.0, 1.0)
    for _ in range(60):
        shares.learn(0.0, 0.0, 1.0)
        shares.learn(0.5, 0.1, 1.0)
    found = chosen(shares)
    assert found[0.5] > 4 * found[0.0]


def test_equal_seeds_choose_alike():
    one, other = (Shares((0.0, 0.5), np.random.default_rng(3)) for _ in range(2))
    assert [one.choose() for _ in range(20)] == [other.choose() for _ in range(20)]
