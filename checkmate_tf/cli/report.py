"""`checkmate-tf report`: graphs and their answers, or models planned within a budget, as one page of HTML."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..interchange import GRAPH_FORMAT, RESULT_FORMAT, graph_from_dict
from ..jsonfile import check_output
from ..units import parse_budget
from .console import BadInput, prepare_tensorflow, print_json, progress_lines, stderr, stdout

if TYPE_CHECKING:
    from ..graph import Graph
    from ..report import Report
    from ..report.result_file import Answer

__all__ = ["ReportCommand", "run_report"]

DEFAULT_BATCH = 32
DEFAULT_BUDGET = "60%"
_COSTS = ("profile", "roofline", "flops")


@dataclass(frozen=True)
class ReportCommand:
    """The arguments of the command, as typed. From `batch_size` on they are for models."""

    sources: Sequence[str]
    html: Path
    batch_size: int | None
    budget: str | None
    strategy: str
    costs: str
    time_limit: float
    gap: float
    verify: bool
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    json: bool


def run_report(command: ReportCommand) -> None:
    """Read all files, plan all models, then write the page.

    Raises
    ------
    CheckmateError
        For bad input; nothing is written then.
    """
    check_output(command.html)
    files = [source for source in command.sources if source.endswith(".json")]
    models = [source for source in command.sources if not source.endswith(".json")]
    if command.budget is not None and not models:
        raise BadInput("--budget is for models; solve a graph with checkmate-tf solve, and give its result after it")
    if models:
        _check(command)
    graphs = _read(files)
    reports = [_planned(command, name) for name in models]
    text = _page(graphs, reports)
    from ..jsonfile import write_text

    write_text(text, command.html)
    size = command.html.stat().st_size
    if command.json:
        found = {"html": str(command.html), "bytes": size, "graphs": len(graphs), "models": len(reports)}
        print_json({**found, "results": sum(len(answers) for _, answers in graphs)})
    else:
        stdout().print(f"{command.html}: {size / 1e6:.1f} MB", highlight=False, soft_wrap=True)


def _read(files: Sequence[str]) -> list[tuple[Graph, list[Answer]]]:
    """Graphs with the answers that follow them.

    Raises
    ------
    GraphError, PlanError, BadInput
        Names the file and the place in it.
    """
    from ..report.result_file import answer_from_dict, load_json

    found: list[tuple[Graph, list[Answer]]] = []
    for source in files:
        data = load_json(source)
        kind = data.get("format") if isinstance(data, dict) else None
        if kind == GRAPH_FORMAT:
            found.append((graph_from_dict(data, source), []))
        elif kind == RESULT_FORMAT:
            if not found:
                raise BadInput(f"{source} is a result; give its graph before it: report GRAPH.json {source} --html ...")
            graph, answers = found[-1]
            answers.append(answer_from_dict(data, graph, source))
        else:
            raise BadInput(
                f"{source} is neither a graph nor a result: its format is {ascii(kind)[:60]}, not "
                f'"{GRAPH_FORMAT}" or "{RESULT_FORMAT}"'
            )
    return found


def _planned(command: ReportCommand, name: str) -> Report:
    """Plan a model as `checkmate-tf plan` does."""
    from .models import compile_if_needed, load_model, parse_shape

    shape = parse_shape(command.input_shape)
    prepare_tensorflow()
    import checkmate_tf

    notes = stderr()
    with notes.status(f"loading {name}", spinner="dots"):
        model, data = load_model(name, shape, command.classes)
        said = compile_if_needed(model, command.optimizer, command.loss)
    batch_size = command.batch_size
    if batch_size is None and data is None:
        batch_size = DEFAULT_BATCH
        notes.print(f"batch of {batch_size} samples (choose with --batch-size)", highlight=False)
    if said:
        notes.print(said, highlight=False, markup=False)
    checkmate_tf.compile(
        model,
        command.budget or DEFAULT_BUDGET,
        batch_size=batch_size,
        data=data,
        strategy=command.strategy,
        costs=command.costs,
        time_limit=command.time_limit,
        gap=command.gap,
        verify=command.verify,
        progress=True if sys.stderr.isatty() else progress_lines(),
    )
    report: Any = model.checkmate
    found: Report = report
    return found


def _page(graphs: Sequence[tuple[Graph, list[Answer]]], reports: Sequence[Report]) -> str:
    from .. import __version__
    from ..report.html import page
    from ..report.page import graph_section, report_section

    with stderr().status("drawing", spinner="dots"):
        sections = [report_section(report) for report in reports]
        sections += [graph_section(graph, answers) for graph, answers in graphs]
    return page("Rematerialization report", sections, f"checkmate-tf {__version__}")


def _check(command: ReportCommand) -> None:
    from ..strategies import STRATEGIES
    from .models import parse_shape

    parse_budget(command.budget or DEFAULT_BUDGET)
    parse_shape(command.input_shape)
    if command.strategy not in STRATEGIES:
        raise BadInput(f"--strategy {command.strategy!r} is unknown: choose one of {', '.join(sorted(STRATEGIES))}")
    if command.costs not in _COSTS:
        raise BadInput(f"--costs {command.costs!r} is unknown: choose one of {', '.join(_COSTS)}")
