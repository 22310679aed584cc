"""Griewank and Walther's revolve: optimal checkpointing of a linear network with a given number of snapshots.

Andreas Griewank, Andrea Walther: Algorithm 799: revolve, an implementation of checkpointing for the reverse or adjoint
mode of computational differentiation (ACM TOMS 26, 2000); a baseline of Checkmate (Jain et al., MLSys 2020), Table 1.

To go back through l steps of a chain with room for c states, the first of them given, takes at least

    t(l, c) = min_{0 < m < l} m + t(l - m, c - 1) + t(m, c),    t(1, c) = 0,    t(l, 1) = l (l - 1) / 2

steps forward: go m steps, take a snapshot, go back through the rest, and then, the snapshot's room free again, through
the first m. With beta(c, r) = (c + r)! / (c! r!) and r the repetition number, beta(c, r - 1) < l <= beta(c, r),

    t(l, c) = r l - beta(c + 1, r - 1),

and every m is optimal that has both parts done within their repetition numbers (`split`).

**On a graph.** The states are the forward values that the backward pass goes back to one by one; the first is the
network's input, which is always in memory. A snapshot is a value held until it is reached. What one backward node reads
and the next one reads as well is held between the two, so a gradient that reads its layer's input and output costs no
more than one that reads only one of them. Values between two states belong to the step.

The largest number of snapshots whose schedule fits the budget is taken. Snapshots are counted, not weighed: steps of
unequal cost or size are treated as equal, which is where this is far from optimal.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import replace
from math import comb

import numpy as np

from ...graph import Graph
from ...schedule import Schedule
from ..options import SolveOptions
from .keepset import does_not_fit, droppable, forward_end, missing, plain_schedule, require_chain

__all__ = ["forward_steps", "griewank", "revolve", "split"]

_LENGTH = 1_000_000  # computations in a schedule, at most
_MANY = 256  # states; with more, not every number of snapshots is tried


def griewank(graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
    """The schedule of revolve with the most snapshots that fit.

    Raises
    ------
    StrategyError
        If the forward pass is not linear.
    InfeasibleBudgetError
        If no number of snapshots gives a schedule that fits.

    Notes
    -----
    Every number is tried, from the most on, in chains of up to 256 states. In longer ones the largest that fits is
    found by bisection, as if fewer snapshots never needed more memory, and numbers that give more than a million
    computations are left out.
    """
    begun = time.perf_counter()
    plain = plain_schedule(graph, budget_bytes, "griewank")
    if plain is not None:
        return plain
    require_chain(graph, "griewank")
    most = len(_states(graph))
    few = most <= _MANY
    found, least = None, np.inf
    low, high = -1, most  # looked for: the largest that fits, above `low` and up to `high`; or `low`, if found
    while low < high and not (few and found):
        snapshots = high if few else (low + high + 1) // 2
        if not few and len(graph) + forward_steps(most + 1, snapshots + 1) > _LENGTH:
            low = snapshots
            continue
        sequence = np.array(revolve(graph, snapshots), dtype=np.int64)
        schedule = Schedule(graph, sequence, strategy="griewank", budget_bytes=budget_bytes)
        least = min(least, schedule.peak_bytes)
        if schedule.peak_bytes <= budget_bytes:
            found, low = schedule, snapshots
        else:
            high = snapshots - 1
        if time.perf_counter() - begun > options.time_limit:
            break
    if found is None:
        raise does_not_fit(graph, budget_bytes, "griewank", int(least))
    return replace(found, seconds=time.perf_counter() - begun)


def revolve(graph: Graph, snapshots: int) -> list[int]:
    """The order of computation of revolve with room for so many snapshots beside the network's input.

    Parameters
    ----------
    graph : Graph
        With a linear forward pass.
    snapshots : int
        Not negative.

    Returns
    -------
    list of int
        Frontier-advancing.
    """
    n, until = len(graph), graph.recompute_until.tolist()
    states, reads = _states(graph), _reads(graph)
    there = bytearray((~droppable(graph)).tobytes())
    sequence: list[int] = []
    taken: list[int] = []  # snapshots, as indices of states, ascending
    carried: list[int] = []
    stages = list(reads)
    for k, t in enumerate(stages):
        low = bisect_left(states, reads[t][0])
        while taken and taken[-1] > low:
            carried.append(states[taken.pop()])
        planned = [] if there[states[low]] else _plan(taken[-1] if taken else -1, low, snapshots - len(taken))
        if not k:  # the forward pass
            again = list(range(t))
            sequence += again
        else:
            sequence += range(stages[k - 1] + 1, t)
            again = missing(graph, t, there, until)
            sequence += again
        sequence.append(t)
        passed = set(again)
        new = [r for r in planned if states[r] in passed]  # not what lies before a value that is kept anyway
        taken += new
        if taken and taken[-1] == low:
            carried.append(states[taken.pop()])
        for i in carried:
            there[i] = 0
        carried = [i for i in reads[t] if k + 1 < len(stages) and i in reads[stages[k + 1]]]
        for i in [*carried, *(states[r] for r in new)]:
            there[i] = 1
    sequence += range(stages[-1] + 1 if stages else 0, n)
    return sequence


def split(steps: int, room: int) -> int:
    """An optimal m: where to take the next snapshot, in steps forward.

    Parameters
    ----------
    steps : int
        l, at least 2.
    room : int
        c, at least 2, the state that is given included.
    """
    repetitions = _repetitions(steps, room)
    return max(_beta(room, repetitions - 2), steps - _beta(room - 1, repetitions), 1)


def forward_steps(steps: int, room: int) -> int:
    """t(l, c): the least steps forward to go back through l steps with room for c states, the given one included."""
    repetitions = _repetitions(steps, room)
    return repetitions * steps - _beta(room + 1, repetitions - 1)


def _repetitions(steps: int, room: int) -> int:
    """r with beta(c, r - 1) < l <= beta(c, r)."""
    repetitions = 0
    while _beta(room, repetitions) < steps:
        repetitions += 1
    return repetitions


def _beta(room: int, repetitions: int) -> int:
    return comb(room + repetitions, room) if repetitions >= 0 else 0


def _plan(base: int, target: int, free: int) -> list[int]:
    """Where to take snapshots on the way from one state to another with `free` places for them."""
    planned = []
    while free > 0 and target - base > 1:
        base += split(target - base + 1, free + 1)
        if base >= target:
            break
        planned.append(base)
        free -= 1
    return planned


def _reads(graph: Graph) -> dict[int, list[int]]:
    """For each backward stage that reads values that can be dropped: these, ascending."""
    can_drop = droppable(graph).tolist()
    found = {t: [i for i in graph.inputs[t] if can_drop[i]] for t in range(forward_end(graph), len(graph))}
    return {t: values for t, values in found.items() if values}


def _states(graph: Graph) -> list[int]:
    """The forward values that the backward pass goes back to, ascending: the earliest that each stage reads."""
    return sorted({values[0] for values in _reads(graph).values()})
