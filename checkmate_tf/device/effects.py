"""What a step does to the world besides its variables. Measured steps must not do it: it cannot be undone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import tensorflow as tf

from ..trace.ops import DRAW_UNREGISTERED, called_nodes, inputs_of
from ..trace.program import Program
from ..trace.step import TracedStep

__all__ = ["drawn_by_kernels", "left_out", "moved_by", "moved_by_steps"]

_MOVE = ("Iterator", "LookupTableInsert", "LookupTableImport", "LookupTableRemove", "Queue", "Barrier")  # types begin
_CALL_PYTHON = frozenset({"EagerPyFunc", "PyFunc"})  # a function that is declared stateless is another type
_WRITE = frozenset(
    """WriteAudioSummary WriteFile WriteGraphSummary WriteHistogramSummary WriteImageSummary WriteRawProtoSummary
    WriteScalarSummary WriteSummary FlushSummaryWriter""".split()  # noqa: SIM905 - a list of words
)
_PRINT = frozenset({"Print", "PrintV2"})
_TELL = _CALL_PYTHON | _WRITE | _PRINT
_DRAW = frozenset(
    """RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal ParameterizedTruncatedNormal RandomGamma
    RandomPoisson RandomPoissonV2 RandomShuffle Multinomial""".split()  # noqa: SIM905 - a list of words
)
_CHANGE = ("Assign", "Resource", "Rng", "Stateful")  # types begin, of what changes variables and random generators


def moved_by(operations: Iterable[tf.Operation]) -> str:
    """Find what changes a resource other than a variable, such as an iterator or a table.

    Returns
    -------
    str
        The type and name of an operation, empty if there is none. Functions that operations call are looked into.
    """
    return _first(operations, lambda kind: kind.startswith(_MOVE))


def moved_by_steps(program: Program) -> str:
    """Find what a step does that cannot be undone, and that is not left out of measured steps.

    Returns
    -------
    str
        As `moved_by`.
    """
    out = left_out(program)
    rest = [op for op in program.step.operations if op not in out]
    return moved_by(rest) or _first(rest, lambda kind: kind in _CALL_PYTHON | _WRITE)


def left_out(program: Program) -> frozenset[tf.Operation]:
    """The operations that measured steps do without.

    Nobody reads what prints, summaries and some Python functions return. Zeros can stand for what others return, whose
    shapes are known: a Python function may count its calls, or draw random numbers.
    """
    step = program.step
    read = {t.op for op in step.operations for t in inputs_of(op)} | {t.op for t in step.outputs}
    unread = (op for op in step.operations if op not in read and _tells(set(_kinds(op))))
    python = (op for op in step.operations if op.type in _CALL_PYTHON and _has_zeros(op, program))
    return frozenset([*unread, *python])


def _has_zeros(op: tf.Operation, program: Program) -> bool:
    """Whether zeros can stand for what an operation returns."""
    known = all(program.static.tensors[id(t)].shape.is_fully_defined() for t in op.outputs)
    return known and all(t.dtype.is_numpy_compatible and t.dtype != tf.string for t in op.outputs)


def drawn_by_kernels(step: TracedStep) -> str:
    """Find what draws random numbers from a state that its kernel keeps. They begin anew with each emitted step.

    Returns
    -------
    str
        As `moved_by`.
    """
    return _first(step.operations, lambda kind: kind in _DRAW | DRAW_UNREGISTERED)


def _tells(kinds: set[str]) -> bool:
    return bool(kinds & _TELL) and not any(kind.startswith((*_CHANGE, *_MOVE)) for kind in kinds)


def _first(operations: Iterable[tf.Operation], wanted: Callable[[str], bool]) -> str:
    found = ((kind, op) for op in operations for kind in _kinds(op) if wanted(kind))
    return next((f"{kind} {op.name}" for kind, op in found), "")


def _kinds(op: tf.Operation) -> Iterator[str]:
    """The type of an operation, and those of all operations in the functions that it calls."""
    yield op.type
    yield from (node.op for node in called_nodes(op) if node is not None)
