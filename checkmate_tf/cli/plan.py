"""`checkmate-tf plan`: the report of a model's plan, without training."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..files.jsonfile import check_output
from .console import BadInput, print_json, stdout
from .planned import Asked, check_asked, planned

__all__ = ["PlanCommand", "run_plan"]

_FORMATS = (".png", ".pdf", ".svg")


@dataclass(frozen=True)
class PlanCommand:
    """The arguments of the command, as typed."""

    asked: Asked
    save: Path | None
    plot: Path | None
    json: bool


def run_plan(command: PlanCommand) -> None:
    """Check the arguments (fast, and before anything slow), then load, plan and print.

    Raises
    ------
    CheckmateError
        As `checkmate_tf.compile`, or `BadInput`.
    """
    _check(command)
    asked = command.asked
    if command.save is not None:  # a file with copies to the host serves no other `compile`
        asked = replace(asked, planning={**asked.planning, "page": "never"})
    report, said = planned(asked)
    if command.save is not None:
        report.schedule.save(command.save)
    if command.plot is not None:
        from ..draw.plots import plot_schedule

        plot_schedule(report.schedule, command.plot)
    if command.json:
        written = {"saved": command.save, "plot": command.plot}
        print_json({**report.to_dict(), "compiled": said, **{k: str(p) if p else None for k, p in written.items()}})
        return
    _print(report.table())
    for what, path in (("schedule", command.save), ("picture", command.plot)):
        if path is not None:
            stdout().print(f"{what}: {path}", highlight=False, soft_wrap=True)


def _check(command: PlanCommand) -> None:
    check_asked(command.asked)
    if command.save is not None and command.asked.planning.get("operators") == "choose":
        raise BadInput("--save does not go with --operators choose: only schedules of the plain step can be loaded")
    if command.plot is not None and command.plot.suffix.lower() not in _FORMATS:
        raise BadInput(f"--plot {str(command.plot)!r}: the name must end with {', '.join(_FORMATS)}")
    for path in (command.plot, command.save):
        if path is not None:
            check_output(path, command.asked.model)


def _print(report: str) -> None:
    """The report's rows, wrapped under their labels in a terminal, as they are elsewhere."""
    console: Any = stdout()
    if not console.is_terminal:
        sys.stdout.write(report + "\n")
        return
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for line in report.splitlines():
        label, text = re.split(r"\s{2,}", line, maxsplit=1) if "  " in line else ("", line)
        table.add_row(label, Text(text))
    console.print(table)
