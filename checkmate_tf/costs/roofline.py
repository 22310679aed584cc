"""Time of an operation from what it computes and what it moves (the roofline model).

    time = max(flops / peak, bytes / bandwidth)

An operation either computes or waits for memory, whichever is longer (Williams, Waterman, Patterson, "Roofline", CACM
52(4), 2009). Bytes are those of inputs and outputs, each touched once.

**What this does badly.** It knows nothing of caches and fusion.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CostError
from .counts import CALLS, SOURCES, VIEWS
from .flops import op_flops
from .sizes import OPAQUE, num_bytes

__all__ = ["Rates", "measure_rates", "op_traffic_bytes", "roofline_costs", "roofline_us"]

_IN_PLACE = frozenset(["AssignAddVariableOp", "AssignSubVariableOp"])


@dataclass(frozen=True)
class Rates:
    """What a device can do.

    Attributes
    ----------
    flops_per_second : float
    bytes_per_second : float
    op_us : float
        Microseconds that any operation takes, however small.
    """

    flops_per_second: float = 5e10
    bytes_per_second: float = 5e9
    op_us: float = 2.0

    def __post_init__(self) -> None:
        if not (np.isfinite([self.flops_per_second, self.bytes_per_second, self.op_us]).all() and self.op_us >= 0):
            raise CostError(f"rates must be finite: {self}")
        if self.flops_per_second <= 0 or self.bytes_per_second <= 0:
            raise CostError(f"rates must be positive: {self}")


def op_traffic_bytes(op: Any, unknown_dim: int | None = None) -> float:
    """Bytes that an operation reads and writes: its inputs and outputs once each; nothing for views.

    An update of a variable reads a value and the variable, and writes the variable; one of an optimizer reads and
    writes each of its slots, too. A loop counts its body times its iterations.
    """
    if op.type in VIEWS:
        return 0.0
    if op.type in CALLS:
        from .calls import call_total

        return call_total(op, op_traffic_bytes, unknown_dim)
    if op.type in _IN_PLACE:
        return 3.0 * num_bytes(op.inputs[1], unknown_dim)
    if op.type.startswith("ResourceApply"):
        return float(sum(_update_bytes(t, unknown_dim) for t in op.inputs))
    tensors = [t for t in (*op.inputs, *op.outputs) if t.dtype.name not in OPAQUE]
    if op.type.startswith("TensorListGetItem") or op.type.startswith("TensorListSetItem"):
        return 0.0  # a list of references
    if op.type in ("GatherV2", "Gather", "ResourceGather", "StridedSlice", "Slice"):
        return 2.0 * sum(num_bytes(t, unknown_dim) for t in op.outputs)  # reads only what it returns
    return float(sum(num_bytes(t, unknown_dim) for t in tensors))


def _update_bytes(tensor: Any, unknown_dim: int | None) -> int:
    """Bytes that an update moves of one input: twice those of a variable, once those of a value."""
    if tensor.dtype.name != "resource":
        return num_bytes(tensor, unknown_dim)
    from .alone.eager import handle_shape_dtype

    found = handle_shape_dtype(tensor)
    return 0 if found is None else 2 * math.prod(found[0]) * int(found[1].size)


def roofline_us(op: Any, rates: Rates, unknown_dim: int | None = None) -> float:
    """Microseconds of an operation by the roofline, `rates.op_us` included; of a loop those of each inside, too."""
    if op.type in CALLS:
        from .calls import call_total

        return rates.op_us + call_total(op, lambda inner, unknown: roofline_us(inner, rates, unknown), unknown_dim)
    compute = op_flops(op, unknown_dim) / rates.flops_per_second
    return 1e6 * max(compute, op_traffic_bytes(op, unknown_dim) / rates.bytes_per_second) + (
        rates.op_us if op.type not in SOURCES else 0.1 * rates.op_us
    )


def roofline_costs(ops: Iterable[Any], *, rates: Rates | None = None, device: str | None = None) -> NDArray[np.float64]:
    """(len(ops),) microseconds of each operation by the roofline.

    Parameters
    ----------
    rates : Rates, optional
        Default: measured on `device` with one matrix product and one sum, in about 0.1 s.
    device : str, optional
        E.g. `"GPU:0"`. Default: the first GPU, or else the CPU.

    Raises
    ------
    CostError
        If there is no such device.
    """
    rates = rates or measure_rates(device)
    return np.array([roofline_us(op, rates) for op in ops], dtype=np.float64)


def measure_rates(device: str | None = None) -> Rates:
    """Rates that a 1024 x 1024 matrix product and an addition of two 4 MB tensors reach on a device.

    Raises
    ------
    CostError
        If there is no such device.
    """
    import tensorflow as tf

    from .setting import device_name

    with tf.init_scope(), tf.device(device_name(device)):
        if not tf.executing_eagerly():
            return Rates()
        square, flat = tf.ones((1024, 1024)), tf.ones((1 << 20,))
        flops = 2 * 1024**3 / _seconds(lambda: tf.matmul(square, square))
        return Rates(flops, 3 * 4 * 2**20 / _seconds(lambda: flat + flat))


def _seconds(run: Callable[[], Any]) -> float:
    run().numpy()
    best = np.inf
    for _ in range(6):
        start = time.perf_counter()
        result = run()
        result[:1].numpy()  # waits for a device that runs asynchronously
        best = min(best, time.perf_counter() - start)
    return max(float(best), 1e-9)
