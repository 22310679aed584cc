"""`checkmate-tf max-batch`: the largest batch that trains in a given memory, with a proven upper bound."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..units import format_bytes, parse_budget
from .console import BadInput, prepare_tensorflow, print_json, stderr, stdout

__all__ = ["MaxBatchCommand", "parse_overhead", "run_max_batch"]


@dataclass(frozen=True)
class MaxBatchCommand:
    """The arguments of the command, as typed."""

    model: str
    memory: str
    costs: str
    max_overhead: str
    inputs: bool
    time_limit: float
    seed: int
    input_shape: str | None
    classes: int | None
    json: bool


def parse_overhead(text: str) -> float | str:
    """`"one-forward"`, or a share of the step's cost: `"10%"`, `"0.1"`.

    Raises
    ------
    BadInput
        If it is neither.
    """
    if text == "one-forward":
        return text
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise BadInput(f'--max-overhead {text!r}: give a share of the step\'s cost ("10%"), or "one-forward"')
    return share


def run_max_batch(command: MaxBatchCommand) -> None:
    """Check the arguments, then load the model (or read the graph of one sample), search and print.

    Raises
    ------
    CheckmateError
        For bad input, and if not even one sample fits.
    """
    from ..batch import max_batch_size
    from .models import load_model, parse_shape

    overhead = parse_overhead(command.max_overhead)
    parse_budget(command.memory)
    shape = parse_shape(command.input_shape)
    if command.costs != "flops":
        raise BadInput(f"--costs {command.costs!r} is unknown here: choose flops")
    notes = stderr()
    source: Any
    if command.model.endswith(".json"):
        from ..interchange import read_graph

        source = read_graph(Path(command.model))
    else:
        prepare_tensorflow()
        with notes.status("loading the model", spinner="dots"):
            source, _ = load_model(command.model, shape, command.classes)

    def tell(seconds: float, batch: float, bound: float, _: float) -> None:
        notes.print(f"{seconds:5.1f} s  batch {batch:.0f}, at most {bound:.0f}", highlight=False)

    found = max_batch_size(
        source,
        command.memory,
        overhead,
        inputs=command.inputs,
        costs=command.costs,
        time_limit=command.time_limit,
        seed=command.seed,
        progress=tell if sys.stderr.isatty() else None,
    )
    schedule = found.schedule
    if command.json:
        print_json(
            {
                "model": command.model,
                "batch_size": found.batch_size,
                "upper_bound": found.upper_bound,
                "status": found.status,
                "peak_bytes": schedule.peak_bytes,
                "cost": schedule.cost,
                "base_cost": schedule.graph.base_cost,
                "max_cost": found.max_cost,
                "cost_unit": schedule.graph.cost_unit,
                "memory_bytes": found.memory_bytes,
                "fixed_bytes": found.fixed_bytes,
                "nodes": len(schedule.graph),
                "seconds": found.seconds,
            }
        )
        return
    proof = "proven largest" if found.status == "optimal" else f"proven: none above {found.upper_bound}"
    stdout().print(
        f"{command.model}: batch {found.batch_size} ({proof}), {format_bytes(schedule.peak_bytes)} of "
        f"{format_bytes(found.memory_bytes)}, {schedule.overhead:.1%} more computation, {found.seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
