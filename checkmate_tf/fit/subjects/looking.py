"""Looks at sizes in a step: it is run on a batch as far as they need it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from ...device.effects import moved_by
from ...device.measure import Device, captured_variables, put_back
from ...trace.ops import copy_attributes, inputs_of
from ...trace.sizes.loops import copy_functions
from ...trace.sizes.shapes import PYTHON
from ...trace.step import TracedStep

__all__ = ["looked_at"]

log = logging.getLogger("checkmate_tf")

_CANNOT_RUN = (tf.errors.OpError, TypeError, ValueError)  # on this batch, on this device, or apart from the rest


def looked_at(
    step: TracedStep,
    batch: Sequence[NDArray[Any]],
    device: Device,
    tensors: Sequence[tf.Tensor],
    scalars: Sequence[tf.Tensor],
) -> tuple[list[tuple[int, ...]], list[int]] | None:
    """The shapes of some tensors of a step, and the values of some scalars. Nothing is trained.

    Parameters
    ----------
    step : TracedStep
    batch : sequence of arrays
        One for each of `step.inputs`.
    device : Device
    tensors, scalars : sequence of tf.Tensor
        Of the traced step.

    Returns
    -------
    (list of shapes, list of int), or None
        None if the step must not be run, or fails on this batch.
    """
    moved = moved_by(step.operations)
    if moved or step.call_time:  # what is read may be what was moved before
        why = f"the step changes more than variables ({moved})" if moved else "some inputs are known at each call only"
        log.warning("sizes that data decides cannot be looked at: %s", why)
        return None
    needed = _needed(step, [*tensors, *scalars])

    def look(*given: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        copies = _copied(step, given, needed)
        return [tf.shape(copies[id(t)]) for t in tensors], [copies[id(t)] for t in scalars]

    measured = put_back(device, captured_variables(step.captures)) if device.measurable else contextlib.nullcontext()
    try:
        with tf.device("/CPU:0"):
            arrays = [tf.constant(array) for array in batch]
        specs = [tf.TensorSpec(t.shape, given.dtype) for t, given in zip(step.inputs, arrays, strict=True)]
        concrete = tf.function(look, autograph=False).get_concrete_function(*specs)
        with measured:
            shapes, values = concrete(*arrays)
            return [tuple(int(size) for size in shape.numpy()) for shape in shapes], [int(v.numpy()) for v in values]
    except _CANNOT_RUN as error:
        log.warning("sizes that data decides cannot be looked at: %s", str(error).strip().splitlines()[0])
        return None


def _needed(step: TracedStep, tensors: Sequence[tf.Tensor]) -> set[tf.Operation]:
    """The operations that these tensors are computed by. The gradient of a Python function comes after the function."""
    given = {t.op for t in step.inputs}
    needed: set[tf.Operation] = set()
    todo = [t.op for t in tensors]
    while todo:
        op = todo.pop()
        if op not in needed and op not in given:
            needed.add(op)
            todo += [t.op for t in inputs_of(op)] + [c for c in op.control_inputs if c.type in PYTHON]
    return needed


def _copied(step: TracedStep, given: Sequence[tf.Tensor], needed: set[tf.Operation]) -> dict[int, tf.Tensor]:
    """Copies of operations in the function being traced; by id(traced tensor)."""
    graph = tf.compat.v1.get_default_graph()
    copy_functions(step.graph, graph)
    copies = {id(t): value for t, value in zip(step.inputs, given, strict=True)}
    copies |= {id(internal): graph.capture(external) for external, internal in step.captures}
    for op in step.operations:
        if op in needed and not all(id(t) in copies for t in op.outputs):
            with tf.device(op.device or None):
                copy = graph._create_op_internal(
                    op.type,
                    [copies[id(t)] for t in inputs_of(op)],
                    [t.dtype for t in op.outputs],
                    attrs=copy_attributes(op),
                    name=op.name,
                )
            copies |= {id(t): made for t, made in zip(op.outputs, copy.outputs, strict=True)}
    return copies
