"""The ways to train in less memory that `peers.py` and `batch_size_real.py` compare: plain Keras, two rivals, and ours.

- plain: as Keras does it;
- `keras.RematScope`: the model is built inside it, in mode "full" or "activations";
- `tf.recompute_grad` by blocks: the layers, in the order in which Keras runs them, are cut where the fewest bytes are
  alive, into about sqrt(n) segments (Chen et al., 2016), and each segment runs under `tf.recompute_grad`;
- ours: `checkmate_tf.compile`.

A rival has variants (modes; numbers of segments, and even in layers or in bytes); who compares takes the one with the
least measured peak. What `tf.recompute_grad` does wrong is left as it is, since it is what its users get: the forward
pass of a segment runs twice, so BatchNormalization updates its statistics twice, seeds advance twice, and the second
pass draws other dropout masks than the loss has seen.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

    from checkmate_tf.check.networks import Network

__all__ = [
    "COLORS",
    "MEASURED",
    "NETWORKS",
    "RIVALS",
    "TITLES",
    "Segment",
    "answer_peak",
    "build",
    "chosen",
    "compile_ours",
    "cut",
    "describe",
    "networks_of",
    "ranked",
    "recompute_by_segments",
    "slug",
]

Variant = dict[str, Any]

NETWORKS = ("mobilenet", "unet", "resnet50", "transformer")  # that they are compared on

TITLES = {
    "plain": "plain",
    "remat-scope": "keras.RematScope",
    "recompute-grad": "tf.recompute_grad",
    "ours": "checkmate_tf",
}
MEASURED = {"TF_CPU_ALLOCATOR_USE_BFC": "true"}  # the environment of children that measure
COLORS = {"plain": "#8c8c8c", "remat-scope": "#e69f00", "recompute-grad": "#0072b2", "ours": "#009e73"}

RIVALS: dict[str, tuple[Variant, ...]] = {
    "plain": ({"way": "plain"},),
    "remat-scope": ({"way": "remat-scope", "mode": "activations"}, {"way": "remat-scope", "mode": "full"}),
    "recompute-grad": tuple(
        {"way": "recompute-grad", "even": even, "of_sqrt": share}
        for share in (1.0, 0.5, 2.0)
        for even in ("layers", "bytes")
    ),
}
"""The variants of each way but ours; those with a share of sqrt(n) other than 1 are for long runs."""


def slug(variant: Variant) -> str:
    """A variant as part of a file's name."""
    return "-".join(f"{value:g}" if isinstance(value, float) else str(value) for value in variant.values())


def describe(variant: Variant) -> str:
    """A variant for a table."""
    title = TITLES[variant["way"]]
    if "mode" in variant:
        return f'{title}("{variant["mode"]}")'
    if "even" in variant:
        share = "" if variant["of_sqrt"] == 1 else f"{variant['of_sqrt']:g} "
        return f"{title}, {share}sqrt(n) segments even in {variant['even']}"
    return f"{title}, order traced" if variant.get("order") == "fixed" else title


def networks_of(name: str, batch_size: int) -> Network:
    """A network of `networks.py` at another batch size."""
    from dataclasses import replace

    from checkmate_tf.check.networks import NETWORKS as known

    return replace(known[name], batch_size=batch_size)


def build(network: Network, variant: Variant) -> keras.Model:
    """The compiled Keras model that trains in a rival's way; for ours the plain one, to be given to `compile_ours`."""
    import keras

    if variant["way"] == "remat-scope":
        with keras.RematScope(mode=variant["mode"]):
            return network.model()
    model = network.model()
    if variant["way"] == "recompute-grad":
        recompute_by_segments(model, variant["of_sqrt"], variant["even"])
    return model


def compile_ours(
    model: keras.Model,
    network: Network,
    budget_bytes: int,
    time_limit: float,
    prefetch: int | None = None,
    order: str = "free",
) -> None:
    """Make the model train within the budget, fed by a pipeline that keeps so many batches ready.

    The order of computation is "free" or "fixed", as `compile` takes it.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule was found.
    """
    import checkmate_tf

    checkmate_tf.compile(
        model,
        budget=budget_bytes,
        data=network.data(1),
        time_limit=time_limit,
        prefetch=prefetch,
        order=order,
        progress=False,
        cache=False,
    )


