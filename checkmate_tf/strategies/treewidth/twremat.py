"""TWRemat: rematerialization by divide and conquer on a tree decomposition.

The graph is divided by a balanced separator, a bag of its tree decomposition. For each node v of the separator, in
topological order, what v reads is computed in each part by a recursive call; then v, which stays in memory until the
separator's call ends. Between two nodes of the separator nothing of a part stays in memory but what the next one reads,
so parts are computed again and again: up to width + 2 times on each level of the recursion. For n nodes of unit size
and a decomposition of width k, the peak is O((most inputs of a node + k) log n) (Theorem 5).

TWRemat(k) does not divide parts of fewer than k bags, it computes them in topological order: k trades memory for
length, from TWRemat(1) to a schedule without recomputation (section 4.3). The strategy tries values of k and takes the
cheapest schedule that fits. Sizes and costs play no part but in that choice.

What the paper leaves open, and what is done here:

- One final node f stands for the result. Here all sinks are asked for.
- Only ancestors of what a call asks for are computed, in a separator, too (else a call for nothing would compute a
  whole part). Computations that nobody reads are dropped from the result.
- A node that may run only once (`Graph.recompute_until`) keeps its value, and such nodes keep their order: the memory
  bound does not hold for graphs that have them. They come as early as they can (`effects`), for Algorithm 1 computes
  ancestors once more to end with an update. Their order is tried as edges of the graph, too, which makes longer
  sequences of lower peaks: less has to be mended afterwards.
- Section 5 sketches an algorithm with stronger guarantees, on path decompositions: a directed Hamiltonian path (a
  spine) is added to the graph, which about doubles the pathwidth, then it recurses on both sides of the bag of the last
  node, with size and width of the decomposition both falling. How the spine is found, what each side is asked for and
  how the recursion goes on is in the paper's supplement, not in the paper. It is not built.

References
----------
.. [1] R. Kumar, M. Purohit, Z. Svitkina, E. Vee, J. R. Wang. Efficient rematerialization for deep networks.
   NeurIPS 2019.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from ...graph import Graph
from ...plan import evaluate, plan_from_sequence
from ...schedule import Schedule, keep_all
from ..options import SolveOptions
from ..orders import early_effects, legalise, with_order_of_effects, without_dead
from ..search.minimum_budget import infeasible
from .decomposition import Part, divide, merge_bags, minimum_fill_in, neighbours_of

__all__ = ["divisions", "limits", "recursive_sequence", "twremat", "twremat_sequence"]

_ALL = 24  # no more values of k than this are all tried
_MOST_COPIES, _SHORT = 64, 20_000  # a sequence is given up beyond this many times n and this many computations


def twremat(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The cheapest of the schedules TWRemat(k) that fits the budget.

    Parameters
    ----------
    graph : Graph
    budget_bytes : int
        Constants included.
    options : SolveOptions
        After `time_limit` no other k is tried. One schedule is made in any case.

    Raises
    ------
    InfeasibleBudgetError
        If no schedule fits. `minimum_bytes` is the least peak among them.
    """
    search = _OverLimits(graph, budget_bytes, options)
    if search.least > budget_bytes:
        for ordered, parts in divisions(graph):
            search.run(ordered, parts)
    if search.best is None:
        raise infeasible(graph, budget_bytes, search.least, order="free")
    return Schedule(
        graph, np.array(search.best), strategy="twremat", solver="tree decomposition by minimum fill-in",
        status="optimal" if search.cost <= graph.base_cost else "feasible", budget_bytes=budget_bytes,
        lower_bound=graph.base_cost, seconds=time.perf_counter() - search.begun,
    )  # fmt: skip


