"""Constants, and what TensorFlow would make of them beforehand, and keep.

Where constants and a known batch size decide a value, TensorFlow computes it once. From then on it fills memory outside
of the step. A plan that computes the value in each step has it only while it is read.

Grappler, if it is on, leaves out sums with zeros and products with ones, and computes others with constants in another
order. There a plan leaves it the constants that it finds in the plain step, or the last bits might differ.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from ..ops import is_stateful
from ..partition.classes import LARGE
from ..program import Program
from ..rewrites.sums import grappler_sorts
from .loops import LOOPS

__all__ = ["OPEN", "Folded", "computed_in_each_step", "constants_of", "folded_of"]

_LEAST_CONSTANT = 1 << 14  # bytes: smaller ones are many, and lie anywhere
_ENLARGED = {"Fill": 1, "Tile": 0, "BroadcastTo": 0}  # the input whose value these write many times


class Folded(NamedTuple):
    """What TensorFlow computes beforehand."""

    operations: frozenset[tf.Operation]
    """They do not run in a step."""
    sizes: tuple[int, ...]
    """Bytes of each value of theirs that is kept, since others read it. Small values do not count."""


OPEN = Folded(frozenset(), ())
"""Of a step with an open batch size."""


def constants_of(program: Program) -> list[int]:
    """Bytes of each large constant. TensorFlow allocates them when a step first runs, and keeps them."""
    sizes = (program.static.bytes_of(op.outputs[0]) or 0 for op in program.step.operations if op.type == "Const")
    return [size for size in sizes if size >= _LEAST_CONSTANT]


def computed_in_each_step(program: Program) -> dict[tf.Operation, int]:
    """Operations that write a constant many times and may do so in each step; and which input it is.

    Where Grappler is on, only those are that loops alone read: it rewrites nothing there.
    """
    found: dict[tf.Operation, int] = {}
    grappler = grappler_sorts()
    for op, kind in program.classes.items():
        index = _ENLARGED.get(op.type)
        if kind != LARGE or index is None or program.source_of(op.inputs[index]).op.type != "Const":
            continue
        if not grappler or all(reader.type in LOOPS for reader in op.outputs[0].consumers()):
            found[op] = index
    return found


def folded_of(program: Program) -> Folded:
    """What TensorFlow computes beforehand if it knows the batch size while it traces.

    It depends on constants and on the batch size alone. What is kept, something reads that does not.
    """
    apart = computed_in_each_step(program)
    known: set[tf.Operation] = set()
    made: list[tf.Operation] = []
    for op in program.step.operations:
        copy = program.static.operations.get(op)
        if copy is not None and copy.type == "Const":
            known.add(op)
        elif op not in apart and op.inputs and not is_stateful(op) and all(t.op in known for t in op.inputs):
            known.add(op)
            made.append(op)
    others = set(program.step.operations) - known
    read = [t for op in made for t in op.outputs if not others.isdisjoint(t.consumers())]
    sizes = [size for t in read if (size := program.static.bytes_of(t) or 0) >= _LEAST_CONSTANT]
    return Folded(frozenset(made), tuple(sizes))
