"""From a MODEL on the command line to its plan: what `plan` and `report` share."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..units import parse_budget
from .console import BadInput, prepare_tensorflow, progress_lines, stderr

if TYPE_CHECKING:
    from ..report import Report

__all__ = ["DEFAULT_BATCH", "Asked", "check_asked", "planned"]

DEFAULT_BATCH = 32
_COSTS = ("profile", "roofline", "flops")


@dataclass(frozen=True)
class Asked:
    """A model, and how it is to be planned, as typed."""

    model: str
    batch_size: int | None
    budget: str
    strategy: str
    costs: str
    time_limit: float
    gap: float
    verify: bool
    input_shape: str | None
    classes: int | None
    optimizer: str | None
    loss: str | None
    cache: bool = True
    schedule: Path | None = None
    operators: str = "default"


def check_asked(asked: Asked) -> None:
    """What can be said before anything slow.

    Raises
    ------
    BudgetError, BadInput
        Names the option, and what it may be.
    """
    from ..keras.sources import parse_shape
    from ..operators import OPERATORS
    from ..strategies import STRATEGIES

    parse_budget(asked.budget)
    parse_shape(asked.input_shape)
    if asked.strategy not in STRATEGIES:
        raise BadInput(f"--strategy {asked.strategy!r} is unknown: choose one of {', '.join(sorted(STRATEGIES))}")
    if asked.costs not in _COSTS:
        raise BadInput(f"--costs {asked.costs!r} is unknown: choose one of {', '.join(_COSTS)}")
    if asked.operators not in OPERATORS:
        raise BadInput(f"--operators {asked.operators!r} is unknown: choose one of {', '.join(OPERATORS)}")
    if asked.operators == "choose" and asked.schedule is not None:
        raise BadInput("--operators choose does not go with --schedule: a saved schedule is one of the plain step")
    if asked.schedule is not None and not asked.schedule.is_file():
        raise BadInput(f"--schedule {str(asked.schedule)!r}: there is no such file; plan --save writes one")


def planned(asked: Asked) -> tuple[Report, str]:
    """The report of the model's plan, and what it was compiled with if it was not compiled.

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
        notes.print(said, highlight=False, markup=False)
    checkmate_tf.compile(
        model,
        asked.budget,
        batch_size=batch_size,
        data=data,
        strategy=asked.strategy,
        costs=asked.costs,
        time_limit=asked.time_limit,
        gap=asked.gap,
        verify=asked.verify,
        cache=asked.cache,
        schedule=asked.schedule,
        operators=asked.operators,
        progress=True if sys.stderr.isatty() else progress_lines(),
    )
    report: Report = model.checkmate
    return report, said
