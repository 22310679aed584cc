"""What less memory costs: a graph solved for several budgets, before one is chosen.

Budgets lie evenly between the peak of the plain step and the least that is known to do. The largest comes first: there
a schedule is soon found, and leaves its seconds to the smaller ones. An answer serves the other budgets, too. A
schedule fits every budget above its peak. And what no schedule can cost less than within a budget, no schedule can
within a smaller one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import BudgetError, InfeasibleBudgetError
from ..graph import Graph
from ..schedule import Schedule, keep_all
from ..units import format_bytes
from .checkmate import checkmate
from .compiled import compile_search
from .options import SolveOptions
from .search.minimum_budget import minimum_budget, proven_minimum

__all__ = ["Offer", "Tradeoff", "tradeoff"]

_LEAST_SHARE = 0.2  # of the time: to look for the least budget
_LEAST_SECONDS = 2.0  # or so long: in a new process compiled code is loaded first
_NOTHING = 1e-3  # of the step's cost: less than this is no knee worth naming


@dataclass(frozen=True, eq=False)
class Offer:
    """A budget, and what it costs.

    Attributes
    ----------
    budget_bytes : int
        Constants included.
    schedule : Schedule
        The cheapest one that is known to fit.
    lower_bound : float
        No schedule within the budget costs less, in the graph's unit; in any order where that was searched.
    batch_plain, batch_most : int or None
        How many samples would fit into the budget: computing nothing twice, and with the schedule of least known peak.
        Values are taken to grow with the batch. None for a graph whose batch is not known.
    """

    budget_bytes: int
    schedule: Schedule
    lower_bound: float
    batch_plain: int | None = None
    batch_most: int | None = None

    @property
    def overhead(self) -> float:
        """How much more it costs than computing each node once, as a share of that."""
        return self.schedule.overhead

    @property
    def least_overhead(self) -> float:
        """The same of the lower bound."""
        base = self.schedule.graph.base_cost
        return max(0.0, self.lower_bound / base - 1) if base else 0.0


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """Budgets and what they cost, the largest first.

    Attributes
    ----------
    graph : Graph
    offers : tuple of Offer
    impossible_bytes : int
        No schedule fits a budget below this, by proof; in any order where that was searched.
    least_bytes : int
        A schedule is known for this.
    batch_size : int or None
        Of the graph.
    seconds : float
        What it took.
    """

    graph: Graph
    offers: tuple[Offer, ...]
    impossible_bytes: int
    least_bytes: int
    batch_size: int | None = None
    seconds: float = 0.0

    @property
    def plain_bytes(self) -> int:
        """The peak of the plain step, which computes nothing twice: more is of no use."""
        return self.offers[0].budget_bytes

    @property
    def knee(self) -> Offer | None:
        """The budget below which memory becomes dear: where the curve is farthest below the line between its ends.

        None if nothing has to be recomputed to speak of, or there are too few budgets.
        """
        first, last = self.offers[0], self.offers[-1]
        high, wide = last.overhead - first.overhead, first.budget_bytes - last.budget_bytes
        if len(self.offers) < 3 or high < _NOTHING or wide <= 0:
            return None

        def below_the_line(offer: Offer) -> float:
            return (first.budget_bytes - offer.budget_bytes) / wide - (offer.overhead - first.overhead) / high

        return max(self.offers, key=below_the_line)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        knee = self.knee
        return {
            "name": self.graph.name,
            "batch_size": self.batch_size,
            "plain_bytes": self.plain_bytes,
            "least_bytes": self.least_bytes,
            "impossible_bytes": self.impossible_bytes,
            "knee_bytes": None if knee is None else knee.budget_bytes,
            "seconds": self.seconds,
            "offers": [
                {
                    "budget_bytes": offer.budget_bytes,
                    "peak_bytes": offer.schedule.peak_bytes,
                    "overhead": offer.overhead,
                    "least_overhead": offer.least_overhead,
                    "batch_plain": offer.batch_plain,
                    "batch_most": offer.batch_most,
                }
                for offer in self.offers
            ],
        }

    def plot(self, path: Any = None) -> Any:
        """Draw overhead against the budget; see `checkmate_tf.draw.tradeoff_plot`. Returns the figure."""
        from ..draw.tradeoff_plot import plot_tradeoff

        knee = self.knee
        return plot_tradeoff(
            [offer.budget_bytes for offer in self.offers],
            [offer.overhead for offer in self.offers],
            [offer.least_overhead for offer in self.offers],
            title=self.graph.name,
            knee=None if knee is None else (knee.budget_bytes, knee.overhead),
            impossible_bytes=self.impossible_bytes,
            path=path,
        )

    def __str__(self) -> str:
        header: tuple[str, ...] = ("budget", "of the plain peak", "more computation", "at least")
        rows: list[tuple[str, ...]] = [
            (
                format_bytes(offer.budget_bytes),
                f"{offer.budget_bytes / self.plain_bytes:.0%}",
                f"{offer.overhead:.2%}",
                f"{offer.least_overhead:.2%}",
            )
            for offer in self.offers
        ]
        if self.batch_size is not None:
            header = (*header, "samples, plainly", "at most")
            counts = [(str(offer.batch_plain), str(offer.batch_most)) for offer in self.offers]
            rows = [(*row, *both) for row, both in zip(rows, counts, strict=True)]
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in (header, *rows)]
        knee = self.knee
        if knee is not None:
            lines.append(f"below {format_bytes(knee.budget_bytes)} memory becomes dear")
        lines.append(
            f"below {format_bytes(self.impossible_bytes)} no schedule fits, by proof; the least known to do is "
            f"{format_bytes(self.least_bytes)}"
        )
        return "\n".join(lines)


def tradeoff(
    graph: Graph,
    budgets: int = 10,
    options: SolveOptions | None = None,
    *,
    batch_size: int | None = None,
    fixed_bytes: int | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Tradeoff:
    """Find what each of several budgets costs.

    Parameters
    ----------
    graph : Graph
    budgets : int
        How many, from the plain peak to the least known to do; at least two.
    options : SolveOptions, optional
        Its `time_limit` is for all of them together.
    batch_size : int, optional
        Samples that the graph is for.
    fixed_bytes : int, optional
        What of the graph's constants does not grow with the batch. Default: all of them.
    progress : callable (done, total, text), optional

    Raises
    ------
    BudgetError
        If there are fewer than two budgets.

    Notes
    -----
    Of the time, a fifth is for the least budget, or two seconds if that is at most half. Each of the others gets an
    equal part of what is left.
    """
    if budgets < 2:
        raise BudgetError(f"{budgets} budgets: give at least 2, the plain peak and the least")
    options = options or SolveOptions()
    compile_search()
    begun = time.perf_counter()
    tell = progress or (lambda done, total, text: None)
    plain = keep_all(graph)
    tell(0, budgets, "the least budget")
    impossible = proven_minimum(graph, options.order)[0]
    seconds = max(_LEAST_SHARE * options.time_limit, min(_LEAST_SECONDS, 0.5 * options.time_limit))
    least = minimum_budget(graph, seconds)[1]
    sizes = [int(size) for size in np.linspace(plain.peak_bytes, min(least, plain.peak_bytes), budgets)]
    sizes = sorted(set(sizes), reverse=True)
    solved: list[tuple[int, Schedule | None, float]] = []
    for k, size in enumerate(sizes):
        tell(k, len(sizes), format_bytes(size))
        left = options.time_limit - (time.perf_counter() - begun)
        mine = replace(options, time_limit=max(left / (len(sizes) - k), 0.1), settle=True, progress=None)
        solved.append((size, *_solved(graph, size, mine, plain)))
    tell(len(sizes), len(sizes), "")
    known = [schedule for _, schedule, _ in solved if schedule is not None]
    offers = [
        _with_batches(
            Offer(size, min(fitting, key=lambda schedule: schedule.cost), _bound(solved, size, graph)),
            batch_size, graph.constant_bytes if fixed_bytes is None else fixed_bytes, plain.peak_bytes, least,
        )
        for size in sizes
        if (fitting := [schedule for schedule in known if schedule.peak_bytes <= size])
    ]  # fmt: skip
    least = min(least, *(offer.schedule.peak_bytes for offer in offers))
    return Tradeoff(graph, tuple(offers), impossible, least, batch_size, time.perf_counter() - begun)


def _solved(graph: Graph, size: int, options: SolveOptions, plain: Schedule) -> tuple[Schedule | None, float]:
    """A schedule within a budget, if one was found in that time, and what none can cost less than."""
    if plain.peak_bytes <= size:
        return plain, graph.base_cost
    try:
        found = checkmate(graph, size, options)
    except InfeasibleBudgetError:
        return None, graph.base_cost
    return found, max(graph.base_cost, found.lower_bound)


def _bound(solved: Sequence[tuple[int, Schedule | None, float]], size: int, graph: Graph) -> float:
    """The most that was proven for this budget, or for a larger one."""
    return max((bound for other, _, bound in solved if other >= size), default=graph.base_cost)


def _with_batches(offer: Offer, batch_size: int | None, fixed: int, plain_bytes: int, least_bytes: int) -> Offer:
    if batch_size is None:
        return offer
    room = offer.budget_bytes - fixed
    plain, most = (max(0, int(batch_size * room / max(1, peak - fixed))) for peak in (plain_bytes, least_bytes))
    return replace(offer, batch_plain=plain, batch_most=max(plain, most))