class _OverLimits:
    """The search over k for one budget.

    Attributes
    ----------
    best : sequence of int or None
        The cheapest that fits.
    cost : float
        Of the best.
    least : int
        The least peak seen, constants included.
    """

    def __init__(self, graph: Graph, budget_bytes: int, options: SolveOptions) -> None:
        self.begun = self.told = time.perf_counter()
        self.graph, self.budget_bytes, self.options = graph, budget_bytes, options
        plain = keep_all(graph)
        self.least = plain.peak_bytes
        self.best: Sequence[int] | None = plain.sequence.tolist() if self.least <= budget_bytes else None
        self.cost = plain.cost if self.best is not None else np.inf
        self.tries = 0

    def run(self, ordered: Graph, parts: Sequence[Part]) -> None:
        """Try recursion limits: all, or where bisection says that schedules begin to fit, and around it."""
        values = limits(parts)
        fits: dict[int, bool] = {}  # by position in `values`; a sequence that is too long might

        def attempt(positions: Iterable[int]) -> None:
            for at in positions:
                seconds = time.perf_counter() - self.begun
                if at not in fits and (not self.tries or seconds <= self.options.time_limit):
                    fits[at] = self._attempt(ordered, parts, values[at])

        if len(values) <= _ALL:
            return attempt(range(len(values)))
        low, high = 0, len(values) - 1
        attempt([high])
        while low < high:
            middle = (low + high) // 2
            attempt([middle])
            low, high = (low, middle) if fits.get(middle, True) else (middle + 1, high)
        around = range(max(0, low - _ALL // 4), min(len(values), low + _ALL // 4 + 1))
        attempt(sorted(around, key=lambda at: abs(at - low)))
        if self.best is None:
            attempt(np.linspace(0, len(values) - 1, _ALL // 2).astype(int).tolist())
        return None

    def _attempt(self, ordered: Graph, parts: Sequence[Part], k: int) -> bool:
        """Whether TWRemat(k) fits, or is too long or too dear to tell."""
        self.tries += 1
        sequence = twremat_sequence(self.graph, parts, k, ordered=ordered)
        if sequence is None or float(self.graph.costs[sequence].sum()) >= self.cost:
            return True
        found = evaluate(self.graph, plan_from_sequence(self.graph, sequence))
        self.least = min(self.least, found.peak_bytes)
        if found.peak_bytes <= self.budget_bytes:
            self.best, self.cost = sequence, found.cost
        now = time.perf_counter()
        if self.options.progress and now - self.told >= 1:
            self.told, base = now, self.graph.base_cost
            self.options.progress(now - self.begun, self.cost, base, 1 - base / self.cost if self.cost else 0.0)
        return found.peak_bytes <= self.budget_bytes


def divisions(graph: Graph) -> Iterator[tuple[Graph, list[Part]]]:
    """The graph, divided by the separators of its tree decomposition.

    Yields
    ------
    graph : Graph
        As it is; then, if it has nodes that may run only once, with the order of these as edges.
    parts : list of Part
    """
    ordered = [graph] if (graph.recompute_until > 0).all() else [graph, with_order_of_effects(graph)]
    for one in ordered:
        yield one, divide(merge_bags(minimum_fill_in(neighbours_of(one))))


def limits(parts: Sequence[Part]) -> list[int]:
    """All recursion limits that make a difference, descending; the first divides the graph once, the last is 1."""
    return sorted({1, *(part.bags for part in parts if part.parts)}, reverse=True)


def twremat_sequence(
    graph: Graph, parts: Sequence[Part], k: int, most: int | None = None, *, ordered: Graph | None = None
) -> list[int] | None:
    """The schedule TWRemat(k): Algorithm 1, made legal, less the computations that nobody reads.

    Parameters
    ----------
    graph : Graph
    parts : sequence of Part
        From `divisions`.
    k : int
        Parts of fewer bags are not divided. Between two values of `limits` nothing changes.
    most : int, optional
        Computations allowed. Default: 64 for each node, but at least 20,000.
    ordered : Graph, optional
        What `divisions` yields with the parts. Default: `graph`.

    Returns
    -------
    list of int, or None if Algorithm 1 makes more computations than `most`.
    """
    sequence = recursive_sequence(graph if ordered is None else ordered, parts, k, most)
    if sequence is None:
        return None
    return legalise(graph, without_dead(graph, legalise(graph, early_effects(graph, sequence))))


class _TooLongError(Exception):
    pass


def recursive_sequence(graph: Graph, parts: Sequence[Part], k: int = 1, most: int | None = None) -> list[int] | None:
    """Algorithm 1 as it stands, for all sinks: every node may be computed at any time. Otherwise `twremat_sequence`.

    Notes
    -----
    A call is known by its part and by what it is asked for; equal calls are made once. O(length * depth).
    """
    n, inputs = len(graph), graph.inputs
    most = max(_SHORT, _MOST_COPIES * n) if most is None else most
    home = [0] * n  # the part whose separator has the node
    for index, part in enumerate(parts):
        for v in part.separator:
            home[v] = index
    known: dict[tuple[int, tuple[int, ...]], list[int]] = {}

    def compute(index: int, wanted: tuple[int, ...]) -> list[int]:
        """A sequence of nodes of the part that has all those wanted; their inputs from outside are in memory."""
        key = index, wanted
        if key in known:
            return known[key]
        part = parts[index]
        needed, todo = set(wanted), list(wanted)
        while todo:
            for i in inputs[todo.pop()]:
                if index <= home[i] < part.last and i not in needed:
                    needed.add(i)
                    todo.append(i)
        if part.bags < k or not part.parts:
            sequence = sorted(needed)
        else:
            sequence = []
            for v in part.separator:
                if v in needed:
                    for child, asked in _by_part(part, home, inputs[v]):
                        sequence += compute(child, asked)
                    sequence.append(v)
            for child, asked in _by_part(part, home, wanted):
                sequence += compute(child, asked)
        if len(sequence) > most:
            raise _TooLongError
        known[key] = sequence
        return sequence

    try:
        return compute(0, tuple(v for v in range(n) if not graph.users[v])) if n else []
    except _TooLongError:
        return None


def _by_part(part: Part, home: Sequence[int], nodes: Iterable[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """The nodes by the child of the part that they are in; those of its separator and from outside are left out."""
    found: dict[int, list[int]] = {}
    if part.parts:
        first = part.parts[0]
        for v in nodes:
            if first <= home[v] < part.last:
                found.setdefault(part.parts[bisect_right(part.parts, home[v]) - 1], []).append(v)
    for child in sorted(found):
        yield child, tuple(found[child])
