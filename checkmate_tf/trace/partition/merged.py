"""Groups that are computed together, as keeping what is between them serves nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import tensorflow as tf

from ..ops import is_stateful
from .classes import LARGE, SMALL
from .memory import Memory, local_memory

__all__ = ["merged", "read_by_group"]


def merged(
    groups: list[list[tf.Operation]],
    classes: Mapping[tf.Operation, str],
    memory: Memory,
    partial: set[tf.Operation],
    free: Callable[[tf.Operation], bool],
) -> list[list[tf.Operation]]:
    """Merge a group into the next one if only that one reads it.

    To keep such a value is never better than to keep what its reader makes of it, unless the value is the smaller one.
    A merged node holds both sets of inputs at once. So a merge that needs more memory than any node does today is left
    out. Partial sums and products, and what lies behind them, are merged anyway (see `trees.py`).

    A group that reads a large value and runs as soon as it can (all its operations are `free`) is not merged into
    another, which may come later, but for partial sums and products.
    """
    sizes = memory.sizes
    home = {op: k for k, group in enumerate(groups) for op in group}
    readers: list[set[int]] = [set() for _ in groups]
    inputs = [read_by_group(group, memory, home) for group in groups]
    for k, reads in enumerate(inputs):
        for op in reads:
            if home[op] != k:
                readers[home[op]].add(k)
    pinned = [any(classes[op] == SMALL or is_stateful(op) for op in group) for group in groups]
    apart = [
        all(map(free, group)) and any(classes[op] == LARGE for op in reads)
        for group, reads in zip(groups, inputs, strict=True)
    ]

    def needs(group: list[tf.Operation], reads: set[tf.Operation]) -> int:
        inside = set(group)
        value, workspace, _ = local_memory(group, memory, lambda op: op in home and memory.readers[op] <= inside)
        return sum(sizes[op] for op in reads - inside) + value + workspace

    limit = max((needs(g, r) for g, r in zip(groups, inputs, strict=True)), default=0)
    stack: list[_Entry] = []
    for k, group in enumerate(groups):
        own = _Entry(group, inputs[k], readers[k], pinned[k], apart[k])
        while stack and stack[-1].goes_into(k, own):
            last = stack[-1]
            joined, together = last.group + own.group, last.reads | own.reads
            grows = sum(sizes[op] for op in own.group) > sum(sizes[op] for op in last.group) and not own.pinned
            begin = next((j for j in range(len(stack), 0, -1) if not stack[j - 1].goes_into(k, own)), 0)
            whole = any(entry.group[-1] in partial for entry in stack[begin:])  # this one, or one behind it
            if not whole and (last.apart or grows or needs(joined, together) > limit):
                break
            own = _Entry(joined, together, readers[k], own.pinned, apart=False)
            stack.pop()
        stack.append(own)
    return [entry.group for entry in stack]


class _Entry(NamedTuple):
    """Groups that were merged, or one alone."""

    group: list[tf.Operation]
    reads: set[tf.Operation]
    readers: set[int]
    pinned: bool  # whether it is computed once
    apart: bool  # whether it should come earlier than another

    def goes_into(self, k: int, other: _Entry) -> bool:
        """Whether the other entry, with group k, is all that reads it, and the two may be computed at once."""
        return self.readers == {k} and (other.pinned or not self.pinned)


def read_by_group(group: list[tf.Operation], memory: Memory, home: Mapping[tf.Operation, int]) -> set[tf.Operation]:
    """Owners of the buffers that a group reads, sources excluded."""
    return {owner for op in group for owner in memory.read_by(op) if owner in home}
