"""Typed errors: each message says what was given, what was wrong and what to do.

Every error that the package raises on purpose derives from `CheckmateError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class CheckmateError(Exception):
    """Base of all errors raised on purpose by checkmate_tf."""


class BudgetError(CheckmateError, ValueError):
    """A budget that cannot be parsed."""


class InfeasibleBudgetError(CheckmateError):
    """No schedule fits the budget, or none was found.

    Attributes
    ----------
    budget_bytes : int
        The budget that was asked for.
    minimum_bytes : int
        The least budget for which a schedule is known to exist.
    proven : bool
        True if `budget_bytes` is provably too small: below the working set of one operation, or by a search or
        a relaxation.
    bound_order : str
        Which schedules do not fit: those in the graph's order ("fixed"), or those in any ("free").
    sequence : sequence of int or None
        A schedule for `minimum_bytes`, if one is at hand: its nodes in the order of their computations.
    """

    def __init__(
        self,
        message: str,
        budget_bytes: int,
        minimum_bytes: int,
        proven: bool,
        sequence: Sequence[int] | None = None,
        bound_order: str = "fixed",
    ) -> None:
        super().__init__(message)
        self.budget_bytes, self.minimum_bytes, self.proven = budget_bytes, minimum_bytes, proven
        self.sequence, self.bound_order = sequence, bound_order


class GraphError(CheckmateError, ValueError):
    """A graph that is not well formed: order, sizes or costs."""


class PlanError(CheckmateError, ValueError):
    """A plan that uses a value that is not in memory, or leaves a node uncomputed."""


class StrategyError(CheckmateError, ValueError):
    """A strategy or solver that does not exist, is there twice, or does not serve this graph."""


class ModelError(CheckmateError):
    """A model that is not ready: not built, not compiled, or spread over devices."""


class BatchSizeError(CheckmateError, ValueError):
    """No batch size was given, or a batch is larger than the one planned for."""


class DynamicShapeError(CheckmateError):
    """A tensor whose size cannot be known from the batch size."""


class TraceError(CheckmateError):
    """A training step that cannot be traced into a graph."""


class CostError(CheckmateError):
    """Costs that cannot be had, or are missing, negative or not a number."""


class JitCompileError(CheckmateError):
    """The model has `jit_compile=True`, but XLA cannot compile its planned step."""


class OperatorsError(CheckmateError, ValueError):
    """Operators that cannot be chosen as asked."""


class OutputError(CheckmateError, OSError):
    """A file that cannot be written."""


def show_value(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, (dict, list, tuple)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
