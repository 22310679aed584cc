"""How to plan: one frozen value, checked when it is made."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict, TypeVar, get_args

from ..costs import COST_MODELS, CostSpec
from ..errors import BatchSizeError, OperatorsError, StrategyError
from ..operators import OPERATORS
from ..strategies import STRATEGIES, SolveOptions
from ..strategies.options import Order
from ..units import Budget, is_whole, parse_budget

__all__ = ["Given", "Page", "PlanOptions", "Planning", "Progress", "options_of", "takes_planning"]

Page = Literal["auto", "never"]
"""Whether values may wait in the host's memory."""

Given = Literal["", "arrays", "tensors"]
"""As what whoever trains holds the batch of a step; empty where the step makes it, and frees it."""

Progress = Callable[[str, float, float, str], None]
"""Called with (stage, done, total, text)."""


class Planning(TypedDict, total=False):
    """The keywords of `compile` and `gradient_function` that are about planning, with the types of `PlanOptions`."""

    strategy: str
    costs: CostSpec
    time_limit: float
    gap: float
    seed: int
    verify: bool
    progress: bool | Progress
    cache: bool
    schedule: str | os.PathLike[str] | None
    operators: str
    prefetch: int | None
    max_plans: int
    order: Order
    page: Page


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How to plan.

    Attributes
    ----------
    budget : Budget
    strategy : str
    costs : str, callable or array
        See `checkmate_tf.costs`.
    time_limit : float
        Seconds for the solver, over all its runs.
    gap : float
        Stop solving at this proven gap.
    seed : int
    verify : bool
        Measure the peak on the device, if it can be.
    progress : callable (stage, done, total, text) or None
    cache : bool
        Use a schedule that was solved before, and keep those that are solved now.
    schedule : path or None
        A saved schedule for the first structure of data, to be used instead of solving.
    operators : str
        "default", or "choose": gradients may read codes of forward values instead of the values; see
        `trace.encodings`.
    prefetch : int or None
        Batches that the input pipeline keeps ready beside the one in use, on a CPU; None: as `fit` on arrays does.
    given : "", "arrays" or "tensors"
        Whether whoever trains holds each batch while its step runs, on a CPU. The caller of `train_on_batch` does: as
        tensors that lie in the model's memory, or as arrays, of which TensorFlow makes tensors for the step. `fit`
        makes a batch in its step, which frees it.
    max_plans : int
        Most plans that are kept where inputs come in several sizes. What comes in more sizes trains under the plans of
        larger ones.
    order : "free" or "fixed"
        Of first computations, for "checkmate": searched together with recomputation, or that of the trace. XLA has an
        order of its own.
    page : "auto" or "never"
        Values may wait in the host's memory where that costs less, or not at all.
    jit_compile : bool
        Let XLA compile the planned step.
    sample : sequence of arrays or None
        A batch of the user's data, flattened, to measure with.
    shapes : sequence of tuple of int, or None
        Of each input, where the step is traced with more than the batch dimension open. None stands for the batch.
    same_size : bool
        All batches have the batch size, so a step with loops, or with gradients of gradients, is traced with it known.
        Loops with an open one keep the shapes of every round for the backward pass: a GRU's step took 1.27 to 1.55
        times as long. Gradients of gradients are added in another order with an open one.
    enlarged : bool
        The sample has more values than came, so nothing is added to the sizes that data decides.
    came : sequence of arrays or None
        The batch as it came, if the sample was enlarged. Steps are measured with both in turn: with fewer values,
        others of the allocator's free chunks fit.
    tries : int
        Most plans to measure.

    Raises
    ------
    StrategyError, CostError
        If there is no strategy, no way of paging, or no cost model, of that name.
    ValueError
        If `time_limit` or `gap` is no limit, `seed` is no whole number, or there is no such order.
    OperatorsError
        If `operators` is unknown, or is "choose" while a schedule is given.
    BatchSizeError
        If `prefetch` is not a whole number of batches, or `max_plans` is no number of plans.
    """

    budget: Budget = field(default_factory=lambda: parse_budget("auto"))
    strategy: str = "checkmate"
    costs: CostSpec = "profile"
    time_limit: float = 60.0
    gap: float = 0.002
    seed: int = 0
    verify: bool = True
    progress: Progress | None = None
    cache: bool = True
    schedule: str | os.PathLike[str] | None = None
    operators: str = "default"
    prefetch: int | None = None
    given: Given = ""
    max_plans: int = 8
    order: Order = "free"
    page: Page = "auto"
    jit_compile: bool = False
    sample: Sequence[Any] | None = None
    shapes: Sequence[tuple[int | None, ...]] | None = None
    same_size: bool = False
    enlarged: bool = False
    came: Sequence[Any] | None = None
    tries: int = 5

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise StrategyError(f"strategy {self.strategy!r} is unknown; choose one of {', '.join(sorted(STRATEGIES))}")
        if isinstance(self.costs, str):
            COST_MODELS.find(self.costs)
        SolveOptions(
            time_limit=self.time_limit, gap=self.gap, seed=self.seed, order=self.order
        )  # refuses what no solver takes
        if self.operators not in OPERATORS:
            raise OperatorsError(f'operators={self.operators!r} is unknown: use "default" or "choose"')
        if self.operators == "choose" and self.schedule is not None:
            raise OperatorsError(
                'a saved schedule is one of the plain step: operators="choose" does not go with schedule=; '
                "leave one of them out"
            )
        if self.page not in get_args(Page):
            raise StrategyError(f'page={self.page!r} is unknown: use "auto" or "never"')
        if self.prefetch is not None and not is_whole(self.prefetch, 0):
            raise BatchSizeError(
                f"prefetch={self.prefetch!r} is not a whole number of batches: give 0 or more, or None for as fit() "
                "does"
            )
        if not is_whole(self.max_plans, 1):
            raise BatchSizeError(f"max_plans={self.max_plans!r} is not a whole number of plans: give 1 or more")

    def tell(self, stage: str, done: float, total: float, text: str = "") -> None:
        """Report progress, if anybody listens."""
        if self.progress is not None:
            self.progress(stage, done, total, text)


def options_of(budget: object, planning: Planning) -> tuple[PlanOptions, bool | Progress]:
    """Make options of a budget and the keywords of `Planning`.

    Also returns what was said of progress: True asks for bars, which are not made here.

    Raises
    ------
    TypeError
        If there is no such keyword.
    CheckmateError
        As `parse_budget` and `PlanOptions`.
    """
    given: dict[str, Any] = dict(planning)
    unknown = [key for key in given if key not in Planning.__annotations__]
    if unknown:
        more = f"besides its own arguments there are {', '.join(Planning.__annotations__)}"
        raise TypeError(f"there is no argument {unknown[0]!r}; {more}")
    progress = given.pop("progress", True)
    return PlanOptions(budget=parse_budget(budget), **given), progress


F = TypeVar("F", bound=Callable[..., Any])


def takes_planning(function: F) -> F:
    """Decorate a function that takes `Planning` as keywords: its signature then shows each, with its default."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    defaults = {f.name: f.default for f in fields(PlanOptions)} | {"progress": True}
    keywords = [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=defaults[key], annotation=kind.__forward_arg__)
        for key, kind in Planning.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *keywords])  # type: ignore[attr-defined]
    return function
