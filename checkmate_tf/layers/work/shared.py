"""What a Keras layer computes: `Work`, and the counts that the rules of layers and of keras.ops share.

Shapes include the batch. A rule takes the layer (or operation), the shapes that it reads and those that it writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...costs.counts import RANDOM, SOFTMAX, words
from ...costs.counts import TRANSCENDENTAL as T

__all__ = [
    "DROPOUT", "Rule", "Shape", "Shapes", "Work", "activation", "adds_keys", "attended", "channels",
    "each_input", "each_output", "einsum_macs", "epilogue", "free", "nearest", "pool_window", "relu", "scores", "size",
]  # fmt: skip

Shape: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Sequence[Shape]


@dataclass(frozen=True)
class Work:
    """What a layer computes.

    Attributes
    ----------
    macs : float
        Multiply-adds of products and convolutions.
    other : float
        Other floating-point operations.
    """

    macs: float = 0.0
    other: float = 0.0

    def __add__(self, more: Work) -> Work:
        return Work(self.macs + more.macs, self.other + more.other)

    def __mul__(self, times: float) -> Work:
        return Work(self.macs * times, self.other * times)


Rule: TypeAlias = Callable[[Any, Shapes, Shapes], Work | None]


def nearest(layer: Any, table: Collection[str], layers: bool = True) -> str | None:
    """Name of the nearest of Keras's own classes that the layer derives from and that is in the table.

    Layers and operations share names (Add): which one it is follows from the module.
    """
    for kind in type(layer).__mro__:
        module = kind.__module__
        here = module.startswith("keras.") and (".layers." in module or ".models." in module) == layers
        if here and kind.__name__ in table:
            return kind.__name__
    return None


# FLOPs for each element of an activation.
_ACTIVATIONS: dict[str, float] = {"linear": 0, "relu": 1, "relu6": 2, "leaky_relu": 2, "threshold": 1, "softsign": 3}
_ACTIVATIONS |= dict.fromkeys(words("sigmoid tanh exponential elu celu selu softplus log_sigmoid squareplus"), T)
_ACTIVATIONS |= dict.fromkeys(words("softmax log_softmax sparsemax"), SOFTMAX)
_ACTIVATIONS |= dict.fromkeys(words("hard_sigmoid hard_tanh hard_shrink soft_shrink sparse_plus sparse_sigmoid"), 3)
_ACTIVATIONS |= {"silu": T + 1, "swish": T + 1, "hard_silu": 4, "gelu": T + 4, "glu": T + 1, "mish": 2 * T + 1}
_ACTIVATIONS |= {"tanh_shrink": T + 1}

DROPOUT = RANDOM + 2.0  # draw, compare, scale


def size(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


def activation(function: Any) -> float:
    """FLOPs an element of what a layer holds as its activation: a function, a layer or None."""
    if function is None:
        return 0.0
    name = getattr(function, "__name__", None) or getattr(function, "name", "")
    return _ACTIVATIONS.get(str(name), 1.0)


def epilogue(layer: Any, elements: float) -> float:
    """FLOPs of the bias and the activation on so many outputs."""
    return elements * (bool(getattr(layer, "use_bias", False)) + activation(getattr(layer, "activation", None)))


def channels(layer: Any, shape: Shape) -> int:
    return shape[1] if getattr(layer, "data_format", None) == "channels_first" else shape[-1]


def free(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work()


def each_output(flops: float) -> Rule:
    return lambda layer, ins, outs: Work(other=flops * size(outs[:1]))


def each_input(flops: float) -> Rule:
    return lambda layer, ins, outs: Work(other=flops * size(ins[:1]))


def relu(layer: Any, ins: Shapes, outs: Shapes) -> Work:
    return Work(other=size(outs[:1]) * (1 + bool(layer.negative_slope) + (layer.max_value is not None)))


def einsum_macs(equation: str, shapes: Shapes) -> int:
    """Points of the iteration space of a contraction: the product of the sizes of its labels."""
    sizes: dict[str, int] = {}
    for labels, shape in zip(equation.replace(" ", "").split("->")[0].split(","), shapes, strict=True):
        head, dots, tail = labels.partition("...")
        axes = [*zip(head, shape, strict=False)]
        if dots:
            middle = shape[len(head) : len(shape) - len(tail)]
            axes += [(f".{len(middle) - k}", length) for k, length in enumerate(middle)]  # aligned at the right
            axes += [*zip(tail, shape[len(shape) - len(tail) :], strict=True)]
        for label, length in axes:
            sizes[label] = max(length, sizes.get(label, 1))
    return math.prod(sizes.values())


def pool_window(operation: Any, rank: int) -> int:
    """Elements in the window of a pooling of values with so many axes."""
    window = operation.pool_size
    return int(window) ** (rank - 2) if isinstance(window, int) else math.prod(window)


def scores(pairs: float, dropout: Any) -> float:
    """FLOPs of softmax and dropout on so many scores."""
    return pairs * (SOFTMAX + (DROPOUT if dropout else 0))


def adds_keys(layer: Any) -> bool:
    """Whether an attention layer scores by tanh(query + key) rather than by products."""
    return nearest(layer, ("Attention", "AdditiveAttention")) == "AdditiveAttention" or layer.score_mode != "dot"


def attended(layer: Any, query: Shape, value: Shape) -> tuple[int, int, int]:
    """Batch, positions that attend and positions attended to, of a layer with heads."""
    # along which positions attend to each other; the axes before them are batch
    axes = getattr(layer, "_attention_axes", None)
    axes = range(1, len(query) - 1) if axes is None else [a % len(query) for a in axes]
    length, source = (math.prod(shape[a] for a in axes) for shape in (query, value))
    return math.prod(query[:-1]) // length, length, source
