"""The calls of layers in a functional Keras model, with static shapes: a walk over Keras's own graph, without tracing.

Models within a model are taken apart. What layers compute and cost is not known here.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from ..errors import BatchSizeError, DynamicShapeError, ModelError, TraceError
from ..units import whole_batch
from .losses import losses_left

__all__ = ["LayerCall", "LayerCalls", "Shape", "Value", "layer_calls", "parameter_bytes", "parameter_count"]

Shape: TypeAlias = tuple[int, ...]

_TRACED: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()  # call -> shapes that it reads -> that it makes
_NO_ARGUMENT = re.compile(r"mask$|^initial_state$|^training$")


@dataclass(frozen=True)
class Value:
    """A tensor between layers.

    Attributes
    ----------
    call : int
        Which call made it; -1 for an input of the model.
    index : int
        Which output of that call it is, or which input of the model.
    shape : tuple of int
        Batch included.
    dtype : str
    """

    call: int
    index: int
    shape: Shape
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _width(self.dtype)

    @property
    def floating(self) -> bool:
        return "float" in self.dtype or "complex" in self.dtype


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of a layer or of an operation of keras.ops.

    Attributes
    ----------
    name : str
        Of the layer. Further calls of one layer, and further layers of one name, end in `:1`, `:2`, ...
    node : keras Node
        Holds the arguments of the call.
    arguments : tuple of Value
        The tensors among them, in the order of `node.arguments.keras_tensors`.
    outputs : tuple of Value
    argument_shapes : tuple of shapes
        Batch included, in the order of the signature, without masks and initial states. Constants are included.
    """

    name: str
    node: Any
    arguments: tuple[Value, ...]
    outputs: tuple[Value, ...]
    argument_shapes: tuple[Shape, ...]

    @property
    def operation(self) -> Any:
        """The layer or operation: a keras.Operation."""
        return self.node.operation

    @property
    def inputs(self) -> tuple[int, ...]:
        """Which calls made its arguments, in order of first use. Inputs of the model are left out."""
        return tuple(dict.fromkeys(value.call for value in self.arguments if value.call >= 0))

    @property
    def output_shapes(self) -> tuple[Shape, ...]:
        """Batch included."""
        return tuple(value.shape for value in self.outputs)

    @property
    def output_bytes(self) -> int:
        return sum(value.bytes for value in self.outputs)

    @property
    def differentiable(self) -> bool:
        """Whether an output is floating."""
        return any(value.floating for value in self.outputs)


@dataclass(frozen=True, eq=False)
class LayerCalls:
    """The calls of a model, in topological order.

    Attributes
    ----------
    calls : tuple of LayerCall
    results : tuple of Value
        The outputs of the model.
    input_bytes : int
        Of the inputs of the model.
    """

    calls: tuple[LayerCall, ...]
    results: tuple[Value, ...]
    input_bytes: int

    @property
    def outputs(self) -> tuple[int, ...]:
        """Which calls make the outputs of the model, each once."""
        return tuple(dict.fromkeys(value.call for value in self.results if value.call >= 0))

    def readers(self) -> list[list[int]]:
        """Of each call, the calls that read what it makes."""
        found: list[list[int]] = [[] for _ in self.calls]
        for j, call in enumerate(self.calls):
            for i in call.inputs:
                found[i].append(j)
        return found

    def differentiated(self) -> tuple[int, ...]:
        """The calls that have a gradient, last first: a path of floating values leads from them to an output."""
        readers, outputs, found = self.readers(), self.outputs, dict[int, None]()
        for i in reversed(range(len(self.calls))):
            if self.calls[i].differentiable and (i in outputs or any(j in found for j in readers[i])):
                found[i] = None
        return tuple(found)


def layer_calls(model: Any, batch_size: int) -> LayerCalls:
    """The calls of layers in a functional model, for a batch.

    Parameters
    ----------
    model : keras.Model
        Functional, or Sequential with known input shape.
    batch_size : int

    Raises
    ------
    ModelError
        If Keras does not know the model's layers as a graph (a subclassed model, or one that is not built).
    BatchSizeError
        If the batch is not a positive whole number, or the model fixes another.
    DynamicShapeError
        If the size of a layer's output does not follow from the batch, as that of a sparse one.
    TraceError
        If a model within is called in a way that cannot be taken apart.
    """
    batch_size = whole_batch(batch_size)
    function = _functional(model)
    calls: list[LayerCall] = []
    given = []
    for number, tensor in enumerate(function.inputs):
        shape = tuple(tensor.shape)
        if shape and shape[0] not in (None, batch_size):
            raise BatchSizeError(
                f"model {model.name!r} fixes a batch of {shape[0]}, but batch_size is {batch_size}: use that, or build "
                "the model with keras.Input(shape=...) instead of batch_shape"
            )
        if None in shape[1:]:
            raise _dynamic(f"an input of model {model.name!r}", shape, "give keras.Input all sizes but the batch")
        _check_dense(tensor, f"an input of model {model.name!r}")
        given.append(Value(-1, number, (batch_size, *shape[1:]), tensor.dtype))
    outputs = _walk(function, given, calls, {})
    return LayerCalls(tuple(calls), tuple(outputs), sum(value.bytes for value in given))


