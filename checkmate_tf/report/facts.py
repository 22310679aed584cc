"""What is known of a plan: the values of a `Report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..allocator.steps import expected_most
from ..schedule import Schedule
from ..units import format_bytes
from .memory_use import MemoryUse
from .paged import Paged, paged_of

__all__ = ["Attempt", "Facts", "Peak"]


@dataclass(frozen=True)
class Peak:
    """Most bytes allocated on a device in several steps.

    Attributes
    ----------
    bytes : int
        The most of all steps.
    sure_bytes : int
        What no later step is expected to exceed: see `expected_most`.
    seconds : float
        The least that a step took: other work on the machine makes the others slower.
    """

    bytes: int
    sure_bytes: int
    seconds: float

    @classmethod
    def of(cls, steps: Sequence[int], seconds: Sequence[float], kinds: int = 1) -> Peak:
        """Of the peaks of several steps, of which so many kinds take turns, and what each took."""
        return cls(max(steps), expected_most(steps, kinds), min(seconds))

    def __str__(self) -> str:
        more = f" (at most {format_bytes(self.sure_bytes)} expected)" if self.sure_bytes > self.bytes else ""
        return format_bytes(self.bytes) + more


@dataclass(frozen=True)
class Attempt:
    """One plan that was tried on the device.

    Attributes
    ----------
    target_bytes : int
        What the schedule had to fit, by prediction.
    predicted_bytes : int
        The schedule's peak by the evaluator.
    peak : Peak or None
        Measured by the allocator; None if it ran out of memory or could not be measured.
    overhead : float
        Predicted cost over the plain step's, minus 1.
    strict : bool
        Whether computations keep one strict order.
    codes : int
        How many gradients read codes.
    placed_bytes : int or None
        The schedule's peak by the model of the device's allocator; None if there is none.
    copies : int
        How many values it copies to the host.
    """

    target_bytes: int
    predicted_bytes: int
    peak: Peak | None
    overhead: float
    strict: bool = False
    codes: int = 0
    placed_bytes: int | None = None
    copies: int = 0

    @property
    def measured_bytes(self) -> int | None:
        """The most of all steps that were measured."""
        return None if self.peak is None else self.peak.bytes


@dataclass(frozen=True)
class Facts:
    """The fields of a `Report`, which explains them, and what follows from them."""

    model: str
    device: str
    batch_size: int
    asked: str
    budget_bytes: int
    plain_peak_bytes: int
    predicted_peak_bytes: int
    measured_peak_bytes: int | None
    not_measured: str
    foreign_bytes: int
    variable_bytes: int
    input_bytes: int
    costs: str
    attempts: tuple[Attempt, ...]
    seconds: Mapping[str, float]
    schedule: Schedule = field(repr=False)
    training_peak_bytes: int | None = None
    sure_bytes: int | None = None
    expected_bytes: tuple[int, ...] = ()
    exceeded_bytes: tuple[int, ...] = ()
    replicas: int = 1
    encodings: Mapping[str, int] = field(default_factory=dict)
    plain_cost: float | None = None
    strict: bool = False
    strict_cost: float | None = None
    packed_peak_bytes: int | None = None
    placed_peak_bytes: int | None = None
    memory_map: MemoryUse | None = field(default=None, repr=False)

    @property
    def base_cost(self) -> float:
        """Cost of the plain step, in the unit of the costs."""
        return self.schedule.graph.base_cost if self.plain_cost is None else self.plain_cost

    @property
    def overhead(self) -> float:
        return self.schedule.cost / self.base_cost - 1 if self.base_cost else 0.0

    @property
    def step_ratio(self) -> float:
        """Expected time of a step over the plain step's: recomputation times what strict order was measured to take."""
        order = self.strict_cost if self.strict and self.strict_cost is not None else 1.0
        return (1 + self.overhead) * order

    @property
    def proven_overhead(self) -> float:
        base = self.base_cost
        return max(0.0, self.schedule.lower_bound / base - 1) if base else 0.0

    @property
    def replanned(self) -> int:
        """How many plans were made anew, to leave room for what else is on the device."""
        return len(self.expected_bytes) + len(self.exceeded_bytes)

    @property
    def recomputations(self) -> int:
        """How many computations the plan adds to those of the plain step. What is brought back is not computed."""
        return int((self.schedule.evaluation.counts[: self.nodes] - 1).sum())

    @property
    def paged(self) -> Paged | None:
        """What the plan copies to the host; None if it copies nothing."""
        return paged_of(self.schedule)

    @property
    def nodes(self) -> int:
        """How many nodes the step has, those that copy apart."""
        return self.schedule.graph.first_copy
