"""`checkmate-tf plan`: the report of a model's plan, without training."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..units import parse_budget
from .console import BadInput, prepare_tensorflow, print_json, progress_lines, stderr, stdout

__all__ = ["PlanCommand", "run_plan"]

DEFAULT_BATCH = 32
_FORMATS = (".png", ".pdf", ".svg")
_COSTS = ("profile", "roofline", "flops")


@dataclass(frozen=True)
class PlanCommand:
    """The arguments of the command, as typed."""

    model: str
    batch_size: int | None
    budget: str
    strategy: str
    costs: str
    time_limit: float
    gap: float
    verify: bool
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    plot: Path | None
    json: bool


def run_plan(command: PlanCommand) -> None:
    """Check the arguments (fast, and before anything slow), then load, plan and print.

    Raises
    ------
    CheckmateError
        As `checkmate_tf.compile`, or `BadInput`.
    """
    from .models import compile_if_needed, load_model, parse_shape

    parse_budget(command.budget)
    shape = parse_shape(command.input_shape)
    _check(command)
    prepare_tensorflow()
    import checkmate_tf

    notes = stderr()
    with notes.status("loading the model", spinner="dots"):
        model, data = load_model(command.model, shape, command.classes)
        said = compile_if_needed(model, command.optimizer, command.loss)
    batch_size = command.batch_size
    if batch_size is None and data is None:
        batch_size = DEFAULT_BATCH
        notes.print(f"batch of {batch_size} samples (choose with --batch-size)", highlight=False)
    if said:
        notes.print(said, highlight=False, markup=False)
    checkmate_tf.compile(
        model,
        command.budget,
        batch_size=batch_size,
        data=data,
        strategy=command.strategy,
        costs=command.costs,
        time_limit=command.time_limit,
        gap=command.gap,
        verify=command.verify,
        progress=True if sys.stderr.isatty() else progress_lines(),
    )
    report = model.checkmate
    if command.plot is not None:
        from ..report.plots import plot_schedule

        plot_schedule(report.schedule, command.plot)
    if command.json:
        print_json({**report.to_dict(), "compiled": said, "plot": str(command.plot) if command.plot else None})
        return
    _print(str(report))
    if command.plot is not None:
        stdout().print(f"picture: {command.plot}", highlight=False, soft_wrap=True)


def _check(command: PlanCommand) -> None:
    from ..strategies import STRATEGIES

    if command.strategy not in STRATEGIES:
        raise BadInput(f"--strategy {command.strategy!r} is unknown: choose one of {', '.join(sorted(STRATEGIES))}")
    if command.costs not in _COSTS:
        raise BadInput(f"--costs {command.costs!r} is unknown: choose one of {', '.join(_COSTS)}")
    if command.plot is not None:
        if command.plot.suffix.lower() not in _FORMATS:
            raise BadInput(f"--plot {str(command.plot)!r}: the name must end with {', '.join(_FORMATS)}")
        folder = command.plot.resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise BadInput(f"--plot: no picture can be written in {str(folder)!r}: make the folder, or choose another")


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
