"""JSON files, written all or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .errors import OutputError

__all__ = ["check_output", "to_json", "write_json"]


def check_output(path: str | os.PathLike[str]) -> Path:
    """Where a file will be written, links followed; ask before work that takes long.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written, or the path is something else than a file.
    """
    target = Path(path)
    folder = target.parent
    try:
        if not folder.is_dir():
            raise OutputError(f"{str(path)!r} cannot be written: there is no folder {str(folder)!r}; make it first")
        if target.exists() and not target.is_file():
            raise OutputError(f"{str(path)!r} cannot be written: it is not a file; give the name of a file")
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OutputError(f"{str(path)!r} cannot be written: no files may be made in {str(folder)!r}")
        return target.resolve()
    except OutputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long or none, a circle of links
        raise _unwritable(path, error) from None


def write_json(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a document to a file, all of it or nothing.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written.
    """
    target = check_output(path)
    text = to_json(document)
    temporary = target.with_name(f".{target.name[:50]}.{os.getpid()}.part")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    finally:
        with suppress(OSError, ValueError):
            temporary.unlink(missing_ok=True)


def _unwritable(path: str | os.PathLike[str], error: Exception) -> OutputError:
    return OutputError(f"{str(path)!r} cannot be written: {getattr(error, 'strerror', None) or error}")


def to_json(document: Mapping[str, Any]) -> str:
    """A document as text; the statements of a plan and the nodes of a graph one a line."""
    lines = []
    for key, value in document.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value:
            rows = ",\n    ".join(json.dumps(row, allow_nan=False) for row in value)
            text = f"[\n    {rows}\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
