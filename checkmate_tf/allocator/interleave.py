"""How the operations of a plan may come side by side where threads run whatever is ready.

A plan in loose order says what each computation reads and how many of the plan's first computations it waits for. The
rest is up to TensorFlow's executor. `interleaving` draws one of the ways in which that may go, by list scheduling:

- An operation is ready once all that it reads is there and all that its computation waits for has ended. What is
  ready at first starts in an order that nobody knows.
- When an operation ends, its thread goes on with the last one that this made ready. The others come to the front of
  the thread's own queue. A thread without work takes from the front of its own queue, or else from the back of
  another's. So a thread follows a branch, and another one begins where it was left. (TensorFlow's executor and Eigen's
  pool of threads do it like that.)
- An operation takes its share of its node's seconds, by the bytes that it reads and makes. Kernels use all cores, so
  k operations that run at once take k times as long.
- Seconds vary, and now and then a thread starts late. On a machine with other work, threads are held up for longer.

**What this does badly.** Costs are those of nodes that run alone. In which order an operation's readers become ready
is known to TensorFlow only; here it is the plan's. Barriers and shapes take no time. And the operations are those that
were traced: where Grappler rewrites them, they wait for other things. It turns c (x y) with a constant c into x (c y).
The inner product then no longer waits for x, and a gradient's may run in the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..numba_jit import numba_jit
from .sequence import Kernels, Runs

__all__ = ["interleaving"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

# From one step to the next, times between allocations of a thread differed by a third to a half (median; MobileNet and
# a transformer, two cores).
_JITTER = 0.4  # of the logarithm of an operation's seconds
_LATE, _LATE_SECONDS = 0.05, 3e-4  # how often a thread starts late, and by how much on average
_OVERHEAD = 5e-6  # seconds of an operation that does nothing

# Where other processes take cores: how often a thread is held up in a step, and for what share of the step on average.
# So one in eight drawn steps of a small autoencoder took 14.7 to 15.0 MB, as some of its steps did beside other work,
# instead of 11.0; of those whose threads are late as above, one of 400.
_HELD_UP, _HELD_UP_SHARE = 16, 0.03


def interleaving(
    kernels: Kernels,
    runs: Runs,
    waits: Sequence[int] | Integers,
    seconds: Sequence[float] | Floats,
    *,
    threads: int = 2,
    seed: int = 0,
    held_up: bool = False,
) -> Integers:
    """A likely order of begins and ends of a plan's operations.

    Parameters
    ----------
    kernels : Kernels
    runs : Runs
        Of the plan's sequence (`linked`).
    waits : (length,) int
        For each computation of the sequence, how many of the first must have finished before it starts: its position
        at most.
    seconds : (n,) float
        What each of the kernels' nodes takes.
    threads : int
    seed : int
        Equal ones give equal orders.
    held_up : bool
        Whether other processes take cores meanwhile.

    Returns
    -------
    (2 r,) int64
        Run i begins where this is i, and ends where it is -i - 1; see `allocated`.

    Raises
    ------
    PlanError
        If a computation waits for itself or a later one, a number of seconds is negative, or there is no thread.

    Notes
    -----
    O(r log r + reads) for r runs. Some milliseconds for 10,000.
    """
    waits, seconds = np.asarray(waits, np.int64), np.asarray(seconds, np.float64)
    late = np.flatnonzero((waits < 0) | (waits > np.arange(len(waits))))
    if len(late):
        raise PlanError(f"computation {late[0]} waits for the first {waits[late[0]]}: give 0 to {late[0]}")
    if len(waits) <= runs.computation.max(initial=-1):
        raise PlanError(f"{len(waits)} waits: give one for each computation of the sequence")
    if len(seconds) < len(kernels.operations) - 1 or not (seconds >= 0).all():
        raise PlanError(f"{len(seconds)} numbers of seconds: give one for each node, none of them negative")
    if threads < 1:
        raise PlanError(f"{threads} threads: give at least one")
    rng = np.random.default_rng(seed)
    count = len(runs.operation)
    work = _seconds_each(kernels, seconds)[runs.operation] * rng.lognormal(0.0, _JITTER, count)
    often, seconds_late = _LATE, _LATE_SECONDS
    if held_up:
        often, seconds_late = _HELD_UP / max(1, count), _HELD_UP_SHARE * float(work.sum())
    pause = np.where(rng.random(count) < often, rng.exponential(seconds_late, count), 0.0)
    rank = rng.permutation(count)
    moments: Integers = simulated(runs, waits, work, pause, rank, threads)
    return moments


def _seconds_each(kernels: Kernels, seconds: Floats) -> Floats:
    """What each operation takes of its node's seconds."""
    moved = np.concatenate([[0], np.cumsum(kernels.bytes)])[kernels.outputs]
    read = np.concatenate([[0], np.cumsum(kernels.bytes[kernels.read])])[kernels.reads]
    weight = np.diff(moved) + np.diff(read) + 1.0
    node = np.repeat(np.arange(len(kernels.operations) - 1), np.diff(kernels.operations))
    whole = np.bincount(node, weight, len(kernels.operations) - 1)
    share: Floats = seconds[node] * weight / whole[node] + _OVERHEAD
    return share


