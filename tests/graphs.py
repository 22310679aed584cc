"""Graphs for the tests: small ones by hand, skeletons of networks, and random ones for Hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from checkmate_tf.graph import BACKWARD, FORWARD, LOSS, Graph
from checkmate_tf.operators import Implementation, OperatorGraph
from checkmate_tf.strategies.orders import legalise, with_order_of_effects

__all__ = [
    "a_legal_order",
    "any_graphs",
    "chain",
    "operator_graphs",
    "orders",
    "paper_chain",
    "random_graphs",
    "random_step",
    "resnet",
    "result_in_the_way",
    "stages_turned",
    "tiny_graph",
    "training",
    "training_operators",
    "transformer",
    "unet",
]


def training(
    inputs: Sequence[Sequence[int]],
    costs: Sequence[float],
    sizes: Sequence[int],
    *,
    saves: Sequence[Sequence[int]] | None = None,
    name: str = "skeleton",
    **fields: object,
) -> Graph:
    """A training step: forward nodes, a loss on the last, and one gradient node for each forward node in reverse.

    Parameters
    ----------
    inputs, costs, sizes
        Of the forward nodes.
    saves : sequence of sequences of int, optional
        Forward values that the gradient node of i reads; by default i and its inputs.
    """
    n = len(inputs)
    users: list[list[int]] = [[] for _ in range(n)]
    for j, row in enumerate(inputs):
        for i in row:
            users[i].append(j)
    grad = {i: n + (n - i) for i in range(n)}
    all_inputs = [list(row) for row in inputs] + [[n - 1]]
    for i in reversed(range(n)):
        saved = [i, *inputs[i]] if saves is None else list(saves[i])
        all_inputs.append([*saved, *([grad[u] for u in users[i]] or [n])])
    return Graph(
        name=name,
        names=[f"f{i}" for i in range(n)] + ["loss"] + [f"g{i}" for i in reversed(range(n))],
        kinds=np.array([FORWARD] * n + [LOSS] + [BACKWARD] * n),
        costs=np.array([*costs, 0.0, *(2.0 * c for c in reversed(costs))]),
        sizes=np.array([*sizes, 4, *reversed(sizes)]),
        inputs=all_inputs,
        **fields,  # type: ignore[arg-type]
    )


def chain(n: int, **fields: object) -> Graph:
    """n unit layers, their loss and their gradients (each reads its layer's input and output)."""
    return training([[i - 1] if i else [] for i in range(n)], [1.0] * n, [1] * n, name=f"chain{n}", **fields)


def paper_chain(layers: int = 8) -> Graph:
    """The linear network of Checkmate's appendix A: n = 2 * layers + 1 nodes of unit cost and size.

    Each node, the loss and the gradients too, reads the one before it, and the gradient node 2 * layers - i also the
    layer i. No layer's gradient reads the layer's input.
    """
    n = 2 * layers + 1
    inputs = [[i - 1] * (i > 0) + ([2 * layers - i] if i > layers else []) for i in range(n)]
    kinds = [FORWARD] * layers + [LOSS] + [BACKWARD] * layers
    return Graph(f"paper{layers}", [f"v{i}" for i in range(n)], np.array(kinds), np.ones(n), np.ones(n), inputs)


def resnet(blocks: int = 58, seed: int = 0) -> Graph:
    """Residual blocks of three ops (op 1 dear, op 2 and the sum cheap) in four widths: 6 * blocks + 3 nodes."""
    rng = np.random.default_rng(seed)
    inputs: list[list[int]] = [[]]
    costs, sizes = [20.0], [16 << 20]
    for b in range(blocks):
        x = len(inputs) - 1
        stage = 4 * b // blocks
        size = (16 << 20) >> stage
        inputs += [[x], [x + 1], [x + 2, x]]
        costs += [30.0 + 10 * rng.random(), 2.0 + rng.random(), 1.0]
        sizes += [size, size, size]
    return training(inputs, costs, sizes, name=f"resnet{blocks}")


def transformer(layers: int = 12) -> Graph:
    """Attention (a large cheap score matrix) and a feed-forward part, with residual sums."""
    inputs: list[list[int]] = [[]]
    costs, sizes = [1.0], [4 << 20]
    for _ in range(layers):
        x = len(inputs) - 1
        inputs += [[x], [x + 1], [x + 2], [x + 1, x + 3], [x + 4, x], [x + 5], [x + 6], [x + 7], [x + 8, x + 5]]
        costs += [1.0, 12.0, 3.0, 5.0, 0.5, 1.0, 16.0, 16.0, 0.5]
        sizes += [4 << 20, 12 << 20, 24 << 20, 4 << 20, 4 << 20, 4 << 20, 16 << 20, 4 << 20, 4 << 20]
    return training(inputs, costs, sizes, name=f"transformer{layers}")


def unet(depth: int = 4) -> Graph:
    """Two convolutions a level down and up, with skips."""
    inputs: list[list[int]] = [[]]
    costs, sizes, skips = [4.0], [64 << 20], []
    for d in range(depth):
        x = len(inputs) - 1
        inputs += [[x], [x + 1], [x + 2]]
        costs += [20.0, 20.0, 1.0]
        sizes += [(64 << 20) >> d, (64 << 20) >> d, (16 << 20) >> d]
        skips.append(x + 2)
    for d in reversed(range(depth)):
        x = len(inputs) - 1
        inputs += [[x], [x + 1, skips[d]], [x + 2]]
        costs += [10.0, 30.0, 20.0]
        sizes += [(64 << 20) >> d, (64 << 20) >> d, (64 << 20) >> d]
    return training(inputs, costs, sizes, name=f"unet{depth}")


@st.composite
def random_graphs(draw: st.DrawFn, max_nodes: int = 7, *, stateful: bool = True, workspace: bool = True) -> Graph:
    """Any small graph: random edges, kinds in order, some nodes that may not be recomputed."""
    n = draw(st.integers(2, max_nodes))
    inputs = [sorted(draw(st.sets(st.integers(0, j - 1), max_size=3))) if j else [] for j in range(n)]
    first_backward = draw(st.integers(1, n))
    return Graph(
        name="random",
        names=[f"v{i}" for i in range(n)],
        kinds=np.where(np.arange(n) < first_backward, FORWARD, BACKWARD),
        costs=np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), dtype=float),
        sizes=np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))),
        inputs=inputs,
        constant_bytes=draw(st.integers(0, 3)),
        workspace=np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))) if workspace else None,
        recompute_until=np.array(
            draw(st.lists(st.sampled_from([0, n // 2, n, n, n]), min_size=n, max_size=n)) if stateful else [n] * n
        ),
    )


@st.composite
def any_graphs(draw: st.DrawFn) -> Graph:
    """Random graphs with what only ours have: nodes that compute in place, and pay if they cannot."""
    graph = draw(random_graphs(8))
    n = len(graph)
    held = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    workspace = [draw(st.integers(-size, 2)) for size in graph.sizes.tolist()]
    return replace(graph, held=np.array(held), workspace=np.array(workspace), cost_unit=draw(st.text(max_size=3)))


@st.composite
def orders(draw: st.DrawFn, graph: Graph) -> list[int]:
    """An order of computation: in each stage some nodes again, in the graph's order, then the stage's own."""
    order: list[int] = []
    for t in range(len(graph)):
        again = [i for i in range(t) if graph.recompute_until[i] > t]
        order += sorted(draw(st.sets(st.sampled_from(again)))) if again else []
        order.append(t)
    return order


@st.composite
def operator_graphs(draw: st.DrawFn, max_nodes: int = 7) -> OperatorGraph:
    """Any small graph, a few of whose nodes have other ways, and some forward nodes of which are encodings."""
    graph = draw(random_graphs(max_nodes))
    ways: dict[int, list[Implementation]] = {}
    for i in draw(st.sets(st.integers(0, len(graph) - 1), max_size=3)):
        for at in range(draw(st.integers(1, 2))):
            reads = tuple(draw(st.sets(st.integers(0, i - 1), max_size=2))) if i else ()
            space = draw(st.integers(_in_place(graph.sizes, i, reads, max), 2))
            ways.setdefault(i, []).append(Implementation(f"way {at}", float(draw(st.integers(0, 5))), reads, space))
    forward = np.flatnonzero(graph.kinds == FORWARD).tolist()
    return OperatorGraph(graph, ways, frozenset(draw(st.sets(st.sampled_from(forward), max_size=2))))


@st.composite
def training_operators(draw: st.DrawFn, max_forward: int = 4, max_backward: int = 3) -> OperatorGraph:
    """A small training step whose gradients read forward values in several ways; some nodes compute in place."""
    forward, backward = draw(st.integers(2, max_forward)), draw(st.integers(1, max_backward))
    n, forward_values = forward + backward, st.sets(st.integers(0, forward - 1), min_size=1, max_size=2)
    column = lambda low, high: np.array(draw(st.lists(st.integers(low, high), min_size=n, max_size=n)))  # noqa: E731
    inputs = [sorted({max(0, i - 1), draw(st.integers(0, i - 1))}) if i else [] for i in range(forward)]
    inputs += [sorted({k - 1, *draw(forward_values)}) for k in range(forward, n)]
    sizes, plain = np.where(np.arange(n) < forward, column(1, 4), 1), column(0, 2)
    space = np.array([_in_place(sizes, i, inputs[i]) if plain[i] == 0 else plain[i] - 1 for i in range(n)])
    graph = Graph(
        "training", [f"v{i}" for i in range(n)], np.where(np.arange(n) < forward, FORWARD, BACKWARD),
        column(1, 5) * 1.0, sizes, inputs, draw(st.integers(0, 2)), workspace=space, held=np.maximum(0, -space),
        recompute_until=np.where(column(0, 5) == 0, n // 2, n),
    )  # fmt: skip
    ways: dict[int, list[Implementation]] = {}
    for u in draw(st.sets(st.integers(1, n - 1), max_size=3)):
        reads = sorted({u - 1, *draw(forward_values)} if u >= forward else inputs[u])
        extra = draw(st.sampled_from([0, 0, 1, _in_place(sizes, u, reads, max)]))
        ways[u] = [Implementation("other", float(draw(st.integers(1, 6))), tuple(reads), extra)]
    return OperatorGraph(graph, ways, frozenset(draw(st.sets(st.integers(0, forward - 1), max_size=1))))


def _in_place(sizes: np.ndarray, i: int, reads: Sequence[int], of: Callable[[Iterable[int]], int] = min) -> int:
    """The least workspace: the memory of any of its inputs is reused, or of the largest (`of=max`)."""
    return -min(int(sizes[i]), of(int(sizes[p]) for p in reads)) if reads else 0


def tiny_graph(rng: np.random.Generator) -> Graph:
    """At most 8 nodes, of a training step or of none. Some run once, wait, or compute into what they read."""
    if rng.random() < 0.5:
        nodes = int(rng.integers(1, 4))
        inputs = [[i - 1, *rng.choice(i, int(rng.random() < 0.3)).tolist()] if i else [] for i in range(nodes)]
        graph = training(inputs, rng.integers(0, 9, nodes).tolist(), rng.integers(0, 9, nodes).tolist())
    else:
        nodes = int(rng.integers(2, 8))
        inputs = [rng.choice(i, min(i, int(rng.integers(0, 3))), replace=False).tolist() for i in range(nodes)]
        graph = Graph(
            "random", [f"v{i}" for i in range(nodes)], np.full(nodes, FORWARD), rng.integers(0, 9, nodes),
            rng.integers(0, 9, nodes), inputs, constant_bytes=int(rng.integers(0, 3)),
        )  # fmt: skip
    n = len(graph)
    taken = rng.random(n) < 0.3
    return replace(
        graph,
        recompute_until=np.where(rng.random(n) < 0.15, rng.integers(0, n + 1, n), n),
        workspace=np.where(taken, -graph.sizes // 2, rng.integers(0, 2, n)),
        held=np.where(taken, graph.sizes - graph.sizes // 2, 0),
        waits=[rng.choice(i, 1).tolist() if i and rng.random() < 0.1 else [] for i in range(n)],
    )


def result_in_the_way() -> Graph:
    """A result of 5 bytes comes first. In the graph's order 8 bytes are needed, and 6 if it comes last."""
    return Graph("late", ["a", "b", "c"], np.array([0, 2, 2]), [0, 1, 3], [5, 2, 1], [[], [], [1]])


def stages_turned() -> tuple[Graph, int, list[int]]:
    """A graph, a budget, and the optimum within it: its last stage computes node 2 before node 0.

    In stages that compute nodes in the graph's order nothing fits it.
    """
    graph = Graph(
        "turned", [f"v{i}" for i in range(6)], np.full(6, FORWARD), [2, 0, 0.5, 1, 2, 0.5], [1, 8, 3, 2, 2, 2],
        [[], [], [1], [], [1, 3], [4]], workspace=[-1, 0, 1, 3, 0, -2], held=[0, 1, 0, 0, 1, 0],
    )  # fmt: skip
    return graph, 14, [0, 1, 2, 3, 4, 2, 0, 5]


def a_legal_order(graph: Graph, seed: int) -> np.ndarray:
    """Some order that inputs and effects allow."""
    wanted = np.random.default_rng(seed).permutation(len(graph))
    return np.array(list(dict.fromkeys(legalise(with_order_of_effects(graph), wanted))))


def random_step(rng: np.random.Generator, nodes: int) -> Graph:
    """A training step of so many forward nodes. Some nodes run once, and some compute into what they read."""
    inputs = [
        [i - 1, *rng.choice(i, int(rng.random() < 0.3), replace=False).tolist()] if i else [] for i in range(nodes)
    ]
    graph = training(inputs, rng.integers(1, 9, nodes).tolist(), rng.integers(1, 9, nodes).tolist())
    n = len(graph)
    return replace(
        graph,
        recompute_until=np.where(rng.random(n) < 0.05, 0, n),
        workspace=np.where(rng.random(n) < 0.2, -graph.sizes // 2, rng.integers(0, 2, n)),
    )
