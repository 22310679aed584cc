"""Layer level: the graph that the papers draw, read from a functional Keras model without tracing it.

One node for each call of a layer, the loss, one gradient node for each call in reverse order (Checkmate, sections 4.1
and 5). With f(i) a layer's node and g(i) its gradient, and j over the layers that read layer i:

    f(j) reads f(i);    loss reads f(o) for each output o;
    g(i) reads f(i), f(j) and g(j) for all j; and the loss, if i is an output.

So the loss is a reader that is its own gradient. A chain of n layers has 2n + 1 nodes and 4n - 1 edges. ResNet50 (176
layers, 191 edges between them) has 353 nodes and 191 + 2 + 176 + 2 * 191 = 751 edges, as Moccasin (Table 2) and
Checkmate's artifact have it. The order of layers is Keras's own (`model.layers`): by depth.

**What this does badly.** It is a drawing. A layer is one value, though a batch normalisation in training is a dozen
operations and attention keeps its scores. A gradient node is as large as the layer's output: the gradients of weights
and the scratch of kernels are not in it. The op level (`trace/program.py`) tells what really runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import CostError, ModelError
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from . import LAYER_COSTS
from .calls import LayerCall, LayerCalls, layer_calls, parameter_bytes
from .flops import with_gradients

__all__ = ["layer_graph"]

_LOSS_BYTES = 4  # a sample


def layer_graph(model: Any, batch_size: int, costs: str | Callable[[LayerCall], float] | ArrayLike = "flops") -> Graph:
    """The papers' graph of a Keras model: one node a layer, the loss, one gradient node a layer.

    Parameters
    ----------
    model : keras.Model
        Functional, or Sequential with known input shape; models within are taken apart. Need not be compiled.
    batch_size : int
    costs : str, callable or (n,) array
        A name in `LAYER_COSTS`. "flops" (or "artifact") is the papers' count; "multiply-adds" leaves elementwise layers
        free; "true" counts all floating-point operations (see `layers.flops.layer_flops`). "v100" gives microseconds,
        modelled for a V100 (`layers/v100.py`). Or a callable from `LayerCall` to the cost of its forward pass; or the
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
    calls, outputs, readers = known.calls, known.outputs, known.readers()
    if not calls:
        raise ModelError(f"model {model.name!r} has no layers but inputs: there is nothing to schedule")
    n = len(calls)
    gradients = known.differentiated()
    place = {i: n + 1 + k for k, i in enumerate(gradients)}  # of the gradient nodes
    inputs: list[list[int]] = [*(list(call.inputs) for call in calls), [*outputs]]
    for i in gradients:
        through = [j for j in readers[i] if j in place]
        inputs.append([i, *through, *(place[j] for j in through), *([n] if i in outputs else [])])
    node_costs, unit = _node_costs(known, gradients, costs)
    if node_costs.shape != (len(inputs),):
        raise CostError(
            f"costs have shape {node_costs.shape}, but the graph of {model.name!r} has {len(inputs)} nodes: {n} "
            f'layers, the loss and {len(gradients)} gradients; give one for each, or "flops"'
        )
    names, sizes = [call.name for call in calls], [call.output_bytes for call in calls]
    return Graph(
        name=model.name,
        names=[*names, "loss", *(f"grad_{names[i]}" for i in gradients)],
        kinds=np.array([FORWARD] * n + [LOSS] + [BACKWARD] * len(gradients)),
        costs=node_costs,
        sizes=np.array([*sizes, _LOSS_BYTES * batch_size, *(sizes[i] for i in gradients)]),
        inputs=inputs,
        constant_bytes=known.input_bytes + 2 * parameter_bytes(model),
        cost_unit=unit,
    )


def _node_costs(known: LayerCalls, gradients: tuple[int, ...], costs: Any) -> tuple[NDArray[np.float64], str]:
    """Costs of all nodes (layers, loss, gradients), and their unit."""
    if isinstance(costs, str):
        model = LAYER_COSTS.find(costs)
        return model.load()(known, gradients), model.unit
    if callable(costs):
        return with_gradients([float(costs(call)) for call in known.calls], gradients), ""
    return np.array(costs, dtype=np.float64), ""
