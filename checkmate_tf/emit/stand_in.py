"""What stands for operations that a measured step does without (`Program.left_out`): it takes the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..trace.program import Program
from ..trace.sizes.shapes import PYTHON

__all__ = ["StandIns"]


class StandIns:
    """Stand-ins in one emitted step.

    A Python function is replaced by one that returns zeros. Its gradient's tape holds what it read and made until the
    gradient is computed. What others would do is not done.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.taped = set(program.tapes.values())
        self.tapes: dict[tf.Operation, Any] = {}

    def emit(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
        """Emit what stands for a traced operation, into the graph under construction."""
        if op.type not in PYTHON or not op.outputs:
            return tf.no_op(op.name)
        types = [t.dtype for t in op.outputs]
        if op.type == "EagerPyFunc":
            return tf.py_function(lambda *given: self._eagerly(op, given), inputs, types, name=op.name)[0].op
        return tf.numpy_function(lambda *_: self._zeros(op), inputs, types, name=op.name)[0].op

    def _eagerly(self, op: tf.Operation, given: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        made = [tf.zeros(zeros.shape, zeros.dtype) for zeros in self._zeros(op)]
        if op in self.taped:
            self.tapes[op] = given, made
        self.tapes.pop(self.program.tapes.get(op), None)
        return made

    def _zeros(self, op: tf.Operation) -> list[np.ndarray]:
        known = (self.program.static.tensors[id(t)] for t in op.outputs)
        return [np.zeros(t.shape, t.dtype.as_numpy_dtype) for t in known]
