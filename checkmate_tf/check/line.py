"""A line of a check: what was looked at, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FAILED", "NOT_RUN", "PASSED", "Line", "failed", "not_run", "passed"]

PASSED, FAILED, NOT_RUN = "passed", "FAILED", "could not be run"


@dataclass(frozen=True)
class Line:
    """What came of one check.

    Attributes
    ----------
    device : str
        As TensorFlow calls it, e.g. "GPU:0".
    what : str
        What was looked at, in a few words.
    state : str
        `PASSED`, `FAILED` or `NOT_RUN`.
    text : str
        What was found; why it failed, or could not be run.
    figures : mapping
        The same as plain values, with their units in the names.
    """

    device: str
    what: str
    state: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "device": self.device,
            "what": self.what,
            "state": self.state,
            "text": self.text,
            "figures": _as_json(self.figures),
        }


def _as_json(value: Any) -> Any:
    """With null for what is no number: JSON has no sign for it."""
    if isinstance(value, Mapping):
        return {key: _as_json(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def passed(device: str, what: str, text: str, figures: Mapping[str, Any] | None = None) -> Line:
    """A line of what is as it should be."""
    return Line(device, what, PASSED, _one_line(text), figures or {})


def failed(device: str, what: str, text: str, figures: Mapping[str, Any] | None = None) -> Line:
    """A line of what is not."""
    return Line(device, what, FAILED, _one_line(text), figures or {})


def not_run(device: str, what: str, text: str, figures: Mapping[str, Any] | None = None) -> Line:
    """A line of what cannot be said here."""
    return Line(device, what, NOT_RUN, _one_line(text), figures or {})


def _one_line(text: str) -> str:
    """Errors of TensorFlow have many lines."""
    return " ".join(text.split())
