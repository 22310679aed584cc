"""Budgets as people give them, in bytes of one graph: 700_000_000, "4GB", "512MiB", 0.6, "60%".

`units.parse_budget` reads what needs no graph. Here the graph is known, so a share becomes bytes, and a number that was
meant to have a unit is told by being too small. `solve` and the command line share this.
"""

from __future__ import annotations

import re
from fractions import Fraction
from numbers import Integral

from ..errors import BudgetError, show_value
from ..graph import Graph
from ..schedule import keep_all
from ..units import MOST_BYTES, MOST_TEXT, Budget, format_bytes, parse_budget

__all__ = ["budget_in_bytes"]

_WRONG_UNIT = 1000  # a number without a unit that is this many times too small was not meant as bytes
_HELP = (
    'give bytes (700_000_000), a size ("700MB", "1.5GiB"), or a share of the peak without rematerialization ("60%", or '
    "0.6 in Python)"
)


def budget_in_bytes(budget: object, graph: Graph) -> int:
    """The budget in bytes, constants included.

    Parameters
    ----------
    budget : int, float, str or Budget
        An int is bytes. A float in (0, 1] is a share, and bytes above. Text is bytes ("700_000_000"), a size with a
        unit ("4GB", "512MiB"), or a share ("60%"); a bare fraction is refused in text.
    graph : Graph
        A share is one of its peak without rematerialization, less the constants. The constants are then added.

    Raises
    ------
    BudgetError
        If it cannot be read, is negative, is more than 2**53 bytes, or is "auto", which is for devices only. Also if
        text has so few bytes that a unit must have been forgotten.

    Examples
    --------
    >>> from checkmate_tf import Graph
    >>> graph = Graph("one", ["a"], [0], [1.0], [1000], [[]], constant_bytes=500)
    >>> [budget_in_bytes(budget, graph) for budget in (800, "1.5kB", 0.6, "60%")]
    [800, 1500, 1100, 1100]
    """
    if isinstance(budget, str):
        found = _from_text(budget, graph)
    elif isinstance(budget, Integral) and not isinstance(budget, bool):
        found = int(budget)
    else:
        found = _from_value(parse_budget(budget), graph)
    if found < 0:
        raise BudgetError(f"budget {show_value(budget)} is negative; {_HELP}")
    if found > MOST_BYTES:
        raise BudgetError(f"budget {show_value(budget)} is more than 2**53 bytes; {_HELP}")
    return found


def _from_value(budget: Budget, graph: Graph) -> int:
    if budget.size_bytes is not None:
        return budget.size_bytes
    if budget.fraction is None:
        raise BudgetError(f'budget "auto" is the limit of a device, and a graph has none; {_HELP}')
    return _share(Fraction(repr(float(budget.fraction))), graph)  # 0.29 is 29%, not the binary number below it


def _from_text(text: str, graph: Graph) -> int:
    if len(text) > MOST_TEXT:
        raise BudgetError(f"budget {text[:20]!r}... has {len(text):,} characters; {_HELP}")
    plain = text.strip().replace("_", "").replace(",", "")
    share = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*%", plain)
    if share:
        return _share(Fraction(share[1]) / 100, graph)
    if re.fullmatch(r"[0-9]*\.?[0-9]+(e\+?[0-9]{1,2})?", plain, re.IGNORECASE):
        return _plain_number(Fraction(plain), text, graph)
    if plain.startswith("-"):
        raise BudgetError(f"budget {text!r} is negative; {_HELP}")
    try:
        size = parse_budget(text).size_bytes
    except BudgetError:
        size = None
    if size is None:
        raise BudgetError(f"budget {text!r} cannot be read; {_HELP}")
    return size


def _share(share: Fraction, graph: Graph) -> int:
    constants = graph.constant_bytes
    return constants + int(share * (keep_all(graph).peak_bytes - constants))


def _plain_number(number: Fraction, text: str, graph: Graph) -> int:
    if number != int(number):
        raise BudgetError(f"budget {text!r} is no whole number of bytes; write {float(100 * number):g}% for a share")
    needed = graph.constant_bytes + int(graph.working_set.max())
    if number * _WRONG_UNIT < needed:
        units = [unit for power, unit in enumerate(("kB", "MB", "GB", "TB"), 1) if number * 1000**power >= needed]
        meant = f": did you mean {int(number)}{units[0]}?" if units else f"; {_HELP}"
        raise BudgetError(
            f"budget {text} is {int(number)} bytes; the graph needs at least {format_bytes(needed)}{meant}"
        )
    return int(number)
