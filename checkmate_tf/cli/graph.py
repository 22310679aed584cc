"""`checkmate-tf graph`: a model's training step as a graph in a file, without solving it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import CostError
from ..interchange import graph_to_dict
from ..jsonfile import check_output, to_json, write_json
from ..units import format_bytes
from .console import BadInput, prepare_tensorflow, stderr

__all__ = ["GraphCommand", "run_graph"]

DEFAULT_BATCH = 32
_LEVELS = {"layer": ("flops", "v100"), "op": ("flops", "profile", "roofline")}


@dataclass(frozen=True)
class GraphCommand:
    """The arguments of the command, as typed."""

    model: str
    batch_size: int | None
    level: str
    costs: str
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    output: Path | None
    json: bool


def run_graph(command: GraphCommand) -> None:
    """Check the arguments (fast, and before anything slow), then load, trace and write.

    Raises
    ------
    CheckmateError
        For bad input.
    """
    from .models import compile_if_needed, load_model, parse_shape

    shape = parse_shape(command.input_shape)
    _check(command)
    prepare_tensorflow()
    notes = stderr()
    with notes.status("loading the model", spinner="dots"):
        model, data = load_model(command.model, shape, command.classes)
        said = compile_if_needed(model, command.optimizer, command.loss) if command.level == "op" else ""
    if said:
        notes.print(said, highlight=False, markup=False)
    batch_size = command.batch_size
    if batch_size is None and (data is None or command.level == "layer"):
        batch_size = DEFAULT_BATCH
        notes.print(f"batch of {batch_size} samples (choose with --batch-size)", highlight=False)
    with notes.status("tracing", spinner="dots"):
        if command.level == "layer":
            from ..trace.layers import layer_graph

            graph = layer_graph(model, batch_size or DEFAULT_BATCH, command.costs)
        else:
            from ..execute.keras import op_graph

            graph = op_graph(model, batch_size, command.costs, data=data)
    document = graph_to_dict(graph)
    if command.output is not None:
        write_json(document, command.output)
    if command.json or command.output is None:
        sys.stdout.write(to_json(document))
    else:
        constant = format_bytes(graph.constant_bytes)
        notes.print(
            f"{len(graph)} nodes and {constant} of constants: {command.output}", highlight=False, soft_wrap=True
        )


def _check(command: GraphCommand) -> None:
    level, costs = command.level, command.costs
    if level not in _LEVELS:
        raise BadInput(f"--level {level!r} is unknown: choose one of {', '.join(_LEVELS)}")
    if costs == "v100" and level != "layer":
        raise CostError(
            'costs "v100" (modelled V100 kernel costs) are of layers, not of ops: add --level layer, or take '
            f"--costs {', '.join(_LEVELS[level])}"
        )
    if costs not in _LEVELS[level]:
        known = "; ".join(f"--level {name} has {', '.join(models)}" for name, models in _LEVELS.items())
        raise BadInput(f"--costs {costs!r} is unknown at --level {level}: {known}")
    if level == "layer" and (command.optimizer or command.loss):
        raise BadInput("--optimizer and --loss are for --level op: layers are read without them")
    if command.output is not None:
        check_output(command.output)
