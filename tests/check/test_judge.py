"""From what was measured to lines."""

import pytest

from checkmate_tf.check.judge import (
    judge_bits,
    judge_device,
    judge_largest,
    judge_limit,
    judge_limited,
    judge_peer,
    judge_policy,
    judge_train,
)
from checkmate_tf.check.line import FAILED, NOT_RUN, PASSED

DEVICE = {
    "measurable": True,
    "asked_bytes": 1024,
    "taken_bytes": 1024,
    "peak_bytes": 1024,
    "left_bytes": 0,
    "allocator": "Bfc",
    "chunks": 3,
    "bandwidth": {"on_device": 4e12},
}
CELL = {
    "share": 0.6,
    "budget_bytes": 100,
    "peak_bytes": 90,
    "predicted_peak_bytes": 80,
    "placed_peak_bytes": 85,
    "step_ratio": 1.1,
    "predicted_ratio": 1.05,
    "plain_step_ms": 10.0,
    "model_step_ms": 11.0,
    "itself": {"loss": 0.0, "gradients": 1e-6},
    "apart": {"loss": 0.0, "gradients": 2e-6},
}
RAN = {"losses": [1.0], "digest": "ab", "steps": 3, "peak_bytes": 90, "budget_bytes": 100}
NO_MEMORY = {"failed": "out of memory: OOM", "out_of_memory": True}
CRASHED = {"failed": "crashed", "out_of_memory": False}


def states(lines):
    return [line.state for line in lines]


def trained(*cells):
    return {"batch_size": 8, "plain_peak_bytes": 200, "cells": [{**CELL, **changes} for changes in cells]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [PASSED, PASSED, PASSED]),
        ({"taken_bytes": 1280, "peak_bytes": 1280 + 256}, [PASSED, PASSED, PASSED]),
        ({"left_bytes": 256}, [FAILED, PASSED, PASSED]),
        ({"peak_bytes": 512}, [FAILED, PASSED, PASSED]),
        ({"peak_bytes": 10**6}, [FAILED, PASSED, PASSED]),
        ({"bandwidth": {}}, [PASSED, PASSED, NOT_RUN]),
        ({"measurable": False, "no_map": "it keeps no statistics"}, [FAILED, NOT_RUN, PASSED]),
    ],
)
def test_a_device(changes, expected):
    assert states(judge_device("CPU:0", {**DEVICE, **changes})) == expected


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"held_bytes": 960, "limit_bytes": 1000, "refused": True}, PASSED),
        ({"held_bytes": 2000, "limit_bytes": 1000, "refused": False}, FAILED),
        ({"held_bytes": 500, "limit_bytes": 1000, "refused": True}, FAILED),
        ({"held_bytes": 960, "limit_bytes": 10**9, "refused": True}, FAILED),
        ({"held_bytes": 2000, "limit_bytes": 1000, "refused": False, "allocator": "cuda_malloc_async"}, NOT_RUN),
    ],
)
def test_a_limit(found, expected):
    assert states(judge_limit("GPU:0", 1000, {"allocator": "", **found})) == [expected]


def test_a_network_that_trains_within_its_budget():
    lines = list(judge_train("GPU:0", "unet", trained({}, {"share": 0.4})))
    assert states(lines) == [PASSED] * 4
    assert [line.what for line in lines] == ["unet at 60%", "unet at 40%", "unet, costs", "unet, kernels as they are"]
    assert lines[0].figures["batch_size"] == 8 and lines[0].figures["peak_bytes"] == 90


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"peak_bytes": 101}, [FAILED, PASSED, PASSED]),
        ({"model_step_ms": 25.0}, [PASSED, FAILED, PASSED]),
        ({"model_step_ms": None}, [PASSED, PASSED]),
        ({"apart": {"loss": 0.0, "gradients": 1e-3}}, [PASSED, PASSED, FAILED]),
        ({"apart": {"loss": float("nan"), "gradients": 0.0}}, [PASSED, PASSED, FAILED]),
        ({"apart": {"loss": 0.0, "gradients": float("nan")}}, [PASSED, PASSED, FAILED]),
        ({"itself": {"loss": 0.0, "gradients": 1e-3}, "apart": {"loss": 1e-3, "gradients": 0.0}}, [PASSED] * 3),
    ],
)
def test_a_network_with_one_flaw(changes, expected):
    assert states(judge_train("GPU:0", "unet", trained(changes))) == expected


