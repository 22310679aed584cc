"""True sizes: the step is emitted once more, into a scratch graph whose batch dimension is known.

Keras traces with an open batch. Operations that only compute shapes are evaluated here, and become constants in the
scratch graph. From these, TensorFlow's shape functions conclude all other shapes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import handle_data_util

from ...errors import TraceError
from ..ops import ELEMENTWISE, call_attributes, copy_attributes, inputs_of, is_stateful, view_of
from ..order import topological
from ..pieces import PIECES, piece_of
from ..step import TracedStep
from .learned import LEARNED, learn_shapes
from .loops import (
    LOOPS,
    copy_functions,
    function_graph,
    grown_to,
    list_sizes,
    pushes_back,
    root_of,
    step_of,
    trip_count,
)
from .seen import MARGIN, Look, Seen, first_unknown
from .shapes import BOUNDED, PYTHON, inferred_shape, largest_shapes, python_shapes
from .variants import Variants, bytes_of, largest

__all__ = ["StaticStep", "with_static_batch"]

_MUCH = 0.8  # of the most that can come: where a batch takes less, a plan for the most would serve nobody
_SMALL = 4096  # elements: shapes, axes and permutations are smaller
_BRANCHES = ("If", "StatelessIf", "Case", "StatelessCase")


@dataclass(frozen=True, eq=False)
class StaticStep:
    """The same operations with static shapes.

    Attributes
    ----------
    graph : FuncGraph
    operations : dict from the traced operation to the scratch one
        A folded operation is a Const here.
    tensors : dict from id(traced tensor) to the scratch tensor
    list_bytes : dict from id(traced tensor) to int
        Bytes that variants hold: tensor lists and optionals. One that is missing has an unknown size.
    elements : dict from id(traced tensor) to what a list's elements look like, where it is known
    passed_on : dict from a traced loop to those of its outputs that are lists of what a given list holds
    given_back : set of id(traced tensor)
        Outputs of loops that are what the loop was given, and that nobody reads. They take nothing.
    bounded : bool
        Data decides some sizes, which are taken at their largest here. Then what shapes decide is no value of a step.
    seen : bool
        Some sizes are those that one batch had, and a margin. Another batch may need more.
    """

    graph: tf.Graph
    operations: Mapping[tf.Operation, tf.Operation]
    tensors: Mapping[int, tf.Tensor]
    list_bytes: Mapping[int, int]
    elements: Mapping[int, tf.TensorSpec] = field(default_factory=dict)
    passed_on: Mapping[tf.Operation, set[int]] = field(default_factory=dict)
    given_back: Set[int] = frozenset()
    bounded: bool = False
    seen: bool = False
    _owners: dict[tuple[tf.Operation, int], int | None] = field(default_factory=dict, repr=False)

    def lies_in(self, op: tf.Operation, output: int) -> int | None:
        """Index of the input of a traced operation in whose buffer a result lies; None if it has one of its own."""
        if (op, output) not in self._owners:
            self._owners[op, output] = self._lies_in(op, output)
        return self._owners[op, output]

    def _lies_in(self, op: tf.Operation, output: int) -> int | None:
        copy = self.operations.get(op)
        if copy is None or copy.type != op.type:  # folded
            return None
        source = view_of(copy, output)
        return piece_of(copy) if source is None and op.type in PIECES else source

    def bytes_of(self, t: tf.Tensor) -> int | None:
        """Bytes of a traced tensor for the static batch; None if they cannot be known."""
        if id(t) in self.given_back:
            return 0
        return bytes_of(t, self.tensors, self.list_bytes)


def with_static_batch(
    step: TracedStep, shapes: list[tf.TensorShape], look: Look | None = None, margin: float = MARGIN
) -> StaticStep:
    """Emit `step` with the given static input shapes.

    Parameters
    ----------
    step : TracedStep
    shapes : list of fully defined tf.TensorShape, one for each of `step.inputs`
    look : callable, optional
        Looks at sizes in a step on a batch. By default what data decides without a bound has no size.
    margin : float
        How much more is planned for than is seen there, as a share.

    Raises
    ------
    TraceError
        If an operation rejects the static shapes (the batch does not suit the model).
    """
    exact = _emitted(step, shapes)
    if _has_sizes(step, exact):
        return exact
    try:
        bounded = _emitted(step, shapes, bounded=True)
        known = _has_sizes(step, bounded)
    except TraceError:  # where sizes have to agree, the largest ones may not
        known = False
    seen = None if look is None else _looked_at(step, shapes, look, margin)
    if seen is None:
        return bounded if known else exact
    return bounded if known and _bytes(step, seen) >= _MUCH * _bytes(step, bounded) else seen


def _looked_at(step: TracedStep, shapes: list[tf.TensorShape], look: Look, margin: float) -> StaticStep | None:
    """The step with sizes that are seen on a batch; None if that batch cannot be trained on."""
    seen, asked = Seen(margin), set[tf.Operation]()
    while True:
        static = _emitted(step, shapes, bounded=True, seen=seen)
        unknown = first_unknown(step, static.tensors, static.list_bytes, asked)
        if not unknown:
            return static
        if not seen.learn(unknown, look):
            return None
        asked.update(unknown)


def _has_sizes(step: TracedStep, static: StaticStep) -> bool:
    """Whether the size of everything is known that somebody reads."""
    outputs = (t for op in step.operations for t in op.outputs)
    return all(static.bytes_of(t) is not None or (t.dtype == tf.variant and not t.consumers()) for t in outputs)


def _bytes(step: TracedStep, static: StaticStep) -> int:
    """Of all that the step computes."""
    return sum(static.bytes_of(t) or 0 for op in step.operations for t in op.outputs)


def _emitted(
    step: TracedStep, shapes: list[tf.TensorShape], bounded: bool = False, seen: Seen | None = None
) -> StaticStep:
    graph = func_graph.FuncGraph("checkmate_static")
    copy_functions(step.graph, graph)
    emitter = _emitter(graph, bounded, seen)
    with graph.as_default():
        for given, shape in zip(step.inputs, shapes, strict=True):
            emitter.place(given, tf.compat.v1.placeholder(given.dtype, shape))
        for external, internal in step.captures:
            emitter.place(internal, graph.capture(external))
        for op in step.operations:
            if op not in emitter.operations:
                emitter.emit(op)
    variants, passed_on = emitter.variants, emitter.passed_on
    given_back = emitter.given_back - {id(t) for t in step.outputs}
    return StaticStep(
        graph, emitter.operations, emitter.tensors, variants.list_bytes, variants.elements, passed_on, given_back,
        bounded, seen is not None,
    )  # fmt: skip


@dataclass(frozen=True)
class _Emitter:
    """Emits operations one by one, and keeps what is known of each traced tensor by its id.

    Attributes
    ----------
    graph : FuncGraph
        The scratch graph.
    operations, tensors
        As `StaticStep`.
    known : dict from id(traced tensor) to array
        Values that shapes alone decide.
    variants : Variants
        What lists and optionals hold.
    passed_on, given_back
        As `StaticStep`.
    bound : bool
        A size that data decides is taken at its largest.
    seen : Seen or None
        What is known of sizes that nothing bounds.
    """

    graph: tf.Graph
    operations: dict[tf.Operation, tf.Operation]
    tensors: dict[int, tf.Tensor]
    known: dict[int, np.ndarray]
    variants: Variants
    bound: bool = False
    seen: Seen | None = None
    passed_on: dict[tf.Operation, set[int]] = field(default_factory=dict)
    given_back: set[int] = field(default_factory=set)

    def place(self, t: tf.Tensor, copy: tf.Tensor) -> None:
        self.tensors[id(t)] = copy
        self.operations[t.op] = copy.op

    def emit(self, op: tf.Operation) -> None:
        try:
            values = self._length(op) or _fold(op, self.tensors, self.known)
            if values is not None:
                copies = [tf.constant(v, t.dtype) for v, t in zip(values, op.outputs, strict=True)]
                self.operations[op] = copies[0].op
                self.known.update((id(t), v) for t, v in zip(op.outputs, values, strict=True))
            else:
                attributes = copy_attributes(op)
                if op.type in LOOPS:
                    attributes["output_shapes"] = self._loop(op)
                inputs = [self.tensors[id(t)] for t in inputs_of(op)]
                copy = self.graph._create_op_internal(
                    op.type,
                    _level(inputs) if self.bound and op.type in ELEMENTWISE else inputs,
                    [t.dtype for t in op.outputs],
                    attrs=attributes,
                    name=op.name,
                    compute_device=False,
                )
                self.operations[op], copies = copy, list(copy.outputs)
                if op.type in _BRANCHES:
                    self._branches(op, copies)
                elif op.type in BOUNDED and self.bound and self.seen is None:
                    for t, shape in zip(copies, largest_shapes(op, copy, self._value), strict=True):
                        t.set_shape(shape)
                elif op.type == "FusedBatchNormV3":
                    copies[5].set_shape(_reserve_space(copies[0]))
                elif op.type in LEARNED:
                    for t, shape in zip(copies, learn_shapes(copy) or (), strict=False):
                        t.set_shape(shape)
                elif op.type in PYTHON:
                    for t, shape in zip(
                        copies, python_shapes(op, copy, lambda t: self.tensors[id(t)].shape), strict=True
                    ):
                        t.set_shape(shape)
                elif copies and not copies[0].shape.is_fully_defined():
                    copies[0].set_shape(inferred_shape(op, copy, self._value))
        except (ValueError, TypeError, tf.errors.OpError, TraceError) as error:
            if self.seen is not None:  # sizes that have to agree may not, with a margin
                copies = [tf.compat.v1.placeholder(t.dtype) for t in op.outputs]
                self.operations[op] = copies[0].op if copies else tf.no_op()
                self._settle(op, copies)
                return
            if isinstance(error, TraceError):
                raise
            shapes = ", ".join(str(self.tensors[id(t)].shape) for t in op.inputs)
            raise TraceError(f"{op.name} ({op.type}) does not accept inputs of shape {shapes}: {error}") from error
        self._settle(op, copies)

    def _settle(self, op: tf.Operation, copies: list[tf.Tensor]) -> None:
        """Note the outputs of the copy of an operation, with all that is known of them."""
        for t, copy_tensor in zip(op.outputs, copies, strict=True):
            self.tensors[id(t)] = copy_tensor
            if self.seen is not None and not copy_tensor.shape.is_fully_defined():
                copy_tensor.set_shape(self.seen.shape(t, copy_tensor.shape))
            if not copy_tensor.shape.is_fully_defined() and copy_tensor.shape.is_compatible_with(t.shape):
                copy_tensor.set_shape(t.shape)  # Python code may know more than the operation tells
            if t.dtype in (tf.variant, tf.resource):
                handle_data_util.copy_handle_data(t, copy_tensor)
        self.variants.follow(op)

    def _length(self, op: tf.Operation) -> list[np.ndarray] | None:
        """How many elements a list has, if that is asked and known."""
        if op.type != "TensorListLength" or (length := self.variants.lengths.get(id(inputs_of(op)[0]))) is None:
            return None
        return [np.array(length, op.outputs[0].dtype.as_numpy_dtype)]

    def _value(self, t: tf.Tensor) -> np.ndarray | None:
        return self.known.get(id(t))

    def _branches(self, op: tf.Operation, copies: list[tf.Tensor]) -> None:
        """Give the outputs of a conditional that has no static shape the largest of its branches' shapes.

        Keras's optimizers divide sparse gradients in a conditional, of which one branch selects rows by their values
        (`tf.where`): its size is known only at run time, but has a bound.
        """
        if all(t.shape.is_fully_defined() and t.dtype != tf.variant or t.dtype == tf.resource for t in copies):
            return
        branches = op.get_attr("branches") if "Case" in op.type else map(op.get_attr, ("then_branch", "else_branch"))
        found, values = [], []
        for name in branches:
            branch = function_graph(op.graph, name.name)
            inner = self._inside(op, branch, inputs_of(op)[1:], once=True)
            found.append([inner.variants.of(t) for t in branch.outputs])
            given = {id(t) for t in branch.inputs}
            sources = [root_of(t) for t in branch.outputs]  # what is computed of sizes that are bounds is no value
            values.append([inner.known.get(id(t)) if id(t) in given or t.op.type == "Const" else None for t in sources])
        for result, value, *others in zip(op.outputs, *values, strict=True):
            if value is not None and all(np.array_equal(value, other) for other in others):
                self.known[id(result)] = value
        for result, t, *held in zip(op.outputs, copies, *found, strict=True):
            if t.dtype == tf.variant:
                self.variants.note(result, held)
            elif not t.shape.is_fully_defined() and all(h.shape.is_fully_defined() for h in held):
                shape = largest([h.shape for h in held])
                if shape is not None:
                    t.set_shape(shape)

    def _inside(self, op: tf.Operation, body: tf.Graph, given: list[tf.Tensor], once: bool) -> _Emitter:
        """Emit a function that `op` calls with `given` (just once, or as a loop's body) into a graph of its own."""
        scratch = func_graph.FuncGraph("checkmate_static_body")
        copy_functions(op.graph, scratch)
        inner = _emitter(scratch, once or self.bound)
        with scratch.as_default():
            for outer, t in zip(given, body.inputs, strict=True):
                placeholder = tf.compat.v1.placeholder(t.dtype, self.tensors[id(outer)].shape)
                handle_data_util.copy_handle_data(outer, placeholder)
                inner.place(t, placeholder)
                self.variants.copy(outer, t, inner.variants, values=once)
                if once and id(outer) in self.known:
                    inner.known[id(t)] = self.known[id(outer)]
            for operation in topological(body.get_operations()):
                if operation not in inner.operations:
                    inner.emit(operation)
        return inner

    def results(self, body: tf.Graph) -> list[tf.Tensor]:
        """The copies of the outputs of `body`."""
        return [self.tensors[id(t)] for t in body.outputs]

    def _loop(self, op: tf.Operation) -> attr_value_pb2.AttrValue:
        """The output_shapes attribute of a loop with static inputs; notes the sizes of its lists."""
        limit = self.known.get(id(inputs_of(op)[1])) if len(op.inputs) > 1 else None
        iterations = int(limit) if limit is not None and limit.ndim == 0 and limit > 0 else None
        body = function_graph(op.graph, op.get_attr("body").name)
        start = [self.known.get(id(t)) for t in inputs_of(op)]
        if not iterations:
            condition = function_graph(op.graph, op.get_attr("cond").name)
            iterations = trip_count(condition, body, start)
            if iterations is not None and start[0] is not None and step_of(body, 0) == 1:
                # TensorFlow counts the rounds, and the loop of the gradient goes as far as that.
                self.known[id(op.outputs[0])] = start[0] + np.array(iterations, start[0].dtype)
            if iterations is None and self.seen is not None and op in self.seen.rounds:
                iterations = self.seen.more(self.seen.rounds[op])
        inner = self._inside(op, body, inputs_of(op), once=False)
        left = inner.results(body)
        created = {o: k for k, o in enumerate(op.graph.get_operations())}
        last_read = [max((created.get(reader, 0) for reader in t.consumers()), default=-1) for t in op.outputs]
        sizes, passed_on = list_sizes(body, inner.variants.bytes_of, iterations, last_read)
        self.passed_on[op] = passed_on
        for given, t, result in zip(body.inputs, body.outputs, op.outputs, strict=True):
            if root_of(t) is given and not result.consumers():
                self.given_back.add(id(result))
        pushes = [
            pushes_back(t, given, body) if t.dtype == tf.variant else None
            for given, t in zip(body.inputs, body.outputs, strict=True)
        ]
        attribute = attr_value_pb2.AttrValue()
        results = zip(inputs_of(op), body.outputs, left, op.outputs, sizes, pushes, strict=True)
        for given, (outer, t, copy, result, size, pushed) in zip(body.inputs, results, strict=True):
            entry = self.tensors[id(outer)].shape
            stable = entry if copy.shape.is_compatible_with(entry) else result.shape
            attribute.list.shape.append(stable.as_proto())
            if result.dtype == tf.variant:
                if size is not None:
                    self.variants.list_bytes[id(result)] = size
                if id(t) in inner.variants.elements:
                    self.variants.elements[id(result)] = inner.variants.elements[id(t)]
                before = self.variants.lengths.get(id(outer))
                grown = grown_to(t, given, body, start, iterations) if pushed is None and iterations else None
                if before is not None and grown is not None:
                    self.variants.lengths[id(result)] = max(before, grown)
                elif before is not None and pushed is not None and (iterations is not None or not pushed):
                    self.variants.lengths[id(result)] = before + pushed * (iterations or 0)
        return attribute


def _emitter(graph: tf.Graph, bound: bool = False, seen: Seen | None = None) -> _Emitter:
    tensors: dict[int, tf.Tensor] = {}
    return _Emitter(graph, {}, tensors, {}, Variants(tensors), bound, seen)


def _level(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """Operands of an elementwise operation, all in the largest shape: where sizes are only bounded, they may differ."""
    most = largest([t.shape for t in tensors])
    if len(tensors) < 2 or most is None:
        return tensors
    return [t if t.shape == most else tf.compat.v1.placeholder(t.dtype, most) for t in tensors]


def _reserve_space(y: tf.Tensor) -> tf.TensorShape:
    """Shape of what a fused normalisation keeps for its gradient.

    A scalar on a CPU (measured). On a GPU cuDNN decides. The estimate there is a bit for each element, for the mask of
    a fused ReLU; it serves the predicted peak only.
    """
    if not tf.config.list_physical_devices("GPU"):
        return tf.TensorShape([])
    elements = y.shape.num_elements()
    return tf.TensorShape([None if elements is None else -(-elements // 32)])


def _fold(op: tf.Operation, tensors: Mapping[int, tf.Tensor], known: Mapping[int, np.ndarray]) -> list | None:
    """Values of the outputs if shapes alone decide them, else None."""
    if not op.outputs or is_stateful(op) or op.type in ("Placeholder", "ReadVariableOp"):
        return None
    if op.type in ("Shape", "ShapeN", "Size", "Rank", "VariableShape"):
        values = []
        for t, result in zip(inputs_of(op), op.outputs, strict=True):
            shape = _shape_of(tensors[id(t)]) if op.type == "VariableShape" else tensors[id(t)].shape
            if op.type == "Rank" and shape.rank is not None:
                values.append(np.array(shape.rank, result.dtype.as_numpy_dtype))
                continue
            if not shape.is_fully_defined():
                return None
            whole = np.array(shape.as_list(), result.dtype.as_numpy_dtype)
            values.append(np.array(whole.prod(dtype=np.int64), whole.dtype) if op.type == "Size" else whole)
        return values
    if op.type == "Const":
        t = op.outputs[0]
        if t.dtype.is_integer or t.dtype.is_bool:
            value = tf.get_static_value(t)
            if value is not None and np.size(value) <= _SMALL:
                return [np.asarray(value)]
        return None
    if any(not (t.dtype.is_integer or t.dtype.is_bool) for t in [*inputs_of(op), *op.outputs]):
        return None
    if not op.inputs or any(id(t) not in known for t in inputs_of(op)):
        return None
    if any(a.WhichOneof("value") == "func" for a in op.node_def.attr.values()):
        return None
    with ops.init_scope(), tf.device("/CPU:0"):
        results = execute.execute(
            op.type.encode(),
            len(op.outputs),
            [tf.constant(known[id(t)], t.dtype) for t in inputs_of(op)],
            call_attributes(op),
            context.context(),
        )
        values = [r.numpy() for r in results]
    return values if all(v.size <= _SMALL for v in values) else None


def _shape_of(handle: tf.Tensor) -> tf.TensorShape:
    data = handle_data_util.get_resource_handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return tf.TensorShape(None)
    return tf.TensorShape(data.shape_and_type[0].shape)
