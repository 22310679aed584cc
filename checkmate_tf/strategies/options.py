"""What every strategy is asked with: one frozen value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..units import is_real, is_whole

__all__ = ["MoccasinOptions", "Order", "Progress", "SolveOptions"]

Progress = Callable[[float, float, float, float], None]

Order = Literal["fixed", "free"]
"""Of first computations: that of the graph, or any that inputs and effects allow."""


@dataclass(frozen=True)
class MoccasinOptions:
    """What only Moccasin takes into account: "moccasin", "moccasin-free", and Moccasin's part in "checkmate".

    Parameters
    ----------
    copies : int or sequence of n int
        How often CP-SAT may compute a node: Moccasin's C, or one C_v for each node.
    workers : int
        Threads of CP-SAT. 0: one for each core. In "checkmate": one for each core but two, which have other work.

    Raises
    ------
    ValueError
        If `copies` allows a node no computation at all, or there are fewer than 0 threads.
    """

    copies: int | Sequence[int] = 2
    workers: int = 0

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ValueError(f"workers is {self.workers!r}; give a number of threads, or 0 for one a core")
        if min([self.copies] if isinstance(self.copies, int) else self.copies, default=1) < 1:
            raise ValueError(f"copies is {self.copies!r}; each node is computed at least once")


@dataclass(frozen=True)
class SolveOptions:
    """Limits of a solve, for any strategy.

    Parameters
    ----------
    time_limit : float
        Seconds. Then the best schedule found so far is returned.
    gap : float
        Stop when (cost - lower bound) / cost is proven to be at most this.
    seed : int
        Of the random search, 0 or more: with another one it takes another course.
    solver : str
        For strategies that solve programs: "auto" (one that is installed, licensed and fits the program), "gurobi",
        "highs", "scip", "cp-sat" or "pdlp".
    memory_limit : int, optional
        Bytes that a solver's process may take. A process that needs more is ended, and what it found is used. Default:
        no limit.
    settle : bool
        Stop early if a user who waits would gain little. In fixed order two things must hold: the lower bound is final,
        or has not moved for half of the time; and the last quarter of the time has saved less than 0.05% of the base
        cost. In free order, whose bound is there from the start, the last half of the time, two seconds or more in all,
        has saved less than 0.05% of the base cost for each second. "checkmate" also looks for a first schedule for
        three seconds only, or a hundredth of one for each node, before it turns to the least budget.
    order : "fixed" or "free"
        Of first computations, for "checkmate"; other strategies have an order of their own. "fixed": the graph's, as in
        problem (9). "free": the search chooses it, too, and the lower bound holds for any order.
    progress : callable, optional
        Called with (seconds, best cost, lower bound, gap) about once a second; costs in the graph's unit. The best
        cost is infinite until a schedule is found.
    moccasin : MoccasinOptions
        What only Moccasin takes into account.

    Raises
    ------
    ValueError
        If a limit is negative or not a number, the seed is no whole number, or there is no such order.
    """

    time_limit: float = 60.0
    gap: float = 0.01
    seed: int = 0
    solver: str = "auto"
    memory_limit: int | None = None
    settle: bool = False
    order: Order = "fixed"
    progress: Progress | None = None
    moccasin: MoccasinOptions = MoccasinOptions()

    def __post_init__(self) -> None:
        if not (is_real(self.time_limit) and self.time_limit > 0):
            raise ValueError(f"time_limit is {self.time_limit!r}; give a number of seconds above 0")
        if not (is_real(self.gap) and self.gap >= 0):
            raise ValueError(f"gap is {self.gap!r}; give a fraction of the cost, 0.01 for 1%, or 0 for the optimum")
        if not is_whole(self.seed, 0):
            raise ValueError(f"seed is {self.seed!r}; give a whole number, 0 or more")
        object.__setattr__(self, "seed", int(self.seed))  # NumPy's numbers serve, too, and are none to JSON
        if self.order not in get_args(Order):
            raise ValueError(f'order is {self.order!r}; give "fixed" (the graph\'s) or "free"')
