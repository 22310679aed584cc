"""The networks of the MONeT paper at its batches, as layer graphs whose gradients may be computed in several ways."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkmate_tf.operators import OperatorGraph

__all__ = ["NETWORKS", "QUICK", "operators_of"]

NETWORKS = {
    "ResNet-50": ("ResNet50", 184),
    "GoogleNet": ("GoogleNet", 320),
    "U-Net": ("U-Net, normalised", 11),
    "VGG-16": ("VGG16", 176),
    "MobileNet-V2": ("MobileNetV2", 256),
}
"""The paper's name: the name in `models.py`, and the batch."""

QUICK = ("ResNet-50", "VGG-16")


def operators_of(network: str, **ways: Any) -> OperatorGraph:
    """The layer graph of one of `NETWORKS`, with its ways."""
    from benchmarks.lib.models import MODELS
    from checkmate_tf.layers.operators import layer_operators

    name, batch = NETWORKS[network]
    return layer_operators(MODELS[name](), batch, **ways)
