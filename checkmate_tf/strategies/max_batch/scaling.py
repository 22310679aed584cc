"""From the graph of one sample to that of a batch, and what a schedule may cost."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

from ...errors import BudgetError, CostError, InfeasibleBudgetError
from ...graph import BACKWARD, Graph
from ...units import MOST_BYTES, format_bytes

__all__ = ["MOST_BATCH", "cost_limit", "most_batch", "one_sample", "samples", "scaled", "too_small"]

MOST_BATCH = 10**9
"""The largest batch that is ever given as an answer: samples of no bytes fit in any number."""


def cost_limit(graph: Graph, max_overhead: float | str) -> float:
    """The most that a schedule may cost, in the graph's unit.

    Parameters
    ----------
    max_overhead : float or "one-forward"
        A share of the base cost (0.1: 10% more), or one more forward pass: cost <= 2 x forward + backward, the paper's.

    Raises
    ------
    CostError
        If it is neither.
    """
    if max_overhead == "one-forward":
        return graph.base_cost + float(graph.costs[graph.kinds != BACKWARD].sum())
    if isinstance(max_overhead, (int, float)) and not isinstance(max_overhead, bool) and 0 <= max_overhead < np.inf:
        return graph.base_cost * (1 + max_overhead)
    raise CostError(
        f'max_overhead is {max_overhead!r}; give a share of the step\'s cost (0.1 for 10% more) or "one-forward"'
    )


def scaled(graph: Graph, batch_size: int, fixed_bytes: int) -> Graph:
    """The graph of `batch_size` samples, from that of one: everything but `fixed_bytes` grows with the batch."""
    return replace(
        graph,
        costs=graph.costs * batch_size,
        sizes=graph.sizes * batch_size,
        workspace=graph.workspace * batch_size,
        held=graph.held * batch_size,
        constant_bytes=fixed_bytes + batch_size * (graph.constant_bytes - fixed_bytes),
    )


def one_sample(graph: Graph, fixed_bytes: int | None) -> tuple[Graph, int]:
    """Split the graph of one sample: what grows with the batch, as a graph, and the bytes of what does not grow.

    Raises
    ------
    BudgetError
        If `fixed_bytes` is not part of the graph's constants.
    """
    fixed = graph.constant_bytes if fixed_bytes is None else int(fixed_bytes)
    if not 0 <= fixed <= graph.constant_bytes:
        raise BudgetError(
            f"fixed_bytes is {fixed}, but the graph's constant_bytes are {graph.constant_bytes}; give a number "
            "from 0 to that"
        )
    return replace(graph, constant_bytes=graph.constant_bytes - fixed), fixed


def most_batch(one: Graph) -> int:
    """The largest batch whose graph has bytes and costs that are numbers still: at least 1, at most `MOST_BATCH`."""
    columns = (one.sizes, np.abs(one.workspace), one.held)
    bytes_all = one.constant_bytes + sum(int(column.sum()) for column in columns)
    by_cost = sys.float_info.max / 4 / max(one.base_cost, 1.0)  # a limit may be twice the cost
    return int(max(1, min(MOST_BATCH, MOST_BYTES // max(bytes_all, 1), by_cost)))


def samples(room_bytes: int, peak_bytes: float, most: int = MOST_BATCH) -> int:
    """How many samples of this peak fit, up to so many."""
    if room_bytes < 0:
        return 0
    return int(min(room_bytes // peak_bytes if peak_bytes > 0 else most, most))


def too_small(memory_bytes: int, fixed_bytes: int, peak_bytes: int, proven: bool) -> InfeasibleBudgetError:
    """The error where not even one sample fits; `peak_bytes` is the least known for one."""
    least = fixed_bytes + peak_bytes
    needs = "needs" if proven else "may need less, but the best schedule that was found for it needs"
    return InfeasibleBudgetError(
        f"one sample {needs} {format_bytes(least)} at this cost ({format_bytes(fixed_bytes)} of it for any batch), and "
        f"the memory is {format_bytes(memory_bytes)}; give more memory, or allow more recomputation",
        memory_bytes,
        least,
        proven=proven,
    )
