"""Steps that Python calls, one by one: each runs as a graph, which is traced once for each plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from ...fit.planned import PlannedStep
from ..batches.sizes import Sizes
from ..frameworks import graphs_are_made

__all__ = ["StepsByPython"]


class _Planner(Protocol):
    """What is asked of a controller."""

    key: Any
    plans: dict[Any, PlannedStep]

    def step(self, data: Any) -> Any: ...
    def serves(self, key: Any) -> None: ...
    def sizes(self, data: Any) -> Sizes: ...
    def trained(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class _Traced:
    """A step that was traced.

    Attributes
    ----------
    run : callable (data) -> result
    key : key of plans
        That of its plan.
    planned : PlannedStep
        As it was then. Its schedule is what the trace has.
    """

    run: Callable[[Any], Any]
    key: Any
    planned: PlannedStep


class StepsByPython:
    """The functions of a controller's steps.

    A function that is made anew for each step would draw the same random numbers each time: kernels begin anew with it.

    Parameters
    ----------
    planner : Controller
    """

    def __init__(self, planner: _Planner) -> None:
        self._planner = planner
        self._traced: dict[Any, _Traced] = {}

    def __call__(self, data: Any) -> Any:
        """Run a step on a batch for which there is a plan, or will be when it is traced."""
        planner = self._planner
        which = graphs_are_made(), planner.sizes(data), planner.trained()
        known = self._traced.get(which)
        if known is not None and self._is_planned(known):
            planner.serves(known.key)
            return known.run(data)
        run = tf.function(planner.step, autograph=False, reduce_retracing=True)
        result = run(data)
        kept = {k: v for k, v in self._traced.items() if self._is_planned(v)}
        self._traced = {**kept, which: _Traced(run, planner.key, planner.plans[planner.key])}
        return result

    def forget(self) -> None:
        """Let go of all: their graphs hold variables."""
        self._traced = {}

    def _is_planned(self, traced: _Traced) -> bool:
        planned = self._planner.plans.get(traced.key)
        return planned is not None and planned.schedule is traced.planned.schedule
