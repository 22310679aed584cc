"""What the benchmarks of the papers' figures share: cells in child processes that resume, tables, published numbers.

A cell is a request (a dict of plain values) and its answer; both are one JSON file in the folder of results, so a run
that was ended goes on where it was. A child process answers it: its memory is its own, and it is ended when it takes
too long. What failed is tried again by the next run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FAILED",
    "ROOT",
    "ChildError",
    "answer_any",
    "answer_graph",
    "answer_range",
    "answer_solve",
    "best_within",
    "common_options",
    "geometric_mean",
    "graph_file",
    "in_child",
    "markdown",
    "most_seconds",
    "network_range",
    "new_figure",
    "published",
    "read_cells",
    "run_cells",
    "serve_child",
    "solve_cell",
    "write_csv",
    "write_rows",
]

ROOT = Path(__file__).resolve().parents[1]
FAILED = "failed"
_GRACE = 120.0  # seconds to start, read the graph and answer
_LOOK = 20.0  # seconds to look for the least budget


# Options --------------------------------------------------------------------------------------------------------------


def common_options(doc: str | None, name: str, quick: str, full: str) -> argparse.ArgumentParser:
    """A parser with what every script takes: --quick, --full, --again, --draw and --output (by default `name`)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{quick} (the default)")
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--again", action="store_true", help="run what has a result, too")
    parser.add_argument("--draw", action="store_true", help="run nothing: table and picture of what is in the folder")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results" / name)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def serve_child(options: argparse.Namespace, answer: Callable[[dict], dict]) -> bool:
    """In a child process: print the answer to its request. Whether this is one."""
    if not options.child:
        return False
    print("RESULT " + json.dumps(answer(json.loads(options.child))), flush=True)
    return True


# Cells ----------------------------------------------------------------------------------------------------------------


