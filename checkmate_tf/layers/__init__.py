"""The papers' layer level: graphs that are read from a Keras model without tracing it, and what their layers cost.

`LAYER_COSTS` is the registry of the cost models of this level. The files, each using those above it:

- `losses.py`: the losses that layers added, left as they are;
- `calls.py`: the calls of layers in a model, with static shapes;
- `work/`: what a layer, or an operation of keras.ops, computes (`Work`);
- `flops.py`: work as FLOPs, by three conventions; the cost models that count FLOPs;
- `reads.py`: which values the gradient of a layer reads;
- `kernels.py`: kernels that a layer launches, and the parts that layers are put together from;
- `launches.py`: which kernels each layer launches, forward and backward;
- `v100.py`: what kernels take on a V100, modelled; the cost model "v100";
- `graph.py`: the graph that Checkmate and Moccasin draw, with costs by any of these;
- `operators.py`: the graph that MONeT draws, in which gradients may read codes of values instead;
- `settings.py`: settings of layers and losses as text, to tell two of them apart;
- `runs.py`: the calls as functions that run alone, for those who time them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..costs import CostModel, CostModels
from .calls import LayerCalls

__all__ = ["LAYER_COSTS", "LayerCosts"]


class LayerCosts(Protocol):
    """A cost model of layers: from the calls of a model to the costs of all nodes of its graph."""

    def __call__(self, known: LayerCalls, gradients: Sequence[int], /) -> NDArray[np.float64]:
        """Costs of the n calls, of the loss, and of the m gradients.

        Parameters
        ----------
        known : LayerCalls
        gradients : sequence of m int
            The calls that have a gradient node, in the order of these nodes.

        Returns
        -------
        (n + 1 + m,) float
        """
        ...


def _artifact() -> LayerCosts:
    from .flops import step_flops

    return partial(step_flops, convention="artifact")


def _multiply_adds() -> LayerCosts:
    from .flops import step_flops

    return partial(step_flops, convention="multiply-adds")


def _true() -> LayerCosts:
    from .flops import step_flops

    return partial(step_flops, convention="true")


def _v100() -> LayerCosts:
    from .v100 import step_us

    return step_us


LAYER_COSTS: CostModels[LayerCosts] = CostModels(
    level="layer",
    otherwise="a callable (LayerCall -> cost) or one cost for each node",
    models=[
        CostModel("flops", "multiply-add", "the papers' count, as their artifact has it", _artifact),
        CostModel("multiply-adds", "multiply-add", "elementwise layers are free", _multiply_adds),
        CostModel("artifact", "multiply-add", "another name of flops", _artifact),
        CostModel("true", "flop", "all floating-point operations", _true),
        CostModel("v100", "us", "modelled V100 kernel costs", _v100),
    ],
)
"""The cost models of layers by name; profiles, which are measured, are in the room `profiles`."""
