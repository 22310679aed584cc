"""Bytes as people write them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.errors import BudgetError
from checkmate_tf.units import Budget, format_bytes, is_real, is_whole, parse_budget


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (700_000_000, 700_000_000),
        (np.int64(5), 5),
        (1e9, 10**9),
        (1.5, 1),
        ("1.5GB", 1_500_000_000),
        ("1.5 gb", 1_500_000_000),
        ("512MiB", 512 << 20),
        (" 4 TiB ", 4 << 40),
        ("3kB", 3000),
        ("1_000", 1000),
        ("1,000 B", 1000),
        ("1,500.5 MB", 1_500_500_000),
        ("12,345,678", 12_345_678),
        ("2e9", 2_000_000_000),
        (".5GB", 500_000_000),
        ("1", 1),
    ],
)
def test_sizes(text, size):
    assert parse_budget(text) == Budget(size_bytes=size)


@pytest.mark.parametrize(
    ("text", "fraction"), [(0.6, 0.6), ("60%", 0.6), ("0.6", 0.6), (1.0, 1.0), ("100 %", 1.0), (np.float32(0.5), 0.5)]
)
def test_fractions(text, fraction):
    assert parse_budget(text) == Budget(fraction=pytest.approx(fraction))


def test_auto_and_budgets_pass():
    assert parse_budget("AUTO") == Budget(auto=True)
    assert parse_budget(Budget(fraction=0.5)) == Budget(fraction=0.5)


@pytest.mark.parametrize(
    "bad",
    [None, True, "", "a lot", "-5GB", "5 parsecs", "GB", 0, -3, 0.0, -0.5, float("nan"), float("inf"), "0%", "150%",
     "0GB", [1], "1e400", "1,5GB", "0,500GB", "1,50,000", "1,5000", "1234,567", "1,000,00", ",500"],
)  # fmt: skip
def test_bad_input_says_what_to_give(bad):
    with pytest.raises(BudgetError, match="give bytes"):
        parse_budget(bad)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (1_410_000_000, "1.41 GB"),
        (14_100_000_000, "14.1 GB"),
        (141e9, "141 GB"),
        (999_900_000, "1.00 GB"),
        (1.5e12, "1.50 TB"),
    ],
)
def test_format(size, text):
    assert format_bytes(size) == text


@given(st.integers(1, 10**14))
def test_what_is_printed_can_be_read_within_a_percent(size):
    read = parse_budget(format_bytes(size).replace(" ", ""))
    assert read.size_bytes == pytest.approx(size, rel=0.01, abs=1)


def test_budgets_print_as_asked():
    assert [str(parse_budget(x)) for x in ("auto", "60%", "1.5GB")] == ["auto", "60% of the plain peak", "1.50 GB"]


@pytest.mark.parametrize("value", [1, 16, np.int64(16), np.uint8(3)])
def test_whole_numbers(value):
    assert is_whole(value, 1) and not is_whole(value, 17)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(2), "3", None, np.array([4])])
def test_what_is_no_whole_number(value):
    assert not is_whole(value, 0)


@pytest.mark.parametrize(("value", "expected"), [(1, True), (np.float32(0.5), True), (True, False), ("1", False)])
def test_real_numbers(value, expected):
    assert is_real(value) == expected
