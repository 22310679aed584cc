"""From a Python training step to the operations that matter, in a stable topological order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ..errors import CheckmateError, ModelError, TraceError
from .ops import inputs_of, is_source, is_stateful

__all__ = ["TracedStep", "is_gradient", "needed_operations", "topological", "trace_step"]


@dataclass(frozen=True, eq=False)
class TracedStep:
    """A training step as a graph, with the batch dimension open.

    Attributes
    ----------
    graph : FuncGraph
    inputs : list of tf.Tensor
        The placeholders of the data, in flattened order, resources excluded.
    captures : list of (external, internal) tensors
    call_time : list of (function, internal tensor)
        Captures whose values are asked for at each call (the numbers of collective operations): the function returns
        a list of one.
    outputs : list of tf.Tensor
        Flattened results.
    structured_outputs : nest
        The step's own result, for its structure.
    operations : list of tf.Operation
        Needed ones only, in topological order.
    controls : dict from operation to operations
        What an operation comes after, where that is not simply its control inputs; see `controls_of`.
    """

    graph: tf.Graph
    inputs: list[tf.Tensor]
    captures: list[tuple[Any, tf.Tensor]]
    call_time: list[tuple[Callable[[], Any], tf.Tensor]]
    outputs: list[tf.Tensor]
    structured_outputs: Any
    operations: list[tf.Operation]
    controls: Mapping[tf.Operation, Sequence[tf.Operation]] = field(default_factory=dict)

    def controls_of(self, op: tf.Operation) -> Sequence[tf.Operation]:
        """What an operation comes after, beside what it reads."""
        found: Sequence[tf.Operation] = self.controls.get(op, op.control_inputs)
        return found


def trace_step(step: Callable[[Any], Any], spec: Any, devices: int = 1) -> TracedStep:
    """Trace `step(spec)` without autograph, as Keras does.

    Parameters
    ----------
    step : callable of one argument
    spec : nest of tf.TensorSpec
        Batch dimension None.
    devices : int
        How many accelerators the step may use: one for each replica.

    Raises
    ------
    TraceError
        If the step fails while it is traced; the cause is chained.
    ModelError
        If operations are placed on more accelerators.
    """
    try:
        concrete = tf.function(step, autograph=False).get_concrete_function(spec)
    except CheckmateError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever user code raises
        raise TraceError(
            f"the training step cannot be traced into a graph: {type(error).__name__}: {error}. It must run inside "
            "tf.function without autograph: use tf.cond and tf.while_loop for decisions on tensors"
        ) from error
    graph = concrete.graph
    captures = list(graph.captures)
    call_time = list(zip(graph.deferred_external_captures, graph.deferred_internal_captures, strict=True))
    if not all(tf.is_tensor(internal) for _, internal in call_time):
        raise TraceError("the training step asks at each call for values that are not single tensors: pass them to it")
    captured = {id(internal) for _, internal in captures + call_time}
    inputs = [t for t in graph.inputs if id(t) not in captured]
    operations = needed_operations(graph, concrete.outputs)
    used = {op.device for op in operations if op.device and "CPU" not in op.device.upper()}
    if len(used) > devices:
        raise ModelError(
            f"the model runs on several devices ({', '.join(sorted(used))}); one budget is for one device: build "
            "the model without tf.device scopes"
        )
    return TracedStep(
        graph, inputs, captures, call_time, list(concrete.outputs), concrete.structured_outputs, operations
    )


def needed_operations(graph: tf.Graph, outputs: list[tf.Tensor]) -> list[tf.Operation]:
    """Ancestors of the outputs and of all side effects, sorted topologically.

    The order is that of creation, save that an operation created before one of its inputs (a while loop and the
    accumulators that its gradient adds) comes right after it.
    """
    roots = {t.op for t in outputs}
    roots.update(op for op in graph.get_operations() if is_stateful(op) and not is_source(op))
    needed: set[tf.Operation] = set()
    todo = list(roots)
    while todo:
        op = todo.pop()
        if op not in needed:
            needed.add(op)
            todo += _parents(op)
    return early_updates(topological([op for op in graph.get_operations() if op in needed]), roots)


def early_updates(order: list[tf.Operation], roots: set[tf.Operation]) -> list[tf.Operation]:
    """Move each update of a variable up to where the last gradient it needs is ready.

    Keras computes all gradients before the optimizer's first update, so they are all in memory at the end of the
    backward pass. Every data and control dependency stays, hence every number.
    """
    last = max((k for k, op in enumerate(order) if is_gradient(op)), default=None)
    if last is None:
        return order
    head: set[tf.Operation] = set()
    todo = [op for op in order[: last + 1] if is_gradient(op)]
    while todo:
        op = todo.pop()
        if op not in head:
            head.add(op)
            todo += _parents(op)
    position: dict[tf.Operation, int] = {}
    for op in order:  # of the latest operation of the head that an operation depends on
        own = len(position) if op in head else -1
        position[op] = max([own, *(position[p] for p in _parents(op))])
    waiting: dict[int, list[tf.Operation]] = {}
    for op in order:
        if op not in head and op in roots:
            waiting.setdefault(position[op], []).append(op)
    wanted: list[tf.Operation] = waiting.get(-1, [])
    for k, op in enumerate(order):
        if op in head:
            wanted.append(op)
            wanted += waiting.get(k, [])
    return topological(wanted)


def is_gradient(op: tf.Operation) -> bool:
    """True if tf.GradientTape made the operation (by its name scope, which only guides the order and the search)."""
    return "gradient_tape/" in op.name


def topological(operations: list[tf.Operation]) -> list[tf.Operation]:
    """The operations and their ancestors, each after its ancestors, otherwise in the order given.

    Raises
    ------
    TraceError
        If there is a cycle.
    """
    ordered: dict[tf.Operation, None] = {}
    for first in operations:
        if first in ordered:
            continue
        stack = [(first, iter(_parents(first)))]
        on_stack = {first}
        while stack:
            op, parents = stack[-1]
            for parent in parents:
                if parent in on_stack:
                    raise TraceError(f"the traced step has a cycle through {parent.name}")
                if parent not in ordered:
                    stack.append((parent, iter(_parents(parent))))
                    on_stack.add(parent)
                    break
            else:
                ordered[op] = None
                on_stack.discard(op)
                stack.pop()
    return list(ordered)


def _parents(op: tf.Operation) -> list[tf.Operation]:
    return [t.op for t in inputs_of(op)] + list(op.control_inputs)
