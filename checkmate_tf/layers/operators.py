"""Layer level with implementations: what each gradient can read instead (MONeT, appendix D; Gist, Jain et al. 2018).

The graph of a functional Keras model as MONeT draws it. Nodes, in order:

- a layer's value; an activation within a layer (`activation="relu"`) is a node of its own; a dropout has its mask (a
  byte an element, drawn once);
- the loss, whose value is the gradients of the outputs;
- for each layer, last first: the sum of the gradients that arrive, where several do; the gradient of its weights, if
  it is a dense layer or a convolution (its value is nothing: constants hold twice the parameters); the gradient of its
  inputs, as large as those together. Additions and views pass a gradient on without a node.

What a gradient reads in its own way is in `reads.py`. The ways beside it:

| gradient of | way | reads | |
| --- | --- | --- | --- |
| ReLU, ReLU6, leaky | `mask` | signs of the output, a bit an element | exact |
| ReLU, ReLU6, leaky | `input` | the input | exact |
| max-pooling | `index` | the place of the largest in its window, a byte an element of the output | exact |
| dropout | `packed` | the mask, a bit an element | exact; the layer itself has this way, too |
| batch normalisation | `output` | the output | not the same bits |
| dense, convolution, ReLU | `sparse` | the elements of a ReLU's output that are not 0 | exact; if `sparsity` is given |
| whatever reads values | `float16`, ... | values in fewer bits | not the same bits; if `bits` is given |

A code costs the traffic of reading the value and writing the code. A gradient that reads it costs what it does in its
own way: it decodes as it reads, and moves no more bytes. Only `sparse` and fewer bits are decoded into a value first,
which is their workspace and costs its traffic.

Elementwise kernels compute into an input that nobody else reads, as TensorFlow's do, so there is no choice of that.
**No convolution algorithms**: MONeT chooses among cuDNN's by their workspace, but TensorFlow does not let a program
choose, and no published workspaces are at hand. Kernels have no workspace here but what is said above.

**What this does badly.** Costs are modelled for a V100, not measured; one kernel reads and decodes a mask or an index,
which no library offers for all of these; sparsity is an assumption about data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from ..errors import CostError, ModelError
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from ..operators import Implementation, OperatorGraph
from .calls import LayerCall, layer_calls, parameter_bytes
from .kernels import traffic
from .reads import IN_PLACE, READS, activation_kind, gradient_kind
from .v100 import LayerTime, kernel_us, layer_us
from .work.shared import Shapes, pool_window

__all__ = ["SPARSE_BYTES_PER_US", "layer_operators"]

Times: TypeAlias = Callable[[Any, Shapes, Shapes], LayerTime]

SPARSE_BYTES_PER_US = 2_207_744 * 256 * 4 / 144_000
"""Dense bytes that cuSPARSE makes sparse in a microsecond: 2,207,744 rows of 256 in 144 ms (MONeT, section 5)."""

_ROW = 256  # elements of a row of the sparse storage: its columns fit in a byte
_MOST_INDEX = 255  # elements of a window that a byte tells apart
_NORM_ERROR = "equal but for rounding; not where the scale is near 0"


def layer_operators(
    model: Any,
    batch_size: int,
    costs: Times = layer_us,
    *,
    sparsity: float | None = None,
    bits: int | None = None,
    sparse_bytes_per_us: float = SPARSE_BYTES_PER_US,
) -> OperatorGraph:
    """The graph of a Keras model whose gradients read what kernels read, and what they can read instead.

    Parameters
    ----------
    model : keras.Model
        Functional, or Sequential with known input shape.
    batch_size : int
    costs : callable
        As `layers.v100.layer_us`: from a layer and its shapes to microseconds.
    sparsity : float, optional
        Share of zeros in the outputs of ReLUs, for Gist's sparse storage. Default: none is offered.
    bits : {16, 10, 8}, optional
        Of an element, for Gist's delayed precision reduction. Default: none is offered.
    sparse_bytes_per_us : float
        What is made sparse in a microsecond.

    Returns
    -------
    OperatorGraph
        Costs in microseconds, modelled.

    Raises
    ------
    ModelError, BatchSizeError, DynamicShapeError, TraceError
        As `layer_graph`.
    CostError
        If the sparsity is not from 0 to 1, bits are none of these, or a rate is not above 0.
    """
    if sparsity is not None and not 0 <= sparsity <= 1:
        raise CostError(f"sparsity={sparsity} is no share of zeros: give a number from 0 to 1")
    if bits not in (None, 16, 10, 8):
        raise CostError(f"bits={bits}: Gist reduces values to 16, 10 or 8 bits; give one of these")
    if not sparse_bytes_per_us > 0:
        raise CostError(f"sparse_bytes_per_us={sparse_bytes_per_us} must be above 0")
    known = layer_calls(model, batch_size)
    if not known.calls:
        raise ModelError(f"model {model.name!r} has no layers but inputs: there is nothing to schedule")
    parts, last = _parts(known.calls, costs)
    draft = _Draft(parts, sparsity, bits, sparse_bytes_per_us)
    draft.forward()
    draft.backward([last[i] for i in known.outputs])
    return draft.finish(model.name, known.input_bytes + 2 * parameter_bytes(model))


# Layers and their activations -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """A layer without its activation, or the activation.

    Attributes
    ----------
    inputs : tuple of int
        Parts whose values it reads.
    elements, bytes : int
        Of its value.
    window : int
        Elements that a max-pooling takes the largest of; else 0.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    elements: int
    bytes: int
    time: LayerTime
    trained: bool
    differentiable: bool
    window: int = 0