def _functional(model: Any) -> Any:
    """What holds the graph of calls: the model, or the functional model inside a Sequential."""
    function = model if hasattr(model, "_nodes_by_depth") else getattr(model, "_functional", None)
    name = getattr(model, "name", type(model).__name__)
    if function is None and hasattr(model, "_functional"):
        raise ModelError(
            f"the Sequential model {name!r} has no graph of layers: begin it with keras.Input(shape=...), or build it; "
            "if a layer of it cannot be called symbolically, use the op level (checkmate_tf.compile)"
        )
    if not hasattr(type(model), "call"):
        raise ModelError(f"a Keras model is needed, not {type(model).__name__}")
    owners = [type(m).call.__module__ for m in (model, function) if m is not None]
    own_call = not all(owner.startswith("keras.") for owner in owners)
    if function is None or own_call:
        raise ModelError(
            f"{name!r} ({type(model).__name__}) computes in a call() of its own, so Keras does not know its layers as "
            "a graph: use the op level (checkmate_tf.compile traces any model), or write it as keras.Model(inputs, "
            "outputs)"
        )
    return function


def _walk(function: Any, given: list[Value], calls: list[LayerCall], taken: dict[str, int]) -> list[Value]:
    """Append the calls of a functional model that reads the given values; return the values of its outputs."""
    values: dict[int, Value] = {id(t): value for t, value in zip(function.inputs, given, strict=True)}
    for depth in sorted(function._nodes_by_depth, reverse=True):
        for node in function._nodes_by_depth[depth]:
            if node.is_input or any(id(t) not in values for t in node.input_tensors):
                continue  # as Keras does
            operation = node.operation
            if _is_model(operation):
                made = _walk(_functional(operation), _model_inputs(node, values), calls, taken)
            else:
                made = _call(node, values, calls, taken)
            values.update((id(t), value) for t, value in zip(node.outputs, made, strict=True))
    return [values[id(t)] for t in function.outputs]


def _is_model(operation: Any) -> bool:
    return any(kind.__name__ == "Model" and kind.__module__.startswith("keras.") for kind in type(operation).__mro__)


def _model_inputs(node: Any, values: Mapping[int, Value]) -> list[Value]:
    """What a model within is called on, masks left out."""
    import keras

    arguments = node.arguments
    first = arguments.args[0] if arguments.args else arguments.kwargs.get("inputs")
    found = [values[id(t)] for t in keras.tree.flatten(first) if id(t) in values]
    expected = len(_functional(node.operation).inputs)
    if len(found) != expected:
        raise TraceError(
            f"model {node.operation.name!r} has {expected} inputs, but is called inside another model on {len(found)}: "
            "call it on exactly its inputs, or use the op level (checkmate_tf.compile)"
        )
    return found


def _call(node: Any, values: Mapping[int, Value], calls: list[LayerCall], taken: dict[str, int]) -> list[Value]:
    """Append one call; return the values of its outputs."""
    name = node.operation.name
    again = taken.get(name, 0)
    taken[name] = again + 1
    if _is_of_keras(node.operation):  # not its outputs: Keras takes a product with a number for sparse
        _check_dense(node.operation, name)
    shaped = zip(_output_shapes(node, values), node.outputs, strict=True)
    made = [Value(len(calls), k, shape, tensor.dtype) for k, (shape, tensor) in enumerate(shaped)]
    calls.append(
        LayerCall(
            name=f"{name}:{again}" if again else name,
            node=node,
            arguments=tuple(values[id(t)] for t in node.arguments.keras_tensors),
            outputs=tuple(made),
            argument_shapes=tuple(_argument_shapes(node, values)),
        )
    )
    return made


def _output_shapes(node: Any, values: Mapping[int, Value]) -> list[Shape]:
    """Static shapes of a call's outputs.

    A layer of Keras keeps the first axis of what it reads: where only that axis is open, the shape is known. An
    operation of keras.ops may fold the batch into any axis. It is asked for its shapes again, with the batch; if it
    does not say, the call is traced. A layer that runs the user's code may do the same. It is traced first: what it
    says of its shapes may hold for an open batch only.
    """
    drawn = [tuple(t.shape) for t in node.outputs]
    first = {values[id(t)].shape[:1] for t in node.input_tensors}
    lead = next(iter(first), ())
    keeps = [(*lead, *shape[1:]) if shape[:1] == (None,) else shape for shape in drawn]
    keeps_known = len(first) == 1 and not any(None in shape for shape in keeps)
    may_fold = _may_fold(node.operation, len(drawn[0]))
    if keeps_known and hasattr(node.operation, "weights") and not may_fold:
        return keeps
    if all(None not in shape for shape in drawn):
        return drawn
    for ask in (_traced_shapes, _declared_shapes) if may_fold else (_declared_shapes, _traced_shapes):
        with losses_left(node.operation):
            shapes = ask(node, values)
        if shapes is not None and not any(None in shape for shape in shapes):
            return shapes
    if keeps_known:
        return keeps
    raise _dynamic(node.operation.name, drawn[0], "give keras.Input all sizes but the batch")