def test_no_number_in_the_second_cell_is_not_passed_over():
    cells = {}, {"apart": {"loss": float("nan"), "gradients": float("nan")}}
    *_, line = judge_train("GPU:0", "unet", trained(*cells))
    assert line.state == FAILED and line.to_dict()["figures"]["apart"] is None


def test_a_network_that_xla_does_not_compile():
    assert states(judge_train("GPU:0", "lstm under XLA", {"no_xla": "cuDNN"})) == [NOT_RUN]


def test_another_way_to_compile_the_plain_step_may_round_as_much():
    apart = {"apart": {"loss": 0.0, "gradients": 5e-4}}
    assert states(judge_train("GPU:0", "unet", trained(apart) | {"tf32": True})) == [PASSED] * 3
    found = trained(apart) | {"otherwise": {"loss": 0.0, "gradients": 2e-3}}
    assert states(judge_train("GPU:0", "unet", found)) == [PASSED] * 3


def test_a_refusal_passes_if_the_budget_that_it_names_does():
    (line, *_) = judge_train("GPU:0", "unet", trained({"refused_bytes": 50, "refusal": "too small"}))
    assert line.state == PASSED and "50 B refused" in line.text.replace("50.0", "50")


def test_an_error_is_a_failure_and_the_other_budgets_count():
    found = trained({})
    found["cells"].insert(0, {"share": 0.4, "budget_bytes": 50, "error": "InfeasibleBudgetError: no"})
    lines = list(judge_train("GPU:0", "unet", found))
    assert states(lines) == [FAILED, PASSED, PASSED, PASSED]
    assert "InfeasibleBudgetError" in lines[0].text


@pytest.mark.parametrize(
    ("plain", "ours", "expected"),
    [
        (RAN, RAN, PASSED),
        (RAN, {**RAN, "digest": "cd"}, FAILED),
        (RAN, {**RAN, "losses": [2.0]}, FAILED),
        (RAN, CRASHED, FAILED),
        (CRASHED, RAN, NOT_RUN),
    ],
)
def test_equal_bits(plain, ours, expected):
    assert states(judge_bits("GPU:0", "unet", plain, ours)) == [expected]


@pytest.mark.parametrize(
    ("plain", "ours", "expected"),
    [
        (NO_MEMORY, RAN, PASSED),
        (NO_MEMORY, {**RAN, "peak_bytes": 101}, FAILED),
        (NO_MEMORY, {**RAN, "peak_bytes": 101, "budget_bytes": 105}, PASSED),  # 100 were refused, 105 named
        (NO_MEMORY, NO_MEMORY, FAILED),
        (RAN, CRASHED, FAILED),
        (RAN, {**RAN, "peak_bytes": 101}, FAILED),
        (CRASHED, RAN, FAILED),
        (RAN, RAN, NOT_RUN),
    ],
)
def test_under_a_hard_limit(plain, ours, expected):
    assert states(judge_limited("GPU:0", "unet", 110, plain, ours)) == [expected]


@pytest.mark.parametrize(
    ("plain", "ours", "expected"),
    [
        (RAN, RAN, [PASSED, PASSED]),
        (RAN, {**RAN, "peak_bytes": 101}, [FAILED, PASSED]),
        (RAN, {**RAN, "digest": "cd"}, [PASSED, FAILED]),
        (RAN, NO_MEMORY, [FAILED]),
        (CRASHED, RAN, [FAILED]),
    ],
)
def test_another_precision(plain, ours, expected):
    assert states(judge_policy("GPU:0", "mixed_float16", "unet", plain, ours)) == expected


@pytest.mark.parametrize(
    ("plain", "ours", "expected"), [(8, 16, PASSED), (0, 4, PASSED), (8, 8, FAILED), (4, 0, FAILED)]
)
def test_the_largest_batch(plain, ours, expected):
    (line,) = judge_largest("GPU:0", "unet", 100, plain, ours)
    assert line.state == expected and ("times" in line.text) == (plain > 0)


def test_what_a_peer_does_is_told():
    (raised,) = judge_peer("CPU:0", "unet", {"plain_peak_bytes": 10, "peer_error": "ValueError: no"})
    (ran,) = judge_peer("CPU:0", "unet", {"plain_peak_bytes": 10, "peer_peak_bytes": 9})
    assert "raises ValueError" in raised.text and "9" in ran.text
