"""Times of a training step's operations over batch sizes, by the timer of single operations (`costs/timed.py`).

That timer gives one number an operation. Here it passes over the step several times, without its cache. The median of
the passes counts, and their interquartile range is the spread. Some operations the timer only estimates: small ones,
ones that cannot be run alone, and those after its time budget. They hardly spread, since a model gives their number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..costs.signature import Signer
from ..errors import CostError
from .journal import Journal
from .layers import Column, Progress, Sample
from .table import FLOOR_US, ProfileTable

__all__ = ["op_costs_from", "operations_digest", "step_operations", "time_operations"]


def step_operations(model: Any, batch_size: int, data: Any = None) -> list[Any]:
    """The operations of a compiled model's training step whose costs `keras.api.op_graph` asks for.

    Placeholders are left out, and small constants that TensorFlow made of tensors outside of the step. They are free,
    and their names differ from one trace to the next.

    Raises
    ------
    CheckmateError
        As `checkmate_tf.compile`, except for budgets.
    """
    from ..keras.api import op_graph
    from ..keras.batches.spec import data_spec

    spec = None if data is None else data_spec(model, None, None, data)[0]
    operations: list[Any] = []

    def note(op: Any) -> float:
        if not _is_free(op):
            operations.append(op)
        return 0.0

    op_graph(model, batch_size, note, input_spec=spec)
    return operations


_COUNTER = re.compile(r"_\d+(?=/|$)")  # in the name of an operation


def operations_digest(operations: Iterable[Any]) -> str:
    """Digest of operations by name, type, shapes and attributes; the same in any process, and in any order.

    Keras counts names anew in each process. Numbers that are no whole ones (an epsilon, a rate) take no time.
    """
    sign = Signer()
    counted = [op for op in operations if op.type != "Const" or not op.outputs[0].dtype.is_floating]
    rows = sorted(f"{_COUNTER.sub('', op.name)}: {sign(op)}" for op in counted)
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()[:16]


def time_operations(
    model: Any,
    batch_size: int,
    *,
    repetitions: int = 3,
    device: str | None = None,
    data: Any = None,
    journal: Journal | None = None,
    progress: Progress | None = None,
    time_budget: float = 30.0,
) -> Column:
    """Time the operations of a model's training step at one batch size.

    Parameters
    ----------
    model : keras.Model
        Compiled.
    batch_size : int
    repetitions : int
        Passes of the timer.
    device, progress
        As for `layers.time_layers`.
    data : optional
        A batch of data, for models that do not declare their inputs.
    journal : Journal, optional
        Keeps each pass, and has those of an earlier run.
    time_budget : float
        Seconds of each pass after which the rest is estimated.

    Returns
    -------
    Column
        Operations by name; kinds are their types.
    """
    from ..costs.timed import time_ops

    kept = journal or Journal(None, "")
    found = {op.name: op for op in step_operations(model, batch_size, data)}
    operations = dict(sorted(found.items()))  # two traces of a step order independent operations in two ways
    digest, passes = operations_digest(operations.values()), []
    try:
        for number in range(max(1, repetitions)):
            key = f"pass {number} over the operations #{digest} at batch {batch_size}"
            costs = kept.get(key, len(operations))
            if costs is None:
                tell = _told(progress, number, repetitions)
                timed = time_ops(
                    list(operations.values()), device=device, cache=False, time_budget=time_budget, progress=tell
                )
                costs = np.maximum(timed.cost_us, FLOOR_US).tolist()
                kept.put(key, costs)
            passes.append(costs)
    finally:
        kept.save()
    samples = tuple(Sample.of(runs) for runs in np.array(passes).T)
    return Column(tuple(operations), tuple(op.type for op in operations.values()), samples)


def _is_free(op: Any) -> bool:
    return op.type == "Placeholder" or op.name.isdigit()  # a constant's name is a number that is drawn in each trace


def _told(progress: Progress | None, number: int, repetitions: int) -> Callable[[int, int, str], None] | None:
    if progress is None:
        return None
    return lambda done, total, text: progress(number * total + done, max(1, repetitions) * total, text)


def op_costs_from(table: ProfileTable, batch_size: int, source: str = "the profile") -> Callable[[Any], float]:
    """A cost model (operation -> microseconds) from a profile at op level, at a batch that was run or by the fit.

    Raises
    ------
    CostError
        If the profile is at layer level; and when it is called, if an operation is not in it.
    """
    if table.level != "op":
        raise CostError(f"{source} is at {table.level} level, but costs of ops are wanted: profile with --level op")
    costs = dict(zip(table.names, zip(table.kinds, table.costs(batch_size).tolist(), strict=True), strict=True))

    def cost(op: Any) -> float:
        if _is_free(op):
            return 0.0
        kind, us = costs.get(op.name, ("", 0.0))
        if kind != op.type:
            raise CostError(
                f"{source} has no cost of {op.name} ({op.type}): it is of another model, optimizer, loss or version; "
                "profile this one"
            )
        return us

    return cost