def _parts(calls: Sequence[LayerCall], costs: Times) -> tuple[list[_Part], list[int]]:
    """All parts, and for each call the one that makes its value."""
    import keras

    parts: list[_Part] = []
    last: list[int] = []
    for call in calls:
        operation, ins, outs = call.operation, call.argument_shapes, call.output_shapes
        kind = gradient_kind(operation, ins)
        part = _Part(
            call.name, kind, tuple(last[i] for i in call.inputs), sum(map(math.prod, outs)), call.output_bytes,
            costs(operation, ins, outs), bool(getattr(operation, "trainable_weights", ())), call.differentiable,
            pool_window(operation, len(outs[0])) if kind == "pool" else 0,
        )  # fmt: skip
        within = activation_kind(getattr(operation, "activation", None)) if kind == "product" else "view"
        if within != "view":
            time = costs(keras.layers.Activation(operation.activation), outs[:1], outs[:1])
            parts.append(replace(part, name=f"{call.name}/linear", time=_without(part.time, time)))
            part = replace(part, kind=within, inputs=(len(parts) - 1,), time=time, trained=False)
        parts.append(part)
        last.append(len(parts) - 1)
    return parts, last


def _without(whole: LayerTime, activation: LayerTime) -> LayerTime:
    """What of a layer's time is not its activation's."""
    return LayerTime(
        max(0.0, whole.forward - activation.forward),
        max(0.0, whole.backward - activation.gradients(True, False)),
        whole.input_gradient,
        whole.weight_gradient,
    )


def _move_us(moved_bytes: float) -> float:
    """Microseconds of a kernel that only waits for memory."""
    (kernel,) = traffic(moved_bytes)
    return kernel_us(kernel)


# Nodes ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Node:
    """A node; `over` are the inputs into whose memory it may compute, any one of them."""

    name: str
    kind: int
    cost: float
    size: int
    inputs: tuple[int, ...]
    over: tuple[int, ...] = ()
    once: bool = False


