"""`checkmate-tf check`: does everything hold on this machine, device by device?"""

from __future__ import annotations

import json as jsonlib
from collections import Counter
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from ...check.line import FAILED, NOT_RUN, PASSED, Line
from ...check.run import NETWORKS, SHARES, Asked, Checked, check
from ...files.jsonfile import check_output, write_text
from ...units import parse_budget
from ...version import __version__
from ..console import BadInput, print_json, stderr, stdout

__all__ = ["CheckCommand", "run_check"]

FILES = ("check.json", "check.md")
_STYLE = {PASSED: "green", FAILED: "bold red", NOT_RUN: "yellow"}


@dataclass(frozen=True, kw_only=True)
class CheckCommand:
    """The arguments of the command, as typed."""

    device: list[str]
    network: list[str]
    memory: str | None
    seconds: float
    jobs: int
    output: Path | None
    json: bool


def run_check(command: CheckCommand) -> int:
    """Check, print a line each, and write what was found. Returns the exit status: 1 if a line failed.

    Raises
    ------
    BadInput
        If there is no such network, the memory is no size, or the folder cannot be made.
    OutputError
        If the files cannot be written there.
    """
    asked = _asked(command)
    if command.output is not None:
        try:
            command.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"--output {str(command.output)!r} cannot be written: {error}") from error
        for name in FILES:  # ten minutes later it would be too late; what an earlier check wrote there stays until then
            check_output(command.output / name)
    from rich.text import Text

    notes, results = stderr(), stdout()
    with notes.status("starting", spinner="dots") as status:

        def told(line: Line) -> None:
            if not command.json:
                results.print(_text(line), highlight=False)

        found = check(asked, lambda stage, done, total, text: status.update(Text(f"{stage} {text}")), told)
    document = as_document(found)
    if command.json:
        print_json(document)
    else:
        results.print(f"{_counted(found)}, {found.seconds:.0f} s", highlight=False)
    if command.output is not None:
        texts = (jsonlib.dumps(document, indent=1) + "\n", as_markdown(found))
        for name, text in zip(FILES, texts, strict=True):
            write_text(text, command.output / name)
    return int(any(line.state == FAILED for line in found.lines))


def _asked(command: CheckCommand) -> Asked:
    unknown = [name for name in command.network if name not in NETWORKS]
    if unknown:
        raise BadInput(f"--network {unknown[0]!r} is unknown: choose among {', '.join(NETWORKS)}")
    memory = None
    if command.memory is not None:
        memory = parse_budget(command.memory).size_bytes
        if memory is None:
            raise BadInput(f'--memory {command.memory!r} is not a size: give one, e.g. "2GB"')
    return Asked(
        devices=tuple(command.device),
        networks=tuple(command.network),
        shares=SHARES,
        memory_bytes=memory,
        seconds=command.seconds,
        jobs=command.jobs,
    )


def as_document(found: Checked) -> dict[str, Any]:
    """As plain values, for JSON."""
    return {
        "format": "checkmate-check/1",
        "checkmate_tf": __version__,
        "date": date.today().isoformat(),
        "machine": found.machine,
        "seconds": round(found.seconds, 1),
        "lines": [line.to_dict() for line in found.lines],
    }


def as_markdown(found: Checked) -> str:
    """As a table to read."""
    names = ", ".join(
        f"{d['name']} ({d['details']['device_name']})" if d.get("details", {}).get("device_name") else d["name"]
        for d in found.machine["devices"]
    )
    head = (
        f"checkmate_tf {__version__}, TensorFlow {found.machine['tensorflow']}, Keras {found.machine['keras']}, "
        f"{found.machine['cores']} cores; devices: {names}. {_counted(found)}, {found.seconds:.0f} s.\n\n"
    )
    rows = [
        f"| {line.device} | {line.what} | {line.state} | {line.text.replace('|', chr(92) + '|')} |"
        for line in found.lines
    ]
    return head + "\n".join(["| device | what | | found |", "| --- | --- | --- | --- |", *rows]) + "\n"


def _counted(found: Checked) -> str:
    counts = Counter(line.state for line in found.lines)
    return ", ".join(f"{counts[state]} {state}" for state in (PASSED, FAILED, NOT_RUN) if counts[state])


def _text(line: Line) -> Any:
    from rich.text import Text

    return Text.assemble(
        (f"{line.state:16} ", _STYLE[line.state]), f"{line.device} ", (line.what, "bold"), f": {line.text}"
    )
