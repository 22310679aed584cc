"""`checkmate-tf operators`: implementations of a model's operators, chosen with its schedule, at layer level."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import InfeasibleBudgetError
from ..units import format_bytes
from .console import BadInput, check_finite, prepare_tensorflow, print_json, stderr, stdout

if TYPE_CHECKING:
    from ..operators import Chosen, OperatorGraph
    from ..strategies import SolveOptions

__all__ = ["METHODS", "OperatorsCommand", "run_operators"]

METHODS = ("choose", "monet", "gist", "checkmate")
"""A search around Checkmate, MONeT's program, Gist's rule, and Checkmate with the operators as they are."""

_BITS = (8, 10, 16)


@dataclass(frozen=True, kw_only=True)
class OperatorsCommand:
    """The arguments of the command, as typed."""

    model: str
    batch_size: int
    budget: str
    method: str
    solver: str
    time_limit: float
    gap: float
    seed: int
    inexact: bool
    sparsity: float | None
    bits: int | None
    input_shape: str | None
    classes: int | None
    json: bool


def run_operators(command: OperatorsCommand) -> None:
    """Check the arguments (fast, and before anything slow), then load, draw, choose and print.

    Raises
    ------
    CheckmateError
        For bad input.
    InfeasibleBudgetError
        If nothing fits the budget, or nothing was found.
    """
    from ..keras.sources import load_model, parse_shape
    from ..strategies import SolveOptions
    from ..strategies.budgets import budget_in_bytes

    _check(command)
    shape = parse_shape(command.input_shape)
    prepare_tensorflow()
    from ..layers.operators import layer_operators
    from ..schedule import keep_all

    notes = stderr()
    with notes.status("loading the model", spinner="dots"):
        model, _ = load_model(command.model, shape, command.classes)
        operators = layer_operators(model, command.batch_size, sparsity=command.sparsity, bits=command.bits)
    plain = operators.choose().graph
    budget_bytes = budget_in_bytes(command.budget, plain)
    options = SolveOptions(
        time_limit=command.time_limit,
        gap=command.gap / (1 + command.gap),  # a share of the cost; on the command line it is one of the bound
        seed=command.seed,
        solver=command.solver,
        progress=_tell if sys.stderr.isatty() else None,
    )
    found = _chosen(operators, budget_bytes, command, options)
    document = _document(command, operators, found, budget_bytes, keep_all(plain).peak_bytes)
    if command.json:
        print_json(document)
    else:
        _print(document)


def _chosen(operators: OperatorGraph, budget_bytes: int, command: OperatorsCommand, options: SolveOptions) -> Chosen:
    """By the method that is asked for.

    Raises
    ------
    InfeasibleBudgetError
        If nothing fits. Gist knows of no budget, so it raises if what its rule gives does not fit.
    """
    from ..operators import Chosen
    from ..strategies import solve
    from ..strategies.monet import choose_operators, gist, monet

    if command.method == "choose":
        return choose_operators(operators, budget_bytes, options, inexact=command.inexact)
    if command.method == "monet":
        return monet(operators, budget_bytes, options, inexact=command.inexact)
    if command.method == "checkmate":
        plain = operators.choose()
        schedule = solve(plain.graph, budget_bytes, "checkmate", options)
        return Chosen(schedule, plain, plain.graph.base_cost, schedule.status, schedule.lower_bound)
    found = gist(operators, reduced=command.bits is not None)
    needs = found.schedule.peak_bytes
    if needs > budget_bytes:
        raise InfeasibleBudgetError(
            f"budget {format_bytes(budget_bytes)} is too small for Gist, which computes nothing again: its encodings "
            f"need {format_bytes(needs)}; raise the budget, or use --method choose",
            budget_bytes,
            needs,
            proven=False,
        )
    return found


def _document(
    command: OperatorsCommand, operators: OperatorGraph, found: Chosen, budget_bytes: int, plain_peak_bytes: int
) -> dict[str, Any]:
    """The answer, as `--json` has it."""
    offered = Counter(way.name for ways in operators.implementations.values() for way in ways)
    chosen = Counter(operators.ways(i)[way].name for i, way in found.chosen.choice.items())
    schedule = found.schedule
    return {
        "model": command.model,
        "batch_size": command.batch_size,
        "method": command.method,
        "nodes": len(operators),
        "cost_unit": operators.graph.cost_unit,
        "cost": schedule.cost,
        "base_cost": found.base_cost,
        "overhead": found.overhead,
        "status": found.status,
        "bound": found.bound if math.isfinite(found.bound) else None,
        "budget_bytes": budget_bytes,
        "peak_bytes": schedule.peak_bytes,
        "plain_peak_bytes": plain_peak_bytes,
        "recomputed": len(schedule.sequence) - len(schedule.graph),
        "implementations": {name: {"chosen": chosen[name], "offered": offered[name]} for name in sorted(offered)},
        "seconds": schedule.seconds,
    }


def _print(document: dict[str, Any]) -> None:
    """A row a figure, and a row for each implementation."""
    unit = f" {document['cost_unit']}" if document["cost_unit"] else ""
    bound = "" if document["bound"] is None else f", at least {document['bound']:.6g} proven"
    rows = [
        ("model", f"{document['model']}, batch {document['batch_size']}, {document['nodes']} nodes"),
        ("method", f"{document['method']} ({document['status']}, {document['seconds']:.1f} s)"),
        ("cost", f"{document['cost']:.6g}{unit}{bound}"),
        ("overhead", f"{document['overhead']:.2%} over {document['base_cost']:.6g}{unit} in the default ways"),
        ("computed again", f"{document['recomputed']} times"),
        (
            "peak",
            f"{format_bytes(document['peak_bytes'])} of {format_bytes(document['budget_bytes'])}; "
            f"{format_bytes(document['plain_peak_bytes'])} without all this",
        ),
    ]
    for name, count in document["implementations"].items():
        rows.append((name, f"chosen in {count['chosen']} of {count['offered']} nodes that have it"))
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        stdout().print(f"{label:<{width}}  {text}", highlight=False, soft_wrap=True)


def _tell(seconds: float, cost: float, bound: float, gap: float) -> None:
    found = f"cost {cost:.6g}" if math.isfinite(cost) else "nothing yet"
    stderr().print(f"{seconds:5.1f} s  {found}, bound {bound:.6g}, gap {gap:.2%}", highlight=False)


def _check(command: OperatorsCommand) -> None:
    from .solve import SOLVERS

    if command.method not in METHODS:
        raise BadInput(f"--method {command.method!r} is unknown: choose one of {', '.join(METHODS)}")
    if command.solver not in SOLVERS:
        raise BadInput(f"--solver {command.solver!r} is unknown: choose one of {', '.join(SOLVERS)}")
    check_finite(time_limit=command.time_limit, gap=command.gap)
    if command.sparsity is not None and not 0 <= command.sparsity <= 1:
        raise BadInput(f"--sparsity {command.sparsity} is no share of zeros: give a number from 0 to 1")
    if command.bits not in (None, *_BITS):
        raise BadInput(f"--bits {command.bits} is not a size that Gist has: choose one of {', '.join(map(str, _BITS))}")
    if command.bits is not None and command.method in ("choose", "monet") and not command.inexact:
        raise BadInput("--bits changes the gradients: add --inexact, or --method gist")
