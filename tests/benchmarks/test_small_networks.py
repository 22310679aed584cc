"""Scripts name networks without importing Keras: the names are those of the libraries."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lib.branching_networks import BRANCHING
from benchmarks.lib.small_models import MODELS
from benchmarks.lib.unseen_networks import UNSEEN
from benchmarks.product import monotone, named_budgets, orders, placement
from checkmate_tf.check.networks import NETWORKS


def test_scripts_know_the_networks_of_the_libraries():
    assert sorted(named_budgets.MODELS) == sorted(MODELS)
    assert len(MODELS) == 30
    assert sorted(placement.UNSEEN) == sorted(UNSEEN)
    assert len(UNSEEN) == 10
    assert {*placement.NETWORKS, *monotone.NETWORKS} <= NETWORKS.keys()
    assert set(orders.NETWORKS) <= orders.networks().keys()
    assert set(BRANCHING) <= set(orders.NETWORKS)


@pytest.mark.long(only=("towers", "unet", "vae", "adversarial"))
@pytest.mark.parametrize("name", ["dense", "unet", "vae", "words", "adversarial", "towers"])
def test_a_small_model_takes_its_data(name):
    network = (MODELS | BRANCHING)[name]
    model = network.model()
    x, y = network.data(1)
    assert len(x) == len(y) == network.batch_size
    assert np.isfinite(model.train_on_batch(x, y)).all()


CELL = {
    "outcome": "trained", "named_bytes": [100], "accepted_bytes": 100, "compile_bytes": 90, "fit_bytes": 95,
    "planned_again": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "kept"),
        ({"planned_again": 1}, "kept by another plan while training"),
        ({"fit_bytes": 101}, "EXCEEDED in fit"),
        ({"compile_bytes": None}, "kept"),
        ({"named_bytes": []}, "not refused at first"),
        ({"named_bytes": [90, 100]}, "KEPT ONLY AT THE 2. NAMED"),
        ({"outcome": "refused"}, "REFUSED"),
    ],
)
def test_verdicts_on_what_an_error_named(change, said):
    assert named_budgets.verdict({**CELL, **change}) == said


def test_budgets_are_even_and_both_ends_are_among_them():
    assert monotone.between(100, 40, 4) == [100, 80, 60, 40]


def test_a_cost_that_rises_with_the_budget_is_told():
    shared = {"outcome": "trained", "compile_bytes": 1, "fit_bytes": 1, "gap": 0.01}
    cells = [
        {**shared, "budget_bytes": 200, "overhead": 0.10},
        {**shared, "budget_bytes": 100, "overhead": 0.05},
    ]
    assert any("RISES" in line for line in monotone.checks("a network", cells))
    cells[0]["overhead"] = 0.06  # within the gap
    assert not any("RISES" in line for line in monotone.checks("a network", cells))


def test_a_peak_over_its_budget_is_told():
    cell = {"outcome": "trained", "compile_bytes": 90, "fit_bytes": 110, "gap": 0.0, "overhead": 0.0}
    said = monotone.checks("a network", [{**cell, "budget_bytes": 100}])
    assert ["OVER" in line for line in said] == [False, False, True, False]
