"""Where things lie in this checkout."""

from __future__ import annotations

from pathlib import Path

__all__ = ["RESULTS", "ROOT", "in_root"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def in_root(path: Path) -> str:
    """A path as results name it: from the root of the checkout, if it is in there, so that no machine's is kept.

    `ROOT / in_root(path)` is the file.
    """
    path = path.resolve()
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
