"""`checkmate-tf graph`: a model's training step as a graph in a file, without solving it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..costs import COST_MODELS, CostModels
from ..errors import CostError
from ..files.graphs import graph_to_dict
from ..files.jsonfile import check_output, to_json, write_json
from ..graph import Graph
from ..layers import LAYER_COSTS
from ..units import format_bytes
from .console import BadInput, prepare_tensorflow, progress_lines, refuse_options, stderr
from .planned import DEFAULT_BATCH

__all__ = ["GraphCommand", "run_graph"]

_LEVELS: dict[str, CostModels[Any]] = {"layer": LAYER_COSTS, "op": COST_MODELS}


@dataclass(frozen=True, kw_only=True)
class GraphCommand:
    """The arguments of the command, as typed."""

    model: str | None
    batch_size: int | None
    level: str
    costs: str
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    output: Path | None
    json: bool
    profile: Path | None = None
    random: int | None = None
    edges: int | None = None
    seed: int | None = None
    dtr_log: Path | None = None


def run_graph(command: GraphCommand) -> None:
    """Check the arguments (fast, and before anything slow), then load, trace and write.

    Raises
    ------
    CheckmateError
        For bad input.
    """
    if command.dtr_log is not None:
        return _write(command, _logged(command, command.dtr_log))
    if command.model is None or command.random is not None:
        return _write(command, _random(command))
    from ..keras.sources import compile_if_needed, load_model, parse_shape
    from .profile import dtype_policy

    shape = parse_shape(command.input_shape)
    _check(command)
    precision = _precision(command)
    prepare_tensorflow()
    notes = stderr()
    with notes.status("loading the model", spinner="dots"), dtype_policy(precision):
        model, data = load_model(command.model, shape, command.classes)
        runs = command.level == "op" or (command.costs == "profile" and command.profile is None)
        said = compile_if_needed(model, command.optimizer, command.loss) if runs else ""
    if said:
        notes.print(said, highlight=False)
    batch_size = command.batch_size
    if batch_size is None and (data is None or command.level == "layer"):
        batch_size = DEFAULT_BATCH
        notes.print(f"batch of {batch_size} samples (choose with --batch-size)", highlight=False)
    graph = _profiled(command, model, batch_size, data) if command.costs == "profile" else None
    if graph is None:
        with notes.status("tracing", spinner="dots"):
            graph = _traced(command.level, model, batch_size, command.costs, data)
    return _write(command, graph)


def _logged(command: GraphCommand, path: Path) -> Graph:
    """What a program has called, as its log tells.

    Raises
    ------
    BadInput
        If a model, a random graph, or an option of these, is given too.
    """
    from ..files.dtr_logs import read_dtr_log

    more = {"--random": command.random, "--edges": command.edges, "--seed": command.seed}
    _refuse_others(command, "--dtr-log reads a graph", more)
    return read_dtr_log(path)


def _random(command: GraphCommand) -> Graph:
    """A layered graph as Moccasin's paper has them.

    Raises
    ------
    BadInput
        If a model, or an option of models, is given too. Also if there is neither a model nor `--random`.
    """
    from ..strategies.random_graphs import layered, usual_edges

    if command.random is None:
        raise BadInput("give a MODEL, --random with a number of nodes, or --dtr-log with a log")
    _refuse_others(command, "--random draws a graph", {})
    edges = usual_edges(command.random) if command.edges is None else command.edges
    return layered(command.random, edges, command.seed or 0)


def _refuse_others(command: GraphCommand, what: str, more: dict[str, Any]) -> None:
    """Refuse a model, and options of models, where there is none; and an output that cannot be written."""
    given = {
        "MODEL": command.model, "--batch-size": command.batch_size, "--input-shape": command.input_shape,
        "--classes": command.classes, "--optimizer": command.optimizer, "--loss": command.loss,
        "--profile": command.profile, "--level": None if command.level == "layer" else command.level,
        "--costs": None if command.costs == "flops" else command.costs,
    }  # fmt: skip
    refuse_options(f"{what} without a model", given | more)
    if command.output is not None:
        check_output(command.output, command.dtr_log)


def _write(command: GraphCommand, graph: Graph) -> None:
    """To the file, or to standard output."""
    document, notes = graph_to_dict(graph), stderr()
    if command.output is not None:
        write_json(document, command.output)
    if command.json or command.output is None:
        sys.stdout.write(to_json(document))
    else:
        constant = format_bytes(graph.constant_bytes)
        notes.print(
            f"{len(graph)} nodes and {constant} of constants: {command.output}", highlight=False, soft_wrap=True
        )


def _traced(level: str, model: Any, batch_size: int | None, costs: Any, data: Any) -> Graph:
    if level == "layer":
        from ..layers.graph import layer_graph

        return layer_graph(model, batch_size or DEFAULT_BATCH, costs)
    from ..keras.api import op_graph

    return op_graph(model, batch_size, costs, data=data)


def _profiled(command: GraphCommand, model: Any, batch_size: int | None, data: Any) -> Graph | None:
    """The graph with the costs of a stored profile, or of one made now; None at op level without a stored one."""
    from ..profiles.file import find_profile
    from ..profiles.identity import differs_from
    from ..profiles.run import profile_model
    from ..profiles.table import graph_with_profile

    notes, level = stderr(), command.level
    if command.profile is None and level == "op":
        return None
    if batch_size is None:
        from ..keras.batches.spec import data_spec

        batch_size = data_spec(model, None, None, data)[1]
    if command.profile is None:
        from ..keras.progress import progress_bars

        with progress_bars(True if sys.stderr.isatty() else progress_lines()) as tell:
            table, _ = profile_model(model, [batch_size], tell=tell)
        return graph_with_profile(_traced(level, model, batch_size, "flops", data), table, batch_size)
    if command.profile.suffix == ".npy":
        from ..profiles.artifact import graph_with_artifact

        return graph_with_artifact(_traced(level, model, batch_size, "flops", data), command.profile, batch_size)
    path, table = find_profile(command.profile, level, differs_from(model, data))
    notes.print(f"costs of {path}: {table.origin(batch_size)}", highlight=False, soft_wrap=True)
    if level == "layer":
        return graph_with_profile(_traced(level, model, batch_size, "flops", data), table, batch_size, str(path))
    from ..profiles.steps import op_costs_from

    graph = _traced(level, model, batch_size, op_costs_from(table, batch_size, str(path)), data)
    return graph.with_costs(graph.costs, "us")


def _precision(command: GraphCommand) -> str | None:
    """The precision that a keras.applications model is built in: that of the profile, if one file is given."""
    from .profile import PRECISIONS, from_file

    if command.profile is None or command.profile.suffix != ".json" or from_file(command.model or ""):
        return None
    from ..profiles.file import read_profile

    precision = read_profile(command.profile).precision
    return precision if precision in PRECISIONS else None


def _names(level: str) -> list[str]:
    """The costs of a level: its cost models, and profiles, which both levels have."""
    return sorted({*_LEVELS[level], "profile"})


def _check(command: GraphCommand) -> None:
    level, costs = command.level, command.costs
    if command.edges is not None or command.seed is not None:
        raise BadInput("--edges and --seed are for --random: a model's graph is not drawn")
    if level not in _LEVELS:
        raise BadInput(f"--level {level!r} is unknown: choose one of {', '.join(_LEVELS)}")
    if level == "op" and costs in LAYER_COSTS and costs not in COST_MODELS:
        raise CostError(
            f'costs "{costs}" ({LAYER_COSTS[costs].title}) are of layers, not of ops: add --level layer, or take '
            f"--costs {', '.join(_names(level))}"
        )
    if costs not in _names(level):
        known = "; ".join(f"--level {name} has {', '.join(_names(name))}" for name in _LEVELS)
        raise BadInput(f"--costs {costs!r} is unknown at --level {level}: {known}")
    if command.profile is not None:
        if costs != "profile":
            raise BadInput(f"--profile is a file of measured costs, but --costs is {costs}: add --costs profile")
        if command.profile.suffix == ".npy" and level == "op":
            raise BadInput(f"--profile {str(command.profile)!r} has costs of layers: add --level layer")
        if not command.profile.exists():
            raise BadInput(f"there is no {str(command.profile)!r}: make a profile with checkmate-tf profile")
    if level == "layer" and (command.optimizer or command.loss):
        raise BadInput("--optimizer and --loss are for --level op: layers are read without them")
    if command.output is not None:
        check_output(command.output, command.model, command.profile)
