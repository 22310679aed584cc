"""What is found of the largest batch, by prediction and by training for real (`largest_batch`)."""

from __future__ import annotations

from dataclasses import dataclass

from ...schedule import Schedule

__all__ = ["MaxBatch", "Probe", "Verified"]


@dataclass(frozen=True)
class Probe:
    """A batch that was tried.

    Attributes
    ----------
    batch_size : int
    ending : str
        "trained", or what went wrong, in words.
    seconds : float
        What the trial took, starting its process included.
    peak_bytes, step_seconds, overhead : optional
        If it trained: most bytes allocated in a step, median seconds of a step without the first, and the plan's
        recomputation as a share of the step's FLOPs.
    minimum_bytes : int or None
        If no schedule fitted: the least budget that is known to do.
    """

    batch_size: int
    ending: str
    seconds: float = 0.0
    peak_bytes: int | None = None
    step_seconds: float | None = None
    overhead: float | None = None
    minimum_bytes: int | None = None

    @property
    def trained(self) -> bool:
        return self.peak_bytes is not None


@dataclass(frozen=True)
class Verified:
    """The largest batch that trained in the memory, of those that were tried.

    Attributes
    ----------
    batch_size : int
    peak_bytes : int
        Measured by the allocator.
    step_seconds : float
    overhead : float
        Of the plan that trained: recomputation as a share of the step's FLOPs.
    budget_bytes : int
        The memory less the margin for fragments: `checkmate_tf.compile(model, budget_bytes, batch_size=batch_size)`.
    probes : tuple of Probe
        In the order in which they were made.
    """

    batch_size: int
    peak_bytes: int
    step_seconds: float
    overhead: float
    budget_bytes: int
    probes: tuple[Probe, ...]


@dataclass(frozen=True, eq=False)
class MaxBatch:
    """The largest batch found, and what is proved about it.

    Attributes
    ----------
    batch_size : int
    upper_bound : int
        Proven: no schedule in the graph's order and within the cost limit trains more samples; in the forms of problem
        (9), none in its stages. In another order more may fit.
    schedule : Schedule
        The schedule for that batch. Its graph has the sizes and costs of `batch_size` samples.
    memory_bytes : int
        The memory that was asked about.
    fixed_bytes : int
        The part of it that does not grow with the batch.
    max_cost : float
        The cost limit for that batch, in the graph's unit.
    seconds : float
    verified : Verified or None
        What trained in that memory for real, if that was tried. All other attributes are predictions.
    """

    batch_size: int
    upper_bound: int
    schedule: Schedule
    memory_bytes: int
    fixed_bytes: int
    max_cost: float
    seconds: float
    verified: Verified | None = None

    @property
    def status(self) -> str:
        """ "optimal" if the bound is reached, else "feasible"."""
        return "optimal" if self.batch_size >= self.upper_bound else "feasible"