def run_cells(
    script: str,
    output: Path,
    requests: Sequence[dict],
    seconds: Callable[[dict], float],
    again: bool = False,
    environment: Mapping[str, str] | None = None,
    ended: Callable[[ChildError], dict | None] | None = None,
) -> list[dict]:
    """Answer every request that has no answer yet, with a progress bar.

    Parameters
    ----------
    script : str
        Its `--child REQUEST` answers.
    output : Path
        Folder of the cells.
    requests : sequence of dict
        Each with `cell`, the name of its file without `.json`, which also says what it is. The child is told the
        `folder` as well: paths in a request are names in there, so that results can be moved.
    seconds : callable
        After so many, beyond what starting takes, a request's child is ended.
    again : bool
        Run what has an answer, too.
    environment : mapping, optional
        Variables that the children have besides this process's.
    ended : callable, optional
        The answer of a child that ended without one, where its end is an answer; None where it is a failure.

    Returns
    -------
    list of dict
        Request and answer of each; where it failed, `outcome` is "failed" and `reason` says why.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    cells = []
    columns = [TextColumn("{task.description:44}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=len(requests))
        for request in requests:
            progress.update(task, description=request["cell"])
            cell = _answered(script, output, request, seconds(request), again, environment or {}, ended)
            if cell.get("outcome") == FAILED:
                progress.console.print(f"{request['cell']}: {cell['reason']}", markup=False)
            cells.append(cell)
            progress.advance(task)
    return cells


def _answered(
    script: str,
    output: Path,
    request: dict,
    seconds: float,
    again: bool,
    environment: Mapping[str, str],
    ended: Callable[[ChildError], dict | None] | None,
) -> dict:
    path = output / f"{request['cell']}.json"
    if path.exists() and not again:
        cell: dict = json.loads(path.read_text())
        if cell.get("outcome") != FAILED:
            return cell
    begun = time.perf_counter()
    try:
        cell = request | in_child(script, {**request, "folder": str(output)}, seconds + _GRACE, environment)
    except ChildError as error:
        answer = ended(error) if ended else None
        cell = request | (answer or {"outcome": FAILED, "reason": str(error)})
        cell["seconds"] = time.perf_counter() - begun
    part = path.with_suffix(".part")
    part.write_text(json.dumps(cell, indent=1) + "\n")
    part.replace(path)
    return cell


class ChildError(RuntimeError):
    """A child process that ended without an answer; says why.

    Attributes
    ----------
    returncode : int or None
        Its exit status, negative if a signal ended it; None if it took too long and was ended here.
    stderr : str
        What it wrote to its standard error, empty if it was ended here.
    """

    def __init__(self, message: str, returncode: int | None, stderr: str) -> None:
        super().__init__(message)
        self.returncode, self.stderr = returncode, stderr


def in_child(script: str, request: dict, seconds: float, environment: Mapping[str, str] | None = None) -> dict:
    """What `script --child REQUEST` answers; it and its own children are ended after so many seconds.

    Raises
    ------
    ChildError
        If it does not answer.
    """
    command = [sys.executable, script, "--child", json.dumps(request)]
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", **(environment or {})}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    try:
        out, err = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        raise ChildError(f"no answer after {seconds:.0f} s", None, "") from None
    except BaseException:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    if not lines:
        reason = f"exit {child.returncode}: {' '.join(err.strip().splitlines()[-2:])}"
        raise ChildError(reason, child.returncode, err)
    found: dict = json.loads(lines[-1].removeprefix("RESULT "))
    return found


def read_cells(output: Path, prefix: str = "cell-") -> list[dict]:
    """All answers in the folder whose files begin so, by name."""
    return [json.loads(path.read_text()) for path in sorted(output.glob(f"{prefix}*.json"))]


# Graphs of networks ---------------------------------------------------------------------------------------------------


def network_range(script: str, output: Path, network: str, batch: int, costs: str) -> dict | None:
    """A network's layer graph as a file, and its range of budgets; what failed is said, and then there is None.

    Parameters
    ----------
    script : str
        Its `--child` answers "graph" and "range" with `answer_graph` and `answer_range`.
    network : str
        In `models.py`.
    batch : int
    costs : str
        Of `layer_graph`.

    Returns
    -------
    dict or None
        The range's cell.
    """
    slug = f"{network}-{batch}-{costs}".replace(", ", "-").replace(" ", "-")
    shared = {"network": network, "batch": batch, "costs": costs, "graph": f"graph-{slug}.json"}
    making = [{**shared, "cell": f"made-{slug}", "run": "graph"}]
    made = run_cells(script, output, making, most_seconds, again=not (output / shared["graph"]).exists())[0]
    if made.get("outcome") == FAILED:
        return None
    looking = {**shared, "cell": f"range-{slug}", "run": "range", "limit": _LOOK}
    looking["retained_peak_bytes"] = made["retained_peak_bytes"]
    known = run_cells(script, output, [looking], most_seconds)[0]
    return None if known.get("outcome") == FAILED else known


def answer_graph(request: dict) -> dict:
    """Write the layer graph of a network in `models.py`; its peak as the papers count it."""
    from models import graph_of, retained_peak_bytes

    from checkmate_tf.files.graphs import write_graph

    graph = graph_of(request["network"], request["batch"], request["costs"])
    write_graph(graph, graph_file(request))
    retained = graph.constant_bytes + retained_peak_bytes(graph)
    return {"nodes": len(graph), "edges": len(graph.edges), "retained_peak_bytes": retained}


def graph_file(request: dict) -> Path:
    """Where a child finds the graph of its request."""
    return Path(request["folder"]) / request["graph"]


def answer_range(request: dict) -> dict:
    """The least budget with a known schedule, and the peak without recomputation."""
    from checkmate_tf.files.graphs import read_graph
    from checkmate_tf.schedule import keep_all
    from checkmate_tf.strategies import minimum_budget

    graph = read_graph(graph_file(request))
    proven, least, _ = minimum_budget(graph, request["limit"])
    return {
        "nodes": len(graph),
        "constant_bytes": graph.constant_bytes,
        "proven_least_bytes": proven,
        "least_bytes": least,
        "peak_bytes": keep_all(graph).peak_bytes,
        "base_cost": graph.base_cost,
        "cost_unit": graph.cost_unit,
    }


# Strategies on graphs -------------------------------------------------------------------------------------------------

_LINEAR = ("lp-rounding", "lp-rounding-random", "milp")  # the relaxation takes much longer than the search
_PATIENCE = 4.0  # times the limit for those


def solve_cell(known: dict, strategy: str, budget_bytes: int, limit: float) -> dict:
    """The request to solve a graph whose range is known; `answer_solve` answers it, as `strategies.py` does."""
    slug = known["cell"].removeprefix("range-")
    keys = ("network", "batch", "costs", "graph", "nodes", "constant_bytes", "base_cost")
    return {
        **{key: known[key] for key in keys}, "cell": f"cell-{slug}-{strategy}-{budget_bytes}", "run": "solve",
        "peak_bytes_plain": known["peak_bytes"],
        "solve": strategy, "strategy": strategy, "budget": budget_bytes, "budget_bytes": budget_bytes,
        "limit": limit * (_PATIENCE if strategy in _LINEAR else 1.0),
    }  # fmt: skip


def answer_solve(request: dict) -> dict:
    """One strategy within one budget."""
    from strategies import solve

    from checkmate_tf.files.graphs import read_graph

    return solve(read_graph(graph_file(request)), request)


def answer_any(request: dict) -> dict:
    """What a child process does with a request of this module."""
    return {"graph": answer_graph, "range": answer_range, "solve": answer_solve}[request["run"]](request)


def most_seconds(request: dict) -> float:
    """Of a request of this module: what is taken before a child is ended."""
    return 600.0 if request["run"] != "solve" else 6 * request["limit"]


def best_within(cells: Sequence[dict], budget_bytes: int) -> dict | None:
    """The cheapest schedule among a strategy's cells that fits: what was found for less memory serves as well."""
    fitting = [c for c in cells if c.get("outcome") == "solved" and c["peak_bytes"] <= budget_bytes]
    return min(fitting, key=lambda c: c["cost"], default=None)


# Tables and pictures --------------------------------------------------------------------------------------------------


def published(table: str, system: str = "checkmate") -> list[dict[str, str]]:
    """The rows of `data/published.csv` of one figure or table."""
    with (ROOT / "data/published.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if (row["system"], row["table"]) == (system, table)]


def geometric_mean(values: Sequence[float]) -> float:
    """Not a number if there is none."""
    from statistics import geometric_mean as mean

    return mean(values) if values else float("nan")


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", restval="", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def write_rows(output: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    """All results of a folder as its cells.csv; ends the script if there are none."""
    if not rows:
        raise SystemExit(f"there is no result in {output}")
    write_csv(output / "cells.csv", columns, rows)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; without pyplot."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
