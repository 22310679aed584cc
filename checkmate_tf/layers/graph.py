"""Layer level: the graph that the papers draw, read from a functional Keras model without tracing it.

One node for each call of a layer, the loss, one gradient node for each call in reverse order (Checkmate, sections 4.1
and 5). With f(i) a layer's node and g(i) its gradient, and j over the layers that read layer i:

    f(j) reads f(i);    loss reads f(o) for each output o;
    g(i) reads f(i), f(j) and g(j) for all j; and the loss, if i is an output.

So the loss is a reader that is its own gradient. A chain of n layers has 2n + 1 nodes and 4n - 1 edges; ResNet50 (176
layers, 191 edges between them) has 353 nodes and 191 + 2 + 176 + 2 * 191 = 751 edges, as Moccasin (Table 2) and
Checkmate's artifact have it. Order is Keras's own (`model.layers`): by depth.

**What this does badly.** It is a drawing: a layer is one value, though a batch normalisation in training is a dozen
operations and attention keeps its scores, and a gradient node is as large as the layer's output, though the gradients
of weights and the scratch of kernels are neither in it. Use the op level (`program.py`) to decide what really runs.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import BatchSizeError, CostError, DynamicShapeError, ModelError, TraceError
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from .flops import layer_flops

__all__ = ["LAYER_COSTS", "LayerCall", "LayerCalls", "layer_calls", "layer_graph", "parameter_bytes"]

Shape: TypeAlias = tuple[int, ...]

#: FLOPs as costs of a layer: the convention of `layer_flops`, and the unit.
LAYER_COSTS = {
    "flops": ("artifact", "multiply-add"),
    "multiply-adds": ("multiply-adds", "multiply-add"),
    "artifact": ("artifact", "multiply-add"),
    "true": ("true", "flop"),
}
_GRADIENT_COST = 2.0  # in forward passes: the gradients of inputs and of weights
_LOSS_BYTES = 4  # a sample
_NO_ARGUMENT = re.compile(r"mask$|^initial_state$|^training$")


@dataclass(frozen=True, eq=False)
class LayerCall:
    """One call of a layer or of an operation of keras.ops.

    Attributes
    ----------
    name : str
        Of the layer; further calls of one layer, and layers of one name, end in `:1`, `:2`, ...
    operation : keras.Operation
    inputs : tuple of int
        Which calls made its tensors, in order of first use; inputs of the model are left out.
    argument_shapes, output_shapes : tuples of shapes
        Batch included. Arguments in the order of the signature, without masks and initial states; constants included.
    output_bytes : int
    differentiable : bool
        An output is floating.
    """

    name: str
    operation: Any
    inputs: tuple[int, ...]
    argument_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    output_bytes: int
    differentiable: bool


@dataclass(frozen=True, eq=False)
class LayerCalls:
    """The calls of a model in topological order, and which of them make its outputs."""

    calls: tuple[LayerCall, ...]
    outputs: tuple[int, ...]
    input_bytes: int


@dataclass(frozen=True)
class _Value:
    """A tensor with its batch: which call made it (-1: an input of the model), static shape and dtype."""

    call: int
    shape: Shape
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _width(self.dtype)


def layer_graph(model: Any, batch_size: int, costs: str | Callable[[LayerCall], float] | ArrayLike = "flops") -> Graph:
    """The papers' graph of a Keras model: one node a layer, the loss, one gradient node a layer.

    Parameters
    ----------
    model : keras.Model
        Functional, or Sequential with known input shape; models within are taken apart. Need not be compiled.
    batch_size : int
    costs : str, callable or (n,) array
        "flops" (or "artifact": the papers' count), "multiply-adds" (where elementwise layers are free), or "true" for
        all floating-point operations: see `layer_flops`; "v100", modelled V100 kernel costs in microseconds, fitted to
        published measurements (`costs/v100.py`); a callable from `LayerCall` to the cost of its forward pass; or the
        costs of all n nodes. A gradient costs twice the forward pass and the loss nothing, unless the costs say
        otherwise ("v100", or all given).

    Returns
    -------
    Graph
        Names are `layer`, `loss` and `grad_layer`. Sizes are the bytes of a layer's outputs in its compute dtype for
        the whole batch, the same for its gradient, and 4 a sample for the loss. Constants are the inputs and twice the
        parameters (for their gradients). Layers whose value is not floating, or that no floating path leads from to
        the outputs, have no gradient.

    Raises
    ------
    ModelError
        If Keras does not know the model's layers as a graph (a subclassed model, or one that is not built).
    BatchSizeError
        If the batch is not a positive whole number, or the model fixes another.
    DynamicShapeError
        If the size of a layer's output does not follow from the batch.
    CostError
        If costs are unknown, or not one for each node.
    TraceError
        If a model within is called in a way that cannot be taken apart.
    """
    known = layer_calls(model, batch_size)
    calls = known.calls
    if not calls:
        raise ModelError(f"model {model.name!r} has no layers but inputs: there is nothing to schedule")
    n = len(calls)
    readers: list[list[int]] = [[] for _ in calls]
    for j, call in enumerate(calls):
        for i in call.inputs:
            readers[i].append(j)
    inputs: list[list[int]] = [list(call.inputs) for call in calls]
    inputs.append([*known.outputs])
    gradient: dict[int, int] = {}
    for i in reversed(range(n)):
        through = [j for j in readers[i] if j in gradient]
        if calls[i].differentiable and (through or i in known.outputs):
            gradient[i] = len(inputs)
            inputs.append([i, *through, *(gradient[j] for j in through), *([n] if i in known.outputs else [])])
    layers = [*range(n), *gradient]  # of all nodes but the loss
    node_costs, unit = _costs(known, [*gradient], costs)
    if node_costs.shape != (len(inputs),):
        raise CostError(
            f"costs have shape {node_costs.shape}, but the graph of {model.name!r} has {len(inputs)} nodes: {n} "
            f'layers, the loss and {len(gradient)} gradients; give one for each, or "flops"'
        )
    sizes = [calls[i].output_bytes for i in layers]
    names = [calls[i].name for i in layers]
    return Graph(
        name=model.name,
        names=[*names[:n], "loss", *(f"grad_{name}" for name in names[n:])],
        kinds=np.array([FORWARD] * n + [LOSS] + [BACKWARD] * len(gradient)),
        costs=node_costs,
        sizes=np.array([*sizes[:n], _LOSS_BYTES * batch_size, *sizes[n:]]),
        inputs=inputs,
        constant_bytes=known.input_bytes + 2 * parameter_bytes(model),
        cost_unit=unit,
    )


def layer_calls(model: Any, batch_size: int) -> LayerCalls:
    """The calls of layers in a functional model, for a batch; parameters and errors as for `layer_graph`."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise BatchSizeError(f"batch_size={batch_size!r} is not a batch: give a whole number of samples above 0")
    function = _functional(model)
    calls: list[LayerCall] = []
    given = []
    for tensor in function.inputs:
        shape = tuple(tensor.shape)
        if shape and shape[0] not in (None, batch_size):
            raise BatchSizeError(
                f"model {model.name!r} fixes a batch of {shape[0]}, but batch_size is {batch_size}: use that, or build "
                "the model with keras.Input(shape=...) instead of batch_shape"
            )
        if None in shape[1:]:
            raise _dynamic(f"an input of model {model.name!r}", shape, "give keras.Input all sizes but the batch")
        given.append(_Value(-1, (int(batch_size), *shape[1:]), tensor.dtype))
    outputs = _walk(function, given, calls, {})
    made = dict.fromkeys(value.call for value in outputs if value.call >= 0)
    return LayerCalls(tuple(calls), tuple(made), sum(value.bytes for value in given))


def _functional(model: Any) -> Any:
    """What holds the graph of calls: the model, or the functional model inside a Sequential."""
    function = model if hasattr(model, "_nodes_by_depth") else getattr(model, "_functional", None)
    name = getattr(model, "name", type(model).__name__)
    if function is None and hasattr(model, "_functional"):
        raise ModelError(
            f"the Sequential model {name!r} has no graph of layers: begin it with keras.Input(shape=...), or build it; "
            "if a layer of it cannot be called symbolically, use the op level (checkmate_tf.compile)"
        )
    owners = [type(m).call.__module__ for m in (model, function) if m is not None]
    own_call = not all(owner.startswith("keras.") for owner in owners)
    if function is None or own_call:
        raise ModelError(
            f"{name!r} ({type(model).__name__}) computes in a call() of its own, so Keras does not know its layers as "
            "a graph: use the op level (checkmate_tf.compile traces any model), or write it as keras.Model(inputs, "
            "outputs)"
        )
    return function


def _walk(function: Any, given: list[_Value], calls: list[LayerCall], taken: dict[str, int]) -> list[_Value]:
    """Append the calls of a functional model that reads the given values; return the values of its outputs."""
    values: dict[int, _Value] = {id(t): value for t, value in zip(function.inputs, given, strict=True)}
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


def _model_inputs(node: Any, values: Mapping[int, _Value]) -> list[_Value]:
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


def _call(node: Any, values: Mapping[int, _Value], calls: list[LayerCall], taken: dict[str, int]) -> list[_Value]:
    operation = node.operation
    sources = [values[id(t)] for t in node.input_tensors]
    made = [
        _Value(len(calls), shape, tensor.dtype)
        for shape, tensor in zip(_output_shapes(node, values), node.outputs, strict=True)
    ]
    again = taken.get(operation.name, 0)
    taken[operation.name] = again + 1
    calls.append(
        LayerCall(
            name=f"{operation.name}:{again}" if again else operation.name,
            operation=operation,
            inputs=tuple(dict.fromkeys(value.call for value in sources if value.call >= 0)),
            argument_shapes=tuple(_argument_shapes(node, values)),
            output_shapes=tuple(value.shape for value in made),
            output_bytes=sum(value.bytes for value in made),
            differentiable=any("float" in value.dtype or "complex" in value.dtype for value in made),
        )
    )
    return made


def _output_shapes(node: Any, values: Mapping[int, _Value]) -> list[Shape]:
    """Static shapes of a call's outputs.

    A layer keeps the first axis of what it reads, so where that alone is open it is known. An operation of keras.ops
    may fold the batch into any axis: its own rule is asked again, with the batch; at last the call is traced.
    """
    drawn = [tuple(t.shape) for t in node.outputs]
    first = {values[id(t)].shape[:1] for t in node.input_tensors}
    lead = next(iter(first), ())
    keeps = [(*lead, *shape[1:]) if shape[:1] == (None,) else shape for shape in drawn]
    keeps_known = len(first) == 1 and not any(None in shape for shape in keeps)
    if keeps_known and hasattr(node.operation, "weights"):
        return keeps
    if all(None not in shape for shape in drawn):
        return drawn
    for ask in (_declared_shapes, _traced_shapes):
        shapes = ask(node, values)
        if shapes is not None and not any(None in shape for shape in shapes):
            return shapes
    if keeps_known:
        return keeps
    raise _dynamic(node.operation.name, drawn[0], "give keras.Input all sizes but the batch")


def _declared_shapes(node: Any, values: Mapping[int, _Value]) -> list[Shape] | None:
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


def _traced_shapes(node: Any, values: Mapping[int, _Value]) -> list[Shape] | None:
    """Shapes that TensorFlow infers, where a layer does not say (EinsumDense with None in output_shape)."""
    import keras
    import tensorflow as tf

    tensors = node.arguments.keras_tensors
    specs = [tf.TensorSpec(values[id(t)].shape, values[id(t)].dtype) for t in tensors]

    def run(*given: Any) -> Any:
        args, kwargs = node.arguments.fill_in({id(t): x for t, x in zip(tensors, given, strict=True)})
        return node.operation(*args, **kwargs)

    try:
        outputs = tf.function(run, autograph=False).get_concrete_function(*specs).structured_outputs
    except Exception:  # noqa: BLE001 - as above
        return None
    return [tuple(t.shape.as_list()) for t in keras.tree.flatten(outputs)]


def _argument_shapes(node: Any, values: Mapping[int, _Value]) -> Iterator[Shape]:
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


def _costs(known: LayerCalls, gradients: list[int], costs: Any) -> tuple[NDArray[np.float64], str]:
    """Costs of all nodes (layers, loss, gradients), and their unit."""
    calls = known.calls
    unit = ""
    if isinstance(costs, str):
        if costs == "v100":
            from .v100 import step_us

            return step_us(known, gradients), "us"
        if costs not in LAYER_COSTS:
            raise CostError(
                f"costs={costs!r} is not a cost of layers; there are {', '.join(map(repr, [*LAYER_COSTS, 'v100']))}, "
                "or give a callable (LayerCall -> cost) or one cost for each node (costs.profiling has profiles)"
            )
        convention, unit = LAYER_COSTS[costs]
        forward = [layer_flops(c.operation, c.argument_shapes, c.output_shapes, convention) for c in calls]
    elif callable(costs):
        forward = [float(costs(call)) for call in calls]
    else:
        return np.array(costs, dtype=np.float64), unit
    return np.array([*forward, 0.0, *(_GRADIENT_COST * forward[i] for i in gradients)]), unit


def parameter_bytes(model: Any) -> int:
    """Bytes of a model's variables, each counted once."""
    return sum(math.prod(w.shape) * _width(str(w.dtype)) for w in {id(w): w for w in model.weights}.values())


def _width(dtype: str) -> int:
    """Bytes of an element; strings count 8, as elsewhere in the package."""
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else (1 if "bool" in dtype else 8)


def _dynamic(name: str, shape: tuple[int | None, ...], advice: str) -> DynamicShapeError:
    return DynamicShapeError(
        f"{name} has shape {shape}: its size does not follow from the batch size. To draw the graph, {advice}"
    )
