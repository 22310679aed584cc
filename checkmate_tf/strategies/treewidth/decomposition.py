"""Tree decompositions of data-flow graphs, and the balanced separators that divide them.

A tree decomposition of an undirected graph is a tree whose nodes are *bags* of vertices, such that every vertex is in a
bag, every edge has both ends in a bag, and the bags of a vertex are connected in the tree. Its width is the size of its
largest bag less one. The decomposition comes from an elimination order: eliminating a vertex joins all its neighbours
(the edges this adds are the *fill-in*) and takes it out; its bag is the vertex with its neighbours of that moment. The
vertex that adds the least edges goes first.

References
----------
.. [1] R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. R. Wang. Efficient rematerialization for deep networks.
   NeurIPS 2019, sections 2.2 and 3.
.. [2] H. L. Bodlaender, A. M. C. A. Koster. Treewidth computations I. Upper bounds. Information and Computation 208
   (2010), section 3: the minimum fill-in heuristic.
.. [3] C. Jordan. Sur les assemblages de lignes. J. Reine Angew. Math. 70 (1869): the centroid of a tree.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from ...errors import GraphError
from ...graph import Graph

__all__ = ["Part", "TreeDecomposition", "divide", "merge_bags", "minimum_fill_in", "neighbours_of"]


@dataclass(frozen=True, eq=False)
class TreeDecomposition:
    """Bags of vertices, and the edges of the tree that connects them.

    Attributes
    ----------
    bags : tuple of frozensets of int
    edges : tuple of (int, int)
        Between indices of `bags`: a tree.
    """

    bags: tuple[frozenset[int], ...]
    edges: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        """The number of bags."""
        return len(self.bags)

    @property
    def width(self) -> int:
        """Vertices in the largest bag, less one; -1 without vertices."""
        return max(map(len, self.bags), default=0) - 1

    def neighbours(self) -> list[list[int]]:
        """For each bag those that are next to it in the tree."""
        beside: list[list[int]] = [[] for _ in self.bags]
        for a, b in self.edges:
            beside[a].append(b)
            beside[b].append(a)
        return beside

    def check(self, neighbours: Sequence[Collection[int]]) -> None:
        """Raise unless this is a tree decomposition of the graph.

        Parameters
        ----------
        neighbours : for each vertex those that an edge connects it with

        Raises
        ------
        GraphError
            If the bags do not form a tree, a vertex or an edge is in no bag, or the bags of a vertex are apart.
        """
        beside = self.neighbours()
        seen, todo = {0}, [0]
        while todo:
            found = [b for b in beside[todo.pop()] if b not in seen]
            seen.update(found)
            todo += found
        if self.bags and (len(seen) != len(self.bags) or len(self.edges) != len(self.bags) - 1):
            raise GraphError(f"{len(self.bags)} bags and {len(self.edges)} edges between them do not form a tree")
        homes: list[set[int]] = [set() for _ in neighbours]
        for index, bag in enumerate(self.bags):
            for v in bag:
                homes[v].add(index)
        joints = [len(home) for home in homes]  # bags less tree edges among them: 1 if they are connected
        for a, b in self.edges:
            for v in self.bags[a] & self.bags[b]:
                joints[v] -= 1
        for v, row in enumerate(neighbours):
            if joints[v] != 1:
                raise GraphError(f"vertex {v} is in {len(homes[v])} bags, which form {joints[v]} connected parts")
            for u in row:
                if homes[v].isdisjoint(homes[u]):
                    raise GraphError(f"no bag has both ends of the edge between {v} and {u}")


def neighbours_of(graph: Graph) -> list[set[int]]:
    """For each node those that it reads and those that read it: the graph without its directions."""
    return [{*graph.inputs[v], *graph.users[v]} for v in range(len(graph))]


def minimum_fill_in(neighbours: Sequence[Iterable[int]]) -> TreeDecomposition:
    """Tree decomposition from the elimination order of least fill-in [2]_.

    Among vertices with equal fill-in the one of least degree goes first, then the one of least index. One bag a vertex;
    `merge_bags` leaves the maximal ones. Parts of the graph that are not connected are joined by an edge of the tree.

    Parameters
    ----------
    neighbours : for each vertex those that an edge connects it with
        Symmetric, without loops.

    Notes
    -----
    The fill-in of each vertex (pairs of its neighbours without an edge) is kept up to date, edge by edge: an edge that
    is added lowers the fill-in of the common neighbours of its ends, and no other vertex's but theirs. An elimination
    costs O(width) intersections of neighbourhoods, and one for each edge it adds; about linear in n for the graphs of
    training steps.
    """
    beside = [set(row) for row in neighbours]
    fill = [_missing_edges(beside, v) for v in range(len(beside))]
    heap = [(fill[v], len(beside[v]), v) for v in range(len(beside))]
    heapq.heapify(heap)
    order: list[int] = []
    bags: list[set[int]] = []
    place = [-1] * len(beside)  # in the elimination order; -1: not eliminated
    while heap:
        known, degree, v = heapq.heappop(heap)
        if place[v] >= 0 or known != fill[v] or degree != len(beside[v]):
            continue  # another entry has what is true now
        around = beside[v]
        place[v] = len(order)
        order.append(v)
        bags.append({v, *around})
        changed = set(around)
        for u in around:  # v leaves: its pairs with the other neighbours of u count no longer
            fill[u] -= len(beside[u]) - 1 - len(beside[u] & around)
            beside[u].discard(v)
        if known:
            for a in sorted(around):
                for b in sorted(around - beside[a]):
                    if a < b:
                        common = beside[a] & beside[b]
                        for w in common:
                            fill[w] -= 1
                        fill[a] += len(beside[a]) - len(common)
                        fill[b] += len(beside[b]) - len(common)
                        beside[a].add(b)
                        beside[b].add(a)
                        changed |= common
        for u in changed:
            heapq.heappush(heap, (fill[u], len(beside[u]), u))
        beside[v] = set()
    edges = []
    root = len(order) - 1
    for k, v in enumerate(order[:-1]):
        edges.append((k, min((place[u] for u in bags[k] if u != v), default=root)))
    return TreeDecomposition(tuple(map(frozenset, bags)), tuple(edges))


def _missing_edges(beside: Sequence[set[int]], v: int) -> int:
    """Pairs of neighbours of v without an edge between them."""
    degree = len(beside[v])
    present = sum(len(beside[u] & beside[v]) for u in beside[v])
    return (degree * (degree - 1) - present) // 2


def merge_bags(tree: TreeDecomposition) -> TreeDecomposition:
    """Merge adjacent bags of which one has all of the other, as long as there are any (Lemma 1 of [1]_).

    The width stays, and there are at most as many bags left as vertices. One pass over the edges: two bags that cannot
    be merged now can never be. O(bags * width).
    """
    leader = list(range(len(tree)))

    def find(a: int) -> int:
        while leader[a] != a:
            leader[a] = leader[leader[a]]
            a = leader[a]
        return a

    kept = []
    for a, b in tree.edges:
        a, b = find(a), find(b)
        if tree.bags[a] <= tree.bags[b]:
            leader[a] = b
        elif tree.bags[b] <= tree.bags[a]:
            leader[b] = a
        else:
            kept.append((a, b))
    heads = [a for a in range(len(tree)) if leader[a] == a]
    index = {a: k for k, a in enumerate(heads)}
    edges = tuple((index[find(a)], index[find(b)]) for a, b in kept)
    return TreeDecomposition(tuple(tree.bags[a] for a in heads), edges)


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a graph that is to be divided: one call of Algorithm 1 of [1]_.

    Attributes
    ----------
    bags : int
        Of the tree decomposition of this part.
    separator : tuple of int
        The vertices of its balanced separator, ascending, less those of separators around the part.
    parts : tuple of int
        What is left without the separator: indices of further parts, each with at most half of the bags.
    last : int
        The parts from this one's index up to here, exclusive, are in it.
    """

    bags: int
    separator: tuple[int, ...]
    parts: tuple[int, ...]
    last: int


