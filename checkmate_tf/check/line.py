"""A line of a check: what was looked at, and what came of it."""

from __future__ import annotations

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
            "figures": dict(self.figures),
        }


def passed(device: str, what: str, text: str, figures: Mapping[str, Any] | None = None) -> Line:
    """A line of what is as it should be."""
    return Line(device, what, PASSED, text, figures or {})


def failed(device: str, what: str, text: str, figures: Mapping[str, Any] | None = None) -> Line:
    """A line of what is not."""
    return Line(device, what, FAILED, text, figures or {})


def not_run(device: str, what: str, text: str, figures: Mapping[str, Any] | None = None) -> Line:
    """A line of what cannot be said here."""
    return Line(device, what, NOT_RUN, text, figures or {})
