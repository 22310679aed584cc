"""Trees of sums and products, which Grappler rewrites as a whole, stay whole.

Grappler's arithmetic optimizer reorders a tree of additions, or of multiplications, so that small terms meet first. An
operation belongs to such a tree if its only reader is of its own kind and no control edge touches it. A plan may put a
barrier between the two. That hides the tree from Grappler, and the sum is rounded in another order than in the plain
step. So an operation within a tree is computed right before its reader, in the same node.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from ..ops import ELEMENTWISE, SUMS, inputs_of, view_of
from ..pieces import PIECES

__all__ = ["gather_trees", "in_trees", "within_trees"]

_KINDS = {"Add": "sum", "AddV2": "sum", "Mul": "product"}


def within_trees(
    operations: list[tf.Operation], outputs: list[tf.Tensor], reads: Callable[[tf.Operation], bool]
) -> set[tf.Operation]:
    """The partial sums and partial products: operations whose only reader is of the same kind.

    Arguments as for `gather_trees`.
    """
    readers = _readers(operations, outputs, reads)
    return {op for op in operations if _is_partial(op, readers.get(op, []))}


def gather_trees(
    operations: list[tf.Operation],
    outputs: list[tf.Tensor],
    reads: Callable[[tf.Operation], bool],
    large: Callable[[tf.Operation], bool],
) -> list[tf.Operation]:
    """Order operations so that the large ones of a tree come right before their readers.

    Two other kinds come right before their readers, too, which only saves memory: elementwise operations that one
    operation of a tree alone reads; and terms of `AddN` that take no more memory than what they are made of (a mean's
    gradient, spread over all elements).

    Parameters
    ----------
    operations : list of tf.Operation
        In topological order.
    outputs : list of tf.Tensor
        The step's results, which count as read by others.
    reads : callable
        Whether an operation reads the values of its inputs. One that looks at shapes alone does not: it is folded.
    large : callable
        Whether the value of an operation is worth deciding about; others stay where they are.
    """
    trees, terms = _trees_and_terms(operations, outputs, reads, large)
    later = trees | terms
    order: dict[tf.Operation, None] = {}
    for op in operations:
        if op in later:
            continue
        stack, found = [op], []
        while stack:
            found.append(stack.pop())
            stack += [t.op for t in inputs_of(found[-1]) if t.op in later and t.op not in order]
        order |= dict.fromkeys(reversed(found))
    return list(order)


def in_trees(
    operations: list[tf.Operation],
    outputs: list[tf.Tensor],
    reads: Callable[[tf.Operation], bool],
    large: Callable[[tf.Operation], bool],
) -> set[tf.Operation]:
    """What Grappler may rewrite together: operations within trees, what they alone read, and their last readers.

    Arguments as for `gather_trees`.
    """
    inner, _ = _trees_and_terms(operations, outputs, reads, large)
    return inner | {op for op in operations if any(t.op in inner for t in inputs_of(op))}


def _trees_and_terms(
    operations: list[tf.Operation],
    outputs: list[tf.Tensor],
    reads: Callable[[tf.Operation], bool],
    large: Callable[[tf.Operation], bool],
) -> tuple[set[tf.Operation], set[tf.Operation]]:
    """What belongs to a tree or feeds one alone, and the light terms of `AddN`."""
    readers = _readers(operations, outputs, reads)
    trees: set[tf.Operation] = set()
    terms: set[tf.Operation] = set()
    for op in reversed(operations):
        mine = readers.get(op, [])
        if not large(op) or len(mine) != 1 or mine[0] is None:
            continue
        feeds = mine[0] in trees and (op.type in ELEMENTWISE or op.type == "BroadcastTo") and not op.control_inputs
        if _is_partial(op, mine) or feeds:
            trees.add(op)
        elif (mine[0] in terms or mine[0].type in SUMS) and _is_light(op, readers, large):
            terms.add(op)
    return trees, terms


def _is_partial(op: tf.Operation, readers: list[tf.Operation | None]) -> bool:
    kind = _KINDS.get(op.type)
    if kind is None or len(readers) != 1 or readers[0] is None or op.control_inputs:
        return False
    return _KINDS.get(readers[0].type) == kind and not readers[0].control_inputs


def _is_light(
    op: tf.Operation,
    readers: dict[tf.Operation, list[tf.Operation | None]],
    large: Callable[[tf.Operation], bool],
) -> bool:
    """Whether an operation is elementwise, no sum, and reads one large value at most, which nobody else reads."""
    if op.type in SUMS or op.type not in {*ELEMENTWISE, "BroadcastTo"} - {"Snapshot"} or op.control_inputs:
        return False
    of = []
    for t in inputs_of(op):
        seen = t
        while (source := view_of(seen.op, seen.value_index)) is not None:
            seen = inputs_of(seen.op)[source]
        if large(seen.op) or seen.op.type in PIECES:  # who else reads what a view looks at is not known
            of.append(t.op if seen is t and large(seen.op) else None)
    return len(of) < 2 and all(p is not None and len(readers.get(p, [])) == 1 for p in of)


def _readers(
    operations: list[tf.Operation], outputs: list[tf.Tensor], reads: Callable[[tf.Operation], bool]
) -> dict[tf.Operation, list[tf.Operation | None]]:
    """The readers of each operation, once for every input. None stands for the results and for control edges."""
    readers: dict[tf.Operation, list[tf.Operation | None]] = {}
    for op in operations:
        for t in inputs_of(op) if reads(op) else ():
            readers.setdefault(t.op, []).append(op)
        for c in op.control_inputs:
            readers.setdefault(c, []).append(None)
    for t in outputs:
        readers.setdefault(t.op, []).append(None)
    return readers