def divide(tree: TreeDecomposition) -> list[Part]:
    """Divide a graph by balanced separators down to single bags (Lemma 3 of [1]_, by Jordan's theorem [3]_).

    A bag is taken out whose removal leaves subtrees of at most half of the bags; its vertices are taken out of all
    bags; and so on with each subtree that has vertices left. No edge of the graph connects two subtrees.

    Returns
    -------
    list of Part
        The whole graph first; the parts of a part come right after it. Each vertex is in one separator.

    Notes
    -----
    O(bags * width * log(bags)).
    """
    beside = tree.neighbours()
    removed = [False] * len(tree)  # bags
    gone: set[int] = set()  # vertices
    bags: list[int] = []
    separators: list[tuple[int, ...]] = []
    children: list[list[int]] = []
    last: list[int] = []

    def enter(start: int) -> int:
        component, sizes = _subtree_sizes(beside, removed, start)
        middle = _centroid(beside, removed, component, sizes)
        index = len(bags)
        bags.append(len(component))
        separators.append(tuple(sorted(tree.bags[middle] - gone)))
        children.append([])
        last.append(0)
        removed[middle] = True
        gone.update(separators[index])
        for b in beside[middle]:
            if not removed[b] and _has_vertices(tree, beside, removed, gone, b):
                children[index].append(enter(b))
        last[index] = len(bags)
        return index

    if len(tree):
        enter(0)
    return [Part(*entry) for entry in zip(bags, separators, map(tuple, children), last, strict=True)]


def _walk(beside: Sequence[Sequence[int]], removed: Sequence[bool], start: int) -> list[tuple[int, int]]:
    """(bag, the bag it was reached from) of the subtree around `start`, in an order that has parents first."""
    found = [(start, -1)]
    for bag, parent in found:
        found += [(b, bag) for b in beside[bag] if b != parent and not removed[b]]
    return found


def _subtree_sizes(
    beside: Sequence[Sequence[int]], removed: Sequence[bool], start: int
) -> tuple[list[tuple[int, int]], dict[int, int]]:
    component = _walk(beside, removed, start)
    sizes = {bag: 1 for bag, _ in component}
    for bag, parent in reversed(component):
        if parent >= 0:
            sizes[parent] += sizes[bag]
    return component, sizes


def _centroid(
    beside: Sequence[Sequence[int]],
    removed: Sequence[bool],
    component: Sequence[tuple[int, int]],
    sizes: dict[int, int],
) -> int:
    """A bag without which no subtree has more than half of the bags."""
    at, parent = component[0]
    while True:
        heavy = [b for b in beside[at] if b != parent and not removed[b] and 2 * sizes[b] > len(component)]
        if not heavy:
            return at
        parent, at = at, heavy[0]


def _has_vertices(
    tree: TreeDecomposition, beside: Sequence[Sequence[int]], removed: Sequence[bool], gone: set[int], start: int
) -> bool:
    return any(not tree.bags[bag] <= gone for bag, _ in _walk(beside, removed, start))
