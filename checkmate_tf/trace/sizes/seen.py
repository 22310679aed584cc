"""Sizes that data decides, and that nothing bounds: those that one batch had, and a margin.

The step is run on a batch as far as its first unknown sizes, and these are looked at. With them more follows. So it
goes on until all is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from ..ops import inputs_of
from ..step import TracedStep
from .loops import LOOPS
from .variants import bytes_of

__all__ = ["MARGIN", "Look", "Seen", "first_unknown"]

MARGIN = 0.125
"""How much more a plan is for than one batch had. Of random sentences of 5 to 50 words, batches of 32 have 5% more or
fewer words than others (one sigma)."""

Look = Callable[[Sequence[tf.Tensor], Sequence[tf.Tensor]], tuple[Sequence[tuple[int, ...]], Sequence[int]] | None]
"""Given traced tensors, and scalars: the shapes of the former, the values of the latter. None if that failed."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a batch.

    Attributes
    ----------
    margin : float
        How much more is planned for, as a share.
    shapes : dict from id(traced tensor) to its shape
    rounds : dict from a traced loop to how often it ran
    """

    margin: float = MARGIN
    shapes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    rounds: dict[tf.Operation, int] = field(default_factory=dict)

    def more(self, size: int) -> int:
        """What is planned for where this was seen."""
        return max(1, math.ceil(size * (1 + self.margin)))

    def shape(self, t: tf.Tensor, known: tf.TensorShape) -> tf.TensorShape:
        """The shape to plan for, of which some sizes are known. Of the others, the largest has the margin."""
        if id(t) not in self.shapes:
            return known
        sizes = self.shapes[id(t)]
        told = known.as_list() if known.rank == len(sizes) else [None] * len(sizes)
        most = max((s for k, s in zip(told, sizes, strict=True) if k is None), default=0)
        planned = [s if k is None else k for k, s in zip(told, sizes, strict=True)]
        if None in told:
            axis = next(i for i, (k, s) in enumerate(zip(told, sizes, strict=True)) if k is None and s == most)
            planned[axis] = self.more(most)
        return tf.TensorShape(planned)

    def learn(self, unknown: Sequence[tf.Operation], look: Look) -> bool:
        """Look at the outputs of some operations. Returns whether that could be done."""
        loops = [op for op in unknown if op.type in LOOPS and _is_count(op.outputs[0])]
        tensors = [t for op in unknown for t in op.outputs if t.dtype not in (tf.variant, tf.resource)]
        found = look(tensors, [op.outputs[0] for op in loops])
        if found is None:
            return False
        self.shapes.update(zip(map(id, tensors), found[0], strict=True))
        self.rounds.update(zip(loops, found[1], strict=True))
        return True


def _is_count(t: tf.Tensor) -> bool:
    return bool(t.dtype.is_integer) and t.shape.rank == 0


def first_unknown(
    step: TracedStep, tensors: Mapping[int, tf.Tensor], list_bytes: Mapping[int, int], asked: set[tf.Operation]
) -> list[tf.Operation]:
    """The operations with an output of unknown size that read nothing of unknown size, but what was asked for before.

    Parameters
    ----------
    tensors, list_bytes
        As in `StaticStep`.
    asked : set of tf.Operation
    """

    def is_known(t: tf.Tensor) -> bool:
        return t.op in asked or bytes_of(t, tensors, list_bytes) is not None

    unknown = [op for op in step.operations if not all(map(is_known, op.outputs))]
    return [op for op in unknown if all(map(is_known, inputs_of(op)))]