# Their peaks ----------------------------------------------------------------------------------------------------------


def answer_peak(request: dict) -> dict:
    """Allocator's peak of a rival's step; what a rival raises is its outcome."""
    import tensorflow as tf

    from benchmarks.lib.training import data_bytes
    from checkmate_tf.check.training import device_data, every_variable, peaks

    network = networks_of(request["network"], request["batch"])
    try:
        model = build(network, request["variant"])
        model.train_on_batch(*network.data(1))
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
        tf.errors.OpError,
    ) as error:
        return {"outcome": "raised", "reason": in_a_line(error)}
    step, fit = peaks(model, network, device_data(network))  # whatever fails here is not the rival's doing
    constant = sum(v.numpy().nbytes for v in every_variable(model)) + data_bytes(network)
    return {"outcome": "measured", "peak_bytes": step, "fit_peak_bytes": fit, "constant_bytes": constant}


def in_a_line(error: Exception) -> str:
    """Type and message without colours, shortened."""
    import re

    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).replace(
        "Exception encountered when calling Functional.call().", ""
    )
    return f"{type(error).__name__}: {' '.join(text.split())}"[:240]


def ranked(measured: list[dict]) -> dict[str, list[dict]]:
    """By way: the variants that ran, that of least peak first."""
    ran = [cell for cell in measured if cell.get("outcome") == "measured"]
    ways = dict.fromkeys(cell["variant"]["way"] for cell in ran)
    by_peak = sorted(ran, key=lambda cell: cell["peak_bytes"])
    return {way: [cell for cell in by_peak if cell["variant"]["way"] == way] for way in ways}


def chosen(measured: list[dict]) -> dict[str, dict]:
    """By way: the variant of least peak among those that ran."""
    return {way: cells[0] for way, cells in ranked(measured).items()}


