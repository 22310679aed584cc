"""Modelled V100 kernel costs, fitted to published measurements: what a layer takes, forward and backward, in fp32.

Checkmate took the costs of its figure 4 from profiles of a V100, which are no longer published. This model stands in
for them. It is linear: for each class of kernel (`kernels.py`) and direction

    time = t0 + FLOPs / (a x 15.7e12) + activation bytes / (b x 900e9) + weight bytes / (c x 900e9),

with the coefficients in `data/v100_cost_model.json`, fitted to DeepBench's convolutions and matrix products and to
PipeDream's profiles of twelve networks (sources and commits are in that file). A kernel costs t0 before it does
anything, so a layer's cost is not proportional to the batch.

**What this does badly.** Held-out layers are off by 15-24% (median) and 43-56% (90th percentile), whole networks by 8%
(median of 23, `benchmarks/figures/v100_end_to_end.py`). Kernels that were not measured and only wait for memory move
their bytes at 85% of the bandwidth, which is an assumption. It is not a profile of any model on any device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import CostError
from .calls import LayerCalls
from .kernels import Kernel, fp32_bytes, traffic
from .launches import launches
from .work.shared import Shapes

__all__ = ["LayerTime", "Rate", "cost_model", "kernel_us", "layer_us", "rates", "step_us"]

_FILE = "v100_cost_model.json"


@dataclass(frozen=True)
class Rate:
    """Cost of one class of kernel: to launch it, and what it takes in microseconds a FLOP and a byte."""

    t0_us: float
    flop_us: float
    byte_us: float
    weight_byte_us: float


@dataclass(frozen=True)
class LayerTime:
    """Microseconds of one call of a layer.

    Attributes
    ----------
    forward : float
    backward : float
        Of what any gradient needs.
    input_gradient, weight_gradient : float
        In addition, if something before the layer is trained; and if the layer's own weights are.
    """

    forward: float
    backward: float
    input_gradient: float
    weight_gradient: float

    def gradients(self, of_inputs: bool = True, of_weights: bool = True) -> float:
        """Microseconds of the backward pass; 0 if nothing needs it."""
        if not (of_inputs or of_weights):
            return 0.0
        return self.backward + of_inputs * self.input_gradient + of_weights * self.weight_gradient


def cost_model() -> dict[str, Any]:
    """What is in `data/v100_cost_model.json`: coefficients, sources, held-out error, limits.

    Raises
    ------
    CostError
        If the file is missing.
    """
    package = Path(__file__).parents[1]
    places = (package / "data" / _FILE, package.parent / "data" / _FILE)  # installed from a wheel, or a checkout
    for path in places:
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise CostError(f'costs "v100" need {_FILE}, which is not at {" or ".join(map(str, places))}: install again')


@cache
def rates() -> Mapping[str, Rate]:
    """The rate of each class of kernel; errors as for `cost_model`."""
    model = cost_model()
    flop_us = 1e6 / model["device"]["peak_flops_per_s"]
    byte_us = 1e6 / model["device"]["bandwidth_bytes_per_s"]

    def share(of: float, efficiency: float | None) -> float:
        return of / efficiency if efficiency else 0.0

    found = {
        kind: Rate(
            c["t0_us"],
            share(flop_us, c["eff_flops"]),
            share(byte_us, c["eff_act_bw"]),
            share(byte_us, c["eff_weight_bw"]),
        )
        for kind, c in model["conv"].items()
    }
    gemm, launch = model["gemm"], model["memory_ops_t0_us"]
    product_us, operand_us = flop_us / gemm["eff_flops"], byte_us / gemm["eff_bw"]
    found["gemm"] = Rate(gemm["t0_us"], product_us, operand_us, operand_us)
    for kind, c in model["memory_ops"].items():
        found[kind] = Rate(launch, 0.0, c["beta_in_plus_out_at_900GBs"] * byte_us, 0.0)
    moved_us = byte_us / model["traffic"]["eff_bw"]
    found["traffic"] = Rate(launch, product_us, moved_us, moved_us)
    return found


def kernel_us(kernel: Kernel) -> float:
    """Microseconds of a kernel, all its launches together."""
    rate = rates()[kernel.kind]
    once = (
        rate.t0_us
        + kernel.flops * rate.flop_us
        + kernel.moved_bytes * rate.byte_us
        + kernel.weight_bytes * rate.weight_byte_us
    )
    return kernel.times * once


def layer_us(layer: Any, input_shapes: Shapes, output_shapes: Shapes) -> LayerTime:
    """Modelled time of one call of a layer, or of an operation of keras.ops; the shapes say the batch.

    Parameters
    ----------
    layer : keras.Layer or keras.Operation
        Built, if it has weights.
    input_shapes, output_shapes : sequences of tuples of int
        Batch included, as for `flops.layer_flops`.

    Returns
    -------
    LayerTime
        Of 0 for views (Reshape, Flatten). A layer that is not known moves its inputs and outputs at 85% of the
        bandwidth, and computes what FLOPs `layer_work` knows of.
    """
    made = launches(layer, input_shapes, output_shapes)
    parts = (made.forward, made.backward, made.input_gradient, made.weight_gradient)
    return LayerTime(*(sum(map(kernel_us, kernels)) for kernels in parts))


def step_us(known: LayerCalls, gradients: Sequence[int]) -> NDArray[np.float64]:
    """Modelled times of all nodes of a layer-level graph.

    A layer has no gradient of its inputs where nothing before it is trained (the first convolution), and takes no time
    backwards if it is not trained either (the padding before it). Where several layers read a value, its gradient is
    the sum of theirs, and that takes time, too. The loss reads the outputs and writes their gradients.

    Parameters
    ----------
    known : LayerCalls
    gradients : sequence of int
        Calls that have a gradient node, in the order of these nodes.

    Returns
    -------
    (n,) float
        Microseconds: of the calls, the loss, the gradients.
    """
    calls = known.calls
    times = [layer_us(call.operation, call.argument_shapes, call.output_shapes) for call in calls]
    trained = [bool(getattr(call.operation, "trainable_weights", ())) for call in calls]
    reached: list[bool] = []  # is anything before the call trained?
    for call in calls:
        reached.append(any(reached[i] or trained[i] for i in call.inputs))
    arriving = [int(i in known.outputs) for i in range(len(calls))]  # gradients of a value, from its readers
    for j in gradients:
        for i in calls[j].inputs:
            arriving[i] += 1
    backward = []
    for i in gradients:
        time = times[i].gradients(reached[i], trained[i])
        if arriving[i] > 1 and (reached[i] or trained[i]):
            (summed,) = traffic((arriving[i] + 1) * fp32_bytes(calls[i].output_shapes))
            time += kernel_us(summed)
        backward.append(time)
    read = sum(fp32_bytes(calls[i].output_shapes) for i in known.outputs)
    (loss,) = traffic(2 * read)
    return np.array([*(time.forward for time in times), kernel_us(loss), *backward])
