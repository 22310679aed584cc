"""JSON files: read strictly and within bounds, their fields checked, written all or not at all."""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ..errors import CheckmateError, OutputError, show_value

__all__ = [
    "MOST_BYTES",
    "FieldCheck",
    "check_output",
    "parse_json",
    "read_json",
    "to_json",
    "write_bytes",
    "write_json",
    "write_text",
]

#: Of a file that is read, unless told otherwise.
MOST_BYTES = 256 << 20

_PIECE = 1 << 20
_MOST_UNKNOWN = 50  # fields of an object that are looked at for misspellings


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
    source, advice = str(path), f"give a file with {what}"
    try:
        with open(path, "rb") as file:
            content = _read(file, most_bytes + 1)
    except (OSError, ValueError) as why:
        raise error(f"{source!r} cannot be read: {getattr(why, 'strerror', None) or why}; {advice}") from None
    if len(content) > most_bytes:
        raise error(f"{source} has more than {most_bytes:,} bytes, the most that is read; {advice}")
    try:
        return parse_json(content)
    except RecursionError:
        raise error(f"{source} is nested too deeply; {advice}") from None
    except ValueError as why:  # not JSON, or not text
        raise error(f"{source} is not JSON: {why}; {advice}") from None


def parse_json(content: str | bytes) -> Any:
    """The values in a text.

    Raises
    ------
    ValueError
        If it is not JSON, or not text. Also if a field is twice in an object, or a number is none.
    RecursionError
        If it is nested too deeply.
    """
    return json.loads(content, object_pairs_hook=_object, parse_constant=_no_constant)


def _read(file: BinaryIO, most: int) -> bytes:
    """At most so many bytes, piece by piece: asked for all at once, Python takes memory for all before it reads."""
    pieces: list[bytes] = []
    while most > 0 and (piece := file.read(min(most, _PIECE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"an object has the field {show_value(key)} twice")
        found[key] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


@dataclass(frozen=True)
class FieldCheck:
    """Checks of values that were read: each gives the value, or raises `error` with the place, the value and advice.

    Attributes
    ----------
    error : type
        Of what is raised.
    """

    error: type[CheckmateError]

    def refuse(self, where: str, field: str, value: Any, advice: str) -> NoReturn:
        """Raise the error for a field."""
        raise self.error(f"{where}: {field} is {show_value(value)}; {advice}")

    def fields(
        self, value: Any, where: str, required: tuple[str, ...], optional: tuple[str, ...] | None = None
    ) -> None:
        """An object that has all required fields; unless `optional` is None, none that looks like a misspelling."""
        if not isinstance(value, dict):
            raise self.error(f"{where} is {show_value(value)}; give an object with the fields {', '.join(required)}")
        missing = [field for field in required if field not in value]
        if missing:
            raise self.error(f"{where} has no field {missing[0]!r}; all of {', '.join(required)} are required")
        if optional is None or len(value) == len(required):
            return
        known = (*required, *optional)
        for field in islice((field for field in value if field not in known), _MOST_UNKNOWN):
            if near := _nearest(str(field)[:50].lower(), known):
                raise self.error(f"{where} has an unknown field {show_value(field)}; is {near!r} meant?")

    def text(self, value: Any, where: str, field: str, most: int | None = None) -> str:
        """Valid Unicode of at most so many characters."""
        if not isinstance(value, str) or (most is not None and len(value) > most):
            self.refuse(
                where, field, value, "give text" if most is None else f"give text of at most {most:,} characters"
            )
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                self.refuse(where, field, value, "it is not valid Unicode")
        return value

    def items(self, value: Any, where: str, field: str, least: int = 0, most: int | None = None) -> list[Any]:
        """A list of so many entries."""
        if not isinstance(value, (list, tuple)):
            self.refuse(where, field, value, "give a list")
        if len(value) < least:
            self.refuse(where, field, value, "give a list that is not empty" if least == 1 else f"give {least} entries")
        if most is not None and len(value) > most:
            self.refuse(where, field, value, f"give at most {most:,} entries")
        return list(value)

    def whole(self, value: Any, where: str, field: str, least: int, most: int, unit: str = "") -> int:
        """A whole number; a float serves if it is one, a bool does not."""
        kind = f"give a whole number of {unit}" if unit else "give a whole number"
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        number: int | float | None = int(value) if whole else _real(value)
        if number is None or (not whole and (not math.isfinite(number) or number != int(number))):
            self.refuse(where, field, value, kind)
        if not least <= number <= most:
            self.refuse(where, field, value, f"give at least {least}" if number < least else f"give at most {most}")
        return int(number)

    def number(
        self,
        value: Any,
        where: str,
        field: str,
        least: float = 0.0,
        most: float = math.inf,
        advice: str = "give a number that is finite and not negative",
    ) -> float:
        """A finite number within bounds, which the advice names; a bool is none."""
        number = _real(value)
        if number is None:
            self.refuse(where, field, value, "give a number")
        if not math.isfinite(number) or not least <= number <= most:
            self.refuse(where, field, value, advice)
        return number


def _real(value: Any) -> float | None:
    """As a float; infinite if it is too large for one; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


@functools.lru_cache(maxsize=1024)  # a field that is to be ignored may be in every node
def _nearest(field: str, known: tuple[str, ...]) -> str:
    """The known field that is meant, or nothing."""
    return next(iter(difflib.get_close_matches(field, known, 1, 0.8)), "")


def check_output(path: str | os.PathLike[str], *inputs: str | os.PathLike[str] | None) -> Path:
    """Where a file will be written, links followed; ask before work that takes long.

    Parameters
    ----------
    path : path
    *inputs : path or None
        Files that are read: none of them is written over.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written, or the path is something else than a file, or an input.
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
        if target.exists() and any(each and os.path.exists(each) and target.samefile(each) for each in inputs):
            raise OutputError(f"{str(path)!r} is read, too, and would be lost; give another name for what is written")
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
    _write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_bytes(content: bytes, path: str | os.PathLike[str]) -> None:
    """Write bytes to a file, all of them or nothing.

    Raises
    ------
    OutputError
        If the folder is missing or cannot be written.
    """
    _write(path, lambda temporary: temporary.write_bytes(content))


def _write(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Write beside the file, then put it in its place. Nothing is left beside it, whatever comes up."""
    target = check_output(path)
    temporary = target.with_name(f".{target.name[:50]}.{secrets.randbits(48)}.part")  # threads write the same file, too
    try:
        write(temporary)
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
