"""A Python training step as a graph of operations: traced, rewritten (`rewrites`), and in a good order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from ..errors import CheckmateError, ModelError, TraceError
from .order import needed_operations
from .rewrites.casts import cast_late
from .rewrites.equal import join_equal
from .rewrites.inline import inlined
from .rewrites.sums import split_sums
from .rewrites.transposes import fold_transposes

__all__ = ["TracedStep", "trace_step"]


_TAPES = re.compile(r"gradient_tape/(?:(?!while/).)*gradient_tape/")
"""In the name of what a tape makes of what another one made. What it makes of a loop's body is named by one, too."""


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
        Captures that have a new value at each call (the numbers of collective operations). The function returns it,
        in a list of one.
    outputs : list of tf.Tensor
        Flattened results.
    structured_outputs : nest
        The step's own result, for its structure.
    operations : list of tf.Operation
        Needed ones only, in topological order.
    controls : dict from operation to operations
        What an operation comes after, where that differs from its control inputs. See `controls_of`.
    """

    graph: tf.Graph
    inputs: list[tf.Tensor]
    captures: list[tuple[Any, tf.Tensor]]
    call_time: list[tuple[Callable[[], Any], tf.Tensor]]
    outputs: list[tf.Tensor]
    structured_outputs: Any
    operations: list[tf.Operation]
    controls: Mapping[tf.Operation, Sequence[tf.Operation]] = field(default_factory=dict)

    @property
    def has_second_order(self) -> bool:
        """Whether gradients are taken of gradients, as operations are named by their tapes.

        Where sizes are open, a gradient broadcasts and sums in other operations than where they are known. Its values
        are the same. The gradient of these is not: it adds in another order.
        """
        return any(_TAPES.search(op.name) for op in self.operations)

    def controls_of(self, op: tf.Operation) -> Sequence[tf.Operation]:
        """What an operation comes after, beside what it reads."""
        found: Sequence[tf.Operation] = self.controls.get(op, op.control_inputs)
        return found


def trace_step(step: Callable[[Any], Any], spec: Any, devices: int = 1, as_written: bool = False) -> TracedStep:
    """Trace `step(spec)` without autograph, as Keras does.

    Parameters
    ----------
    step : callable of one argument
    spec : nest of tf.TensorSpec
        Batch dimension None, or known if all batches have one size.
    devices : int
        How many accelerators the step may use: one for each replica.
    as_written : bool
        Leave sums and transposes as they are: for XLA, which has its own way with both.

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
    whole = inlined(graph, inputs, captures, call_time)
    folded = dict[tf.Operation, tf.Operation]()
    if not as_written:
        whole = whole.replaced(split_sums(whole.graph))
        folded = fold_transposes(whole.graph)
        whole = whole.replaced({op.outputs[0].ref(): other.outputs[0] for op, other in folded.items()})
    if devices == 1:  # the steps of replicas have to correspond, operation by operation
        whole = whole.replaced(join_equal(whole.graph, list(whole.tensors.values())))
        whole = whole.replaced(cast_late(whole.graph, [whole.tensors[id(t)] for t in concrete.outputs]))
    outputs = [whole.tensors[id(t)] for t in concrete.outputs]
    operations = needed_operations(whole.graph, outputs, {other: op for op, other in folded.items()})
    used = {op.device for op in operations if op.device and "CPU" not in op.device.upper()}
    if len(used) > devices:
        raise ModelError(
            f"the model runs on several devices ({', '.join(sorted(used))}); one budget is for one device: build "
            "the model without tf.device scopes"
        )
    return TracedStep(
        whole.graph,
        [whole.tensors[id(t)] for t in inputs],
        [(external, whole.tensors[id(internal)]) for external, internal in captures],
        [(ask, whole.tensors[id(internal)]) for ask, internal in call_time],
        outputs,
        whole.nest(concrete.structured_outputs),
        operations,
    )
