"""Budgets as people give them, in bytes of a graph: for `solve`, and for the command line."""

import numpy as np
import pytest
from graphs import chain, training

import checkmate_tf
from checkmate_tf.errors import BudgetError
from checkmate_tf.graph import Graph
from checkmate_tf.schedule import keep_all
from checkmate_tf.strategies import solve
from checkmate_tf.strategies.budgets import budget_in_bytes
from checkmate_tf.units import Budget


def of_bytes(size, constant_bytes=0):
    return Graph("one", ["a"], np.array([0]), np.ones(1), np.array([size]), [[]], constant_bytes=constant_bytes)


ONE = of_bytes(100, constant_bytes=7)
GIGABYTES = training([[], [0]], [1.0, 1.0], [10**9, 10**9], constant_bytes=10**9)  # 4 GB at least, and 4 GB plainly


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ("5000000000", 5 * 10**9),
        ("5_000_000_000", 5 * 10**9),
        ("5e9", 5 * 10**9),
        ("4GB", 4 * 10**9),
        ("0.5 GiB", 2**29),
        ("16MB", 16 * 10**6),
        ("100%", 4 * 10**9),
        ("50%", 25 * 10**8),
        ("29%", 10**9 + 87 * 10**7),
        ("12.5 %", 1375 * 10**6),
        ("0%", 10**9),
        ("150%", 55 * 10**8),
    ],
)
def test_budgets(budget, expected):
    assert budget_in_bytes(budget, GIGABYTES) == pytest.approx(expected, abs=6)


@pytest.mark.parametrize("share", ["29%", 0.29, np.float64(0.29), Budget(fraction=0.29)])
def test_a_share_is_exact_and_of_what_can_be_saved(share):
    assert budget_in_bytes(share, ONE) == 7 + 29


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        ("16", "16 is 16 bytes; the graph needs at least 4.00 GB: did you mean 16GB"),
        ("5000", "did you mean 5000MB"),
        ("0", "0 is 0 bytes"),
        ("0.6", "write 60% for a share"),
        ("1.5", "write 150% for a share"),
        ("-3", "negative"),
        ("-20%", "negative"),
        ("auto", "cannot be read"),
        ("nan", "cannot be read"),
        ("inf", "cannot be read"),
        ("", "cannot be read"),
        ("4XB", "cannot be read"),
        ("1e99", "2\\*\\*53"),
    ],
)
def test_bad_budgets(budget, says):
    with pytest.raises(BudgetError, match=says):
        budget_in_bytes(budget, GIGABYTES)


def test_tiny_graphs_take_tiny_budgets():
    assert budget_in_bytes("4", chain(4)) == 4
    assert budget_in_bytes("0", of_bytes(0)) == 0


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (16, 16),
        (0, 0),
        (np.int64(5), 5),
        (1.0, 4 * 10**9),
        (0.5, 25 * 10**8),
        (5e9, 5 * 10**9),
        (Budget(size_bytes=12), 12),
    ],
)
def test_budgets_that_are_no_text(budget, expected):
    """A small int is bytes as it stands: a program that computed it forgot no unit."""
    assert budget_in_bytes(budget, GIGABYTES) == pytest.approx(expected, abs=6)


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (-1, "negative"),
        (-0.5, "not a positive number"),
        (0.0, "not a positive number"),
        (float("nan"), "not a positive number"),
        (2**53 + 1, "2\\*\\*53"),
        (10**400, "2\\*\\*53"),
        (True, "not a size"),
        (None, "not a size"),
        ([4], "cannot be read"),
        (Budget(auto=True), "limit of a device"),
    ],
)
def test_bad_budgets_that_are_no_text(budget, says):
    with pytest.raises(BudgetError, match=says):
        budget_in_bytes(budget, GIGABYTES)


@pytest.mark.parametrize("budget", ["90%", 0.9, "8", 8, 8.0])
def test_solve_takes_budgets_as_compile_does(budget):
    graph = chain(4)
    assert keep_all(graph).peak_bytes == 9
    schedule = checkmate_tf.solve(graph, budget, "linearized-greedy")
    assert (schedule.budget_bytes, schedule.peak_bytes <= 8) == (8, True)


def test_solve_refuses_what_is_no_budget():
    for budget in ("lots", "auto", -4, "60", None):
        with pytest.raises(BudgetError):
            solve(GIGABYTES, budget)
