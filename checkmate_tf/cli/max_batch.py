"""`checkmate-tf max-batch`: the largest batch that trains in a given memory, with a proven upper bound."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files.results import BOUND_ORDERS
from ..units import format_bytes, parse_budget
from .console import (
    BadInput,
    check_finite,
    is_json,
    prepare_tensorflow,
    print_json,
    refuse_options,
    stderr,
    stdout,
)

if TYPE_CHECKING:
    from ..strategies.max_batch import MaxBatch, Probe, Verified

__all__ = ["MaxBatchCommand", "parse_overhead", "run_max_batch"]

_MOST_OVERHEAD = 1e6  # of the step's cost: what it allows must be a number in JSON, too


@dataclass(frozen=True, kw_only=True)
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
    verify: bool
    optimizer: str | None
    loss: str | None
    json: bool
    form: str = "search"


def parse_overhead(text: str) -> float | str:
    """`"one-forward"`, or a share of the step's cost: `"10%"`, `"0.1"`.

    Raises
    ------
    BadInput
        If it is neither, or a share that no step takes.
    """
    if text == "one-forward":
        return text
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= _MOST_OVERHEAD:
        raise BadInput(
            f'--max-overhead {text!r}: give a share of the step\'s cost ("10%"), at most {_MOST_OVERHEAD:,.0f}, or '
            '"one-forward"'
        )
    return share


def run_max_batch(command: MaxBatchCommand) -> None:
    """Check the arguments, then load the model (or read the graph of one sample), search and print.

    Raises
    ------
    CheckmateError
        For bad input, and if not even one sample fits.
    """
    from ..keras.sources import compile_if_needed, load_model, parse_shape
    from ..largest_batch.max_batch_size import FORMS, max_batch_size

    overhead = parse_overhead(command.max_overhead)
    if parse_budget(command.memory).size_bytes is None:
        raise BadInput(f'--memory {command.memory!r}: give bytes or a size such as "16GB"')
    shape = parse_shape(command.input_shape)
    if command.costs != "flops":
        raise BadInput(f"--costs {command.costs!r} is unknown here: choose flops")
    if command.form not in FORMS:
        raise BadInput(f"--form {command.form!r} is unknown: choose one of {', '.join(FORMS)}")
    check_finite(time_limit=command.time_limit)
    notes = stderr()
    source: Any
    trained = {"--optimizer": command.optimizer, "--loss": command.loss}
    if is_json(command.model):
        from ..files.graphs import read_graph

        if command.verify:
            raise BadInput(f"--verify trains the model for real, but {command.model!r} is a graph: give the model")
        of_models = {"--inputs": command.inputs, "--input-shape": command.input_shape, "--classes": command.classes}
        refuse_options(f"{command.model!r} is a graph, not a model", of_models | trained)
        source = read_graph(Path(command.model))
    else:
        if not command.verify:
            refuse_options("without --verify nothing is trained", trained)
        prepare_tensorflow()
        with notes.status("loading the model", spinner="dots"):
            source, _ = load_model(command.model, shape, command.classes)
        said = compile_if_needed(source, command.optimizer, command.loss) if command.verify else ""
        if said:
            notes.print(said, highlight=False)

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
        form=command.form,
    )
    if command.verify:
        found = _verify(command, found, overhead, shape)
    schedule, verified = found.schedule, found.verified
    order = "fixed" if command.form == "search" else "stages"
    if command.json:
        print_json(
            {
                "model": command.model,
                "form": command.form,
                "batch_size": found.batch_size,
                "upper_bound": found.upper_bound,
                "bound_order": order,
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
            | _figures(verified)
        )
        return
    proof = "none larger" if found.status == "optimal" else f"none above {found.upper_bound}"
    stdout().print(
        f"{command.model}: batch {found.batch_size} (proven: {proof} {BOUND_ORDERS[order]}), "
        f"{format_bytes(schedule.peak_bytes)} of {format_bytes(found.memory_bytes)}, "
        f"{schedule.overhead:.1%} more computation, {found.seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    if verified is not None:
        stdout().print(
            f"batch {verified.batch_size} trained for real in that memory: measured peak "
            f"{format_bytes(verified.peak_bytes)}, {verified.overhead:.1%} more computation, "
            f"{verified.step_seconds:.2f} s a step, {len(verified.probes)} trials",
            highlight=False,
            soft_wrap=True,
        )


def _verify(
    command: MaxBatchCommand, found: MaxBatch, overhead: float | str, shape: tuple[int, ...] | None
) -> MaxBatch:
    """Try it for real, with a line for each trial and what goes on meanwhile."""
    from rich.text import Text

    from ..largest_batch.verify import Source, try_for_real

    notes = stderr()
    source = Source(command.model, shape, command.classes, command.optimizer, command.loss)
    with notes.status(f"batch {found.batch_size}: starting", spinner="dots") as status:

        def tell(stage: str, done: float, total: float, text: str) -> None:
            status.update(Text(f"{stage} {text}".rstrip()))

        def told(probe: Probe, low: int, high: int) -> None:
            line = f"batch {probe.batch_size}: {probe.ending} ({probe.seconds:.0f} s)"
            notes.print(line, highlight=False, soft_wrap=True)

        return try_for_real(found, source, overhead, seed=command.seed, tell=tell, told=told)


def _figures(verified: Verified | None) -> dict[str, Any]:
    """What was measured, for JSON."""
    if verified is None:
        return {}
    return {
        "verified_batch_size": verified.batch_size,
        "verified_peak_bytes": verified.peak_bytes,
        "verified_step_seconds": verified.step_seconds,
        "verified_overhead": verified.overhead,
        "verified_budget_bytes": verified.budget_bytes,
        "probes": [asdict(probe) | {"trained": probe.trained} for probe in verified.probes],
    }
