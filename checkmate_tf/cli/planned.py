"""From a MODEL on the command line to its plan: what `plan` and `report` share."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from .console import BadInput, prepare_tensorflow, progress_lines, stderr

if TYPE_CHECKING:
    from ..fit.options import Planning
    from ..report import Report

__all__ = ["DEFAULT_BATCH", "Asked", "check_asked", "planned"]

DEFAULT_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model, and how it is to be planned, as typed."""

    model: str
    batch_size: int | None
    budget: str
    planning: Planning
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None


def check_asked(asked: Asked) -> None:
    """Check what can be checked before anything slow.

    Raises
    ------
    CheckmateError
        Names the option, and what it may be.
    """
    from ..costs import COST_MODELS
    from ..fit.options import Page, options_of
    from ..keras.sources import parse_shape
    from ..operators import OPERATORS
    from ..strategies import STRATEGIES

    parse_shape(asked.input_shape)
    known = {
        "strategy": sorted(STRATEGIES), "costs": list(COST_MODELS), "operators": list(OPERATORS),
        "page": list(get_args(Page)),
    }  # fmt: skip
    for option, names in known.items():
        given = asked.planning.get(option, names[0])
        if given not in names:
            raise BadInput(f"--{option} {given!r} is unknown: choose one of {', '.join(names)}")
    if asked.planning.get("operators") == "choose" and asked.planning.get("schedule") is not None:
        raise BadInput("--operators choose does not go with --schedule: a saved schedule is one of the plain step")
    options, _ = options_of(asked.budget, asked.planning)
    if options.schedule is not None and not Path(options.schedule).is_file():
        raise BadInput(f"--schedule {str(options.schedule)!r}: there is no such file; plan --save writes one")


def planned(asked: Asked) -> tuple[Report, str]:
    """The report of the model's plan, and what the model was compiled with here if it was not compiled before.

    Raises
    ------
    CheckmateError
        As `checkmate_tf.compile`, or `BadInput`.
    """
    from ..keras.sources import compile_if_needed, load_model, parse_shape

    prepare_tensorflow()
    import checkmate_tf

    notes = stderr()
    with notes.status("loading the model", spinner="dots"):
        model, data = load_model(asked.model, parse_shape(asked.input_shape), asked.classes)
        said = compile_if_needed(model, asked.optimizer, asked.loss)
    batch_size = asked.batch_size
    if batch_size is None and data is None:
        batch_size = DEFAULT_BATCH
        notes.print(f"batch of {batch_size} samples (choose with --batch-size)", highlight=False)
    if said:
        notes.print(said, highlight=False)
    planning = asked.planning.copy()
    planning["progress"] = True if sys.stderr.isatty() else progress_lines()
    checkmate_tf.compile(
        model,
        asked.budget,
        batch_size=batch_size,
        data=data,
        **planning,
    )
    report: Report = model.checkmate
    return report, said
