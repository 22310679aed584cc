"""`checkmate-tf tradeoff`: what each of several budgets costs, before one is chosen."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files.jsonfile import check_output
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
from .planned import DEFAULT_BATCH

__all__ = ["TradeoffCommand", "run_tradeoff"]


@dataclass(frozen=True, kw_only=True)
class TradeoffCommand:
    """The arguments of the command, as typed."""

    model: str
    batch_size: int | None
    budgets: int
    costs: str
    time_limit: float
    gap: float
    seed: int
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    plot: Path | None
    json: bool


def run_tradeoff(command: TradeoffCommand) -> None:
    """Check the arguments, then load the model (or read the graph), solve, and print.

    Raises
    ------
    CheckmateError
        For bad input, and as `checkmate_tf.tradeoff`.
    """
    from ..costs import COST_MODELS
    from ..keras.sources import parse_shape
    from ..largest_batch.tradeoff import tradeoff

    shape = parse_shape(command.input_shape)
    if command.costs not in COST_MODELS:
        raise BadInput(f"--costs {command.costs!r} is unknown: choose one of {', '.join(COST_MODELS)}")
    check_finite(time_limit=command.time_limit, gap=command.gap)
    if command.plot is not None:
        check_output(command.plot, command.model)
    source, more = _source(command, shape)
    notes = stderr()
    with notes.status("the least budget", spinner="dots") as status:

        def tell(done: int, total: int, text: str) -> None:
            status.update(f"budget {min(done + 1, total)} of {total}: {text}")

        found = tradeoff(
            source,
            budgets=command.budgets,
            time_limit=command.time_limit,
            gap=command.gap,
            seed=command.seed,
            progress=tell if sys.stderr.isatty() else None,
            **more,
        )
    if command.plot is not None:
        found.plot(command.plot)
    if command.json:
        print_json(found.to_dict() | {"model": command.model})
        return
    stdout().print(str(found), highlight=False, soft_wrap=True)


def _source(command: TradeoffCommand, shape: tuple[int, ...] | None) -> tuple[Any, dict[str, Any]]:
    """The model or graph, and the arguments that only one of the two takes."""
    if is_json(command.model):
        from ..files.graphs import read_graph

        of_models = {
            "--input-shape": command.input_shape, "--classes": command.classes, "--optimizer": command.optimizer,
            "--loss": command.loss, "--costs": None if command.costs == "profile" else command.costs,
        }  # fmt: skip
        refuse_options(f"{command.model!r} is a graph, not a model", of_models)
        return read_graph(Path(command.model)), {"batch_size": command.batch_size}
    from ..keras.sources import compile_if_needed, load_model

    prepare_tensorflow()
    notes = stderr()
    with notes.status("loading the model", spinner="dots"):
        model, data = load_model(command.model, shape, command.classes)
    said = compile_if_needed(model, command.optimizer, command.loss)
    if said:
        notes.print(said, highlight=False)
    batch = command.batch_size if data is not None else command.batch_size or DEFAULT_BATCH
    return model, {"batch_size": batch, "data": data, "costs": command.costs}
