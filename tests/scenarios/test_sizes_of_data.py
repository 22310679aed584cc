"""Sizes that data decides, without a bound, and inputs that are ragged or sparse: seen in the first batch.

Each model is compiled with a budget and nothing else. The numbers are plain ones, bit by bit.
"""

from __future__ import annotations

import pytest
from cases import Case, assert_same_state, compile_quickly, make, train

from benchmarks.lib.kinds import KINDS

pytestmark = [pytest.mark.usefixtures("fresh_keras", "no_grappler")]

BUDGETS = {
    "routed": 0.8, "looped": 0.8, "shortened": 0.8, "ranged": 0.9, "repeated": 0.9, "mapped": 0.9, "ragged": 0.8,
    "sparse": 0.8,
}  # fmt: skip
CASES = {
    name: Case(KINDS[name].build, KINDS[name].data, budget=share, batch=512 if name == "sparse" else 16)
    for name, share in BUDGETS.items()
}


@pytest.mark.long
@pytest.mark.feature(
    "Models",
    "sizes that data decides",
    name=["ranged", "repeated", "shortened", "mapped"],
    note="planned for what the first batch has, and an eighth more",
)
@pytest.mark.feature("Models", "loops that data ends", name="looped")
@pytest.mark.feature("Models", "rows routed to experts, and stitched together", name="routed")
@pytest.mark.feature("Models", "ragged inputs", name="ragged", note="plans again for more values")
@pytest.mark.feature("Models", "sparse inputs", name="sparse", note="plans again for more values")
@pytest.mark.parametrize("name", CASES)  # fmt: skip
def test_training_is_equal(name):
    case = CASES[name]
    plain, model = make(case), make(case)
    compile_quickly(model, case, batch_size=None, time_limit=30)
    assert train(model, case, 2) == train(plain, case, 2)
    assert_same_state(plain, model)
    assert model.checkmate.recomputations > 0
