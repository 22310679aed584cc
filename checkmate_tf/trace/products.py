"""Products, as Grappler computes them.

Where one product alone reads another, Grappler may compute the two in another order. The plain step is computed so,
too, and its numbers with it: so a plan lets it happen, and has to know what it means for memory.

- c (x y), with a constant c, becomes x (c y). So x stays in memory until the outer product is computed, and the inner
  one no longer waits for x. Where one product reads the other directly, x is the first factor. Where there are views
  between the two, Grappler removes them first, and sorts the factors by name: x is the first of them by name.
- In other trees of products the smallest factors come together first.

A copy of c x that one product alone reads is another thing, if in the plain step several operations read c x: there
it is computed as written. So it must be in every copy.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from .ops import inputs_of
from .partition.classes import LARGE
from .program import Program

__all__ = ["Products", "Pushed", "products_of"]


class Pushed(NamedTuple):
    """Two products, of which the outer one has a constant for its other factor.

    Attributes
    ----------
    inner, outer : tf.Operation
    factor : tf.Tensor
        Of the inner product: what the outer one reads in its place.
    """

    inner: tf.Operation
    outer: tf.Operation
    factor: tf.Tensor


class Products(NamedTuple):
    """What Grappler does to the products of a step.

    Attributes
    ----------
    pushed : list of Pushed
        Where it moves a constant inwards.
    as_written : set of tf.Operation
        Products with a constant whose copies it might compute in another order than those of the plain step.
    """

    pushed: list[Pushed]
    as_written: set[tf.Operation]


def products_of(program: Program) -> Products:
    """Find the products that Grappler computes in another order than written, and those that it must not."""
    readers = _readers(program)
    pushed: list[Pushed] = []
    as_written: set[tf.Operation] = set()
    operations = (op for node in program.nodes for op in node)
    products = dict.fromkeys(op for op in operations if op.type == "Mul" and program.classes[op] == LARGE)
    for op in products:
        mine = readers.get(op, [None])
        scaled = _has_constant(program, op)
        if len(mine) > 1 and scaled and any(reader in products for reader in mine):
            as_written.add(op)
        outer = mine[0]
        if len(mine) > 1 or outer not in products:
            continue
        direct = any(t.op is op for t in inputs_of(outer))
        if scaled or not _has_constant(program, outer):
            continue
        factors = [program.whole_of(t) for t in inputs_of(op)]
        if all(program.static.bytes_of(t) == program.static.bytes_of(op.outputs[0]) for t in factors):
            first = factors[0] if direct else min(factors, key=lambda t: t.op.name)
            if first.op not in products or len(readers[first.op]) > 1:
                pushed.append(Pushed(op, outer, first))
    return Products(pushed, as_written)


def _readers(program: Program) -> dict[tf.Operation, list[tf.Operation | None]]:
    """Who reads each operation's value, seen through views; None stands for the step's results."""
    readers: dict[tf.Operation, list[tf.Operation | None]] = {}
    for op in (op for node in program.nodes for op in node):
        for t in inputs_of(op):
            readers.setdefault(program.whole_of(t).op, []).append(op)
    for t in program.step.outputs:
        readers.setdefault(program.whole_of(t).op, []).append(None)
    return readers


def _has_constant(program: Program, op: tf.Operation) -> bool:
    """Whether an input is a constant, once shapes are known."""
    known = program.static.tensors
    given = (known.get(id(source), source) for source in map(program.whole_of, inputs_of(op)))
    return any(tf.get_static_value(t) is not None for t in given)
