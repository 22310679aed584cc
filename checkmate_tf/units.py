"""Bytes as people write them: `"1.5GB"`, `"512MiB"`, `0.5` of the plain peak, `"auto"` for the device's limit.

And what a batch size may be.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from .errors import BatchSizeError, BudgetError, show_value

__all__ = ["MOST_BYTES", "MOST_TEXT", "Budget", "format_bytes", "is_real", "is_whole", "parse_budget", "whole_batch"]

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = _UNITS[_letter] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power

MOST_BYTES = 2**53  # 9 PB: up to here, sums of bytes are exact in floating point, where programs and bounds make them
MOST_TEXT = 100  # characters: no number needs more
_HELP = (
    'give bytes (700_000_000), a size ("700MB", "1.5GiB"), a fraction of the peak without rematerialization '
    '(0.6 or "60%"), or "auto"'
)


@dataclass(frozen=True)
class Budget:
    """What the user asked for: a size, a share of the peak without rematerialization, or the device's limit.

    Exactly one of the three is set.

    Attributes
    ----------
    size_bytes : int or None
    fraction : float or None
        Share of the peak without rematerialization, in (0, 1].
    auto : bool
    least_bytes : int
        What a share is at least, as it is one of the largest step that is trained, in whatever order sizes come.
    """

    size_bytes: int | None = None
    fraction: float | None = None
    auto: bool = False
    least_bytes: int = 0

    def __str__(self) -> str:
        if self.auto:
            return "auto"
        return (
            format_bytes(self.size_bytes) if self.size_bytes is not None else f"{self.fraction:.0%} of the plain peak"
        )


def parse_budget(value: object) -> Budget:
    """Read a budget.

    Parameters
    ----------
    value : int, float, str or Budget
        An int, or a float above 1, is bytes. A float in (0, 1] is a fraction of the peak without rematerialization. A
        string is a number with a unit (decimal `kB MB GB TB`, binary `KiB MiB GiB TiB`), a percentage, or `"auto"`. A
        comma stands before three digits: `"1,500 MB"`.

    Raises
    ------
    BudgetError
        If it is none of these, or not positive.
    """
    if isinstance(value, Budget):
        return value
    if isinstance(value, bool) or value is None:
        raise BudgetError(f"budget {value!r} is not a size; {_HELP}")
    if isinstance(value, Integral):
        return _sized(int(value), value)
    if isinstance(value, Real):
        number: Any = value  # compared as it is: it may be too large for a float
        return _fraction(float(number), value) if 0 < number <= 1 else _sized(number, value)
    if isinstance(value, str):
        if len(value) > MOST_TEXT:
            raise BudgetError(f"budget {value[:20]!r}... has {len(value):,} characters; {_HELP}")
        text = value.strip().lower().replace("_", "")
        text = re.sub(r"^[1-9][0-9]{0,2}(,[0-9]{3})+(?![0-9])", lambda whole: whole[0].replace(",", ""), text)
        if text == "auto":
            return Budget(auto=True)
        match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e[+]?[0-9]+)?)\s*([a-z]*|%)", text)
        if match and match[2] == "%":
            return _fraction(float(match[1]) / 100, value)
        if match and match[2] in _UNITS:
            given = float(match[1])
            if match[2] == "" and "." in match[1] and 0 < given <= 1:
                return _fraction(given, value)
            return _sized(given * _UNITS[match[2]], value)
        if "," in text:
            raise BudgetError(f"budget {value!r} cannot be read: write 1.5GB for one and a half; {_HELP}")
    raise BudgetError(f"budget {value!r} cannot be read; {_HELP}")


def _fraction(number: float, given: object) -> Budget:
    if not 0 < number <= 1:
        raise BudgetError(f"budget {given!r} is not a fraction between 0 and 1 of the plain peak; {_HELP}")
    return Budget(fraction=number)


def _sized(number: Any, given: object) -> Budget:
    if not 1 <= number < math.inf:
        raise BudgetError(f"budget {show_value(given)} is not a positive number of bytes; {_HELP}")
    if number > MOST_BYTES:
        raise BudgetError(f"budget {show_value(given)} is more than 2**53 bytes; {_HELP}")
    return Budget(size_bytes=int(number))


def format_bytes(size: float) -> str:
    """Three significant digits in decimal units: `format_bytes(1_410_000_000) == "1.41 GB"`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size) >= 0.9995 * scale:
            number = size / scale
            return f"{number:.{max(0, 2 - int(math.log10(max(abs(number), 1))))}f} {unit}"
    return f"{size:.0f} B"


def is_whole(value: object, least: int) -> bool:
    """Whether it is a whole number, one of NumPy's included, and not below the least."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_real(value: object) -> bool:
    """Whether it is a number on the line, one of NumPy's included."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole_batch(batch_size: object) -> int:
    """A batch size as an int; NumPy's whole numbers serve, too.

    Raises
    ------
    BatchSizeError
        If it is not a positive whole number.
    """
    if not is_whole(batch_size, 1):
        raise BatchSizeError(
            f"batch_size={show_value(batch_size)} is not a batch: give a whole number of samples above 0"
        )
    return int(batch_size)  # type: ignore[call-overload]