def _may_fold(operation: Any, rank: int) -> bool:
    """Whether a layer may give its first axis another size: it runs the user's code, or concatenates batches."""
    kind = type(operation).__name__
    if not _is_of_keras(operation) or kind == "Lambda":
        return True
    return kind == "Concatenate" and operation.axis in (0, -rank)


def _is_of_keras(operation: Any) -> bool:
    return type(operation).__module__.startswith("keras.")


def _declared_shapes(node: Any, values: Mapping[int, Value]) -> list[Shape] | None:
    """What the operation itself says of its outputs' shapes, given static inputs; None if it fails."""
    import keras

    static = {
        id(t): keras.KerasTensor(values[id(t)].shape, dtype=values[id(t)].dtype) for t in node.arguments.keras_tensors
    }
    try:
        args, kwargs = node.arguments.fill_in(static)
        specs = keras.tree.flatten(node.operation.compute_output_spec(*args, **kwargs))
    except Exception:  # noqa: BLE001 - whatever the user's layer raises; the caller says what is missing
        return None
    return [tuple(spec.shape) for spec in specs]


def _traced_shapes(node: Any, values: Mapping[int, Value]) -> list[Shape] | None:
    """Shapes that TensorFlow infers, where a layer does not say (EinsumDense with None in output_shape).

    A call is traced once for each shape of what it reads.
    """
    known = _TRACED.setdefault(node, {})
    given = tuple((values[id(t)].shape, str(values[id(t)].dtype)) for t in node.arguments.keras_tensors)
    if given not in known:
        known[given] = _traced(node, values)
    return known[given]


def _traced(node: Any, values: Mapping[int, Value]) -> list[Shape] | None:
    """What the layer adds to its losses, and what it assigns, is forgotten."""
    import keras
    import tensorflow as tf

    tensors = node.arguments.keras_tensors
    specs = [tf.TensorSpec(values[id(t)].shape, values[id(t)].dtype) for t in tensors]

    def run(*given: Any) -> Any:
        args, kwargs = node.arguments.fill_in({id(t): x for t, x in zip(tensors, given, strict=True)})
        with keras.StatelessScope():
            return node.operation(*args, **kwargs)

    try:
        outputs = tf.function(run, autograph=False).get_concrete_function(*specs).structured_outputs
    except Exception:  # noqa: BLE001 - as above
        return None
    return [tuple(t.shape.as_list()) for t in keras.tree.flatten(outputs)]


def _argument_shapes(node: Any, values: Mapping[int, Value]) -> Iterator[Shape]:
    """Shapes of the tensors and arrays that a call computes with, in the order of its signature."""
    import keras

    args, kwargs = node.arguments.args, node.arguments.kwargs
    try:
        bound = inspect.signature(node.operation.call).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):
        bound = {**{str(k): value for k, value in enumerate(args)}, **kwargs}
    for name, argument in bound.items():
        if _NO_ARGUMENT.search(name):
            continue
        for leaf in keras.tree.flatten(argument):
            if id(leaf) in values:
                yield values[id(leaf)].shape
            elif hasattr(leaf, "shape"):
                yield tuple(int(d) for d in leaf.shape)


def parameter_bytes(model: Any) -> int:
    """Bytes of a model's weights, each counted once."""
    return sum(math.prod(w.shape) * _width(str(w.dtype)) for w in _weights(model))


def parameter_count(model: Any) -> int:
    """Number of a model's weights, each counted once."""
    return sum(math.prod(w.shape) for w in _weights(model))


def _weights(model: Any) -> Iterable[Any]:
    return {id(w): w for w in model.weights}.values()


def _width(dtype: str) -> int:
    """Bytes of an element; strings count 8, as elsewhere in the package."""
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else (1 if "bool" in dtype else 8)


def _check_dense(maker: Any, name: str) -> None:
    """Refuse a sparse input of a model, and a layer that makes sparse tensors."""
    if getattr(maker, "sparse", False):
        raise DynamicShapeError(
            f"{name} is sparse, so its size does not follow from the batch size: make it dense, or use the op level "
            "(checkmate_tf.compile)"
        )


def _dynamic(name: str, shape: tuple[int | None, ...], advice: str) -> DynamicShapeError:
    return DynamicShapeError(
        f"{name} has shape {shape}: its size does not follow from the batch size. To draw the graph, {advice}"
    )
