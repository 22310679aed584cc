"""JSON files: read strictly and within bounds, written all or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from .errors import CheckmateError, OutputError

__all__ = ["MOST_BYTES", "check_output", "read_json", "show_value", "to_json", "write_json", "write_text"]

#: Of a file that is read, unless told otherwise.
MOST_BYTES = 256 << 20


def read_json(
    path: str | os.PathLike[str], what: str, error: type[CheckmateError], most_bytes: int = MOST_BYTES
) -> Any:
    """The values in a JSON file: no field twice in an object, no NaN. No code is run.

    Parameters
    ----------
    what : str
        What the file should be, for messages: `a graph in the format "checkmate-graph/1"`.
    error : type
        Of what is raised.

    Raises
    ------
    CheckmateError
        Of the given type: if the file cannot be read, has more bytes than allowed, or is not JSON.
    """
    source = str(path)
    try:
        with open(path, "rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as why:
        raise error(f"{source!r} cannot be read: {getattr(why, 'strerror', None) or why}") from None
    if len(content) > most_bytes:
        raise error(f"{source} has more than {most_bytes:,} bytes: too much for {what}")
    try:
        return json.loads(content, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        raise error(f"{source} is nested too deeply for {what}") from None
    except ValueError as why:  # not JSON, or not text
        raise error(f"{source} is not JSON: {why}; give {what}") from None


def show_value(value: Any) -> str:
    """A value in a few words, for messages."""
    if isinstance(value, (dict, list, tuple)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    text = "null" if value is None else ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has the field {show_value(key)} twice")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


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
    write_text(to_json(document), path)


def write_text(text: str, path: str | os.PathLike[str]) -> None:
    """Write text to a file, all of it or nothing.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written.
    """
    target = check_output(path)
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
