"""Random layered graphs: inference graphs with a complex interconnect, of any number of nodes and edges.

Gagrani et al. (Neural Topological Ordering for Computation Graphs, NeurIPS 2022, appendix A) define them, and Moccasin
(Bartan et al., ICML 2023, section 3.1) is measured on them. Nodes stand in layers. Edges join a layer to the next, each
node to those across from it, and some skip layers.

The papers publish no graphs, and the appendix was not at hand. Layers, edges and their constants are as a public
generator that follows it has them (Task Bench, folder `generator`); means and deviations of sizes are as Jeon et al.
(Neural DAG Scheduling via One-Shot Priority Sampling, ICLR 2023, appendix C.3) quote them, their weights are ours. And:

- The edge density, 0.2 there, is whatever makes the number of edges come out. For Moccasin's sizes it is 0.11 to 0.27.
- Sizes are 1,000 bytes times Gagrani's draw (a mixture of four normal distributions), which makes peaks of the
  magnitude of Moccasin's table 2. Its own unit is not given.
- Costs are affine in the draw m, 100 m + 1, as in Jeon et al., an overlapping group. Moccasin does not say how
  durations are drawn.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import GraphError
from ..graph import FORWARD, Graph

__all__ = ["layered", "usual_edges"]

_WIDTH = (0.25, 0.5)  # width over width plus depth, drawn uniformly
_SPREAD = 0.75  # of the number of nodes in a layer, relative to its mean
_SKIPS = 0.14  # share of the edges that skip layers
_DRIFT = 0.2  # how far to the side such an edge goes at most, relative to the width
_MIXTURE = (0.3, 0.3, 0.3, 0.1)
_MEANS, _DEVIATIONS = (0.5, 1.0, 3.0, 5.0), (0.5, 1.0, 1.0, 1.0)
_TRIES = 1000


def usual_edges(n: int) -> int:
    """How many edges a layered graph of n nodes has in Moccasin's tables.

    There are four sizes: 100 nodes have 236 edges, 250 have 944, 500 have 2,461, and 1,000 have 5,875. The edges of a
    node grow with the logarithm of n: that is within 3% of these. There are at least three edges for two nodes here,
    which graphs of 6 nodes and more can take.
    """
    return round(n * max(1.5, 2.36 + 3.515 * (math.log10(max(n, 1)) - 2)))


def layered(n: int, m: int, seed: int = 0) -> Graph:
    """A random layered graph.

    Parameters
    ----------
    n, m : int
        Nodes and edges.
    seed : int
        Equal seeds give equal graphs.

    Returns
    -------
    Graph
        Its order is a random topological order, as Moccasin's input order is (section 3.3).

    Raises
    ------
    GraphError
        If no drawing of n nodes in layers takes m edges.
    """
    if n < 1 or m < 0:
        raise GraphError(f"a graph of {n} nodes and {m} edges does not exist")
    random = np.random.default_rng(seed)
    for _ in range(_TRIES):
        widths = _layers(n, random)
        edges = _edges(widths, m, random)
        if edges is not None:
            break
    else:
        raise GraphError(f"no layered graph of {n} nodes with {m} edges was drawn; give another number of edges")
    rank = _order(n, edges, random)
    inputs: list[list[int]] = [[] for _ in range(n)]
    for i, j in edges:
        inputs[rank[j]].append(int(rank[i]))
    component = random.choice(4, size=n, p=_MIXTURE)
    draw = np.maximum(0.0, random.normal(np.array(_MEANS)[component], np.array(_DEVIATIONS)[component]))
    return Graph(
        name=f"layered-{n}-{m}-{seed}",
        names=[f"v{i}" for i in range(n)],
        kinds=np.full(n, FORWARD),
        costs=np.round(100 * draw) + 1,
        sizes=np.round(1000 * draw),
        inputs=inputs,
        cost_unit="units",
    )


def _layers(n: int, random: np.random.Generator) -> list[int]:
    """Nodes of each layer."""
    depth = max(1, int(np.ceil(np.sqrt(n * (1 / random.uniform(*_WIDTH) - 1)))))
    least = max(1, int(np.ceil(n / depth * (1 - _SPREAD))))
    most = max(least, int(np.floor(n / depth * (1 + _SPREAD))))
    widths: list[int] = []
    while (left := n - sum(widths)) > 0:
        widths.append(min(left, int(random.integers(least, most + 1))))
    return widths


def _edges(widths: list[int], m: int, random: np.random.Generator) -> list[tuple[int, int]] | None:
    """m edges between nodes that are numbered layer by layer; None if these layers do not take them."""
    pairs = np.array([(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True)], dtype=np.int64).reshape(-1, 2)
    fewest, all_of_them = pairs.max(axis=1, initial=0), pairs.prod(axis=1)
    near = m - (round(_SKIPS * m) if len(widths) > 2 else 0)
    spare = int((all_of_them - fewest).sum())
    if not fewest.sum() <= near <= fewest.sum() + spare:
        return None
    density = (near - fewest.sum()) / spare if spare else 0.0
    begins = np.concatenate([[0], np.cumsum(widths)])
    found: set[tuple[int, int]] = set()
    wanted = np.floor(np.cumsum(fewest + density * (all_of_them - fewest)) + 1e-9).astype(np.int64)
    for layer, count in enumerate(np.diff(wanted, prepend=0).tolist()):
        found |= _between(begins[layer], widths[layer], begins[layer + 1], widths[layer + 1], count, random)
    for _ in range(50 * m):  # some of these exist already
        if len(found) == m:
            return sorted(found)
        source = int(random.integers(len(widths) - 2)) if len(widths) > 2 else 0
        target = int(random.integers(source + 2, len(widths))) if len(widths) > 2 else 1
        side = random.random()
        across = min(side + _DRIFT * random.random(), 1 - 1e-9)
        found.add((int(begins[source] + side * widths[source]), int(begins[target] + across * widths[target])))
    return sorted(found) if len(found) == m else None


def _between(
    first: int, width: int, second: int, below: int, count: int, random: np.random.Generator
) -> set[tuple[int, int]]:
    """`count` edges from a layer to the next: every node of the wider one has its share, to those across from it."""
    wide, narrow = max(width, below), min(width, below)
    share = np.full(wide, count // wide)
    share[random.permutation(wide)[: count % wide]] += 1
    edges = set()
    for k, many in enumerate(share.tolist()):
        centre = round(k * (narrow - 1) / max(wide - 1, 1))
        begin = min(max(centre - (many - 1) // 2, 0), narrow - many)
        for other in range(begin, begin + many):
            edges.add(
                (int(first + k), int(second + other)) if width >= below else (int(first + other), int(second + k))
            )
    return edges


def _order(n: int, edges: list[tuple[int, int]], random: np.random.Generator) -> NDArray[np.int64]:
    """(n,) position of each node in a topological order: the next is drawn from those that are ready."""
    users: list[list[int]] = [[] for _ in range(n)]
    missing = np.zeros(n, dtype=np.int64)
    for i, j in edges:
        users[i].append(j)
        missing[j] += 1
    ready = np.flatnonzero(missing == 0).tolist()
    rank = np.zeros(n, dtype=np.int64)
    for position in range(n):
        k = int(random.integers(len(ready)))
        ready[k], ready[-1] = ready[-1], ready[k]
        node = ready.pop()
        rank[node] = position
        for user in users[node]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    return rank
