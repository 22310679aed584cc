"""`checkmate-tf report`: graphs and their answers, or models planned within a budget, as one page of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.graphs import GRAPH_FORMAT, graph_from_dict
from ..files.jsonfile import check_output, write_text
from ..files.results import RESULT_FORMAT
from .console import BadInput, print_json, refuse_options, stderr, stdout
from .planned import Asked, check_asked, planned

if TYPE_CHECKING:
    from ..files.answers import Answer
    from ..graph import Graph
    from ..report import Report

__all__ = ["ReportCommand", "run_report"]


@dataclass(frozen=True)
class ReportCommand:
    """The arguments of the command, as typed; of `given`, what models are planned with, None was not given."""

    files: Sequence[str]
    models: Sequence[Asked]
    given: Mapping[str, Any]
    html: Path
    json: bool


def run_report(command: ReportCommand) -> None:
    """Read all files, plan all models, then write the page.

    Raises
    ------
    CheckmateError
        For bad input; nothing is written then.
    """
    check_output(command.html, *command.files, *(asked.model for asked in command.models))
    if not command.models:
        why = "only models are planned; solve a graph with checkmate-tf solve, and give its result after it"
        refuse_options(why, command.given)
    for asked in command.models:
        check_asked(asked)
    graphs = _read(command.files)
    reports = [planned(asked)[0] for asked in command.models]
    write_text(_page(graphs, reports), command.html)
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
    from ..files.answers import answer_from_dict, load_json

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


def _page(graphs: Sequence[tuple[Graph, list[Answer]]], reports: Sequence[Report]) -> str:
    from ..report.html import page
    from ..report.page import graph_section, report_section
    from ..version import __version__

    with stderr().status("drawing", spinner="dots"):
        sections = [report_section(report) for report in reports]
        sections += [graph_section(graph, answers) for graph, answers in graphs]
    return page("Rematerialization report", sections, f"checkmate-tf {__version__}")
