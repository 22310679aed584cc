"""The static rematerialized graph: a traced step emitted again in the order of a plan.

Each computation of a node emits its operations anew, reading the newest copies of their inputs, so a value dies with
its last reader and TensorFlow frees it: a deallocation needs no operation.

TensorFlow would run every recomputation at once, and nothing would be saved, so computations wait by control edges for
those that must have finished (see `ordering`). Six rules keep numbers, oneDNN's fusions and memory what they are:

- an edge ends at a new Identity of one floating-point input, and starts at a new Identity of a result, never at the
  operations themselves: oneDNN fuses operations only if their control inputs agree (Conv2D with BiasAdd,
  Conv2DBackpropFilter with BiasAddGrad), Grappler only those without control edges;
- the filter's gradient is gated on its activation, since it shares its other input with BiasAddGrad; and nothing waits
  for BiasAddGrad before the filter's gradient that it may be fused with has been emitted;
- a loop is gated on all of its state, its counters included;
- where Grappler computes products in another order (see `trace.products`), the inner one waits for the factor that is
  taken from it. What must be computed as written has an edge of its own. Such an edge starts at a trigger, which no
  optimizer removes;
- a variable is assigned after all that reads its value in the step: TensorFlow would copy it, and move it. Where it was
  updated in part, such as rows of an embedding, TensorFlow would copy it for each read: a read ends that first;
- a gradient that reads no floating-point value but constants (a mask that is decoded) waits for what its node reads, or
  else the next that reads any: nothing else holds it back, and what it makes would be in memory until then. The edge
  ends at the operation itself, since nothing of that kind is fused.

Sources are emitted once. A view is emitted for each copy of what it looks at. Shape operations run once, when what
they look at is first there. Stateful operations keep their control edges; a copy of an operation that reads variables
comes before whatever assigns them, as the original does.

Grappler rewrites sums by what it knows of them, and so their last bits: a step planned with an open batch size gets its
shape operations as constants when it is emitted for the batch that was planned. Sums of three and more are traced as
sums of two (see `trace.rewrites.sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from ..errors import PlanError
from ..plan import Plan
from ..trace.kernels import takes_over
from ..trace.ops import FUSED_LATER, SUMS, copy_attributes, inputs_of, is_stateful, updated_in_part, writes_resource
from ..trace.order import is_gradient
from ..trace.partition.classes import LARGE, SHAPE, SMALL, SOURCE, VIEW
from ..trace.partition.trees import in_trees
from ..trace.products import Products, products_of
from ..trace.program import Program
from ..trace.rewrites.sums import grappler_sorts
from ..trace.sizes.folded import computed_in_each_step
from ..trace.sizes.loops import LOOPS, copy_functions
from .barriers import BIAS, FUSED_WITH_BIAS, Barriers
from .ordering import Order, Strict, needed_waits
from .stand_in import StandIns

__all__ = ["Copies", "Emission", "emit"]

Copies: TypeAlias = Mapping[tf.Operation, Sequence[tf.Operation]]
"""Of each traced operation those that were emitted for it, in order."""

_CAPTURED = 256  # elements: smaller ones become constants where they are captured
_CONCATENATES = "ConcatV2"

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
    order: Order,
    inputs: Sequence[tf.Tensor],
    checks: Sequence[tf.Operation] = (),
    told: Callable[[Copies], None] | None = None,
) -> Any:
    """Emit a plan into the graph under construction.

    Parameters
    ----------
    program : Program
        The traced step.
    plan : Plan
        For `program.graph`.
    order : Order
        `Strict`: computations keep the plan's order. `Within`: any order that needs no more than its bytes.
    inputs : sequence of tf.Tensor
        The batch, flattened as the traced step's inputs.
    checks : sequence of tf.Operation
        No effect of the step comes before these.
    told : callable, optional
        Is called with the copies of each traced operation when all are emitted.

    Returns
    -------
    nest
        What the step returns, in its own structure.
    """
    emission = Emission(program, tf.compat.v1.get_default_graph(), inputs, checks)
    if isinstance(order, Strict):
        emission.run_strictly(plan)
    else:
        emission.run(plan, needed_waits(program.graph, plan, order))
    outputs = emission.outputs()
    if told is not None:
        told(emission.copies)
    return outputs


class Emission:
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
        planned = (program.static.tensors[id(t)].shape for t in program.step.inputs)
        full = all(t.shape.as_list() == shape.as_list() for t, shape in zip(inputs, planned, strict=True))
        # Then Grappler sees the constants that it sees in a step traced for this batch.
        self.shapes_known = full and not program.static.bounded
        self.products = products_of(program) if grappler_sorts() else Products([], set())
        self.in_each_step = computed_in_each_step(program)
        self.updated_in_part = updated_in_part(program.step.operations)
        self.factors = {p.inner: p.factor for p in self.products.pushed}
        self.current: dict[tf.Operation, list[tf.Tensor]] = {}  # outputs of the newest copy
        self.copies: dict[tf.Operation, list[tf.Operation]] = {}
        self.seen_from: dict[tf.Operation, tuple[int, ...]] = {}  # ids of the inputs of a view's newest copy
        self.comes_after: dict[int, int] = {}  # id of a tensor -> how many computations finish before it is made
        self.strict = False  # whether operations run one after the other; else computations may overlap
        self.rewritten: set[tf.Operation] = set()  # if strict: what Grappler may rewrite together with its neighbours
        self.wait = 0  # how many must have finished before the computation that is being emitted; if strict: barriers
        self.barriers = Barriers(graph, program.node_of)
        self.value_read: dict[tf.Operation, list[tf.Operation]] = {}  # handle -> copies that read it
        self.stand_ins = StandIns(program)
        self.index: tf.Tensor | None = None  # 0, but TensorFlow does not know that
        self.maker: dict[int, tf.Operation] = {}  # id of a tensor -> the copy that owns its buffer
        for given, t in zip(program.step.inputs, inputs, strict=True):
            self.current[given.op] = [t]
        for external, internal in program.step.captures:
            self.current[internal.op] = [external]
        while getattr(graph, "is_control_flow_graph", False):  # the body of a loop, which captures no such values
            graph = graph.outer_graph
        for ask, internal in program.step.call_time:
            spec = tf.TensorSpec(internal.shape, internal.dtype)
            self.current[internal.op] = [graph.capture_call_time_value(lambda ask=ask: ask()[0], spec)]

    def run(self, plan: Plan, waits: Sequence[int]) -> None:
        """Emit all computations. Computation j waits for the first `waits[j]` of them."""
        awaited, computed = set(waits) - {0}, set[int]()
        for position, node in enumerate(plan.sequence):
            if position in awaited:
                self.barriers.add(position)
            self.wait = waits[position]
            self._compute(node, first=node not in computed)
            computed.add(node)

    def run_strictly(self, plan: Plan) -> None:
        """Emit all computations in one strict order, and so the operations of a node, as far as numbers allow."""
        self.strict = True
        classes, step = self.program.classes, self.program.step
        reads, large = (lambda op: classes[op] != SHAPE), (lambda op: classes[op] == LARGE)
        self.rewritten = in_trees(step.operations, step.outputs, reads, large)
        computed = set[int]()
        for place, node in enumerate(plan.sequence):
            self._place(place, node, first=node not in computed)
            computed.add(node)

    def _place(self, place: int, node: int, first: bool) -> None:
        """Emit what stands at a place of the plan, in strict order."""
        self._compute(node, first)

    def outputs(self) -> Any:
        """What the step returns, in its own structure; ask when all is emitted."""
        structured = self.program.step.structured_outputs
        flat = [None if t is None else self.tensor(t) for t in tf.nest.flatten(structured)]
        return tf.nest.pack_sequence_as(structured, flat)

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
            gate = large and (self._held_back(op, node) if self.strict else self.wait > 0)
            self._emit(op, gate=gate, late=self._late(op, node) if large else ())
            reads_large = any(self.program.classes.get(self._owner(t)) == LARGE for t in inputs_of(op))
            if (large or reads_large) and op.type not in FUSED_LATER:
                self._finish(op)
        if first:
            for op in self.program.shapes[node] if node < len(self.program.shapes) else ():
                if op not in self.current:
                    self._emit(op)

    def _finish(self, op: tf.Operation) -> None:
        """Let the next barrier wait for an operation that was emitted."""
        read = [self.tensor(t) for t in inputs_of(op)]
        self.barriers.finish(op, self.copies[op][-1], read, [self.maker.get(id(t)) for t in read])

    def _held_back(self, op: tf.Operation, node: int) -> bool:
        """Whether only a barrier keeps an operation from running before all that come before it; puts the barrier.

        Inside of a node, what Grappler may rewrite together with its neighbours is left alone. But a copy that reads
        what an earlier one has read waits for the node's barrier, or Grappler would take the two for one.
        """
        if self.barriers.finished:
            made = {self.maker.get(id(self.tensor(t))) for t in inputs_of(op)}
            if op is not self.program.nodes[node][0] and op in self.rewritten:
                return op in self.copies and self.wait > 0
            if made.issuperset(self.barriers.finished):
                return False
            self.wait += 1
            self.barriers.add(self.wait)
        return self.wait > 0

    def _late(self, op: tf.Operation, node: int) -> list[tf.Operation]:
        """What a gradient has to wait for that reads no value: what its node reads, or else the next."""
        mine = self.program.nodes[node]
        reads = lambda t: t.dtype.is_floating and self._owner(t).type != "Const"  # noqa: E731 - a short callback
        if not is_gradient(op) or any(reads(t) or self._owner(t) in mine for t in inputs_of(op)):
            return []
        nodes, makers = [node], list[tf.Operation]()
        while nodes and not makers:
            read = [self.program.source_of(t) for t in self._large_inputs(nodes)]
            makers = [self.maker[id(self.current[t.op][t.value_index])] for t in read if t.op in self.current]
            nodes = sorted({user for k in nodes for user in self.program.graph.users[k]})
        return [self.barriers.watched(maker) for maker in dict.fromkeys(makers)]

    def _large_inputs(self, nodes: Sequence[int]) -> list[tf.Tensor]:
        """The large values that nodes read of others."""
        operations = [op for k in nodes if k < len(self.program.nodes) for op in self.program.nodes[k]]
        read = [t for op in operations for t in inputs_of(op) if self._kind(t) == LARGE]
        return [t for t in read if self._owner(t) not in operations]

    def _owner(self, t: tf.Tensor) -> tf.Operation:
        return self.program.source_of(t).op

    def _emit(self, op: tf.Operation, gate: bool = False, late: Sequence[tf.Operation] = ()) -> None:
        """Emit one copy of an operation: if `gate` is set, after what its computation waits for; and after `late`."""
        if self.shapes_known and self.program.classes.get(op) == SHAPE and self._emit_known(op):
            return
        inputs = [self.tensor(t) for t in inputs_of(op)]
        if op.type == _CONCATENATES:
            self._keep_apart(inputs)
        if op in self.in_each_step:
            inputs[self.in_each_step[op]] = self._not_folded(inputs[self.in_each_step[op]])
        controls = [copy for c in self.program.step.controls_of(op) for copy in self._control(c)]
        if self.checks and is_stateful(op):
            controls += self.checks
        controls += late
        controls += self._keep_order(op, inputs)
        controls += self._keep_in_place(op)
        if op.type == "ReadVariableOp" and op.inputs[0].op in self.updated_in_part:
            controls.append(self._not_copied(op, inputs[0], controls))
        waits = [self.comes_after.get(id(t), 0) for t in inputs]
        after = max(waits, default=0)
        begins = min(waits, default=0) if op.type in LOOPS else after  # a loop with whatever is there first
        if gate and begins < self.wait:
            gated = self._gated_inputs(op)
            if not gated:
                controls.append(self.barriers.put[self.wait])
            for k in gated:
                if op.type in LOOPS and waits[k] >= self.wait:
                    continue
                with (
                    self.graph.control_dependencies([self.barriers.put[self.wait]]),
                    self.graph.device(op.device or None),
                ):
                    inputs[k] = tf.identity(inputs[k], name="checkmate/gate")
            after = max(after, self.wait)
        if op in self.program.left_out:
            controls += [made for t in inputs if (made := self.maker.get(id(t))) is not None]
        with self.graph.control_dependencies(controls), self.graph.device(op.device or None):
            copy = self._copied(op, inputs)
        self.current[op] = self._held(op, copy, inputs)
        view = self.program.classes.get(op) == VIEW
        for k, t in enumerate(self.current[op]):
            lies_in = self.program.static.lies_in(op, k) if view else None
            source = None if lies_in is None else inputs[lies_in]
            self.maker[id(t)] = copy if source is None else self.maker.get(id(source), copy)
        if self.strict and self._looks_at_large(op):
            self.barriers.finished[copy] = (
                None  # or the value may live on, and what reads it next may not take its memory over
            )
        self.comes_after |= {id(t): after for t in self.current[op] if after}
        self.copies.setdefault(op, []).append(copy)
        for t in inputs_of(op) if not view else ():
            owner = self._owner(t)
            if owner.type == "ReadVariableOp":
                self.value_read.setdefault(owner.inputs[0].op, []).append(copy)

    def _copied(self, op: tf.Operation, inputs: Sequence[tf.Tensor]) -> tf.Operation:
        """The copy itself; or what stands for an operation that is left out."""
        if op in self.program.left_out:
            return self.stand_ins.emit(op, inputs)
        types, attributes = [t.dtype for t in op.outputs], copy_attributes(op)
        return self.graph._create_op_internal(op.type, inputs, types, attrs=attributes, name=op.name, op_def=op.op_def)

    def _held(self, op: tf.Operation, copy: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Tensor]:
        """The results of a copy, which holds pieces that it reads until it has run.

        Else it may compute into a piece that nobody else reads, and the whole buffer stays as long as the result.
        """
        results = list(copy.outputs)
        if not takes_over(op):
            return results
        pieces = [
            inputs[k] for k, t in enumerate(inputs_of(op)) if self.program.whole_of(t) is not self.program.source_of(t)
        ]
        if not pieces:
            return results
        with self.graph.control_dependencies(None), self.graph.device(op.device or None):
            return list(tf.raw_ops.IdentityN(input=[*results, *pieces], name="checkmate/held")[: len(results)])

    def _not_copied(self, op: tf.Operation, handle: tf.Tensor, controls: Sequence[tf.Operation]) -> tf.Operation:
        """What lets a read share the variable's buffer, which was updated in part. It comes after the update."""
        with self.graph.control_dependencies(controls), self.graph.device(op.device or None):
            return tf.raw_ops.DisableCopyOnRead(resource=handle)

    def _not_folded(self, t: tf.Tensor) -> tf.Tensor:
        """A constant that TensorFlow takes for none. What is made of it is computed in each step, and not kept."""
        with self.graph.control_dependencies(None), self.graph.device(t.device or None):
            if self.index is None:
                with tf.init_scope():
                    zeros = tf.zeros(_CAPTURED, tf.int32)
                self.index = tf.convert_to_tensor(zeros)[0]
            return tf.gather(t[None], self.index)

    def _emit_known(self, op: tf.Operation) -> bool:
        """Emit the values of a shape operation, as tracing for this batch would have put them, if they are known."""
        values = [tf.get_static_value(self.program.static.tensors[id(t)]) for t in op.outputs]
        if op.control_inputs or any(value is None for value in values):
            return False
        with self.graph.control_dependencies(None), self.graph.device(op.device or None):
            copies = [tf.constant(v, t.dtype, name=op.name) for v, t in zip(values, op.outputs, strict=True)]
        self.current[op] = copies
        self.maker |= {id(t): t.op for t in copies}
        self.copies.setdefault(op, []).extend(t.op for t in copies)
        return True

    def _keep_order(self, op: tf.Operation, inputs: list[tf.Tensor]) -> list[tf.Operation]:
        """Hold a product back that Grappler may compute in another order, and so earlier.

        Returns
        -------
        list of tf.Operation
            What the product itself has to wait for, so that it is computed as written.
        """
        makers = {k: m for k, t in enumerate(inputs) if (m := self.maker.get(id(t))) is not None and m.type != "Const"}
        if op in self.products.as_written and makers:
            return [self._put_trigger(makers.values())]
        factor = self.factors.get(op)
        for k, t in enumerate(inputs_of(op)):
            if factor is not None and self.program.whole_of(t) is factor and k in makers:
                trigger = self._put_trigger([makers[k]])
                with self.graph.control_dependencies([trigger]), self.graph.device(op.device or None):
                    inputs[k] = tf.identity(inputs[k], name="checkmate/gate")
        return []

    def _put_trigger(self, behind: Iterable[tf.Operation], after: Sequence[tf.Operation] = ()) -> tf.Operation:
        """Something that runs when these have run, and barriers, and that no optimizer removes."""
        with self.graph.control_dependencies([*after, *(self.barriers.watched(op) for op in behind)]):
            return tf.raw_ops.ControlTrigger(name="checkmate/trigger")

    def _keep_in_place(self, op: tf.Operation) -> list[tf.Operation]:
        """What assigns a variable waits for those that read its value, or TensorFlow would copy it, and move it."""
        waits: dict[tf.Operation, None] = {}
        for t in op.inputs if writes_resource(op) else ():
            for reader in self.value_read.get(t.op, ()):
                if (stands := self.barriers.stands_for(reader)) is not None:
                    waits[stands] = None
        return list(waits)

    def _keep_apart(self, inputs: list[tf.Tensor]) -> None:
        """Keep Grappler from joining a concatenation with one that it alone reads: a plan counts both.

        It joins them if they name the same axis. So this one counts its axis from the other end.
        """
        axis, rank = tf.get_static_value(inputs[-1]), inputs[0].shape.rank
        read = [m for t in inputs[:-1] if (m := self.maker.get(id(t))) is not None and m.type == _CONCATENATES]
        if axis is not None and rank and any(tf.get_static_value(m.inputs[-1]) == axis for m in read):
            inputs[-1] = tf.constant(axis - rank if axis >= 0 else axis + rank, inputs[-1].dtype)

    def _control(self, op: tf.Operation) -> list[tf.Operation]:
        """All copies of an operation that another one must come after."""
        if op not in self.copies:
            if op in self.current:  # an input or a captured tensor: always there
                return []
            kind = self.program.classes.get(op, SOURCE)
            if kind not in (SOURCE, SHAPE, VIEW):
                raise PlanError(f"{op.name} has not run, but another operation waits for it")
            if kind == VIEW:
                self.tensor(op.outputs[0])
            else:
                self._emit(op)
        return self.copies[op]

    def _gated_inputs(self, op: tf.Operation) -> list[int]:
        """Which inputs to hold back; none if only an edge to the operation itself will do."""
        if op.type in SUMS:  # Grappler sorts the inputs of larger ones by name, and a gate would be another name
            return []
        kinds = [self._kind(t) for t in inputs_of(op)]
        if op.type in LOOPS:  # what reads no state would run ahead, for as long as its counter lets it
            counts = [t.dtype.is_integer and t.shape.rank == 0 for t in inputs_of(op)]
            return [k for k, kind in enumerate(kinds) if kind in (LARGE, SMALL) or counts[k]]
        wanted = _GATED_INPUT.get(op.type)
        allowed = [k for k, t in enumerate(inputs_of(op)) if not self._may_be_fused_over(op, t)]
        for kind in (LARGE, SMALL, "Placeholder"):  # the first layer reads the batch itself
            found = [k for k in allowed if kinds[k] == kind]
            if found:
                return [wanted] if wanted in found else found[:1]
        return []

    @staticmethod
    def _may_be_fused_over(op: tf.Operation, t: tf.Tensor) -> bool:
        """Whether an operation and what it may be fused with read a gradient: then both have to read one tensor."""
        partners = FUSED_WITH_BIAS if op.type == BIAS else {BIAS} if op.type in FUSED_WITH_BIAS else set()
        return any(reader.type in partners for reader in t.consumers())

    def _looks_at_large(self, op: tf.Operation) -> bool:
        """Whether an operation reads a large value for its shape."""
        classes = self.program.classes
        return classes.get(op) == SHAPE and any(classes.get(self._owner(t)) == LARGE for t in inputs_of(op))

    def _kind(self, t: tf.Tensor) -> str:
        """What an edge to `t` would wait for: a large or small value, the batch, or nothing that can take an edge."""
        owner = self._owner(t)
        kind = self.program.classes.get(owner, SOURCE) if t.dtype.is_floating else SOURCE
        return owner.type if kind == SOURCE and t.dtype.is_floating else kind