# tf.recompute_grad by blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive calls of layers.

    Attributes
    ----------
    nodes : tuple of keras Node
        In the order in which they run.
    inputs : tuple of KerasTensor
        What they read that is made before.
    outputs : tuple of KerasTensor
        What they make that is read later, or that the model returns; what is read next comes first. `tf.recompute_grad`
        waits for the gradient of the first output before it runs the segment again, and this one is ready last.
    """

    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def cut(model: keras.Model, of_sqrt: float = 1.0, even: str = "layers") -> list[Segment]:
    """Cut a functional or sequential model into segments where little is alive.

    Cuts are looked for around even positions, each in a window of its own, where the fewest bytes are alive and, among
    those, the fewest tensors. Between residual blocks that is the output of a block alone; inside a U-Net its skips are
    alive as well.

    Parameters
    ----------
    model : keras.Model
        Built; functional or sequential.
    of_sqrt : float
        Number of segments over the square root of the number of layers.
    even : {"layers", "bytes"}
        Whether positions are even in the number of layers or in the bytes of their outputs.

    Returns
    -------
    list of Segment
        Together all nodes, in order.

    Raises
    ------
    TypeError
        For a model whose layers are not known: a subclassed one.
    ValueError
        For a model with masks, which `tf.recompute_grad` loses.
    """
    nodes = _nodes(model)
    uses = _uses(model, nodes)
    n = len(nodes)
    made = [{id(t): t for t in _functional(model).inputs}, *({id(t): t for t in node.outputs} for node in nodes)]
    alive: list[list[Any]] = []  # after so many nodes
    current: dict[int, Any] = {}
    for position, tensors in enumerate(made):
        current = {key: t for key, t in (current | tensors).items() if uses.get(key, [-1])[-1] >= position}
        alive.append(list(current.values()))
    count = max(1, min(n, round(of_sqrt * math.sqrt(n))))
    weights = [1 if even == "layers" else sum(map(_bytes, node.outputs)) for node in nodes]
    done = [sum(weights[:p]) / sum(weights) * count for p in range(n + 1)]  # in segments
    cuts = [0]
    for k in range(1, count):
        window = [p for p in range(cuts[-1] + 1, n) if abs(done[p] - k) <= 0.5]
        if window:
            cuts.append(min(window, key=lambda p: (sum(map(_bytes, alive[p])), len(alive[p]), abs(done[p] - k))))
    return [_segment(nodes[a:b], uses, b) for a, b in zip(cuts, [*cuts[1:], n], strict=True)]


def recompute_by_segments(model: keras.Model, of_sqrt: float = 1.0, even: str = "layers") -> list[Segment]:
    """Run each segment of the model under `tf.recompute_grad` from now on, in place; the segments.

    Left as they are: the last segment, whose values are needed at once, and segments that read integers, which have no
    gradient. `training` is handed to each layer: while a segment is run again there is no outer call to take it from.

    Raises
    ------
    TypeError, ValueError
        See `cut`.
    """
    import keras
    import tensorflow as tf

    segments = cut(model, of_sqrt, even)
    functional = _functional(model)

    def call(inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        known = {id(t): value for t, value in zip(functional.inputs, keras.tree.flatten(inputs), strict=True)}
        for segment in segments:
            values = [known[id(t)] for t in segment.inputs]
            forward = _forward(segment, training)
            if training and segment is not segments[-1] and all(v.dtype.is_floating for v in values):
                forward = tf.recompute_grad(forward)
            known |= {id(t): value for t, value in zip(segment.outputs, forward(*values), strict=True)}
        outputs = [known[id(t)] for t in functional.outputs]
        return keras.tree.pack_sequence_as(functional.output, outputs)

    model.call = call
    return segments


def _forward(segment: Segment, training: bool | None) -> Callable[..., tuple[Any, ...]]:
    """The segment as a function of the values of its inputs."""
    import keras

    def forward(*values: Any) -> tuple[Any, ...]:
        known = {id(t): value for t, value in zip(segment.inputs, values, strict=True)}
        for node in segment.nodes:
            arguments, options = node.arguments.fill_in(known)
            if training is not None and _takes_training(node.operation):
                options = {**options, "training": training}  # whatever was recorded, as Keras does
            outputs = keras.tree.flatten(node.operation(*arguments, **options))
            known |= {id(t): value for t, value in zip(node.outputs, outputs, strict=True)}
        return tuple(known[id(t)] for t in segment.outputs)

    return forward


def _takes_training(operation: Any) -> bool:
    return "training" in inspect.signature(operation.call).parameters


def _functional(model: Any) -> Any:
    """The functional model that a sequential one keeps, or the model."""
    found = getattr(model, "_functional", model)
    if not hasattr(found, "_nodes_by_depth"):
        raise TypeError(f"{model.name} is neither functional nor a built sequential model: its layers are not known")
    return found


def _nodes(model: Any) -> list[Any]:
    """Calls of layers in the order in which Keras runs them."""
    by_depth = _functional(model)._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth] if not node.is_input]
    for node in nodes:
        layer = node.operation
        if getattr(layer, "mask_zero", False) or type(layer).__name__ == "Masking":
            raise ValueError(f"layer {layer.name} makes a mask, which is lost under tf.recompute_grad")
    return nodes


def _uses(model: Any, nodes: Sequence[Any]) -> dict[int, list[int]]:
    """By id of tensor: the nodes that read it, in order; at the end len(nodes) for what the model returns."""
    uses: dict[int, list[int]] = {}
    for position, node in enumerate(nodes):
        for tensor in node.input_tensors:
            uses.setdefault(id(tensor), []).append(position)
    for tensor in _functional(model).outputs:
        uses.setdefault(id(tensor), []).append(len(nodes))
    return uses


def _segment(nodes: Sequence[Any], uses: dict[int, list[int]], end: int) -> Segment:
    made = {id(t): t for node in nodes for t in node.outputs}
    read = {id(t): t for node in nodes for t in node.input_tensors if id(t) not in made}
    later = {key: [p for p in uses.get(key, []) if p >= end] for key in made}
    outputs = sorted((key for key in made if later[key]), key=lambda key: later[key][0])
    return Segment(tuple(nodes), tuple(read.values()), tuple(made[key] for key in outputs))


def _bytes(tensor: Any) -> int:
    """Of one sample, four for each element: what is compared is of one type."""
    return 4 * math.prod(d or 1 for d in tensor.shape[1:])
