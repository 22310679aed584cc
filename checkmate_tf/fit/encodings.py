"""Which gradients read codes: implementations of operators, chosen together with the schedule.

The step with every encoding contains the plain one: a schedule that keeps a value and encodes it when its code is
needed differs from the plain step by the encoding's own cost alone. So one schedule of that step, compared with one of
the plain step, tells which encodings pay: those whose value is gone when the code is read. The others are taken back,
and what remains is solved again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..errors import InfeasibleBudgetError, OperatorsError
from ..graph import Graph
from ..operators import OPERATORS
from ..plan import ALLOCATE, COMPUTE, DEALLOCATE
from ..schedule import Schedule
from ..strategies import SolveOptions, solve
from ..trace.encodings import EncodedStep, Encoding, encoded, find_encodings
from ..trace.program import Program
from ..trace.step import TracedStep
from .job import Job, timed

__all__ = ["Choice", "check_operators", "choose_encodings"]

_ROUNDS = 3
_SHARE = 0.25  # of the time limit for solving


@dataclass(frozen=True, eq=False)
class Choice:
    """A job whose program has some encodings."""

    job: Job
    encodings: tuple[Encoding, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many of each kind."""
        return dict(Counter(e.kind for e in self.encodings))


def check_operators(operators: str, schedule: object) -> None:
    """Whether the argument of `compile` is one that can be served.

    Raises
    ------
    OperatorsError
        If not.
    """
    if operators not in OPERATORS:
        raise OperatorsError(f'operators={operators!r} is unknown: use "default" or "choose"')
    if operators == "choose" and schedule is not None:
        raise OperatorsError('a saved schedule is one of the plain step: operators="choose" does not go with schedule=')


def choose_encodings(job: Job, build: Callable[[TracedStep], tuple[Program, Graph]]) -> Choice:
    """The encodings with which the first schedule costs least, or needs least memory if none fits.

    Parameters
    ----------
    job : Job
        Of the plain step.
    build : callable
        From a traced step to its program, and its graph with costs.
    """
    step = job.program.step
    target = job.first_target_bytes
    best, left = Choice(job, ()), tuple(find_encodings(step, pools=job.device.is_cpu))
    job.options.tell("codes", 0, _ROUNDS + 1, f"{len(left)} gradients can read some")
    rank, _ = _first(job, target)
    for number in range(1, _ROUNDS + 1):
        if not left:
            break
        job.options.tell("codes", number, _ROUNDS + 1, f"{len(left)} gradients read some")
        candidate = encoded(step, left)
        program, graph = build(candidate.step)
        with_codes = replace(job, program=program, graph=graph, codes=len(left), plain_cost=job.graph.base_cost)
        choice = Choice(with_codes, left)
        found, schedule = _first(choice.job, target)
        if found < rank:
            best, rank = choice, found
        kept = () if schedule is None else _paying(program, schedule, candidate, left)
        if len(kept) == len(left):
            break
        left = kept
    job.options.tell("codes", 1, 1, f"{best.job.codes} gradients read some")
    return best


def _first(job: Job, target: int) -> tuple[tuple[int, float], Schedule | None]:
    """How good the first schedule is, less is better: (0, cost) if it fits, else (bytes that are needed, 0)."""
    options = job.options
    with timed(job.seconds, "solve"):
        limits = SolveOptions(
            time_limit=_SHARE * options.time_limit / (_ROUNDS + 1), gap=options.gap, seed=options.seed
        )
        try:
            schedule = solve(job.graph, target, options.strategy, limits)
        except InfeasibleBudgetError as error:
            return (error.minimum_bytes, 0.0), None
    return (0, schedule.cost), schedule


def _paying(
    program: Program, schedule: Schedule, candidate: EncodedStep, encodings: Sequence[Encoding]
) -> tuple[Encoding, ...]:
    """The encodings of which something is not in memory that the gradient would read without them."""
    readers: dict[int, list[Encoding]] = {}
    paying: dict[Encoding, None] = {}
    for e in encodings:
        node = program.node_of.get(candidate.operations[e.gradient])
        if node is None:  # a view of the code: it is read by others, later
            paying[e] = None
        else:
            readers.setdefault(node, []).append(e)
    owner = lambda t: program.source_of(candidate.tensors[id(t)]).op  # noqa: E731 - a short callback
    spared = {e: [program.node_of.get(owner(t), -1) for t in e.spared] for e in encodings}
    alive: Counter[int] = Counter()
    for op, node, *_ in schedule.plan.statements:
        if op == ALLOCATE:
            alive[node] += 1
        elif op == DEALLOCATE:
            alive[node] -= 1
        elif op == COMPUTE:
            paying |= {e: None for e in readers.get(node, ()) if any(k >= 0 and not alive[k] for k in spared[e])}
    return tuple(e for e in encodings if e in paying)
