"""The static rematerialized graph: a traced step emitted again in the order of a plan.

Each computation of a node emits its operations anew, reading the newest copies of their inputs, so a value dies with
its last reader and TensorFlow frees it: a deallocation needs no operation.

TensorFlow would run every recomputation at once, and nothing would be saved, so groups of computations (see
`grouping`) are put in order by control edges. Three rules keep the numbers and oneDNN's fusions what they are:

- the edge goes to a new Identity of one floating-point input, not to the operation itself: operations are fused only
  if their own control inputs agree (Conv2D with BiasAdd, Conv2DBackpropFilter with BiasAddGrad);
- the filter's gradient is gated on its activation, since it shares its other input with BiasAddGrad;
- Pad and BiasAddGrad neither get nor give an edge.

Sources are emitted once. A view is emitted for each copy of what it looks at. Shape operations run once, when what
they look at is first there. Stateful operations keep their control edges; a copy of an operation that reads variables
comes before whatever assigns them, as the original does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ..errors import PlanError
from ..grouping import group_computations
from ..plan import COMPUTE, Plan
from ..trace.ops import inputs_of, is_stateful
from ..trace.program import LARGE, SHAPE, SMALL, SOURCE, VIEW, Program
from ..trace.static import copy_attributes, copy_functions

__all__ = ["emit"]

_UNGATED = frozenset({"Pad", "PadV2", "MirrorPad", "BiasAddGrad"})

# The input on which to gate, where it is not simply the first that will do.
_GATED_INPUT = {
    "Conv2DBackpropFilter": 0,
    "Conv3DBackpropFilterV2": 0,
    "DepthwiseConv2dNativeBackpropFilter": 0,
    "Conv2DBackpropInput": 2,
    "Conv3DBackpropInputV2": 2,
    "DepthwiseConv2dNativeBackpropInput": 2,
}


def emit(
    program: Program,
    plan: Plan,
    limit_bytes: int,
    inputs: Sequence[tf.Tensor],
    checks: Sequence[tf.Operation] = (),
) -> Any:
    """Emit a plan into the graph under construction.

    Parameters
    ----------
    program : Program
        The traced step.
    plan : Plan
        For `program.graph`.
    limit_bytes : int
        Memory that groups of unordered computations may use, constants included: the plan's peak or more.
    inputs : sequence of tf.Tensor
        The batch, flattened as the traced step's inputs.
    checks : sequence of tf.Operation
        No effect of the step comes before these.

    Returns
    -------
    nest
        What the step returns, in its own structure.
    """
    emission = _Emission(program, tf.compat.v1.get_default_graph(), inputs, checks)
    emission.run(plan, group_computations(program.graph, plan, limit_bytes))
    flat = [None if t is None else emission.tensor(t) for t in tf.nest.flatten(program.step.structured_outputs)]
    return tf.nest.pack_sequence_as(program.step.structured_outputs, flat)


class _Emission:
    """State of one emission: the newest copy of everything emitted so far."""

    def __init__(
        self,
        program: Program,
        graph: tf.Graph,
        inputs: Sequence[tf.Tensor],
        checks: Sequence[tf.Operation] = (),
    ) -> None:
        self.program = program
        self.graph = graph
        self.checks = list(checks)
        copy_functions(program.step.graph, graph)
        self.current: dict[tf.Operation, list[tf.Tensor]] = {}  # outputs of the newest copy
        self.copies: dict[tf.Operation, list[tf.Operation]] = {}
        self.seen_from: dict[tf.Operation, tuple[int, ...]] = {}  # ids of the inputs of a view's newest copy
        self.group_of: dict[int, int] = {}  # id of a tensor -> group whose barrier it comes after
        self.group = 0
        self.barrier: tf.Operation | None = None
        self.finished: list[tf.Operation] = []  # what the next barrier waits for
        for given, t in zip(program.step.inputs, inputs, strict=True):
            self.current[given.op] = [t]
        for external, internal in program.step.captures:
            self.current[internal.op] = [external]

    def run(self, plan: Plan, groups: Sequence[int]) -> None:
        computed: set[int] = set()
        computations = [s.node for s in plan if s.op == COMPUTE]
        for node, group in zip(computations, groups, strict=True):
            if group != self.group:
                self._close_group()
                self.group = group
            self._compute(node, first=node not in computed)
            computed.add(node)

    def tensor(self, t: tf.Tensor) -> tf.Tensor:
        """The newest copy of a traced tensor, emitted if it is free to emit."""
        op = t.op
        kind = self.program.classes.get(op, SOURCE)
        if kind == VIEW:
            sources = tuple(id(self.tensor(i)) for i in inputs_of(op))
            if self.seen_from.get(op) != sources:
                self._emit(op)
                self.seen_from[op] = sources
        elif op not in self.current:
            if kind not in (SOURCE, SHAPE):
                raise PlanError(f"{op.name} is read before it is computed")
            self._emit(op)
        return self.current[op][t.value_index]

    def _compute(self, node: int, first: bool) -> None:
        for op in self.program.nodes[node]:
            large = self.program.classes[op] == LARGE
            self._emit(op, gate=large and self.barrier is not None)
            reads_large = any(self.program.classes.get(self.program.source_of(t).op) == LARGE for t in inputs_of(op))
            if (large or reads_large) and op.type not in _UNGATED:
                self.finished.append(self.copies[op][-1])
        if first:
            for op in self.program.shapes[node] if node < len(self.program.shapes) else ():
                if op not in self.current:
                    self._emit(op)

    def _close_group(self) -> None:
        if not self.finished:
            return
        waits = self.finished if self.barrier is None else [self.barrier, *self.finished]
        with self.graph.control_dependencies(waits):
            self.barrier = tf.no_op(name="checkmate/barrier")
        self.finished = []

    def _emit(self, op: tf.Operation, gate: bool = False) -> None:
        """Emit one copy of an operation, after the current barrier if `gate` is set."""
        inputs = [self.tensor(t) for t in inputs_of(op)]
        controls = [copy for c in op.control_inputs for copy in self._control(c)]
        if self.checks and is_stateful(op):
            controls += self.checks
        ordered = any(self.group_of.get(id(t)) == self.group for t in inputs)  # comes after the barrier as it is
        if gate and not ordered:
            k = self._gated_input(op)
            if k is None:
                controls.append(self.barrier)
            else:
                with self.graph.control_dependencies([self.barrier]):
                    inputs[k] = tf.identity(inputs[k], name="checkmate/gate")
        with self.graph.control_dependencies(controls), self.graph.device(op.device or None):
            copy = self.graph._create_op_internal(
                op.type,
                inputs,
                [t.dtype for t in op.outputs],
                attrs=copy_attributes(op),
                name=op.name,
                op_def=op.op_def,
            )
        self.current[op] = list(copy.outputs)
        if gate or ordered:
            for t in copy.outputs:
                self.group_of[id(t)] = self.group
        self.copies.setdefault(op, []).append(copy)

    def _control(self, op: tf.Operation) -> list[tf.Operation]:
        """All copies of an operation that another one must come after."""
        if op not in self.copies:
            if op in self.current:  # an input or a captured tensor: always there
                return []
            kind = self.program.classes[op]
            if kind not in (SOURCE, SHAPE, VIEW):
                raise PlanError(f"{op.name} must run before what waits for it")
            if kind == VIEW:
                self.tensor(op.outputs[0])
            else:
                self._emit(op)
        return self.copies[op]

    def _gated_input(self, op: tf.Operation) -> int | None:
        if op.type in _UNGATED:
            return None
        kinds = [self._kind(t) for t in inputs_of(op)]
        wanted = _GATED_INPUT.get(op.type)
        if wanted is not None and kinds[wanted] == LARGE:
            return wanted
        for kind in (LARGE, SMALL, "Placeholder"):  # the first layer reads the batch itself
            if kind in kinds:
                return kinds.index(kind)
        return None

    def _kind(self, t: tf.Tensor) -> str:
        """What an edge to `t` would wait for: a large or small value, the batch, or nothing that can take an edge."""
        owner = self.program.source_of(t).op
        kind = self.program.classes.get(owner, SOURCE) if t.dtype.is_floating else SOURCE
        return owner.type if kind == SOURCE and t.dtype.is_floating else kind
