"""The profiles of Checkmate's own artifact, for users who have them: `b256_p32xlarge.npy` and its kind.

Such a file holds microseconds of a layer-level graph's nodes in order - layers, loss, gradients from the last layer to
the first - as an array of shape (n,), or (2, n) with the standard deviations in the second row. That is the order of
`layers.graph.layer_graph`, too. The file says neither model nor batch; its name says the batch.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import CostError
from ..graph import Graph

__all__ = ["ArtifactProfile", "graph_with_artifact", "read_artifact"]

MAX_FILE_BYTES = 64 << 20
_BATCH = re.compile(r"(?:^|_)b?(\d+)_[^_]+\.npy$")


@dataclass(frozen=True, eq=False)
class ArtifactProfile:
    """Costs and, where known, their standard deviations: (n,) microseconds each.

    `batch_size` is what the file's name says (`b256_p32xlarge.npy`, `VGG16_256_p32xlarge.npy`); None if it says none.
    """

    cost_us: NDArray[np.float64]
    deviation_us: NDArray[np.float64] | None
    batch_size: int | None


def read_artifact(path: str | os.PathLike[str]) -> ArtifactProfile:
    """Read a profile of the artifact. Never runs code: pickled arrays are refused.

    Raises
    ------
    CostError
        If the file cannot be read, is above 64 MiB, or is not an array of finite numbers of shape (n,) or (2, n), none
        of them negative.
    """
    source, place = str(path), Path(path)
    try:
        if place.stat().st_size > MAX_FILE_BYTES:
            raise CostError(f"{source} has more than {MAX_FILE_BYTES >> 20} MiB: that is no profile")
        # mapped, so that a header that promises more than the file holds takes no memory
        array = np.load(place, mmap_mode="r", allow_pickle=False)
    except CostError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes NumPy raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
        raise CostError(
            f"{source} is not read as an array of costs: {reason}; arrays with objects are refused"
        ) from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise CostError(f"{source} holds {getattr(array, 'dtype', type(array).__name__)}; give an array of numbers")
    if array.size == 0 or not (array.ndim == 1 or (array.ndim == 2 and array.shape[0] == 2)):
        raise CostError(
            f"{source} has shape {array.shape}; costs are (n,), and costs with deviations (2, n), n nodes of the graph"
        )
    values = np.array(array, dtype=np.float64)
    bad = np.argwhere(~np.isfinite(values) | (values < 0))
    if len(bad):
        row = "deviation" if values.ndim == 2 and bad[0][0] else "cost"
        value = values[tuple(bad[0])]
        raise CostError(f"{source}: the {row} of node {bad[0][-1]} is {value}; it must be finite and not negative")
    batch = _BATCH.search(place.name)
    batch_size = int(batch[1][:12]) if batch else None
    cost_us, deviation_us = (values, None) if values.ndim == 1 else (values[0], values[1])
    return ArtifactProfile(cost_us, deviation_us, batch_size)


def graph_with_artifact(graph: Graph, path: str | os.PathLike[str], batch_size: int) -> Graph:
    """A layer-level graph with the costs of a profile of the artifact, in microseconds.

    Raises
    ------
    CostError
        As `read_artifact`; or if the profile has another number of nodes, or its name says another batch.
    """
    profile = read_artifact(path)
    if len(profile.cost_us) != len(graph):
        raise CostError(
            f"{path} has costs of {len(profile.cost_us)} nodes, but the graph of {graph.name!r} has {len(graph)} "
            "(layers, loss, gradients): it is of another model, or of another variant of it"
        )
    if profile.batch_size not in (None, batch_size):
        raise CostError(
            f"{path} is of batch {profile.batch_size} by its name, but the batch is {batch_size}: take that batch, or "
            "rename the file if its name is wrong"
        )
    return graph.with_costs(profile.cost_us, "us")
