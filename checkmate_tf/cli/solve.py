"""`checkmate-tf solve`: a graph from a file, solved within a budget. Without TensorFlow."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from ..errors import BudgetError, InfeasibleBudgetError
from ..files.graphs import read_graph
from ..files.jsonfile import check_output, to_json, write_json
from ..files.results import BOUND_ORDERS, infeasible_result, result_to_dict
from ..graph import Graph
from ..units import format_bytes, parse_budget
from .console import INFEASIBLE, BadInput, check_finite, show_error, stderr, stdout

if TYPE_CHECKING:
    from ..strategies.options import Order

__all__ = ["SOLVERS", "SolveCommand", "run_solve"]

ORDERS = ("fixed", "free")
SOLVERS = ("auto", "gurobi", "highs", "scip", "cp-sat", "pdlp")

_LEAST_SECONDS = 2.0  # to look for the least budget: every answer shows it, so that must not take long


@dataclass(frozen=True, kw_only=True)
class SolveCommand:
    """The arguments of the command, as typed."""

    graph: Path
    budget: str
    strategy: str
    solver: str
    time_limit: float
    gap: float
    seed: int
    order: str
    memory_limit: str | None
    output: Path | None
    json: bool
    copies: int = 2
    workers: int = 0


def run_solve(command: SolveCommand) -> None:
    """Check the arguments, then read, solve and write.

    Raises
    ------
    CheckmateError
        For bad input.
    typer.Exit
        3 if there is no schedule; the result is written even so.
    """
    from ..strategies import MoccasinOptions, SolveOptions, minimum_budget, solve
    from ..strategies.budgets import budget_in_bytes

    memory_limit = _check(command)
    graph = read_graph(command.graph)
    budget_bytes = budget_in_bytes(command.budget, graph)
    least_seconds = min(_LEAST_SECONDS, command.time_limit)
    failure: InfeasibleBudgetError | None = None
    begun = time.perf_counter()
    with _progress() as tell:
        options = SolveOptions(
            time_limit=command.time_limit,
            gap=command.gap / (1 + command.gap),  # a share of the cost; on the command line it is one of the bound
            seed=command.seed,
            order=cast("Order", command.order),  # checked
            solver=command.solver,
            memory_limit=memory_limit,
            progress=tell,
            moccasin=MoccasinOptions(command.copies, command.workers),
        )
        try:
            schedule = solve(graph, budget_bytes, command.strategy, options)
        except InfeasibleBudgetError as error:
            failure, seconds = error, time.perf_counter() - begun
        least = minimum_budget(graph, least_seconds)[1]
    if failure is None:
        result = result_to_dict(schedule, minimum_budget_bytes=least, budget_bytes=budget_bytes)
    else:
        result = infeasible_result(
            graph,
            failure,
            strategy=command.strategy,
            solver=command.solver,
            seconds=seconds,
            minimum_budget_bytes=least,
        )
    if command.output is not None:
        write_json(result, command.output)
    if command.json or command.output is None:
        sys.stdout.write(to_json(result))
    else:
        _print(graph, result, command.output)
    if failure is not None:
        show_error(failure)
        raise typer.Exit(INFEASIBLE)


def _check(command: SolveCommand) -> int | None:
    """Everything that can be checked before the graph is read. Returns the solver's memory limit."""
    from ..strategies import STRATEGIES

    if command.strategy not in STRATEGIES:
        raise BadInput(f"--strategy {command.strategy!r} is unknown: choose one of {', '.join(sorted(STRATEGIES))}")
    if command.solver not in SOLVERS:
        raise BadInput(f"--solver {command.solver!r} is unknown: choose one of {', '.join(SOLVERS)}")
    if command.order not in ORDERS:
        raise BadInput(f"--order {command.order!r} is unknown: choose one of {', '.join(ORDERS)}")
    check_finite(time_limit=command.time_limit, gap=command.gap)
    if command.output is not None:
        check_output(command.output, command.graph)
    if command.memory_limit is None:
        return None
    return _memory_limit(command.memory_limit)


def _memory_limit(text: str) -> int:
    try:
        size = parse_budget(text).size_bytes
    except BudgetError:
        size = None
    if size is None:
        raise BudgetError(f'--memory-limit {text!r} cannot be read; give a size ("4GB")')
    return size


@contextmanager
def _progress() -> Iterator[Callable[[float, float, float, float], None]]:
    """Show progress on standard error: one line that changes in a terminal, elsewhere ever fewer lines."""
    console, due = stderr(), 0.0
    if console.is_terminal:
        with console.status("solving") as status:
            yield lambda *news: status.update(_line(*news))
        return

    def tell(seconds: float, cost: float, bound: float, gap: float) -> None:
        nonlocal due
        if seconds >= due:
            due = max(1.0, 2 * seconds)
            console.print(_line(seconds, cost, bound, gap), highlight=False, soft_wrap=True)

    yield tell


def _line(seconds: float, cost: float, bound: float, gap: float) -> str:
    del gap  # of the cost; the result's is of the bound
    found = f"cost {cost:.6g}" if math.isfinite(cost) else "no schedule yet"
    proven = f"bound {bound:.6g}" if math.isfinite(bound) else "no schedule fits (proven)"
    left = f", gap {cost / bound - 1:.2%}" if math.isfinite(cost) and 0 < bound < math.inf else ""
    return f"{seconds:.0f} s: {found}, {proven}{left}"


def _print(graph: Graph, result: dict[str, Any], output: Path) -> None:
    """The answer without its plan, a row a field."""
    from rich.table import Table
    from rich.text import Text

    unit = f" {graph.cost_unit}" if graph.cost_unit else ""
    rows = [
        ("graph", f"{graph.name}, {len(graph)} nodes"),
        ("status", f"{result['status']} ({result['strategy']}, {result['solver'] or 'no solver'})"),
        ("budget", format_bytes(result["budget_bytes"])),
        ("base cost", f"{result['base_cost']:.6g}{unit}"),
    ]
    if result["plan"] is not None:
        cost, base = result["cost"], result["base_cost"]
        overhead = f", {cost / base - 1:.2%} more" if base else ""
        rows += [
            ("cost", f"{cost:.6g}{unit}{overhead}"),
            (
                "lower bound",
                f"{result['lower_bound']:.6g}{unit}, gap {result['gap']:.2%}, {BOUND_ORDERS[result['bound_order']]}",
            ),
            ("peak", format_bytes(result["peak_bytes"])),
        ]
    rows += [
        ("least budget", f"{format_bytes(result['minimum_budget_bytes'])} (known to do)"),
        ("time", f"{result['seconds']:.1f} s"),
        ("written to", str(output)),
    ]
    console = stdout()
    if not console.is_terminal:
        width = max(len(label) for label, _ in rows)
        sys.stdout.write("".join(f"{label:<{width}}  {text}\n" for label, text in rows))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in rows:
        table.add_row(label, Text(text))
    console.print(table)
