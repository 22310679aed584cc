"""What benchmarks ask of their children, in small: an answer comes, with equal bits where that is what they measure."""

from __future__ import annotations

import importlib

import pytest

from benchmarks.lib.cells import in_child

BFC = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}


def answer(name, request):
    script = importlib.import_module(f"benchmarks.product.{name}").__file__
    return in_child(script, {"time_limit": 2.0, **request}, 600, BFC)


@pytest.mark.long
@pytest.mark.parametrize("order", ["free", "fixed"])
def test_budget_holds(order):
    found = answer(
        "budget_holds", {"run": "cell", "network": "small", "fraction": 0.7, "budget": 280_000_000, "order": order}
    )
    assert found["bit_equal"] and found["relative_error"]["loss"] < 1e-4
    assert max(found["peak_bytes"], found["fit_peak_bytes"]) <= 280_000_000 and found["overhead"] > 0


@pytest.mark.long
def test_many_models():
    plain, ours = ({"model": "residual", "way": way, "ask": 0} for way in ("plain", "ours"))
    found = answer("many_models", plain)
    budget = int(0.7 * found["peak_bytes"])
    mine = answer("many_models", {**ours, "budget_bytes": budget})
    assert mine["bits"] == found["bits"] and mine["peak_bytes"] <= budget


@pytest.mark.long
def test_named_budgets():
    asked = {"model": "dense", "ask": 0, "budget_bytes": 1, "same_process": True}
    found = answer("named_budgets", asked)
    assert found["outcome"] == "trained" and found["fit_bytes"] <= found["accepted_bytes"]


@pytest.mark.long
def test_peers():
    variant = {"way": "recompute-grad", "of_sqrt": 1, "even": "layers"}
    found = answer("peers", {"run": "peak", "network": "small", "batch": 16, "variant": variant})
    assert found["outcome"] == "measured" and found["peak_bytes"] > found["constant_bytes"]
