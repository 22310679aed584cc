"""What a strategy is, and all of them by name.

A strategy is a function (Graph, budget in bytes, SolveOptions) -> Schedule: `StrategyFunction`. Its module is imported
when it is first asked for. So an entry of `STRATEGIES` holds no function but a small loader, which imports one and
returns it. The loader's return type is the protocol, so the type checker compares every strategy with it.
`register` adds a strategy of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from ..errors import StrategyError
from ..graph import Graph
from ..schedule import Schedule
from .options import SolveOptions

__all__ = ["STRATEGIES", "Strategy", "StrategyFunction", "Trait", "register"]

Trait = Literal[True, False, "partly"]


class StrategyFunction(Protocol):
    """What every strategy implements."""

    def __call__(self, graph: Graph, budget_bytes: int, options: SolveOptions) -> Schedule:
        """A schedule of `graph` that takes at most `budget_bytes`, constants included.

        Parameters
        ----------
        graph : Graph
        budget_bytes : int
            Constants included.
        options : SolveOptions
            Limits. A strategy ignores those that it has no use for.

        Raises
        ------
        InfeasibleBudgetError
            If no schedule fits the budget, or none was found.
        StrategyError
            If the strategy cannot schedule this graph, or a solver that it needs is missing.
        """


@dataclass(frozen=True)
class Strategy:
    """A system and its traits, as in Table 1 of Checkmate.

    Attributes
    ----------
    load : callable () -> StrategyFunction
        Gives the function. Its module is imported when this is first called.
    title, source : str
        What it does, in a few words, and the paper that it is from.
    general : True, False or "partly"
        Whether it takes any graph. "partly": it takes any, but in many finds few places to cut; or it takes any that
        has a backward pass.
    cost_aware : True, False or "partly"
        Whether it takes into account what each node costs.
    memory_aware : True, False or "partly"
        Whether it works towards the budget. "partly": it makes schedules without it, and takes one that fits.
    proves : bool
        Whether its schedules come with a lower bound above the base cost.
    """

    load: Callable[[], StrategyFunction]
    title: str
    source: str
    general: Trait
    cost_aware: Trait
    memory_aware: Trait
    proves: bool = False

    @property
    def where(self) -> str:
        """Module and name of the function, "package.module:name". It is imported to tell."""
        function: object = self.load()
        return f"{getattr(function, '__module__', '')}:{getattr(function, '__name__', '')}"


def _checkmate() -> StrategyFunction:
    from .checkmate import checkmate

    return checkmate


def _checkpoint_all() -> StrategyFunction:
    from .baselines.checkpoint_all import checkpoint_all

    return checkpoint_all


def _least_peak() -> StrategyFunction:
    from .baselines.ordered import ordered

    return ordered


def _griewank() -> StrategyFunction:
    from .baselines.griewank import griewank

    return griewank


def _chen_sqrt() -> StrategyFunction:
    from .baselines.chen import chen_sqrt

    return chen_sqrt


def _chen_greedy() -> StrategyFunction:
    from .baselines.chen import chen_greedy

    return chen_greedy


def _ap_sqrt() -> StrategyFunction:
    from .baselines.articulation import ap_sqrt

    return ap_sqrt


def _ap_greedy() -> StrategyFunction:
    from .baselines.articulation import ap_greedy

    return ap_greedy


def _linearized_sqrt() -> StrategyFunction:
    from .baselines.linearized import linearized_sqrt

    return linearized_sqrt


def _linearized_greedy() -> StrategyFunction:
    from .baselines.linearized import linearized_greedy

    return linearized_greedy


def _milp() -> StrategyFunction:
    from .programs.milp import milp

    return milp


def _lp_rounding() -> StrategyFunction:
    from .programs.rounding import lp_rounding

    return lp_rounding


def _lp_rounding_random() -> StrategyFunction:
    from .programs.rounding import lp_rounding_random

    return lp_rounding_random


def _twremat() -> StrategyFunction:
    from .treewidth.twremat import twremat

    return twremat


def _xla_greedy() -> StrategyFunction:
    from .xla_greedy import xla_greedy

    return xla_greedy


def _moccasin() -> StrategyFunction:
    from .moccasin.moccasin import moccasin

    return moccasin


def _moccasin_free() -> StrategyFunction:
    from .moccasin.moccasin import moccasin_free

    return moccasin_free


def _monet_noop() -> StrategyFunction:
    from .monet.monet import monet_noop

    return monet_noop


_REVOLVE, _CHEN = "Griewank and Walther, TOMS 2000", "Chen et al., 2016"
_JAIN, _TREES = "Jain et al., MLSys 2020", "Kumar et al., NeurIPS 2019"
_LIU = "Liu, SIAM J. Alg. Disc. Meth. 1987"
_BARTAN, _SHAH = "Bartan et al., ICML 2023", "Shah et al., ICLR 2021"

STRATEGIES: dict[str, Strategy] = {
    "checkmate": Strategy(_checkmate, "search and proven bound for problem (9)", _JAIN, True, True, True, proves=True),
    "checkpoint-all": Strategy(_checkpoint_all, "nothing is recomputed", _JAIN, True, False, False),
    "least-peak": Strategy(_least_peak, "nothing is recomputed, in an order of least peak", _LIU, True, False, True),
    "griewank": Strategy(_griewank, "revolve, chains only", _REVOLVE, False, False, "partly"),
    "chen-sqrt": Strategy(_chen_sqrt, "sqrt(n) segments, chains only", _CHEN, False, False, False),
    "chen-greedy": Strategy(_chen_greedy, "segments of a size, chains only", _CHEN, False, False, "partly"),
    "ap-sqrt": Strategy(_ap_sqrt, "sqrt(n) of the points of articulation", _JAIN, "partly", False, False),
    "ap-greedy": Strategy(_ap_greedy, "segments between points of articulation", _JAIN, "partly", False, "partly"),
    "linearized-sqrt": Strategy(_linearized_sqrt, "sqrt(n) of all nodes", _JAIN, True, False, False),
    "linearized-greedy": Strategy(_linearized_greedy, "segments of a size, of all nodes", _JAIN, True, False, "partly"),
    "milp": Strategy(_milp, "problem (9) in a solver of programs", _JAIN, True, True, True, proves=True),
    "lp-rounding": Strategy(_lp_rounding, "relaxation, rounded in two phases", _JAIN, True, True, True),
    "lp-rounding-random": Strategy(_lp_rounding_random, "relaxation, rounded at random", _JAIN, True, True, True),
    "twremat": Strategy(_twremat, "divide and conquer on a tree decomposition", _TREES, True, False, "partly"),
    "xla-greedy": Strategy(_xla_greedy, "the greedy pass of XLA, as in that paper", _TREES, True, False, True),
    "moccasin": Strategy(_moccasin, "retention intervals in the input order", _BARTAN, True, True, True),
    "moccasin-free": Strategy(_moccasin_free, "retention intervals in any order", _BARTAN, True, True, True),
    "monet-noop": Strategy(_monet_noop, "forward values by stages of the backward pass", _SHAH, "partly", True, True),
}
"""Every strategy by its name. `register` adds one."""


def register(name: str, strategy: Strategy) -> None:
    """Add a strategy of one's own, for as long as this process lives.

    Parameters
    ----------
    name : str
        What `solve` and `compile` are asked with.
    strategy : Strategy

    Raises
    ------
    StrategyError
        If the name is empty or taken, or this is no `Strategy`.

    Examples
    --------
    >>> register("mine", Strategy(lambda: mine, "what it does", "where from", True, True, True))  # doctest: +SKIP
    """
    if not isinstance(strategy, Strategy):
        raise StrategyError(
            f"strategy {name!r} is given as {type(strategy).__name__}; give a Strategy, whose `load` returns the "
            "function"
        )
    if not name:
        raise StrategyError("a strategy needs a name that is not empty")
    if name in STRATEGIES:
        raise StrategyError(f"strategy {name!r} is there already ({STRATEGIES[name].title}); choose another name")
    STRATEGIES[name] = strategy
