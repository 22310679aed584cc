"""What has to run before what is emitted later: barriers, and what the next one waits for."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

import tensorflow as tf

from ..trace.ops import inputs_of
from ..trace.sizes.loops import LOOPS

__all__ = ["BIAS", "FUSED_WITH_BIAS", "Barriers"]

BIAS = "BiasAddGrad"
FUSED_WITH_BIAS = frozenset(
    {"Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter", "MatMul"}
)
"""Gradients that oneDNN fuses with BiasAddGrad, if both read one tensor and wait for the same."""


@dataclass(frozen=True, eq=False)
class _Unfused:
    """A copy of BiasAddGrad, and what it may still be fused with. To wait for it now could be a cycle."""

    copy: tf.Operation
    to_come: set[tf.Operation]


class Barriers:
    """The barriers of one emission.

    Attributes
    ----------
    put : dict
        The barriers: after so many computations, or, in strict order, by number.
    finished : dict
        Copies that the next barrier waits for, in order. What another one reads is not among them: that one is.
    dones : set
        What was made to say that a copy has run: the identity of a result. It is no computation of the plan.
    """

    def __init__(self, graph: tf.Graph, traced: Container[tf.Operation]) -> None:
        self.put: dict[int, tf.Operation] = {}
        self.finished: dict[tf.Operation, None] = {}
        self._graph = graph
        self._traced = traced  # operations of the program's nodes
        self._followed: dict[tf.Operation, tf.Operation] = {}  # what took a copy's place: a reader, or the barrier
        self._unfused: dict[int, _Unfused] = {}  # id of the gradient that a BiasAddGrad has read
        self.dones: set[tf.Operation] = set()
        self._done: dict[tf.Operation, tf.Operation] = {}  # copies -> what says so of each
        self._read: dict[tf.Operation, list[int]] = {}  # what BiasAddGrad may be fused with -> ids of its newest inputs

    def finish(
        self, op: tf.Operation, copy: tf.Operation, read: Sequence[tf.Tensor], makers: Sequence[tf.Operation | None]
    ) -> None:
        """Let the next barrier wait for a copy of an operation, and so not for the makers of what it reads."""
        if op.type == BIAS:
            readers = (p for p in inputs_of(op)[0].consumers() if p in self._traced)  # not of frozen weights
            partners = {p for p in readers if p.type in FUSED_WITH_BIAS}
            to_come = {p for p in partners if id(read[0]) not in self._read.get(p, ())}
            if to_come:
                self._unfused[id(read[0])] = _Unfused(copy, to_come)
                return
        self.follow(makers, copy)
        if op.type in FUSED_WITH_BIAS:
            self._read[op] = [id(t) for t in read]
            for t in read:
                bias = self._unfused.get(id(t))
                if bias is not None:
                    bias.to_come.discard(op)
                    if not bias.to_come:
                        self.finished[self._unfused.pop(id(t)).copy] = None

    def follow(self, makers: Sequence[tf.Operation | None], copy: tf.Operation) -> None:
        """Let the next barrier wait for `copy`, in place of what it reads."""
        for maker in makers:
            if maker in self.finished:
                del self.finished[maker]
                self._followed[maker] = copy
        self.finished[copy] = None

    def stands_for(self, op: tf.Operation) -> tf.Operation | None:
        """What to wait for so that `op` has run: its last follower, or None if nothing watches it.

        The next barrier waits for that as well. It reads a value, and while its thread is held up the value stays.
        """
        while op in self._followed:
            op = self._followed[op]
        if op in self.finished:
            done = self.watched(op)
            self.finished[done] = None
            return done
        return op if op.type == "NoOp" else None

    def add(self, position: int) -> None:
        """Put something that runs when all that was emitted so far has run."""
        with self._graph.control_dependencies(self.behind()):
            self.put[position] = tf.no_op(name="checkmate/barrier")
        self._followed |= dict.fromkeys(self.finished, self.put[position])
        self.finished = {}

    def behind(self) -> list[tf.Operation]:
        """What runs when all that was emitted so far has run: the last barrier, and what came after it."""
        waits = [self.watched(op) for op in self.finished]
        return [*list(self.put.values())[-1:], *waits]

    def watched(self, op: tf.Operation) -> tf.Operation:
        """Something that runs when `op` has run, and leaves `op` without an outgoing control edge of its own."""
        result = next((t for t in op.outputs if t.dtype.is_floating), None)
        if result is None or op.type in LOOPS or op in self.dones:
            return op
        if op not in self._done:
            with self._graph.control_dependencies(None), self._graph.device(op.device or None):
                self._done[op] = tf.identity(result, name="checkmate/done").op
            self.dones.add(self._done[op])
        return self._done[op]
