"""What later steps are expected to take."""

from __future__ import annotations

import pytest

from checkmate_tf.allocator.steps import expected_most


@pytest.mark.parametrize(("peaks", "kinds", "most"), [
    ([100], 1, 100), ([100, 100], 1, 100), ([100, 140, 110, 100], 1, 175),
    ([100, 140, 100, 140], 1, 160), ([100, 140, 100, 140], 2, 140),  # no step takes more than others of its kind
    ([100, 140, 106, 140], 2, 140), ([130, 140, 170, 140], 2, 190), ([100, 140, 100], 2, 180), ([100, 140], 4, 160),
])  # fmt: skip
def test_as_far_above_the_most_as_that_is_above_the_median_of_its_kind(peaks, kinds, most):
    assert expected_most(peaks, kinds) == most
