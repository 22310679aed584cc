"""How strategies are drawn."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SPARE", "STYLES", "Style"]


@dataclass(frozen=True)
class Style:
    """How a strategy is drawn; the first are drawn below, and wider, so that equal curves can be told."""

    color: str
    line: str
    marker: str
    width: float = 1.4


STYLES = {
    "checkpoint-all": Style("#555555", "none", "s"),
    "griewank": Style("#cc79a7", "-", "P"),
    "chen-greedy": Style("#e69f00", "-", "o", 4.2),
    "ap-greedy": Style("#009e73", "-", "^", 2.4),
    "linearized-greedy": Style("#56b4e9", "-", "v", 1.2),
    "chen-sqrt": Style("#e69f00", ":", "o", 4.2),
    "ap-sqrt": Style("#009e73", ":", "^", 2.4),
    "linearized-sqrt": Style("#56b4e9", ":", "v", 1.2),
    "lp-rounding": Style("#0072b2", "--", "x"),
    "lp-rounding-random": Style("#0072b2", ":", "+"),
    "milp": Style("#d55e00", "-", "D"),
    "checkmate": Style("#000000", "-", "*", 2.0),
}
SPARE = ("#8c564b", "#9467bd", "#bcbd22", "#17becf", "#7f7f7f", "#d62728", "#1f77b4")
