"""`checkmate-tf profile`: what a model's layers or ops take on this device, over batch sizes and shapes, in a file.

A Keras dtype policy decides the precision of a model while it is built. So a stored file has its precision already.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import BadInput, prepare_tensorflow, print_json, progress_lines, stderr, stdout

if TYPE_CHECKING:
    from ..profiles.table import ProfileTable

__all__ = ["PRECISIONS", "ProfileCommand", "dtype_policy", "from_file", "parse_batch_sizes", "run_profile"]

PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16")
_LEVELS = ("layer", "op")
_MOST_BATCHES = 100
_SHOWN = 8  # nodes
_NOISY = 0.5  # a node is noisy if its spread is above this share of its median: the measurement says little
_NOISY_SHARE = 0.1  # the user is told if noisy nodes take more than this share of all time


@dataclass(frozen=True, kw_only=True)
class ProfileCommand:
    """The arguments of the command, as typed."""

    model: str
    batch_sizes: str
    output: Path
    level: str
    precision: str | None
    repetitions: int | None
    input_shapes: tuple[str, ...]
    classes: int | None
    optimizer: str | None
    loss: str | None
    json: bool


def parse_batch_sizes(text: str) -> list[int]:
    """`"8,16,32"` as ascending numbers, each once.

    Raises
    ------
    BadInput
        If it is not a list of positive whole numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < len(part) < 10 and int(part) > 0 for part in parts):
        raise BadInput(f"--batch-sizes {text!r} is not a list of batch sizes: give whole numbers above 0, e.g. 8,16,32")
    if len(parts) > _MOST_BATCHES:
        raise BadInput(f"--batch-sizes has {len(parts)} entries: give at most {_MOST_BATCHES}")
    return sorted({int(part) for part in parts})


@contextmanager
def dtype_policy(precision: str | None) -> Iterator[None]:
    """Build models in a Keras dtype policy; None leaves it as it is."""
    if precision is None:
        yield
        return
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def from_file(model: str) -> bool:
    """Whether MODEL names a file, not a network of keras.applications."""
    return model.endswith((".keras", ".h5", ".py")) or ":" in model


def run_profile(command: ProfileCommand) -> None:
    """Check the arguments (fast, and before anything slow), then load, measure, write and print.

    Raises
    ------
    CheckmateError
        For bad input, or if a node cannot be timed.
    """
    from ..keras.sources import load_model, parse_shape

    batch_sizes = parse_batch_sizes(command.batch_sizes)
    shapes = [parse_shape(text) for text in command.input_shapes] or [None]
    _check(command)
    prepare_tensorflow()
    from ..keras.progress import progress_bars
    from ..keras.sources import compile_if_needed
    from ..profiles.run import profile_model

    notes, documents = stderr(), []
    for shape in shapes:
        with notes.status("loading the model", spinner="dots"), dtype_policy(command.precision):
            model, data = load_model(command.model, shape, command.classes)
            said = compile_if_needed(model, command.optimizer, command.loss)
        if said:
            notes.print(said, highlight=False)
        try:
            with progress_bars(True if sys.stderr.isatty() else progress_lines()) as tell:
                table, path = profile_model(
                    model,
                    batch_sizes,
                    command.output,
                    level=command.level,
                    repetitions=command.repetitions,
                    data=data,
                    tell=tell,
                )
        except KeyboardInterrupt:
            notes.print(
                f"what was measured is kept in {command.output}; the same command goes on from there", highlight=False
            )
            raise
        document = _summary(table, batch_sizes) | {"file": str(path)}
        documents.append(document)
        if not command.json:
            _print(document)
    if command.json:
        print_json({"profiles": documents})


def _check(command: ProfileCommand) -> None:
    if command.level not in _LEVELS:
        raise BadInput(f"--level {command.level!r} is unknown: choose one of {', '.join(_LEVELS)}")
    if command.precision is not None and command.precision not in PRECISIONS:
        raise BadInput(f"--precision {command.precision!r} is unknown: choose one of {', '.join(PRECISIONS)}")
    if command.precision is not None and from_file(command.model):
        raise BadInput("--precision is for keras.applications names; a model from a file keeps its own")
    if command.output.exists() and not command.output.is_dir():
        raise BadInput(f"--output {str(command.output)!r} is not a folder: give the folder that files are written to")


def _summary(table: ProfileTable, batch_sizes: list[int]) -> dict[str, Any]:
    """What the command says of a profile: sums, and the nodes that take most at the largest batch of this run."""
    largest = table.batch_sizes.index(batch_sizes[-1])
    median, spread = table.median_us[:, largest], table.spread_us[:, largest]
    dearest = median.argsort()[::-1][:_SHOWN]
    return {
        "model": table.model,
        "device": table.device,
        "precision": table.precision,
        "level": table.level,
        "nodes": len(table),
        "batch_sizes": list(table.batch_sizes),
        "unit": "us",
        "sum": [round(float(us), 1) for us in table.median_us.sum(axis=0)],
        "dearest": [
            {
                "name": table.names[i],
                "kind": table.kinds[i],
                "median": round(float(median[i]), 1),
                "spread": round(float(spread[i]), 1),
                "repetitions": int(table.repetitions[i, largest]),
            }
            for i in dearest.tolist()
        ],
        "dearest_batch_size": batch_sizes[-1],
        "noisy_share": round(float(median[spread > _NOISY * median].sum() / median.sum()), 3),
    }


def _print(document: dict[str, Any]) -> None:
    from rich.table import Table

    console = stdout()
    sums = ", ".join(
        f"batch {batch}: {us / 1e3:.1f} ms" for batch, us in zip(document["batch_sizes"], document["sum"], strict=True)
    )
    console.print(
        f"{document['model']}, {document['precision']}, {document['nodes']} nodes at {document['level']} level on "
        f"{document['device']}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"all nodes together, {sums}", highlight=False, soft_wrap=True)
    table = Table(title=f"dearest at batch {document['dearest_batch_size']}", title_justify="left")
    for title in ("node", "kind"):
        table.add_column(title, overflow="fold")
    for title in ("median, us", "spread, us", "runs"):
        table.add_column(title, justify="right")
    for node in document["dearest"]:
        numbers = (f"{node['median']:,.1f}", f"{node['spread']:,.1f}", str(node["repetitions"]))
        table.add_row(node["name"], node["kind"], *numbers)
    console.print(table)
    if document["noisy_share"] > _NOISY_SHARE:
        console.print(
            f"{document['noisy_share']:.0%} of the time is in nodes whose spread is above half of their median: "
            "measure again in another folder when the machine is quiet, or with more --repetitions",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"written to {document['file']}", highlight=False, soft_wrap=True)
