"""Measured costs of a model's nodes over batch sizes, and the fit for batches that were not run.

A table knows neither TensorFlow nor files: `file.py` reads and writes it, `layers.py` and `steps.py` measure it.

A node that was run at several batch sizes B is fitted by

    time = a + b B,  a, b >= 0,

in the sense of least squares. Both are bounded because a time that falls with the batch, or one below zero at batch 0,
is noise. One batch size cannot tell a from b: the time is then proportional (a = 0), which is too little for smaller
batches and too much for larger ones.

**What this does badly.** Kernels change their algorithm with the batch, and caches overflow: between two batch sizes
that were run the time is rarely far off the line, beyond them it may be. Run what you will use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..errors import CostError
from ..graph import BACKWARD, FORWARD, LOSS, Graph
from ..units import whole_batch

__all__ = [
    "FLOOR_US", "LAYER_KINDS", "LEVELS", "MOST_US", "Fingerprint", "ProfileTable", "graph_with_profile", "kind_words",
    "merged",
]  # fmt: skip

LEVELS = ("layer", "op")
#: Kinds of nodes at layer level; at op level a kind is the operation's type, e.g. Conv2D.
LAYER_KINDS = {FORWARD: "forward", LOSS: "loss", BACKWARD: "backward"}
#: Least cost of a node in microseconds: what is measured as nothing is still not free.
FLOOR_US = 0.1
#: Most that is believed of a node in a file, in microseconds: an hour.
MOST_US = 3.6e9

_COUNTER = re.compile(r"_\d+(?=$|:)")


@dataclass(frozen=True)
class Fingerprint:
    """What tells models apart whose names, shapes and numbers of weights are equal.

    Attributes
    ----------
    batch_size : int
        At which it was taken. It says nothing at another one.
    nodes : str
        Digest of the layers, or of the operations, with their settings.
    loss : str
        Settings of the loss at layer level. Empty at op level, where the loss is among the operations.
    """

    batch_size: int
    nodes: str
    loss: str


@dataclass(frozen=True, eq=False)
class ProfileTable:
    """What the nodes of a model take on a device: n nodes, b batch sizes, microseconds.

    Attributes
    ----------
    model : str
    inputs : tuple of shapes
        Of the model's inputs, the batch as None.
    parameters : int
        Number of the model's weights. With `inputs` it tells variants of one name apart.
    device : str
        Processor, TensorFlow version and threads, in words.
    versions : dict from str to str
        Of the packages that took part.
    precision : str
        Keras dtype policy, e.g. "float32"; several are joined by commas.
    level : {"layer", "op"}
    batch_sizes : tuple of b int
        Ascending.
    names : tuple of n str
    kinds : tuple of n str
        "forward", "loss" or "backward" at layer level; the type of operation at op level.
    median_us : (n, b) float
        Finite and positive.
    spread_us : (n, b) float
        Interquartile range of the runs.
    repetitions : (n, b) int
        Timed runs; 0 where there was nothing to run (a gradient that nothing needs).
    fingerprint : Fingerprint, optional
        None in files of earlier versions.
    """

    model: str
    inputs: tuple[tuple[int | None, ...], ...]
    parameters: int
    device: str
    versions: Mapping[str, str]
    precision: str
    level: str
    batch_sizes: tuple[int, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    median_us: NDArray[np.float64]
    spread_us: NDArray[np.float64]
    repetitions: NDArray[np.int64]
    fingerprint: Fingerprint | None = None

    def __post_init__(self) -> None:
        shape = (len(self.names), len(self.batch_sizes))
        for key in ("median_us", "spread_us", "repetitions"):
            column = np.array(getattr(self, key), dtype=np.int64 if key == "repetitions" else np.float64)
            column.setflags(write=False)
            if column.shape != shape:
                raise CostError(
                    f"profile of {self.model!r}: {key} has shape {column.shape} for {shape[0]} nodes and {shape[1]} "
                    "batch sizes"
                )
            object.__setattr__(self, key, column)
        if len(self.kinds) != shape[0] or not shape[0] or not shape[1]:
            raise CostError(f"profile of {self.model!r}: give a kind for each node, and at least one node and batch")
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)) or self.batch_sizes[0] < 1:
            raise CostError(f"profile of {self.model!r}: batch sizes {self.batch_sizes} must be positive and ascending")
        if self.level not in LEVELS:
            raise CostError(f"profile of {self.model!r}: level {self.level!r} is none of {', '.join(LEVELS)}")
        if not np.isfinite(self.median_us).all() or (self.median_us <= 0).any():
            raise CostError(f"profile of {self.model!r}: a median is not finite or not positive")
        if not np.isfinite(self.spread_us).all() or (self.spread_us < 0).any() or (self.repetitions < 0).any():
            raise CostError(f"profile of {self.model!r}: a spread or a number of repetitions is negative or not finite")

    def __len__(self) -> int:
        return len(self.names)

    def fit(self) -> NDArray[np.float64]:
        """(n, 2) coefficients a (us) and b (us a sample) of each node: time = a + b B, neither negative."""
        from scipy.optimize import nnls

        if len(self.batch_sizes) == 1:
            return np.column_stack([np.zeros(len(self)), self.median_us[:, 0] / self.batch_sizes[0]])
        largest = self.batch_sizes[-1]
        design = np.column_stack([np.ones(len(self.batch_sizes)), np.array(self.batch_sizes) / largest])
        scale = self.median_us.max(axis=1)
        found = np.array([nnls(design, row / most)[0] for row, most in zip(self.median_us, scale, strict=True)])
        return found * scale[:, None] / (1.0, largest)

    def costs(self, batch_size: int) -> NDArray[np.float64]:
        """(n,) microseconds at a batch: the medians where it was run, else the fit.

        Raises
        ------
        BatchSizeError
            If the batch is not a positive whole number.
        """
        batch_size = whole_batch(batch_size)
        if batch_size in self.batch_sizes:
            return self.median_us[:, self.batch_sizes.index(batch_size)].copy()
        return np.maximum(self.fit() @ (1.0, float(batch_size)), FLOOR_US)

    def origin(self, batch_size: int) -> str:
        """Where the costs of a batch are from, in words."""
        run = ", ".join(map(str, self.batch_sizes))
        if batch_size in self.batch_sizes:
            return f"measured at batch {batch_size}"
        if len(self.batch_sizes) == 1:
            return f"proportional to batch {run}, the only one that was run"
        beyond = not self.batch_sizes[0] <= batch_size <= self.batch_sizes[-1]
        return f"{'extrapolated' if beyond else 'fitted'} from batches {run}"

    def same_setting(self, other: ProfileTable) -> str:
        """Empty if both tables are of one model in one setting; else what differs, in words."""
        for key in ("model", "level", "inputs", "parameters", "precision", "device", "versions"):
            mine, theirs = getattr(self, key), getattr(other, key)
            if mine != theirs:
                return f"{key} {mine} against {theirs}"
        if _tell_apart(self.fingerprint, other.fingerprint):
            return f"fingerprint {self.fingerprint} against {other.fingerprint}"
        if len(self) != len(other):
            return f"{len(self)} nodes against {len(other)}"
        for i, (mine, theirs) in enumerate(zip(self.names, other.names, strict=True)):
            if not _same_name(mine, theirs) or self.kinds[i] != other.kinds[i]:
                return f"node {i}, {mine} against {theirs}"
        return ""


def _tell_apart(one: Fingerprint | None, other: Fingerprint | None) -> bool:
    """Whether two fingerprints, taken at the same batch size, differ."""
    return one is not None and other is not None and one.batch_size == other.batch_size and one != other


def _same_name(one: str, other: str) -> bool:
    """Whether two names are equal, but for the counters that Keras appends (`dense_3`)."""
    return _COUNTER.sub("", one) == _COUNTER.sub("", other)


def merged(old: ProfileTable | None, new: ProfileTable) -> ProfileTable:
    """Both tables' batch sizes; the new one's values where both have them.

    Raises
    ------
    CostError
        If they are not of one model in one setting.
    """
    if old is None:
        return new
    if differs := old.same_setting(new):
        raise CostError(f"profiles of {old.model!r} cannot be joined: they differ in {differs}")
    batch_sizes = tuple(sorted({*old.batch_sizes, *new.batch_sizes}))
    sources = [
        (new, new.batch_sizes.index(b)) if b in new.batch_sizes else (old, old.batch_sizes.index(b))
        for b in batch_sizes
    ]

    def joined(key: str) -> NDArray:
        return np.column_stack([getattr(table, key)[:, k] for table, k in sources])

    return replace(
        new,
        batch_sizes=batch_sizes,
        median_us=joined("median_us"),
        spread_us=joined("spread_us"),
        repetitions=joined("repetitions"),
    )


def kind_words(graph: Graph) -> list[str]:
    """The kinds of a graph's nodes as profiles write them."""
    return [LAYER_KINDS[kind] for kind in graph.kinds.tolist()]


def graph_with_profile(graph: Graph, table: ProfileTable, batch_size: int, source: str = "the profile") -> Graph:
    """A layer-level graph with the costs of a profile, in microseconds.

    Names are compared without the counters that Keras appends (`dense_3`), which differ from one process to another.

    Raises
    ------
    CostError
        If the profile is not of this graph's layers; names the first node that differs.
    """
    if table.level != "layer":
        raise CostError(f"{source} is at {table.level} level, but the graph has a node for each layer: profile layers")
    if len(table) != len(graph):
        raise CostError(
            f"{source} has {len(table)} nodes ({table.model}), but the graph of {graph.name!r} has {len(graph)}: it is "
            "of another model; profile this one"
        )
    _check_same(graph.names, table.names, source, graph.name)
    _check_same(kind_words(graph), table.kinds, source, graph.name)
    return graph.with_costs(table.costs(batch_size), "us")


def _check_same(wanted: Sequence[str], found: Sequence[str], source: str, name: str) -> None:
    for i, (want, have) in enumerate(zip(wanted, found, strict=True)):
        if not _same_name(want, have):
            raise CostError(
                f"{source}: node {i} is {have!r}, but {want!r} in the graph of {name!r}: it is of another model; "
                "profile this one"
            )
