"""What a rule is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["Rule"]

Rule: TypeAlias = Callable[[Any, int | None], float | None]
"""FLOPs of an operation, where unknown dimensions have a given size; None if a shape is unknown."""