@dataclass
class _Draft:
    """The graph while it is made."""

    parts: Sequence[_Part]
    sparsity: float | None
    bits: int | None
    sparse_bytes_per_us: float
    nodes: list[_Node] = field(default_factory=list)
    ways: dict[int, list[Implementation]] = field(default_factory=dict)
    codes: dict[tuple[int, str], int] = field(default_factory=dict)  # of a node's value, by name
    value: list[int] = field(default_factory=list)  # node of each part
    mask: dict[int, int] = field(default_factory=dict)  # node of the mask of a dropout, by part
    needs: list[bool] = field(default_factory=list)  # does a gradient of its value lead to weights?

    def add(self, *of_node: Any, **more: Any) -> int:
        self.nodes.append(_Node(*of_node, **more))
        return len(self.nodes) - 1

    def forward(self) -> None:
        """Values, masks, and codes of values."""
        for i, part in enumerate(self.parts):
            read = [self.value[p] for p in part.inputs]
            if part.kind == "dropout":
                self._mask(i, part)
                read.append(self.mask[i])
            over = self._of_size(part.bytes, read) if part.kind in IN_PLACE else ()
            at = self.add(part.name, FORWARD, part.time.forward, part.bytes, tuple(read), over)
            self.value.append(at)
            self.needs.append(part.trained or any(self.needs[p] for p in part.inputs))
            if part.kind == "dropout":
                packed = (*read[:-1], self.codes[self.mask[i], "packed"])
                self.ways[at] = [Implementation("packed", part.time.forward, packed)]
            self._codes(at, part, read)

    def _of_size(self, size: int, nodes: Sequence[int]) -> tuple[int, ...]:
        return tuple(p for p in nodes if self.nodes[p].size == size)

    def _mask(self, i: int, part: _Part) -> None:
        n = part.elements
        self.mask[i] = self.add(f"{part.name}/mask", FORWARD, _move_us(n), n, (), once=True)
        self._code(self.mask[i], "packed", -(-n // 8), n)

    def _codes(self, at: int, part: _Part, read: Sequence[int]) -> None:
        """What gradients may read in place of the value, or to know where in the input it is from."""
        n = part.elements
        if part.kind in ("relu", "leaky"):
            self._code(at, "mask", -(-n // 8), part.bytes)
        if part.kind == "relu" and self.sparsity is not None:
            width, filled = part.bytes // n, math.ceil(n * (1 - self.sparsity))
            size = filled * (width + 1) + 4 * -(-n // _ROW)
            self._code(at, "sparse", size, part.bytes, part.bytes / self.sparse_bytes_per_us)
        if part.kind == "pool" and read and part.window <= _MOST_INDEX:
            cost = _move_us(self.nodes[read[0]].size + n)
            self.codes[at, "index"] = self.add(f"{part.name}/index", FORWARD, cost, n, (read[0],))
        if self.bits is not None and part.differentiable:
            self._code(at, f"float{self.bits}", -(-n * self.bits // 8), part.bytes)

    def _code(self, at: int, name: str, size: int, dense: int, cost: float | None = None) -> None:
        told = f"{self.nodes[at].name}/{name}"
        self.codes[at, name] = self.add(told, FORWARD, _move_us(dense + size) if cost is None else cost, size, (at,))

    def backward(self, outputs: Sequence[int]) -> None:
        """The loss, and gradients in reverse."""
        arriving: list[list[int]] = [[] for _ in self.parts]
        total = sum(self.parts[i].bytes for i in outputs)
        loss = self.add("loss", LOSS, _move_us(2 * total), total, tuple(self.value[i] for i in outputs))
        for i in outputs:
            arriving[i].append(loss)
        for i in reversed(range(len(self.parts))):
            part = self.parts[i]
            sources = list(dict.fromkeys(arriving[i]))
            if not sources or not part.differentiable or not self.needs[i]:
                continue
            gradient = sources[0]
            if len(sources) > 1:
                cost = _move_us((len(sources) + 1) * part.bytes)
                over = self._of_size(part.bytes, sources)
                gradient = self.add(f"sum_{part.name}", BACKWARD, cost, part.bytes, tuple(sources), over)
            to = [p for p in part.inputs if self.needs[p] and self.parts[p].differentiable]
            made = gradient if part.kind in ("sum", "view") else self._gradient(i, part, gradient, to)
            for p in to:
                arriving[p].append(made)

    def _gradient(self, i: int, part: _Part, gradient: int, to: Sequence[int]) -> int:
        """The nodes of one layer's gradients; the one of its inputs."""
        size, time = sum(self.parts[p].bytes for p in to), part.time
        of_inputs, of_output = READS[part.kind]
        values = [self.value[p] for p in part.inputs] if of_inputs else []
        values += [self.value[i]] if of_output else []
        values += [self.mask[i]] if part.kind == "dropout" else []
        if part.kind != "product":
            over = self._of_size(size, [gradient]) if part.kind in IN_PLACE else ()
            cost = time.gradients(bool(to), part.trained)
            at = self.add(f"grad_{part.name}", BACKWARD, cost, size, (gradient, *values), over)
            self._ways(at, i, part, gradient, values)
            return at
        shared = time.backward
        if part.trained:
            cost = time.weight_gradient + (0.0 if to else shared)
            at = self.add(f"grad_weights_{part.name}", BACKWARD, cost, 0, (gradient, *values))
            self._ways(at, i, part, gradient, values)
        if to:
            return self.add(f"grad_{part.name}", BACKWARD, time.input_gradient + shared, size, (gradient,))
        return gradient

    def _ways(self, at: int, i: int, part: _Part, gradient: int, values: Sequence[int]) -> None:
        """The other ways of a gradient."""
        cost, own = self.nodes[at].cost, self.value[i]
        found: list[Implementation] = []
        for name, of in (("mask", own), ("index", own), ("packed", self.mask.get(i, -1))):
            if (of, name) in self.codes and part.kind in ("relu", "leaky", "pool", "dropout"):
                found.append(Implementation(name, cost, (gradient, self.codes[of, name])))
        inputs = [self.value[p] for p in part.inputs]
        if part.kind in ("relu", "leaky") and inputs:
            found.append(Implementation("input", cost, (gradient, *inputs)))
        if part.kind == "norm" and inputs:
            found.append(Implementation("output", cost, (gradient, own), 0, _NORM_ERROR))
        if part.kind in ("product", "relu"):
            found += self._decoded(at, gradient, values, "sparse", "")
        if self.bits is not None:
            found += self._decoded(at, gradient, values, f"float{self.bits}", f"values in {self.bits} bits")
        if found:
            self.ways[at] = found

    def _decoded(self, at: int, gradient: int, values: Sequence[int], name: str, error: str) -> list[Implementation]:
        """The way that decodes all values first, if all have such a code."""
        codes = [self.codes[v, name] for v in values if (v, name) in self.codes]
        if not codes or len(codes) < len(values):
            return []
        dense = sum(self.nodes[v].size for v in values)
        cost = self.nodes[at].cost + _move_us(dense + sum(self.nodes[c].size for c in codes))
        return [Implementation(name, cost, (gradient, *codes), dense, error)]

    def finish(self, name: str, constant_bytes: int) -> OperatorGraph:
        """The graph; a node takes over memory if nobody else reads it where all is computed in its own way."""
        encodings = frozenset(self.codes.values())
        readers: list[list[int]] = [[] for _ in self.nodes]
        for j, node in enumerate(self.nodes):
            for p in node.inputs if j not in encodings else ():
                readers[p].append(j)
        workspace = np.zeros(len(self.nodes), dtype=np.int64)
        for j, node in enumerate(self.nodes):
            if any(readers[p] == [j] for p in node.over):
                workspace[j] = -node.size  # the ways, too, but for what is decoded, which has a workspace anyhow
                ways = self.ways.get(j, [])
                self.ways[j] = [way if way.workspace else replace(way, workspace=-node.size) for way in ways]
        n = len(self.nodes)
        graph = Graph(
            name=name,
            names=[node.name for node in self.nodes],
            kinds=np.array([node.kind for node in self.nodes]),
            costs=np.array([node.cost for node in self.nodes]),
            sizes=np.array([node.size for node in self.nodes]),
            inputs=[node.inputs for node in self.nodes],
            constant_bytes=constant_bytes,
            workspace=workspace,
            held=-workspace,
            recompute_until=np.array([0 if node.once else n for node in self.nodes]),
        )
        return OperatorGraph(graph, self.ways, encodings)