@numba_jit
def simulated(runs: Runs, waits: Integers, work: Floats, pause: Floats, rank: Integers, threads: int) -> Any:
    """Begins and ends of runs, given the seconds that each takes alone, how much later it starts, and its rank."""
    count, computations = len(runs.operation), len(waits)
    after, reader = _readers(runs)
    missing = np.empty(count, np.int64)  # how much a run waits for: copies that it reads, and the gate
    unfinished = np.zeros(computations, np.int64)  # runs of each computation
    gate = np.full(computations + 1, -1, np.int64)  # the first run that waits for so many computations
    following = np.full(count, -1, np.int64)  # the next one that does
    for run in range(count - 1, -1, -1):
        wait = waits[runs.computation[run]]
        following[run], gate[wait] = gate[wait], run
        missing[run] = 1 + runs.reads[run + 1] - runs.reads[run]
        unfinished[runs.computation[run]] += 1
    queue = np.empty((threads, 2 * count + 1), np.int64)
    head = np.full(threads, count, np.int64)  # of each thread's queue
    tail = np.full(threads, count, np.int64)
    mine = np.full(threads, -1, np.int64)  # the run of each thread
    begun = np.zeros(threads, np.bool_)
    remaining = np.zeros(threads, np.float64)  # seconds until it begins, or of its work
    ready = np.empty(count, np.int64)
    moments = np.empty(2 * count, np.int64)
    finished, passed, events = 0, -1, 0
    ended, place = -1, 0  # the run that has just ended, and its thread
    while events < 2 * count:
        found = 0
        if ended >= 0:
            for copy in range(runs.makes[ended], runs.makes[ended + 1]):
                for e in range(after[copy], after[copy + 1]):
                    missing[reader[e]] -= 1
                    if missing[reader[e]] == 0:
                        ready[found] = reader[e]
                        found += 1
            unfinished[runs.computation[ended]] -= 1
        while finished < computations and unfinished[finished] == 0:
            finished += 1
        while passed < finished:
            passed += 1
            run = gate[passed]
            while run >= 0:
                missing[run] -= 1
                if missing[run] == 0:
                    ready[found] = run
                    found += 1
                run = following[run]
        if ended >= 0:
            for i in range(found - 1):
                head[place] -= 1
                queue[place, head[place]] = ready[i]
            if found > 0:
                mine[place], remaining[place], begun[place] = ready[found - 1], pause[ready[found - 1]], False
        elif found > 0:  # what is ready at first
            ready[:found] = ready[:found][np.argsort(rank[ready[:found]])]
            for i in range(found):
                queue[0, tail[0]] = ready[i]
                tail[0] += 1
        for t in range(threads):
            if mine[t] < 0:
                run = -1
                if tail[t] > head[t]:
                    run = queue[t, head[t]]
                    head[t] += 1
                else:
                    for other in range(t + 1, t + threads):
                        u = other % threads
                        if run < 0 and tail[u] > head[u]:
                            tail[u] -= 1
                            run = queue[u, tail[u]]
                if run >= 0:
                    mine[t], remaining[t], begun[t] = run, pause[run], False
        active, soon, place = 0, np.inf, -1
        for t in range(threads):
            active += mine[t] >= 0 and begun[t]
        for t in range(threads):
            if mine[t] >= 0:
                seconds = remaining[t] * active if begun[t] else remaining[t]
                if seconds < soon:
                    soon, place = seconds, t
        for t in range(threads):
            if mine[t] >= 0:
                remaining[t] = max(0.0, remaining[t] - (soon / active if begun[t] else soon))
        run, ended = mine[place], -1
        if begun[place]:
            moments[events] = ~run
            mine[place], ended = -1, run
        else:
            moments[events] = run
            begun[place], remaining[place] = True, work[run]
        events += 1
    return moments


@numba_jit
def _readers(runs: Runs) -> Any:
    """The runs that read copy i: reader[after[i]:after[i + 1]], in plan order."""
    copies = runs.makes[len(runs.makes) - 1]
    after = np.zeros(copies + 1, np.int64)
    for copy in runs.copy:
        after[copy + 1] += 1
    after = np.cumsum(after)
    at = after[:-1].copy()
    reader = np.empty(len(runs.copy), np.int64)
    for run in range(len(runs.operation)):
        for e in range(runs.reads[run], runs.reads[run + 1]):
            reader[at[runs.copy[e]]] = run
            at[runs.copy[e]] += 1
    return after, reader
