"""Kernels that one call of a layer launches in a training step, and the parts that layers are put together from.

A kernel is a class of work with its FLOPs and the bytes that it moves, in fp32 whatever the model's policy. Which
kernels a layer launches is in `launches.py`; what they cost on a device, in `v100.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from .work.shared import Shapes, size

__all__ = [
    "WIDTH", "Kernel", "Launches", "add_bias", "convolution", "elementwise", "fp32_bytes", "paired", "product",
    "product_of_values", "traffic",
]  # fmt: skip

WIDTH = 4  # bytes of a float


@dataclass(frozen=True)
class Kernel:
    """One kernel, or several alike.

    Attributes
    ----------
    kind : str
        Class of work, with `/fwd`, `/bwd`, `/bwd_input` or `/bwd_filter` where directions differ.
    flops : float
        Twice the multiply-adds of the direct algorithm; elementwise work counts none.
    moved_bytes, weight_bytes : float
        Activations and their gradients, read and written; weights.
    times : int
    """

    kind: str
    flops: float = 0.0
    moved_bytes: float = 0.0
    weight_bytes: float = 0.0
    times: int = 1


Kernels: TypeAlias = tuple[Kernel, ...]


@dataclass(frozen=True)
class Launches:
    """Kernels of a layer.

    Attributes
    ----------
    forward : tuple of Kernel
    backward : tuple of Kernel
        For any gradient of the layer.
    input_gradient, weight_gradient : tuple of Kernel
        Further ones: if something before the layer is trained, and if the layer's own weights are.
    """

    forward: Kernels = ()
    backward: Kernels = ()
    input_gradient: Kernels = ()
    weight_gradient: Kernels = ()

    def __add__(self, other: Launches) -> Launches:
        """Both, side by side."""
        return Launches(
            self.forward + other.forward,
            self.backward + other.backward,
            self.input_gradient + other.input_gradient,
            self.weight_gradient + other.weight_gradient,
        )

    def then(self, other: Launches) -> Launches:
        """The other on what this one makes: any gradient of this one needs the other's gradient of inputs first."""
        inner = replace(other, backward=other.backward + other.input_gradient, input_gradient=())
        return self + inner


def fp32_bytes(shapes: Shapes) -> float:
    """Bytes of tensors of these shapes in fp32, which kernels are modelled in."""
    return float(WIDTH * size(shapes))


def traffic(moved_bytes: float) -> Kernels:
    """A kernel that only waits for memory."""
    return (Kernel("traffic", moved_bytes=moved_bytes),)


def elementwise(ins: float, outs: float) -> Launches:
    """A function of each element, of so many bytes in and out. Its gradient reads the inputs again."""
    return Launches(traffic(ins + outs), input_gradient=traffic(2 * ins + outs))


def add_bias(outs: Shapes) -> Launches:
    """A bias on the first output; its gradient is a sum."""
    return Launches(traffic(2 * fp32_bytes(outs[:1])), weight_gradient=traffic(fp32_bytes(outs[:1])))


def paired(kind: str, moved_bytes: float) -> Launches:
    """A class of work that has one kernel each way."""
    forward, backward = (Kernel(f"{kind}/{way}", moved_bytes=moved_bytes) for way in ("fwd", "bwd"))
    return Launches((forward,), input_gradient=(backward,))


def convolution(kind: str, flops: float, moved_bytes: float, weights: float) -> Launches:
    """A convolution of a class, with so many weights."""
    each = [Kernel(f"{kind}/{way}", flops, moved_bytes, WIDTH * weights) for way in ("fwd", "bwd_input", "bwd_filter")]
    forward, of_input, of_filter = ((kernel,) for kernel in each)
    return Launches(forward, input_gradient=of_input, weight_gradient=of_filter)


def product(macs: float, moved_bytes: float, weights: float, kind: str = "gemm", times: int = 1) -> Launches:
    """A product with weights: each gradient is a product of the same size."""
    kernel = (Kernel(kind, 2.0 * macs / times, moved_bytes / times, WIDTH * weights, times),)
    return Launches(kernel, input_gradient=kernel, weight_gradient=kernel)


def product_of_values(macs: float, moved_bytes: float, kind: str = "gemm") -> Launches:
    """A product of two values, both of which have gradients."""
    kernel = Kernel(kind, 2.0 * macs, moved_bytes)
    return Launches((kernel,), input_gradient=(kernel, kernel))
